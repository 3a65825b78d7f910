"""Probes: hooks on the modules and parameters of a model, and the way from a hook to the observer."""
