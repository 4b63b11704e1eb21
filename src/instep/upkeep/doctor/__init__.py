"""`instep doctor`: what commonly bites, checked; each fault with what it means and the statement that mends it.

A check is a function in one of these modules, its SQL in the file of the same name; a catalogue adds its own by
`checks` in its record (`registry.Catalogue`). Each check's planted fault is found and mended in
tests/postgres/test_doctor_*.py; docs/doctor.md explains them to users.
"""
