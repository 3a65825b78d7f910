"""Preprocessors of gradients: how long they are, how their direction changes, and which neurons get none."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from sonde.engine import Event, LayerAxes, Scaling
from sonde.errors import ArgumentError
from sonde.preprocessor.aggregates import Aggregate
from sonde.preprocessor.base import AbstractBackwardPreprocessor, AbstractTensorPreprocessor, name_of
from sonde.preprocessor.interval import NumberSpec, size_of
from sonde.preprocessor.measured import Measured
from sonde.preprocessor.outputs import activity, first_tensor
from sonde.site import Port
from sonde.stats import Activation, Cosine, History, Norm, dense

_NORM, _CORRELATION = 0, 1  # positions of the specs


class Geometry(NamedTuple):
    """Length of tensors over an interval, and the cosine of each to the tensor before, from -1 to 1.

    >>> import torch
    >>> from sonde.preprocessor import GradientGeometry
    >>> lengths = GradientGeometry()
    >>> lengths.process_tensor("weight", torch.tensor([3.0, 4.0]))
    >>> lengths.process_tensor("weight", torch.tensor([3.0, 4.0]))
    >>> lengths.value["weight"].norm.mean, round(lengths.value["weight"].correlation.mean, 6)
    (5.0, 1.0)
    """

    norm: Aggregate
    correlation: Aggregate


class SequenceGeometry(Measured):
    """Norm of each tensor of a name, and correlation with the tensor before.

    *Tensor to number*: ``norm`` is the Euclidean norm, with *normalize* divided by the root of the number of elements
    (:class:`sonde.stats.Norm`); ``correlation`` is the cosine of the angle to the tensor before
    (:class:`sonde.stats.Cosine`). Both are computed in float64. *Numbers to aggregates*: unweighted over calls.

    Two differences from monitorch, whose numbers are wrong there: a first tensor has no correlation, where monitorch counts a
    correlation of 0; and *eps* is not added to the product of the norms, where two equal gradients of norm 1e-5 get a
    correlation of 0.0099. A tensor that is zero, or of another shape than the tensor before, has no correlation either. ``reset``
    keeps the tensor before, so that a new interval does not begin with a gap.

    An empty tensor gives no number; a tensor with a NaN or an infinity is counted as ``nonfinite`` in the aggregates. Sparse
    tensors are made dense. Of complex tensors the correlation is the real part of the Hermitian product over the norms.

    Args:
        correlation: also give the correlation, which keeps a copy of the last tensor: ``value`` then has a
            :class:`Geometry` for each name, otherwise the aggregate of the norm.
        normalize: divide norms by the root of the number of elements.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        eps: an argument of monitorch, checked and not used.
        scaler: the ``GradScaler`` of the training: norms are then those of the unscaled gradients.

    Raises:
        ArgumentError: *eps* is negative, infinite or NaN.
    """

    def __init__(
        self,
        correlation: bool = True,
        normalize: bool = False,
        inplace: bool = True,
        eps: float = 1e-8,
        *,
        scaler: Any = None,
    ) -> None:
        if not 0 <= eps < math.inf:
            raise ArgumentError(f"eps must be 0 or more and finite, not {eps}")
        specs = [size_of(Norm(), normalize), NumberSpec(Cosine(), {"correlation": "cosine"})]
        super().__init__(specs if correlation else specs[:1], inplace, Geometry if correlation else None)
        self._history = History() if correlation else None
        self._scaler = scaler

    def _add(self, key: Any, tensor: Tensor, step: int | None, sequence: Hashable = None) -> None:
        """Measure *tensor*.

        Args:
            key: the name of the numbers.
            tensor: the tensor.
            step: if given, the tensor stands in place of the last tensor of the same step.
            sequence: tensors of one name are compared within their sequence.
        """
        self._interval.add(key, Scaling.unscaled(tensor, self._scaler), spec=_NORM, step=step)
        if self._history is not None:
            previous = self._history.previous((key, sequence), step)
            if previous is not None:
                self._interval.add(key, tensor, previous, spec=_CORRELATION, step=step)
            self._history.remember((key, sequence), tensor, step)

    def clear(self) -> None:
        super().clear()
        if self._history is not None:
            self._history.clear()


class OutputGradientGeometry(SequenceGeometry, AbstractBackwardPreprocessor):
    """Preprocessor: the length of the gradient of a layer's output, and its correlation with the gradient of the pass before.

    >>> import torch
    >>> from sonde.preprocessor import OutputGradientGeometry
    >>> lengths = OutputGradientGeometry(correlation=False)
    >>> lengths.process_bw("0", None, None, torch.tensor([[3.0, 4.0]]))
    >>> lengths.value["0"].mean
    5.0

    Numbers, arguments and differences from monitorch: see :class:`SequenceGeometry`.

    Of a structured output the first gradient that arrived is measured; a pass without any gives no number. A batch of
    another size than the one before has no correlation. Through ``observe``, if a layer is called several times in one
    forward, the gradients of its n-th calls are compared with each other.
    """

    _accepted: ClassVar[tuple[Port, ...]] = ("grad_output",)

    def process_bw(self, name: str, module: Any, grad_input: Any, grad_output: Any) -> None:
        """Measure the gradient of the output in one backward pass; *module* and *grad_input* are not used."""
        self._measure_pass(name, grad_output, 0)

    def _process(self, event: Event) -> None:
        self._measure_pass(name_of(event.site), event.value, event.call)

    def _measure_pass(self, name: str, gradients: Any, call: int) -> None:
        self._interval.expect(name)
        gradient = first_tensor(gradients)
        if gradient is not None:
            self._add(name, gradient, None, sequence=call)


class GradientGeometry(SequenceGeometry, AbstractTensorPreprocessor):
    """Preprocessor: the length of the gradient of a parameter, and its correlation with the gradient before.

    >>> import torch
    >>> from sonde.preprocessor import GradientGeometry
    >>> lengths = GradientGeometry(correlation=False)
    >>> lengths.process_tensor("weight", torch.tensor([3.0, 4.0]))
    >>> lengths.value["weight"].mean
    5.0

    Numbers, arguments and differences from monitorch: see :class:`SequenceGeometry`.

    Each call of ``process_tensor`` counts as one gradient. Through ``observe``, each optimizer step counts as one: where several
    backward passes accumulate into one gradient, the whole sum is measured and compared with the whole of the
    step before (two copies are kept). In a loop without a torch optimizer call ``probe.step()``. With
    ``observe(..., grad_at_step=True)`` the gradient is the one that the optimizer uses: reduced over ranks, unscaled, clipped.
    The name is the full name of the parameter, such as ``layers.0.weight``.
    """

    _accepted: ClassVar[tuple[Port, ...]] = ("grad",)

    def process_tensor(self, name: str, grad: Tensor | None) -> None:
        """Measure a gradient; None, for a parameter without a gradient, gives no number."""
        self._measure(name, grad, what="a gradient")

    def _process(self, event: Event) -> None:
        self._measure(name_of(event.site), event.value, what="a gradient", step=event.tick.step)


class GradientActivation(Measured, AbstractTensorPreprocessor):
    """Preprocessor: the share of a parameter's elements that get a gradient, and the share of neurons that get none.

    >>> import torch
    >>> from sonde.preprocessor import GradientActivation
    >>> shares = GradientActivation()
    >>> shares.process_tensor("weight", torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    >>> shares.value["weight"].activation.mean, shares.value["weight"].death.mean
    (0.25, 0.5)

    *Tensor to number*: an element is active if ``|g| > eps``; the rate of a neuron is the share of its elements that are active;
    ``activation`` is the mean rate over the neurons, ``death`` the share of neurons whose rate is 0
    (:class:`sonde.stats.Activation` with the neurons on axis 0). *Numbers to aggregates*: unweighted over calls; through
    ``observe`` each optimizer step counts as one call, with the gradient accumulated by then.

    A neuron is an output channel of the layer, on the first axis of nearly all parameters. The weight of a transposed convolution
    has the neurons on the second axis, the weight of an embedding on the last: give the layer as *owner*, as ``observe`` does.

    None and an empty gradient give no number; a gradient with a NaN or an infinity is counted as ``nonfinite`` in the aggregates.

    Args:
        death: also give the share of neurons without a gradient: ``value`` then has an :class:`Activity` for each name,
            otherwise the aggregate of ``activation``.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        eps: the magnitude up to which a gradient counts as zero. Gradients are proportional to the loss: a
            healthy model may have gradients of 1e-9. With 0, only exact zeros count.
        scaler: the ``GradScaler`` of the training: *eps* is then compared with unscaled gradients.

    Raises:
        ArgumentError: *eps* is negative, infinite or NaN.
    """

    _accepted: ClassVar[tuple[Port, ...]] = ("grad",)

    def __init__(self, death: bool = True, inplace: bool = True, eps: float = 1e-8, *, scaler: Any = None) -> None:
        spec, form = activity(Activation(eps, channel_axis=0), death)
        super().__init__([spec], inplace, form)
        self._eps = eps
        self._scaler = scaler

    def process_tensor(self, name: str, grad: Tensor | None, *, owner: nn.Module | None = None) -> None:
        """Measure a gradient; *owner* is the layer that has the parameter."""
        self._measure(name, grad, owner, what="a gradient")

    def _process(self, event: Event) -> None:
        self._measure(name_of(event.site), event.value, event.module, what="a gradient", step=event.tick.step)

    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor:
        return LayerAxes.neurons_first(Scaling.unscaled(dense(tensor.detach()), self._scaler), owner)
