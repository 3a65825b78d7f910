"""Of gradients: how long they are, which way they turn, and which neurons get none."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sonde.engine import Event
from sonde.engine.clock.loss_scale import unscaled
from sonde.engine.layer_axes import neurons_first
from sonde.preprocessor.base import AbstractBackwardPreprocessor, AbstractTensorPreprocessor, name_of
from sonde.preprocessor.geometry import SequenceGeometry
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured, nothing_to_measure
from sonde.preprocessor.outputs import Activity, first_tensor
from sonde.stats import Activation
from sonde.stats.statistic import dense

__all__ = ["GradientActivation", "GradientGeometry", "OutputGradientGeometry"]


class OutputGradientGeometry(SequenceGeometry, AbstractBackwardPreprocessor):
    """Preprocessor: the length of the gradient of a layer's output, and its correlation with that of the backward pass before.

    The numbers, the arguments and where they differ from the seed: see :class:`SequenceGeometry`.

    Of a structured output the first gradient that arrived counts; a pass in which none did gives no number. A batch of
    another size than the one before has no correlation. Through ``observe``, a layer that is called several times in one
    forward has the gradients of its n-th calls compared with each other.
    """

    def process_bw(self, name: str, module: Any, grad_input: Any, grad_output: Any) -> None:
        """Measure the gradient of the output in one backward pass; *module* and *grad_input* are not looked at."""
        self._measure(name, grad_output, 0)

    def __call__(self, event: Event) -> None:
        if event.site.port != "grad_output":
            self._refuse(event)
        self._measure(name_of(event), event.value, event.call)

    def _measure(self, name: str, gradients: Any, call: int) -> None:
        self._interval.expect(name)
        gradient = first_tensor(gradients)
        if gradient is not None:
            self._add(name, gradient, before_of=call)


class GradientGeometry(SequenceGeometry, AbstractTensorPreprocessor):
    """Length of the gradient of a parameter, and its correlation with the gradient before.

    The numbers, the arguments and where they differ from the seed: see :class:`SequenceGeometry`.

    Each call of ``process_tensor`` counts as one gradient. Through ``observe``, each optimizer step does: where several
    backward passes accumulate into one gradient, it is the whole that counts, and is compared with the whole of the
    step before (for which two copies are kept). In a loop without a torch optimizer say ``probe.step()``. With
    ``observe(..., grad_at_step=True)`` it is the gradient that the optimizer uses: reduced over ranks, unscaled, clipped.
    The name is the parameter's full one, ``layers.0.weight``.
    """

    def process_tensor(self, name: str, grad: Tensor | None) -> None:
        """Measure a gradient; None, for a parameter that got none, gives no number."""
        self._measure(name, grad, None)

    def __call__(self, event: Event) -> None:
        if event.site.port != "grad":
            self._refuse(event)
        self._measure(name_of(event), event.value, event.tick.step)

    def _measure(self, name: str, gradient: Tensor | None, step: int | None) -> None:
        self._interval.expect(name)
        if gradient is not None and not nothing_to_measure(gradient, "a gradient"):
            self._add(name, gradient, step=step)


class GradientActivation(Measured, AbstractTensorPreprocessor):
    """Share of a parameter's elements that get a gradient, and of neurons that get none.

    *Tensor to number*: an element is active if ``|g| > eps``; the rate of a neuron is the share of its elements that are;
    ``activation`` is the mean rate over the neurons, ``death`` the share of neurons whose rate is 0
    (:class:`sonde.stats.Activation` with the neurons on axis 0). *Numbers to aggregates*: unweighted over calls; through
    ``observe`` each optimizer step counts as one call, with the gradient accumulated by then.

    A neuron is an output channel of the layer, on the first axis of nearly all parameters. The weight of a transposed convolution
    has it on the second and that of an embedding on the last: give the layer as *owner*, as ``observe`` does.

    None and an empty gradient give no number; a NaN or an infinity in it is counted as ``nonfinite`` in the aggregates.

    Args:
        death: also give the share of neurons without a gradient: ``value`` then has an :class:`Activity` for each name,
            otherwise the aggregate of ``activation``.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.
        eps: the magnitude up to which a gradient counts as zero. The magnitude of gradients goes with that of the loss: a
            healthy model may have gradients of 1e-9, and 0 asks for exact zeros.
        scaler: the ``GradScaler`` of the training, so that *eps* is compared with unscaled gradients.

    Raises:
        ArgumentError: *eps* is negative, infinite or NaN.
    """

    def __init__(self, death: bool = True, inplace: bool = True, eps: float = 1e-8, *, scaler: Any = None) -> None:
        statistic = Activation(eps, channel_axis=0)
        numbers = {"activation": "call_activation"} | ({"death": "call_death"} if death else {})
        super().__init__([NumberSpec(statistic, numbers)], inplace, Activity if death else None)
        self._eps = eps
        self._scaler = scaler

    def process_tensor(self, name: str, grad: Tensor | None, *, owner: nn.Module | None = None) -> None:
        """Measure a gradient; *owner* is the layer that has the parameter."""
        self._measure(name, grad, owner, None)

    def __call__(self, event: Event) -> None:
        if event.site.port != "grad":
            self._refuse(event)
        self._measure(name_of(event), event.value, event.module, event.tick.step)

    def _measure(self, name: str, gradient: Tensor | None, owner: nn.Module | None, step: int | None) -> None:
        self._interval.expect(name)
        if gradient is None or nothing_to_measure(gradient, "a gradient"):
            return
        arranged = neurons_first(unscaled(dense(gradient.detach()), self._scaler), owner)
        self._interval.add(name, arranged, step=step)
