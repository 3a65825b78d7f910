"""Tables, pictures and HTML pages of what was recorded. Nothing here imports torch."""
