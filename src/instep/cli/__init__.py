"""The commands of the core. `main.py` puts them together; a catalogue brings its own (registry.py)."""
