"""The execution graph at rest: its data, its check, and passes over it."""
