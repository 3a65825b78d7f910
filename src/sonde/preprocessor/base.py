"""The abstract preprocessors, by what each is fed with: how an event becomes a call of ``process_*``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from sonde.engine import Event
from sonde.errors import ArgumentError
from sonde.site import Port, Site


class AbstractPreprocessor(ABC):
    """A statistic of one tensor of a layer, for many layers by name; its numbers are aggregated over an interval.

    >>> from sonde.preprocessor import AbstractPreprocessor, OutputNorm
    >>> norms = OutputNorm()
    >>> isinstance(norms, AbstractPreprocessor)
    True
    >>> norms.expect(["0"])
    >>> norms.reset()
    >>> list(norms.value)
    ['0']

    Feed a preprocessor by calling its ``process_*`` method, or with ``sonde.observe(model, preprocessor, ports=...)``, which
    calls the preprocessor with events. To write one, derive from the class that names its input
    (:class:`AbstractForwardPreprocessor` and its siblings), and write ``process_*``, ``value`` and ``reset``.

    Attributes:
        ports: the ports that ``observe`` delivers events of.
    """

    ports: tuple[Port, ...] = ()
    _accepted: ClassVar[tuple[Port, ...]] = ()  # the ports whose events can be processed

    @property
    @abstractmethod
    def value(self) -> dict[str, Any]:
        """The aggregates since the preprocessor was made or last reset, by layer name."""

    @abstractmethod
    def reset(self) -> None:
        """Begin a new interval."""

    def __call__(self, event: Event) -> object:
        """Process an event of one of the ``ports``; return what ``process_*`` returns, which should be None.

        Raises:
            ArgumentError: the event is of another port, or does not carry the module that is needed.
        """
        if event.site.port not in self._accepted:
            self._refuse(event)
        return self._process(event)

    def _process(self, event: Event) -> object:
        """Process an event of an accepted port."""
        self._refuse(event)

    def expect(self, sites: Iterable[Site | str]) -> None:  # noqa: B027  # not every preprocessor has a use for it
        """Announce the sites, or layers by name, that will be processed: ``value`` may have them before they are.

        The default does nothing.
        """

    def _refuse(self, event: Event) -> NoReturn:
        raise ArgumentError(
            f"{type(self).__name__} takes events of {' and '.join(self.ports) or 'no port'}, and this is of {event.site}"
        )


class AbstractForwardPreprocessor(AbstractPreprocessor):
    """Base of preprocessors of a layer's input and output.

    >>> import sonde, torch
    >>> from sonde.preprocessor import AbstractForwardPreprocessor
    >>> class Largest(AbstractForwardPreprocessor):
    ...     def __init__(self):
    ...         self.seen = {}
    ...     def process_fw(self, name, module, layer_input, layer_output):
    ...         self.seen[name] = max(self.seen.get(name, 0.0), layer_output.max().item())
    ...     @property
    ...     def value(self):
    ...         return dict(self.seen)
    ...     def reset(self):
    ...         self.seen.clear()
    >>> largest = Largest()
    >>> net = torch.nn.Sequential(torch.nn.ReLU())
    >>> with sonde.observe(net, largest):
    ...     _ = net(torch.tensor([-1.0, 2.0]))
    >>> largest.value
    {'0': 2.0, '': 2.0}

    Events of ``output`` are processed, except those of a checkpoint's recomputation, which would count one forward twice.
    """

    ports: tuple[Port, ...] = ("output",)
    _accepted: ClassVar[tuple[Port, ...]] = ("output",)

    @abstractmethod
    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Process one call of a layer.

        Args:
            name: name of the layer.
            module: the layer.
            layer_input: the first argument of the call.
            layer_output: the returned value.
        """

    def _process(self, event: Event) -> object:
        if event.phase == "recompute":
            return None
        given = event.args[0] if event.args else next(iter(event.kwargs.values()), None)
        process: Callable[..., object] = self.process_fw
        return process(name_of(event.site), event.module, given, event.value)


class AbstractBackwardPreprocessor(AbstractPreprocessor):
    """Base of preprocessors of the gradients of a layer's inputs or outputs.

    >>> import torch
    >>> from sonde.preprocessor import AbstractBackwardPreprocessor, OutputGradientGeometry
    >>> isinstance(OutputGradientGeometry(), AbstractBackwardPreprocessor)
    True
    >>> geometry = OutputGradientGeometry(correlation=False)
    >>> geometry.process_bw("0", None, None, torch.tensor([[3.0, 4.0]]))
    >>> geometry.value["0"].mean
    5.0

    An event of ``grad_output`` is processed with an empty ``grad_input``, an event of ``grad_input`` with an empty ``grad_output``.
    """

    ports: tuple[Port, ...] = ("grad_output",)
    _accepted: ClassVar[tuple[Port, ...]] = ("grad_output", "grad_input")

    @abstractmethod
    def process_bw(self, name: str, module: Any, grad_input: Any, grad_output: Any) -> None:
        """Process one backward pass of a layer.

        Args:
            name: name of the layer.
            module: the layer.
            grad_input: gradients of the inputs: a tuple, with None for an input that has no gradient.
            grad_output: gradients of the outputs, in the same form.
        """

    def _process(self, event: Event) -> object:
        inward = event.site.port == "grad_input"
        process: Callable[..., object] = self.process_bw
        return process(name_of(event.site), event.module, event.value if inward else (), () if inward else event.value)


class AbstractModulePreprocessor(AbstractPreprocessor):
    """Base of preprocessors of a layer itself.

    >>> import torch
    >>> from sonde.preprocessor import AbstractModulePreprocessor, ParameterNorm
    >>> norms = ParameterNorm(attrs=("weight",))
    >>> isinstance(norms, AbstractModulePreprocessor)
    True
    >>> layer = torch.nn.Linear(2, 1)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> norms.process_module("0", layer)
    >>> norms.value["0"]["weight"].mean
    0.0

    Each layer is processed once per step: one that owns parameters at their first event of ``param``, which the optimizer's step
    brings, and any other at its first event of ``output``, when it runs.
    """

    ports: tuple[Port, ...] = ("output", "param")
    _accepted: ClassVar[tuple[Port, ...]] = ("output", "param")
    _seen: dict[str, int] | None = None  # by layer: the step at which the layer was last processed

    @abstractmethod
    def process_module(self, name: str, module: Any) -> None:
        """Process the layer *module*, called *name*."""

    def _process(self, event: Event) -> object:
        module = event.module
        if module is None:
            raise ArgumentError(f"{type(self).__name__} looks at the layer itself, which the event of {event.site} does not carry")
        if self._seen is None:
            self._seen = {}
        if event.site.port == "output" and any(True for _ in module.parameters(recurse=False)):
            return None
        layer = name_of(event.site) if event.site.port == "output" else ParameterName.of(event.site).layer
        if self._seen.get(layer) == event.tick.step:
            return None
        self._seen[layer] = event.tick.step
        process: Callable[..., object] = self.process_module
        return process(layer, module)


class AbstractTensorPreprocessor(AbstractPreprocessor):
    """Base of preprocessors of one tensor, mostly the gradient of a parameter.

    >>> import torch
    >>> from sonde.preprocessor import AbstractTensorPreprocessor, GradientGeometry
    >>> lengths = GradientGeometry(correlation=False)
    >>> isinstance(lengths, AbstractTensorPreprocessor)
    True
    >>> lengths.process_tensor("weight", torch.tensor([3.0, 4.0]))
    >>> lengths.value["weight"].mean
    5.0

    Events of ``grad`` and ``param`` are processed under the full name of the parameter.
    """

    ports: tuple[Port, ...] = ("grad",)
    _accepted: ClassVar[tuple[Port, ...]] = ("grad", "param")

    @abstractmethod
    def process_tensor(self, name: str, tensor: Tensor, /) -> None:
        """Process *tensor*, called *name*."""

    def _process(self, event: Event) -> object:
        process: Callable[..., object] = self.process_tensor
        return process(name_of(event.site), event.value)


class ParameterName(NamedTuple):
    """The name of a parameter in two parts: the name of the layer, and the name of the layer's attribute.

    In a parametrized layer, ``up.parametrizations.weight.original0`` is ``weight.original0`` of ``up``.
    """

    layer: str
    attribute: str

    @classmethod
    def parse(cls, name: str, model: str = "") -> ParameterName:
        """Return the two parts of a full name; the name of a *model* is put before the name of the layer."""
        found = _PARAMETRIZED.fullmatch(name)
        if found is not None:
            layer, attribute = found["layer"] or "", f"{found['attribute']}.{found['original']}"
        else:
            layer, _, attribute = name.rpartition(".")
        return cls(f"{model}/{layer}" if model else layer, attribute)

    @classmethod
    def of(cls, site: Site) -> ParameterName:
        """Return the two parts of the name of the parameter at *site*."""
        return cls.parse(site.path, site.model)


_PARAMETRIZED = re.compile(r"(?:(?P<layer>.+)\.)?parametrizations\.(?P<attribute>\w+)\.(?P<original>original\d*)")


def name_of(site: Site) -> str:
    """Return the name of the layer or parameter at *site*, after the name of the model if several are observed."""
    return f"{site.model}/{site.path}" if site.model else site.path


def in_training(module: Any, evaluation_from_grad: bool) -> bool:
    """Return whether a layer that is called now is in training.

    Args:
        module: the layer, or None if it is not known.
        evaluation_from_grad: evaluation is where gradients are switched off (``no_grad``, ``inference_mode``); otherwise evaluation
            is where ``module.training`` is false.

    Raises:
        ArgumentError: the answer depends on the module, which is not known.
    """
    if evaluation_from_grad:
        return torch.is_grad_enabled()
    if module is None:
        raise ArgumentError(
            "whether a call belongs to training is read from the layer's training flag, and this event does not carry its layer: "
            "use evaluation_from_grad=True, or call process_fw(name, module, ...)"
        )
    return bool(module.training)
