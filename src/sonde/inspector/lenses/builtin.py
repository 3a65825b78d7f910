"""The ready-made lenses, and the lenses that an inspector uses by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from sonde.engine import selection
from sonde.engine.layer_axes import is_time_first, learn, unit_axis
from sonde.engine.selection import Where
from sonde.errors import ArgumentError
from sonde.inspector.lenses.layer_selection import DROPOUT, RELU_LIKE, is_container
from sonde.inspector.lenses.lens import Lens, LossMetrics
from sonde.preprocessor.base import AbstractPreprocessor
from sonde.rules import UPDATE_USUAL
from sonde.site import Port
from sonde.stats import Activation, Cosine, ExponentHistogram, Moments, Norm, RowStatistic, Updates
from sonde.stats.samples import SampleNorm

__all__ = [
    "AnyLens",
    "OutputActivation",
    "OutputGradientGeometry",
    "OutputNorm",
    "ParameterGradientActivation",
    "ParameterGradientGeometry",
    "ParameterNorm",
    "ParameterUpdateGeometry",
    "called",
    "default_lenses",
    "exponents",
    "moments",
]

AnyLens = Lens | LossMetrics | AbstractPreprocessor
"""The types that an inspector accepts as a lens; a preprocessor stands for the lens that measures the same."""

Ranges = tuple[str, ...]

_RARELY = 10  # activation by unit costs several times what moments do, and a dead unit stays dead


class OutputActivation(Lens):
    """Lens: the share of active outputs and of dead units of each activation layer: family ``activation``.

    Numbers: see :class:`sonde.stats.Activation`; ``activation`` and, averaged over calls, ``call_activation`` and ``call_death``.

    Args:
        activation: measure layers whose outputs may be exactly zero: ReLU, ReLU6, Threshold, Hardswish, Hard- and Softshrink.
        dropout: measure dropout layers.
        include, exclude: measure these layers instead.
        record_eval: also record evaluation passes.
        channel_last: units are on the last axis of the output (True), on the second (False), or where each layer has them
            (None; see ``sonde.engine.layer_axes``).
        eps: the magnitude up to which an output counts as zero.
        warning_plot: draw the worst layer in a picture of its own.
        one_in: measure in one of so many logged steps.
    """

    def __init__(
        self,
        *,
        activation: bool = True,
        dropout: bool = True,
        include: Where = None,
        exclude: Where = None,
        record_eval: bool = False,
        channel_last: bool | None = None,
        eps: float = 1e-8,
        warning_plot: bool = True,
        one_in: int = 1,
    ) -> None:
        types = (*(RELU_LIKE if activation else ()), *(DROPOUT if dropout else ()))
        if include is None and not types:
            raise ArgumentError("OutputActivation(activation=False, dropout=False) looks at no layer: give include=")
        axis = -1 if channel_last else 1
        super().__init__(
            "activation",
            Activation(eps, channel_axis=axis),
            ("output",),
            types if include is None else include,
            exclude,
            record_eval,
            {"picture": "heatmap", "number": "call_death", "range": [0, 1], "worst": warning_plot},
            one_in=one_in,
        )
        object.__setattr__(self, "_channel_last", channel_last)

    def parts(self, model: nn.Module) -> Iterator[tuple[RowStatistic, Where]]:
        given: bool | None = getattr(self, "_channel_last", None)
        if given is not None:
            yield self.statistic, None
            return
        learn(model)
        for axis in sorted(set(map(unit_axis, model.modules()))):
            yield _on_axis(self.statistic, axis), _where(unit_axis, axis)


def _on_axis(statistic: RowStatistic, axis: int) -> RowStatistic:
    """Return *statistic* with the channels on *axis*."""
    assert isinstance(statistic, Activation)
    return replace(statistic, channel_axis=axis)


def _where(axis_of: Callable[[nn.Module], int], axis: int) -> Callable[[str, nn.Module], bool]:
    return lambda name, module: axis_of(module) == axis


class OutputNorm(Lens):
    """Lens: the length of each layer's output, per sample: family ``output_norm``, numbers ``norm`` and ``rms``.

    Args:
        normalize_by_size: draw ``rms`` in place of ``norm``; both are recorded.
        include, exclude: the layers to measure.
        record_eval: also record evaluation passes.
        log_scale, comparison_plot, range_aggregation: how the numbers are drawn.
    """

    def __init__(
        self,
        *,
        normalize_by_size: bool = False,
        include: Where = None,
        exclude: Where = is_container,
        record_eval: bool = False,
        log_scale: bool = False,
        comparison_plot: bool = True,
        range_aggregation: Ranges = ("std", "min-max"),
    ) -> None:
        show = _lines(normalize_by_size, log_scale, range_aggregation, comparison_plot)
        super().__init__("output_norm", SampleNorm(), ("output",), include, exclude, record_eval, show)

    def parts(self, model: nn.Module) -> Iterator[tuple[RowStatistic, Where]]:
        yield SampleNorm(), lambda name, module: not is_time_first(module)
        if any(map(is_time_first, model.modules())):
            yield SampleNorm(sample_axis=1), lambda name, module: is_time_first(module)


class _Geometry(Lens):
    """Length of tensors and, with *correlation*, the cosine of each tensor to the tensor before."""

    def __init__(
        self,
        name: str,
        port: Port,
        include: Where,
        exclude: Where,
        correlation: bool,
        show: dict[str, Any],
        also: tuple[Lens, ...] = (),
    ) -> None:
        if correlation:
            cosine = Lens(
                f"{name}_cosine",
                Cosine(),
                (port,),
                include,
                exclude,
                False,
                {"picture": "lines", "number": "cosine", "range": [-1, 1]},
            )
            also = (*also, cosine)
        super().__init__(name, Norm(), (port,), include, exclude, False, show, also=also)


class OutputGradientGeometry(_Geometry):
    """Lens: the length of the gradient of each layer's output: family ``output_gradient``, numbers ``norm`` and ``rms``.

    Args:
        compute_correlation: also record the cosine of each gradient to the gradient of the step before, in
            ``output_gradient_cosine``; the step before a logged step is then observed too.
        normalize_by_size, log_scale, range_aggregation: how the numbers are drawn.
        include, exclude: the layers to measure.
        skip_activation: leave out activation layers.
    """

    def __init__(
        self,
        *,
        compute_correlation: bool = True,
        normalize_by_size: bool = False,
        include: Where = None,
        exclude: Where = None,
        skip_activation: bool = True,
        log_scale: bool = False,
        range_aggregation: Ranges = ("std", "min-max"),
    ) -> None:
        if exclude is None:
            exclude = _activations_and_containers if skip_activation else is_container
        show = _lines(normalize_by_size, log_scale, range_aggregation)
        super().__init__("output_gradient", "grad_output", include, exclude, compute_correlation, show)


class ParameterGradientGeometry(_Geometry):
    """Lens: the length of the gradient of each parameter: family ``parameter_gradient``, numbers ``norm`` and ``rms``.

    Args:
        parameters: the last part of the names of the parameters, as ``("weight", "bias")``; None for all.
        compute_correlation: see :class:`OutputGradientGeometry`.
        normalize_by_size, log_scale, range_aggregation: how the numbers are drawn.
        exclude: layers or parameters to leave out.
    """

    def __init__(
        self,
        *,
        parameters: tuple[str, ...] | None = None,
        compute_correlation: bool = True,
        normalize_by_size: bool = False,
        exclude: Where = None,
        log_scale: bool = False,
        range_aggregation: Ranges = ("std", "min-max"),
    ) -> None:
        show = _lines(normalize_by_size, log_scale, range_aggregation)
        super().__init__("parameter_gradient", "grad", called(parameters), exclude, compute_correlation, show)


class ParameterGradientActivation(Lens):
    """Lens: share of nonzero gradient elements, and of units without any: family ``parameter_gradient_activation``.

    Args:
        parameters, exclude: see :class:`ParameterGradientGeometry`.
        channel_axis: the axis of a parameter that holds the units: 0 for most layers, 1 for transposed convolutions.
        eps: the magnitude up to which a gradient counts as zero.
        warning_plot: draw the worst layer in a picture of its own.
    """

    def __init__(
        self,
        *,
        parameters: tuple[str, ...] | None = None,
        exclude: Where = None,
        channel_axis: int = 0,
        eps: float = 0.0,
        warning_plot: bool = True,
    ) -> None:
        show = {"picture": "heatmap", "number": "call_death", "range": [0, 1], "worst": warning_plot}
        statistic = Activation(eps, channel_axis=channel_axis)
        super().__init__("parameter_gradient_activation", statistic, ("grad",), called(parameters), exclude, False, show)


class ParameterNorm(Lens):
    """Lens: the length of each parameter after each logged step: family ``parameter_norm``, numbers ``norm`` and ``rms``.

    Args:
        parameters, exclude: see :class:`ParameterGradientGeometry`.
        normalize_by_size, log_scale, comparison_plot: how the numbers are drawn.
    """

    def __init__(
        self,
        *,
        parameters: tuple[str, ...] | None = None,
        exclude: Where = None,
        normalize_by_size: bool = False,
        log_scale: bool = False,
        comparison_plot: bool = True,
    ) -> None:
        show = _lines(normalize_by_size, log_scale, (), comparison_plot)
        super().__init__("parameter_norm", Norm(), ("param",), called(parameters), exclude, False, show)


class ParameterUpdateGeometry(_Geometry):
    """Lens: the update of each parameter in a step: families ``parameter_update`` (its length) and ``parameter_update_ratio``.

    The second family has ``ratio``, update / weight, and ``unchanged``, the share of elements that did not change; see
    :class:`sonde.stats.Updates`.

    Args:
        parameters, exclude, normalize_by_size, log_scale, range_aggregation: see :class:`ParameterGradientGeometry`.
    """

    def __init__(
        self,
        *,
        parameters: tuple[str, ...] | None = None,
        normalize_by_size: bool = False,
        exclude: Where = None,
        log_scale: bool = False,
        range_aggregation: Ranges = ("std", "min-max"),
    ) -> None:
        show = _lines(normalize_by_size, log_scale, range_aggregation)
        ratio = Lens(
            "parameter_update_ratio",
            Updates(),
            ("update",),
            called(parameters),
            exclude,
            False,
            {"picture": "lines", "number": "ratio", "log": True, "line": UPDATE_USUAL},
        )
        super().__init__("parameter_update", "update", called(parameters), exclude, False, show, (ratio,))


def moments() -> Lens:
    """:class:`~sonde.stats.Moments` of outputs, output gradients, parameters, their gradients and updates: family ``moments``."""
    ports: tuple[Port, ...] = ("output", "grad_output", "param", "grad", "update")
    return Lens("moments", Moments(), ports, None, is_container, False, {"picture": "heatmap", "number": "rms", "log": True})


def exponents(*ports: Port, include: Where = None, exclude: Where = is_container, one_in: int = 1) -> Lens:
    """How large the elements are, in powers of two, and what other precisions would lose: family ``exponents``.

    Numbers: see :class:`sonde.stats.ExponentHistogram`; beside them ``powers``, 278 counts in each row, which
    :func:`sonde.view.plots.exponents` draws. Gradients under a ``GradScaler`` are counted as they are, scaled: that is
    what has to fit into the format.

    Args:
        ports: which tensors; ``"output"`` and ``"grad"`` if none is given.
        include, exclude: the layers to measure.
        one_in: measure in one of so many logged steps.
    """
    show = {"picture": "exponents", "number": "p50", "log": True}
    return Lens("exponents", ExponentHistogram(), ports or ("output", "grad"), include, exclude, False, show, one_in=one_in)


def default_lenses(*models: nn.Module) -> tuple[AnyLens, ...]:
    """What is looked at where nothing is asked for: moments, and activation where there are layers that can be inactive."""
    found = any(isinstance(item.module, RELU_LIKE) for model in models for item in selection.members(model))
    return (moments(), *([OutputActivation(dropout=False, one_in=_RARELY)] if found else ()), LossMetrics())


def called(parameters: tuple[str, ...] | None) -> Where:
    """Return the selection of parameters whose names end in one of *parameters*; None selects all."""
    if parameters is None:
        return None
    given: Any = parameters
    wanted = {given} if isinstance(given, str) else set(given)
    return lambda name, module: name.rpartition(".")[2] in wanted


def _activations_and_containers(name: str, module: nn.Module) -> bool:
    return is_container(name, module) or (
        type(module).__module__ == nn.ReLU.__module__ and not list(module.parameters(recurse=False))
    )


def _lines(normalized: bool, log: bool, ranges: Ranges, compare: bool = False) -> dict[str, Any]:
    return {"picture": "lines", "number": "rms" if normalized else "norm", "log": log, "ranges": list(ranges), "compare": compare}
