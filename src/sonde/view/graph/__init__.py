"""The execution graph as text, picture and page."""
