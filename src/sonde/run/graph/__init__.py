"""The execution graph as plain data: its form, its check, and functions from a graph to a graph."""
