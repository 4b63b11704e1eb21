"""Who takes part in the pipeline benchmark: each is a process of its own that prints one JSON object at its end."""
