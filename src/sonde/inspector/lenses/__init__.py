"""Lenses: which statistic, of which tensors of which layers, and how it is shown."""
