"""The ready-made lenses, and the lenses that an inspector uses by default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from sonde.engine import LayerAxes, Where, class_of, held_by, members
from sonde.errors import ArgumentError
from sonde.lens.layer_choice import DROPOUT, RELU_LIKE, is_container
from sonde.lens.lens import Lens, LossMetrics
from sonde.preprocessor import AbstractPreprocessor
from sonde.site import Port
from sonde.stats import (
    Activation,
    Cosine,
    ExponentHistogram,
    MatrixCondition,
    Moments,
    Norm,
    RowStatistic,
    SampleNorm,
    Spectrum,
    Updates,
)
from sonde.view import bands_named, points_named

AnyLens = Lens | LossMetrics | AbstractPreprocessor
"""The types that an inspector accepts as a lens; a preprocessor stands for the lens that measures the same."""

Names = str | Iterable[str] | None
"""One name or several, of aggregations or parameters."""

_FEATURES = 8
_RARELY = 10  # activation by unit costs several times what moments do, and a dead unit stays dead


class OutputActivation(Lens):
    """Lens: the share of active outputs and of dead units of each activation layer: family ``activation``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    >>> with sonde.observe(net, lens.OutputActivation()) as probe:
    ...     _ = net(torch.tensor([[-1.0, 1.0]]))
    >>> [(row["name"], row["activation"], row["call_death"]) for row in probe.rows()]
    [('1', 0.5, 0.5)]

    Numbers: see :class:`sonde.stats.Activation`; ``activation`` and, averaged over calls, ``call_activation`` and ``call_death``.

    A model without such layers is no error: the lens warns and records nothing.

    Args:
        activation: measure layers whose outputs may be exactly zero: ReLU, ReLU6, Threshold, Hardswish, Hard- and Softshrink.
        dropout: measure dropout layers.
        include, exclude: measure these layers instead.
        record_eval: also record evaluation passes.
        inplace, evaluation_from_grad: see :class:`OutputNorm`.
        channel_last: units are on the last axis of the output (True), on the second (False), or where each layer has them
            (None; see ``sonde.engine.layer_axes``).
        eps: the magnitude up to which an output counts as zero.
        warning_plot: draw the worst layer, and the mean of the layers, above the heat-maps.
        activation_aggregation, death_aggregation: what a column of a heat-map shows of an interval of logged steps: ``"mean"``,
            ``"median"``, ``"min"``, ``"max"``, ``"std"``, ``"Q1"``, ``"Q3"``, ``"IQR"``; None for each logged step as it is.
        one_in: measure in one of so many logged steps.

    Raises:
        ArgumentError: there is no such aggregation, or the arguments leave no layer.
    """

    def __init__(
        self,
        *,
        inplace: bool = True,
        activation: bool = True,
        dropout: bool = True,
        include: Where = None,
        exclude: Where = None,
        record_eval: bool = False,
        evaluation_from_grad: bool = False,
        channel_last: bool | None = None,
        eps: float = 1e-8,
        warning_plot: bool = True,
        activation_aggregation: str | None = None,
        death_aggregation: str | None = None,
        one_in: int = 1,
    ) -> None:
        types = (*(RELU_LIKE if activation else ()), *(DROPOUT if dropout else ()))
        if include is None and not types:
            raise ArgumentError("OutputActivation(activation=False, dropout=False) looks at no layer: give include=")
        axis = None if channel_last is None else -1 if channel_last else 1
        super().__init__(
            "activation",
            Activation(eps, channel_axis=axis),
            ("output",),
            types if include is None else include,
            exclude,
            record_eval,
            _shares(warning_plot, activation_aggregation, death_aggregation),
            one_in=one_in,
            optional=include is None,
        )


class EffectiveRank(Lens):
    """Lens: how many directions the outputs of each layer use: family ``effective_rank``, numbers of :class:`sonde.stats.Spectrum`.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False))
    >>> _ = torch.nn.init.eye_(net[0].weight)
    >>> with sonde.watch(net, every=1, lenses=lens.EffectiveRank(one_in=1), to="memory", verbose=False) as inspector:
    ...     net(torch.eye(8)).sum().backward()
    ...     inspector.step()
    >>> inspector.run.sql("SELECT site, round(effective_rank, 3), vectors FROM effective_rank").fetchall()
    [('0:output', 8.0, 8.0)]

    ``effective_rank`` is 1 where all vectors of a batch are parallel, and at most the number of features. It is judged by the rule
    ``rank_collapse``. A row takes ``8 * features * min(features, sketch)`` bytes, and a matrix product in each observed forward.

    Args:
        include, exclude: the layers to measure, among those whose last axis holds the features: Linear, Embedding and norms over
            the last axis, of 8 features or more: few numbers may well lie in one direction.
        sketch: columns of the sketch; with fewer features the rank is exact.
        one_in: measure in one of so many logged steps.
    """

    def __init__(self, *, include: Where = None, exclude: Where = None, sketch: int = 32, one_in: int = _RARELY) -> None:
        show = {"picture": "lines", "number": "effective_rank"}
        super().__init__("effective_rank", Spectrum(1, sketch), ("output",), include, exclude, False, show, one_in=one_in)
        object.__setattr__(self, "_sketch", sketch)

    def parts(self, model: nn.Module) -> Iterator[tuple[RowStatistic, Where]]:
        sizes = {_features(item.module) for item in members(model)}
        for size in sorted(size for size in sizes if size >= _FEATURES):
            yield Spectrum(size, getattr(self, "_sketch", 32)), partial(_has_features, size)


class OutputNorm(Lens):
    """Lens: the length of each layer's output, per sample: family ``output_norm``, numbers ``norm`` and ``rms``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Sequential(torch.nn.ReLU())
    >>> with sonde.observe(net, lens.OutputNorm()) as probe:
    ...     _ = net(torch.tensor([[3.0, 4.0]]))
    >>> [(row["name"], row["norm"]) for row in probe.rows()]
    [('0', 5.0)]

    Args:
        normalize_by_size: draw ``rms`` in place of ``norm``; both are recorded.
        activation: also measure activation layers.
        include, exclude: the layers to measure.
        record_eval: also record evaluation passes.
        log_scale: draw on a logarithmic axis.
        line_aggregation: the lines that are drawn: one or several aggregates of each interval of logged steps, of ``"mean"``,
            ``"median"``, ``"min"``, ``"max"``, ``"std"``, ``"Q1"``, ``"Q3"``, ``"IQR"``.
        range_aggregation: the bands that are drawn: of ``"std"``, ``"min-max"``, ``"Q1-Q3"``; None for no band.
        comparison_plot: also draw the share of each layer in the sum over the layers.
        comparison_aggregation: the aggregate of each interval whose shares are drawn; None for the first of *line_aggregation*.
        inplace: makes no difference: a run keeps the number of each logged step, and every aggregate is computed from these.
        evaluation_from_grad: makes no difference: a pass belongs to evaluation if the model is in evaluation mode or gradients
            are off.
        channel_last: makes no difference: all dimensions of a sample are flattened.

    Raises:
        ArgumentError: there is no such aggregation.
    """

    def __init__(
        self,
        *,
        inplace: bool = True,
        normalize_by_size: bool = False,
        activation: bool = True,
        include: Where = None,
        exclude: Where = is_container,
        record_eval: bool = False,
        evaluation_from_grad: bool = False,
        channel_last: bool | None = None,
        log_scale: bool = False,
        comparison_plot: bool = True,
        comparison_aggregation: str | None = None,
        line_aggregation: Names = "mean",
        range_aggregation: Names = ("std", "min-max"),
    ) -> None:
        show = _lines(normalize_by_size, log_scale, line_aggregation, range_aggregation)
        show["compare"] = comparison_plot
        if comparison_aggregation is not None:
            show["compared"] = points_named("comparison_aggregation", comparison_aggregation)[0]
        super().__init__("output_norm", SampleNorm(), ("output",), include, exclude, record_eval, show)
        object.__setattr__(self, "_activation", activation)

    def parts(self, model: nn.Module) -> Iterator[tuple[RowStatistic, Where]]:
        activation: bool = getattr(self, "_activation", True)
        yield SampleNorm(), lambda name, module: not LayerAxes.is_time_first(module) and (activation or not _is_activation(module))
        if any(map(LayerAxes.is_time_first, model.modules())):
            yield SampleNorm(sample_axis=1), lambda name, module: LayerAxes.is_time_first(module)


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
                {"picture": "lines", "number": "cosine"},
            )
            also = (*also, cosine)
        super().__init__(name, Norm(), (port,), include, exclude, False, show, also=also)


class OutputGradientGeometry(_Geometry):
    """Lens: the length of the gradient of each layer's output: family ``output_gradient``, numbers ``norm`` and ``rms``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with sonde.observe(net, lens.OutputGradientGeometry()) as probe:
    ...     net(torch.ones(1, 2)).sum().backward()
    >>> [(row["name"], row["port"]) for row in probe.rows()]
    [('0', 'grad_output')]

    Args:
        compute_correlation: also record the cosine of each gradient to the gradient of the step before, in
            ``output_gradient_cosine``; the step before a logged step is then observed too.
        include, exclude: the layers to measure.
        skip_activation: leave out activation layers.
        inplace, normalize_by_size, log_scale, line_aggregation, range_aggregation: see :class:`OutputNorm`.
    """

    def __init__(
        self,
        *,
        inplace: bool = True,
        compute_correlation: bool = True,
        normalize_by_size: bool = False,
        include: Where = None,
        exclude: Where = None,
        skip_activation: bool = True,
        log_scale: bool = False,
        line_aggregation: Names = "mean",
        range_aggregation: Names = ("std", "min-max"),
    ) -> None:
        if exclude is None:
            exclude = _activations_and_containers if skip_activation else is_container
        show = _lines(normalize_by_size, log_scale, line_aggregation, range_aggregation)
        super().__init__("output_gradient", "grad_output", include, exclude, compute_correlation, show)


class ParameterGradientGeometry(_Geometry):
    """Lens: the length of the gradient of each parameter: family ``parameter_gradient``, numbers ``norm`` and ``rms``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> with sonde.watch(net, every=1, lenses=lens.ParameterGradientGeometry(), to="memory", verbose=False) as inspector:
    ...     net(torch.tensor([[3.0, 4.0]])).sum().backward()
    ...     inspector.step()
    >>> inspector.run.sql("SELECT site, norm FROM parameter_gradient").fetchall()
    [('weight:grad', 5.0)]

    Args:
        parameters: the last part of the names of the parameters, as ``("weight", "bias")``; None for all.
        compute_correlation: see :class:`OutputGradientGeometry`.
        exclude: layers or parameters to leave out.
        inplace, normalize_by_size, log_scale, line_aggregation, range_aggregation: see :class:`OutputNorm`.
    """

    def __init__(
        self,
        *,
        inplace: bool = True,
        parameters: Names = None,
        compute_correlation: bool = True,
        normalize_by_size: bool = False,
        exclude: Where = None,
        log_scale: bool = False,
        line_aggregation: Names = "mean",
        range_aggregation: Names = ("std", "min-max"),
    ) -> None:
        show = _lines(normalize_by_size, log_scale, line_aggregation, range_aggregation)
        super().__init__("parameter_gradient", "grad", called(parameters), exclude, compute_correlation, show)


class ParameterGradientActivation(Lens):
    """Lens: share of nonzero gradient elements, and of units without any: family ``parameter_gradient_activation``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> with sonde.watch(net, every=1, lenses=lens.ParameterGradientActivation(), to="memory", verbose=False) as inspector:
    ...     net(torch.tensor([[1.0, 0.0]])).sum().backward()
    ...     inspector.step()
    >>> inspector.run.sql("SELECT site, activation FROM parameter_gradient_activation").fetchall()
    [('weight:grad', 0.5)]

    Args:
        parameters, exclude: see :class:`ParameterGradientGeometry`.
        channel_axis: the axis of a parameter that holds the units: 0 for most layers, 1 for transposed convolutions.
        eps: the magnitude up to which a gradient counts as zero.
        inplace, warning_plot, activation_aggregation, death_aggregation: see :class:`OutputActivation`.
    """

    def __init__(
        self,
        *,
        inplace: bool = True,
        parameters: Names = None,
        exclude: Where = None,
        channel_axis: int = 0,
        eps: float = 0.0,
        warning_plot: bool = True,
        activation_aggregation: str | None = None,
        death_aggregation: str | None = None,
    ) -> None:
        show = _shares(warning_plot, activation_aggregation, death_aggregation)
        statistic = Activation(eps, channel_axis=channel_axis)
        super().__init__("parameter_gradient_activation", statistic, ("grad",), called(parameters), exclude, False, show)


class ParameterNorm(Lens):
    """Lens: the length of each parameter after each logged step: family ``parameter_norm``, numbers ``norm`` and ``rms``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(net.weight, 0.0)
    >>> with sonde.watch(net, every=1, lenses=lens.ParameterNorm(), to="memory", verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.step()
    >>> inspector.run.sql("SELECT site, norm FROM parameter_norm").fetchall()
    [('weight:param', 0.0)]

    Args:
        parameters, exclude: see :class:`ParameterGradientGeometry`.
        aggregation_method: the aggregate of each interval of logged steps that is drawn, by itself and as shares.
        inplace, normalize_by_size, log_scale, comparison_plot: see :class:`OutputNorm`.
    """

    def __init__(
        self,
        *,
        inplace: bool = True,
        parameters: Names = None,
        exclude: Where = None,
        normalize_by_size: bool = False,
        log_scale: bool = False,
        comparison_plot: bool = True,
        aggregation_method: str = "mean",
    ) -> None:
        show = _lines(normalize_by_size, log_scale, points_named("aggregation_method", aggregation_method), ())
        show["compare"] = comparison_plot
        super().__init__("parameter_norm", Norm(), ("param",), called(parameters), exclude, False, show)


class ParameterCond(Lens):
    """Lens: condition number and stable rank of parameters after each logged step: family ``conditioning``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.eye_(net.weight)
    >>> with sonde.watch(net, every=1, lenses=lens.ParameterCond(), to="memory", verbose=False) as inspector:
    ...     net(torch.ones(1, 2)).sum().backward()
    ...     inspector.step()
    >>> inspector.run.sql("SELECT site, condition, stable_rank FROM conditioning").fetchall()
    [('weight:param', 1.0, 2.0)]

    Numbers: ``condition`` and ``stable_rank`` of :class:`sonde.stats.MatrixCondition`. A singular value decomposition of each
    parameter takes long: choose layers, and log few steps.

    Args:
        parameters, exclude: see :class:`ParameterGradientGeometry`.
        inplace: see :class:`OutputNorm`.
    """

    def __init__(self, *, inplace: bool = True, parameters: Names = ("weight",), exclude: Where = None) -> None:
        show = {"picture": "lines", "number": "condition", "log": True}
        super().__init__("conditioning", MatrixCondition(), ("param",), called(parameters), exclude, False, show)

    def parts(self, model: nn.Module) -> Iterator[tuple[RowStatistic, Where]]:
        yield self.statistic, _is_matrix


class ParameterUpdateGeometry(_Geometry):
    """Lens: the update of each parameter in a step: families ``parameter_update`` (its length) and ``parameter_update_ratio``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> with sonde.watch(net, optimizer, every=1, lenses=lens.ParameterUpdateGeometry(), to="memory", verbose=False) as inspector:
    ...     net(torch.tensor([[3.0, 4.0]])).sum().backward()
    ...     optimizer.step()
    >>> inspector.run.sql("SELECT site, norm FROM parameter_update").fetchall()
    [('weight:update', 5.0)]

    The second family has ``ratio``, update / weight, and ``unchanged``, the share of elements that did not change; see
    :class:`sonde.stats.Updates`.

    Args:
        optimizer: measure the parameters that this optimizer holds when the model is attached; None for all.
        compute_correlation: also record the cosine of each update to the update of the step before, in
            ``parameter_update_cosine``. It keeps a copy of each update, and the step before a logged step is then observed too.
        parameters, exclude: see :class:`ParameterGradientGeometry`.
        inplace, normalize_by_size, log_scale, line_aggregation, range_aggregation: see :class:`OutputNorm`.

    Raises:
        ArgumentError: *optimizer* is no torch optimizer, or there is no such aggregation.
    """

    def __init__(
        self,
        optimizer: Optimizer | None = None,
        *,
        inplace: bool = True,
        parameters: Names = None,
        compute_correlation: bool = False,
        normalize_by_size: bool = False,
        exclude: Where = None,
        log_scale: bool = False,
        line_aggregation: Names = "mean",
        range_aggregation: Names = ("std", "min-max"),
    ) -> None:
        given: Any = optimizer
        if given is not None and not isinstance(given, Optimizer):
            raise ArgumentError(f"optimizer={type(given).__name__}: give a torch.optim optimizer, or None for all parameters")
        show = _lines(normalize_by_size, log_scale, line_aggregation, range_aggregation)
        include = called(parameters) if optimizer is None else _held(optimizer, called(parameters))
        ratio = Lens(
            "parameter_update_ratio",
            Updates(),
            ("update",),
            include,
            exclude,
            False,
            {"picture": "lines", "number": "ratio", "log": True},
        )
        super().__init__("parameter_update", "update", include, exclude, compute_correlation, show, (ratio,))


def moments() -> Lens:
    """:class:`~sonde.stats.Moments` of outputs, output gradients, parameters, their gradients and updates: family ``moments``.

    >>> from sonde import lens
    >>> lens.moments().name, lens.moments().ports
    ('moments', ('output', 'grad_output', 'param', 'grad', 'update'))
    """
    ports: tuple[Port, ...] = ("output", "grad_output", "param", "grad", "update")
    return Lens("moments", Moments(), ports, None, is_container, False, {"picture": "heatmap", "number": "rms", "log": True})


def exponents(*ports: Port, include: Where = None, exclude: Where = is_container, one_in: int = 1) -> Lens:
    """How large the elements are, in powers of two, and what other precisions would lose: family ``exponents``.

    >>> import sonde, torch
    >>> from sonde import lens
    >>> net = torch.nn.Identity()
    >>> with sonde.observe(net, lens.exponents("output")) as probe:
    ...     _ = net(torch.tensor([1.0, 4.0]))
    >>> probe.rows()[0]["count"]
    2.0

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
    """What is looked at where nothing is asked for: moments, and activation where there are layers that can be inactive.

    >>> import torch
    >>> from sonde import lens
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> [type(each).__name__ for each in lens.default_lenses(net)]
    ['Lens', 'OutputActivation', 'LossMetrics']
    """
    found = any(isinstance(item.module, RELU_LIKE) for model in models for item in members(model))
    return (moments(), *([OutputActivation(dropout=False, one_in=_RARELY)] if found else ()), LossMetrics())


def called(parameters: Names) -> Where:
    """Return the selection of parameters whose names end in one of *parameters*; None selects all."""
    if parameters is None:
        return None
    wanted = {parameters} if isinstance(parameters, str) else set(parameters)
    return lambda name, module: name.rpartition(".")[2] in wanted


def _features(module: nn.Module) -> int:
    """Return the length of the vectors on the last axis of the output of *module*; 0 if that is not known."""
    if isinstance(module, nn.Linear):
        return 0 if is_lazy(module.weight) else module.out_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    return module.normalized_shape[-1] if isinstance(module, nn.LayerNorm | nn.RMSNorm) else 0


def _has_features(size: int, name: str, module: nn.Module) -> bool:
    return _features(module) == size


def _is_matrix(name: str, module: nn.Module) -> bool:
    found: Any = getattr(module, name.rpartition(".")[2], None)
    return isinstance(found, Tensor) and (bool(is_lazy(found)) or found.dim() > 1)


def _held(optimizer: Optimizer, named: Where) -> Where:
    """Return the selection of the parameters that *optimizer* holds, among those that *named* selects."""
    assert named is None or callable(named)

    def holds(name: str, module: nn.Module) -> bool:
        parameter = getattr(module, name.rpartition(".")[2], None)
        return (named is None or bool(named(name, module))) and id(parameter) in held_by(optimizer)

    return holds


def _activations_and_containers(name: str, module: nn.Module) -> bool:
    return is_container(name, module) or _is_activation(module)


def _is_activation(module: nn.Module) -> bool:
    return class_of(module).__module__ == nn.ReLU.__module__ and not list(module.parameters(recurse=False))


def _shares(worst: bool, activation: str | None, death: str | None) -> dict[str, Any]:
    """Return how shares of active elements and of dead units are drawn."""
    aggregates = {"activation_aggregation": activation, "death_aggregation": death}
    for name, given in aggregates.items():
        points_named(name, given)
    columns = {"columns": list(aggregates.values())} if activation or death else {}
    return {"picture": "heatmap", "number": "call_death", "worst": worst, **columns}


def _lines(normalized: bool, log: bool, line: Names, ranges: Names) -> dict[str, Any]:
    """Return how lengths are drawn."""
    points, bands = points_named("line_aggregation", line), bands_named("range_aggregation", ranges)
    if not points:
        raise ArgumentError(f"line_aggregation={line!r}: at least one line is drawn, as 'mean'")
    return {
        "picture": "lines",
        "number": "rms" if normalized else "norm",
        "log": log,
        "lines": list(points),
        "ranges": list(bands),
        "compare": False,
    }
