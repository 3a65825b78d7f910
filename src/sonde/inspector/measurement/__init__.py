"""Measurements: the statistics of all lenses, on the hooks and rows of one model."""
