"""Reductions: combine many values of a slot into one; ``sonde.recorders.reductions`` is their public name."""
