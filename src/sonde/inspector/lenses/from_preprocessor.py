"""Make the lens that records what a preprocessor measures, so that either can be given to an inspector."""

from __future__ import annotations

from sonde.errors import ArgumentError
from sonde.inspector.lenses.builtin import (
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterCond,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)
from sonde.inspector.lenses.layer_selection import is_container
from sonde.inspector.lenses.lens import Lens
from sonde.preprocessor import base, gradients, outputs, parameters, updates
from sonde.preprocessor.measured import Measured

__all__ = ["lens_of"]


def lens_of(given: base.AbstractPreprocessor) -> Lens:
    """Return the lens that measures the same tensors by the same statistic as *given*.

    The lens adds a row per logged step to the run; the preprocessor itself is not fed. What a preprocessor aggregates over an
    interval stands in the run step by step.

    Raises:
        ArgumentError: no statistic says what *given* measures: it is a user's own, or needs more than one tensor.
    """
    specs = given._interval.specs if isinstance(given, Measured) else ()
    size = any("rms" in spec.numbers for spec in specs)
    correlation = len(specs) > 1
    if isinstance(given, outputs.InputNorm):
        return Lens("input_norm", specs[0].statistic, ("input",), None, is_container, given._record_eval)
    if isinstance(given, outputs.OutputNorm):
        return OutputNorm(normalize_by_size=size, record_eval=given._record_eval)
    if isinstance(given, outputs.OutputActivation):
        return OutputActivation(eps=given._eps, channel_last=given._channel_last, record_eval=given._record_eval)
    if isinstance(given, gradients.OutputGradientGeometry):
        return OutputGradientGeometry(compute_correlation=correlation, normalize_by_size=size, skip_activation=False)
    if isinstance(given, gradients.GradientGeometry):
        return ParameterGradientGeometry(compute_correlation=correlation, normalize_by_size=size)
    if isinstance(given, gradients.GradientActivation):
        return ParameterGradientActivation(eps=given._eps)
    if isinstance(given, parameters.ParameterNorm):
        return ParameterNorm(parameters=tuple(given.attrs_), normalize_by_size=size)
    if isinstance(given, parameters.Conditioning):
        return ParameterCond(parameters=given.attrs_)
    if isinstance(given, updates.ParameterDifferenceGeometry | updates.UpdateRatio):
        return ParameterUpdateGeometry(normalize_by_size=size)
    raise ArgumentError(
        f"{type(given).__name__} is a preprocessor that no statistic stands for, so that an inspector cannot record it: feed it "
        f"with probe = sonde.observe(model, {type(given).__name__}(...)) and read its value; lens.LossMetrics() records losses"
    )
