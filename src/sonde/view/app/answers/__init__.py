"""The answers of the page: one function for each question, from a run to plain data for JSON. No server is needed."""
