"""The house's front: the HTTP API and the pages. Knows no catalogue by name (registry.py)."""
