"""Lenses: a statistic, the tensors and layers that it measures, and the picture of its numbers."""
