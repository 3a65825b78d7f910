"""What the page asks of a run: one function for each question, from a run to plain data for JSON. No server is needed."""
