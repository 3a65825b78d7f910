"""Make the lens that records what a preprocessor measures, so that either can be given to an inspector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sonde import preprocessor
from sonde.errors import ArgumentError
from sonde.lens.builtin import (
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterCond,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)
from sonde.lens.layer_choice import is_container
from sonde.lens.lens import Lens
from sonde.stats import SampleNorm


def lens_of(given: preprocessor.AbstractPreprocessor) -> Lens:
    """Return the lens that measures the same tensors by the same statistic as *given*.

    The lens adds a row per logged step to the run; the preprocessor itself is not fed. What a preprocessor aggregates over an
    interval stands in the run step by step.

    Raises:
        ArgumentError: *given* is no lens; the message says why and what to do instead.
    """
    make = _MADE.get(type(given))
    if make is None:
        raise ArgumentError(_reason(given))
    if getattr(given, "_batched", None) is not None:
        raise ArgumentError(
            f"{type(given).__name__}(batched={given._batched}): a lens finds the axis of the samples from the layer: "  # type: ignore[attr-defined]
            "leave batched= out, or feed the preprocessor with sonde.observe(model, ...)"
        )
    measured: Any = given  # a class in the table below
    specs = measured._interval.specs
    return make(given, any("rms" in spec.numbers for spec in specs), len(specs) > 1)


_MADE: dict[type, Callable[[Any, bool, bool], Lens]] = {  # from a preprocessor, whether it normalizes, whether it correlates
    preprocessor.InputNorm: lambda given, rms, _: Lens(
        "input_norm", SampleNorm(), ("input",), None, is_container, given._record_eval, {"number": "rms" if rms else "norm"}
    ),
    preprocessor.OutputNorm: lambda given, rms, _: OutputNorm(normalize_by_size=rms, record_eval=given._record_eval),
    preprocessor.OutputActivation: lambda given, *_: OutputActivation(
        eps=given._eps, channel_last=given._channel_last, record_eval=given._record_eval
    ),
    preprocessor.OutputGradientGeometry: lambda given, rms, correlation: OutputGradientGeometry(
        compute_correlation=correlation, normalize_by_size=rms, skip_activation=False
    ),
    preprocessor.GradientGeometry: lambda given, rms, correlation: ParameterGradientGeometry(
        compute_correlation=correlation, normalize_by_size=rms
    ),
    preprocessor.GradientActivation: lambda given, *_: ParameterGradientActivation(eps=given._eps),
    preprocessor.ParameterNorm: lambda given, rms, _: ParameterNorm(parameters=given.attrs_, normalize_by_size=rms),
    preprocessor.Conditioning: lambda given, *_: ParameterCond(parameters=given.attrs_),
    preprocessor.ParameterDifferenceGeometry: lambda given, rms, correlation: ParameterUpdateGeometry(
        compute_correlation=correlation, normalize_by_size=rms
    ),
    preprocessor.UpdateRatio: lambda *_: ParameterUpdateGeometry(),
}


def _reason(given: preprocessor.AbstractPreprocessor) -> str:
    """Return why *given* is no lens, and what to do."""
    name = type(given).__name__
    if isinstance(given, preprocessor.LossModule):
        return f"{name} does not say which module returns the loss: give lens.LossMetrics(loss_fn=...) the loss module"
    if isinstance(given, preprocessor.ExplicitCall):
        return f"{name} is fed by the training loop: push_loss() and push_metric() of the inspector record without a lens"
    former = next((kind.__name__ for kind in type(given).__mro__[1:] if kind in _MADE), None)
    if former is not None:
        what = f"{name} is a {former} of your own, and a lens would record the numbers of {former}"
    elif isinstance(given, preprocessor.UpdateRounding):
        what = f"{name} compares a gradient with the update that follows, and a lens measures one tensor at a time"
    else:
        what = f"{name} is a preprocessor that no statistic stands for, so that an inspector cannot record it"
    return f"{what}: feed it beside the inspector, with probe = sonde.observe(model, {name}(...)), and read its value"
