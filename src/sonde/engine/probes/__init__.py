"""Hooks that deliver tensors to subscribers and statistics, and the probe that owns them."""
