"""A run's folder as a reader sees it: its parts, its run.json, and SQL over them."""
