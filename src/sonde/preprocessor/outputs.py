"""Preprocessors of a layer's output or input: how much of the tensor is active, and how large the tensor is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from sonde.engine import Event, LayerAxes, first_floating, walk
from sonde.preprocessor.aggregates import Aggregate
from sonde.preprocessor.base import AbstractForwardPreprocessor, in_training, name_of
from sonde.preprocessor.interval import NumberSpec, size_of
from sonde.preprocessor.measured import Measured
from sonde.site import Port
from sonde.stats import Activation, SampleNorm


class Activity(NamedTuple):
    """How active a layer was over an interval: two shares per call, from 0 to 1.

    >>> import sonde, torch
    >>> from sonde.preprocessor import OutputActivation
    >>> shares = OutputActivation()
    >>> net = torch.nn.Sequential(torch.nn.ReLU())
    >>> with sonde.observe(net, shares):
    ...     _ = net(torch.tensor([[-1.0, 2.0]]))
    >>> shares.value["0"].activation.mean, shares.value["0"].death.mean
    (0.5, 0.5)
    """

    activation: Aggregate
    death: Aggregate


class _OfCalls(Measured, AbstractForwardPreprocessor):
    """Measures the first tensor of a layer's output in each call; the arguments are those of :class:`OutputActivation`."""

    def __init__(
        self,
        spec: NumberSpec,
        form: Callable[..., Any] | None,
        inplace: bool,
        record_eval: bool,
        evaluation_from_grad: bool,
        channel_last: bool | None,
        batched: bool | None,
    ) -> None:
        super().__init__([spec], inplace, form)
        self._record_eval = record_eval
        self._evaluation_from_grad = evaluation_from_grad
        self._channel_last = channel_last
        self._batched = batched

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Measure the output of one call; *layer_input* is not used."""
        self._measure_call(name, module, layer_output)

    def _measure_call(self, name: str, module: Any, value: Any) -> None:
        tensor = first_tensor(value)
        counts = tensor is not None and (self._record_eval or in_training(module, self._evaluation_from_grad))
        self._measure(name, tensor if counts else None, module)

    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor:
        return LayerAxes.of(tensor, owner, channel_last=self._channel_last, batched=self._batched).samples_first(tensor)


class OutputActivation(_OfCalls):
    """Preprocessor: the share of active outputs, and of dead neurons, of each call of a layer.

    >>> import sonde, torch
    >>> from sonde.preprocessor import OutputActivation
    >>> shares = OutputActivation(death=False)
    >>> net = torch.nn.Sequential(torch.nn.ReLU())
    >>> with sonde.observe(net, shares):
    ...     _ = net(torch.tensor([[-1.0, 2.0]]))
    >>> shares.value["0"].mean
    0.5

    An output is active if ``|x| > eps``. *Tensor to number*: the rate of a neuron (a channel) is the share of samples and positions
    of one call at which the neuron is active; ``activation`` is the mean rate of the layer's neurons, ``death`` the share of
    neurons whose rate is 0 in that call (:class:`sonde.stats.Activation`). *Numbers to aggregates*: unweighted over calls.

    A rate is informative only where a layer gives exact zeros (ReLU, dropout); every output of a GELU is active.
    Of a structured output the first floating-point tensor is measured. An empty output gives no number; an output with a NaN or an
    infinity is counted as ``nonfinite`` in the aggregate: a NaN is not a dead neuron.

    Args:
        death: also give the share of dead neurons: ``value`` then has an :class:`Activity` for each layer, otherwise the
            aggregate of ``activation``.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        record_eval: also measure calls in evaluation.
        evaluation_from_grad: evaluation is where gradients are switched off, otherwise where ``module.training`` is false.
            Gradients are also off inside a reentrant checkpoint and in events from compiled code: with True, these calls count
            as evaluation.
        eps: the magnitude up to which an output counts as zero.
        channel_last: the neurons are on the last axis of ``(batch, ..., feature)`` (True), on the second of
            ``(batch, feature, ...)`` (False), or where the layer has them (None): an activation layer has its neurons on the same
            axis as the layer before.
        batched: whether outputs have a batch axis. None: they have, except ``(channel, ...)`` of a convolution and the
            vector of a ``Linear``.

    Raises:
        ArgumentError: *eps* is negative, infinite or NaN.
    """

    def __init__(
        self,
        death: bool = True,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool = False,
        eps: float = 1e-8,
        channel_last: bool | None = None,
        *,
        batched: bool | None = None,
    ) -> None:
        spec, form = activity(Activation(eps), death)
        super().__init__(spec, form, inplace, record_eval, evaluation_from_grad, channel_last, batched)
        self._eps = eps


class OutputNorm(_OfCalls):
    """Preprocessor: the length of a layer's output, per sample.

    >>> import sonde, torch
    >>> from sonde.preprocessor import OutputNorm
    >>> lengths = OutputNorm()
    >>> net = torch.nn.Sequential(torch.nn.Identity())
    >>> with sonde.observe(net, lengths):
    ...     _ = net(torch.tensor([[3.0, 4.0]]))
    >>> lengths.value["0"].mean
    5.0

    *Tensor to number*: the Euclidean norm of each sample's output, all dimensions flattened, then the mean over the
    samples of the call; with *normalize* each norm is divided by the root of the number of elements of a sample: the number is
    then the mean of the samples' root mean squares, not the root mean square of all elements. Computed in float64. *Numbers to
    aggregates*: unweighted over calls.

    Of a structured output the first floating-point tensor is measured. Integers and bools are read as numbers, complex numbers as
    their modulus. An empty output gives no number; an output with a NaN or an infinity is counted as ``nonfinite`` in the
    aggregate.

    Args:
        normalize: divide by the root of the number of elements.
        inplace, record_eval, evaluation_from_grad, batched: see :class:`OutputActivation`.
        channel_last: makes no difference, as all dimensions of a sample are flattened.
    """

    def __init__(
        self,
        normalize: bool = False,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool = False,
        channel_last: bool | None = False,
        *,
        batched: bool | None = None,
    ) -> None:
        super().__init__(size_of(SampleNorm(), normalize), None, inplace, record_eval, evaluation_from_grad, False, batched)


class InputNorm(OutputNorm):
    """Preprocessor: the length of a layer's input, per sample; the number and the arguments are those of :class:`OutputNorm`.

    >>> import torch
    >>> from sonde.preprocessor import InputNorm
    >>> lengths = InputNorm()
    >>> lengths.process_fw("0", torch.nn.ReLU(), torch.tensor([[3.0, 4.0]]), None)
    >>> lengths.value["0"].mean
    5.0

    Of several arguments the first floating-point tensor is measured. Inputs are measured before the layer runs, since a layer may
    write into its input.
    """

    ports: tuple[Port, ...] = ("input",)
    _accepted: ClassVar[tuple[Port, ...]] = ("input",)

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Measure the input of one call; *layer_output* is not used."""
        self._measure_call(name, module, layer_input)

    def _process(self, event: Event) -> None:
        if event.phase != "recompute":
            self._measure_call(name_of(event.site), event.module, (event.args, event.kwargs))


def activity(statistic: Activation, death: bool) -> tuple[NumberSpec, Callable[..., Any] | None]:
    """Return the numbers ``activation`` and, with *death*, ``death`` of a statistic, and the form in which ``value`` has them."""
    numbers = {"activation": "call_activation"} | ({"death": "call_death"} if death else {})
    return NumberSpec(statistic, numbers), Activity if death else None


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating-point or complex tensor in *value*, else the first tensor; None if that has no elements."""
    first = first_floating(value)
    if first is None:
        first = next((tensor for _, tensor in walk(value)), None)
    return None if first is None or first.numel() == 0 else first
