"""`make bench`: what instep is measured by. Each part prints its figures beside a goal and what they were measured on.

Ratios of one run count; absolute figures belong to one machine. Run `python -m benchmarks --help`.
"""
