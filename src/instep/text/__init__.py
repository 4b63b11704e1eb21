"""Pure text work: cleaning, HTML to text, splitting into chunks, segmentation into search tokens, highlights.

Nothing here reads a database, a setting, a clock or a model; every function takes any `str`, lone surrogates
included, and none raises for what it contains.
"""
