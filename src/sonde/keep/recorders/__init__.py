"""The five recorders of torchfunc; ``sonde.recorders`` is their public name."""
