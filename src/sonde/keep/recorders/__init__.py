"""The five recorders of the second seed; ``sonde.recorders`` is their public name."""
