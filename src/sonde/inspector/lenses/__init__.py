"""Lenses: a statistic, the ports and layers that it measures, and the way it is shown."""
