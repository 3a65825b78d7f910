"""Reductions in one pass: ``reference`` in plain torch, ``native`` for the CPU, ``fused`` for accelerators."""

from sonde.stats.kernels.native import EXPONENTS, MOMENTS, NORM, Kernel, activation, nonfinite_in

__all__ = ["EXPONENTS", "MOMENTS", "NORM", "Kernel", "activation", "nonfinite_in"]
