"""Of a layer's output or input: how much of it is active, and how large it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from sonde.engine import Event, Port, structure
from sonde.engine.layer_axes import samples_first
from sonde.preprocessor.aggregates import Aggregate
from sonde.preprocessor.base import AbstractForwardPreprocessor, name_of
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured
from sonde.preprocessor.training import in_training
from sonde.stats import Activation
from sonde.stats.samples import SampleNorm

__all__ = ["Activity", "InputNorm", "OutputActivation", "OutputNorm"]


class Activity(NamedTuple):
    """How active a layer was: two shares per call, from 0 to 1, over an interval."""

    activation: Aggregate
    death: Aggregate


class OutputActivation(Measured, AbstractForwardPreprocessor):
    """Preprocessor: the share of active outputs, and of dead neurons, of each call of a layer.

    An output is active if ``|x| > eps``. *Tensor to number*: the rate of a neuron (a channel) is the share of samples and positions
    of one call at which it is active; ``activation`` is the mean rate of the layer's neurons, ``death`` the share of
    neurons whose rate is 0 in that call (:class:`sonde.stats.Activation`). *Numbers to aggregates*: unweighted over calls.

    A rate says something only where exact zeros come about (ReLU, dropout); of a GELU every output is active.
    Of a structured output the first floating-point tensor counts. An empty output gives no number; one with a NaN or an
    infinity is counted as ``nonfinite`` in the aggregate: a NaN is not a dead neuron.

    Args:
        death: also give the share of dead neurons: ``value`` then has an :class:`Activity` for each layer, otherwise the
            aggregate of ``activation``.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        record_eval: count calls in evaluation too.
        evaluation_from_grad: evaluation is where gradients are switched off, otherwise where ``module.training`` is false.
            The first takes what runs inside a reentrant checkpoint, or is delivered from compiled code, for evaluation.
        eps: the magnitude up to which an output counts as zero.
        channel_last: the neurons are on the last axis of ``(batch, ..., feature)`` (True), on the second of
            ``(batch, feature, ...)`` (False), or where the layer has them (None): an activation has them where the layer that
            feeds it has them.
        batched: whether outputs have a batch axis. None: they do, except ``(channel, ...)`` of a convolution and the
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
        numbers = {"activation": "call_activation"} | ({"death": "call_death"} if death else {})
        super().__init__([NumberSpec(Activation(eps), numbers)], inplace, Activity if death else None)
        self._eps = eps
        self._record_eval = record_eval
        self._evaluation_from_grad = evaluation_from_grad
        self._channel_last = channel_last
        self._batched = batched

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Measure the output of one call; the input is not looked at."""
        self._interval.expect(name)
        output = first_tensor(layer_output)
        if output is not None and (self._record_eval or in_training(module, self._evaluation_from_grad)):
            self._interval.add(name, samples_first(output, module, self._channel_last, self._batched))


class OutputNorm(Measured, AbstractForwardPreprocessor):
    """Preprocessor: the length of a layer's output, per sample.

    *Tensor to number*: the Euclidean norm of each sample's output, all its dimensions flattened, then the mean over the
    samples of the call; with *normalize* the norm is divided by the root of the number of elements of a sample, so that it
    is the mean of the samples' root mean squares, not that of all elements. Formed in float64. *Numbers to aggregates*:
    unweighted over calls.

    Of a structured output the first floating-point tensor counts. Integers and bools are read as numbers, complex ones as
    their modulus. An empty output gives no number; one with a NaN or an infinity is counted as ``nonfinite`` in the aggregate.

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
        number = "rms" if normalize else "norm"
        super().__init__([NumberSpec(SampleNorm(), {number: number})], inplace)
        self._record_eval = record_eval
        self._evaluation_from_grad = evaluation_from_grad
        self._batched = batched

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Measure the output of one call; the input is not looked at."""
        self._measure(name, module, layer_output)

    def _measure(self, name: str, module: Any, value: Any) -> None:
        self._interval.expect(name)
        tensor = first_tensor(value)
        if tensor is not None and (self._record_eval or in_training(module, self._evaluation_from_grad)):
            self._interval.add(name, samples_first(tensor, module, False, self._batched))


class InputNorm(OutputNorm):
    """Length of a layer's input, per sample: what :class:`OutputNorm` is of its output.

    Of several arguments the first floating-point tensor counts. Inputs are measured before the layer runs, which may write
    into them.
    """

    ports: tuple[Port, ...] = ("input",)

    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Measure the input of one call; the output is not looked at."""
        self._measure(name, module, layer_input)

    def __call__(self, event: Event) -> None:
        if event.site.port != "input":
            self._refuse(event)
        if event.phase != "recompute":
            self._measure(name_of(event), event.module, (event.args, event.kwargs))


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating-point or complex tensor in *value*, else the first tensor; None if that has no elements."""
    first = structure.first_floating(value)
    if first is None:
        first = next((tensor for _, tensor in structure.walk(value)), None)
    return None if first is None or first.numel() == 0 else first
