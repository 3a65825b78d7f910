"""The live page: what it answers about runs, the server that says it in a browser, and the same answers in one file."""
