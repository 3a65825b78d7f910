"""Compare the rows of two runs: read them side by side, and find where they part."""
