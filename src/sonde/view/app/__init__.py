"""The live page: its answers about runs, the server that shows them in a browser, and the same answers in one file."""
