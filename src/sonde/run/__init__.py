"""What is at rest: plain data that needs no model to be read."""
