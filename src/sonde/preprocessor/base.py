"""What a preprocessor is: the abstract classes, by what each is fed with, and how an event reaches them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from sonde.engine import Event, Port, Site
from sonde.errors import ArgumentError

__all__ = [
    "AbstractBackwardPreprocessor",
    "AbstractForwardPreprocessor",
    "AbstractModulePreprocessor",
    "AbstractPreprocessor",
    "AbstractTensorPreprocessor",
    "ParameterName",
    "name_of",
]


class AbstractPreprocessor(ABC):
    """A statistic of one tensor of a layer, for many layers by name; its numbers are aggregated over an interval.

    A preprocessor is fed by calling its ``process_*`` method, or by ``sonde.observe(model, preprocessor, ports=...)``, which calls
    it with events. To write one, derive from the class for what it is fed with (:class:`AbstractForwardPreprocessor` and its
    siblings) and write ``process_*``, ``value`` and ``reset``.

    Attributes:
        ports: of which ports it takes events.
    """

    ports: tuple[Port, ...] = ()

    @property
    @abstractmethod
    def value(self) -> dict[str, Any]:
        """What was computed since the preprocessor was made or last reset, by layer name."""

    @abstractmethod
    def reset(self) -> None:
        """Begin a new interval."""

    def __call__(self, event: Event) -> None:
        """Take an event of one of the ``ports``.

        Raises:
            ArgumentError: the event is of another port, or does not carry the module that is needed.
        """
        self._refuse(event)

    def expect(self, sites: Iterable[Site | str]) -> None:  # noqa: B027  # not every preprocessor has a use for it
        """These sites, or layers by name, are going to be processed: ``value`` may have them before they are.

        The default does nothing.
        """

    def _refuse(self, event: Event) -> NoReturn:
        raise ArgumentError(
            f"{type(self).__name__} takes events of {' and '.join(self.ports) or 'no port'}, and this is of {event.site}"
        )


class AbstractForwardPreprocessor(AbstractPreprocessor):
    """Base of those that are fed with a layer's input and output.

    Events of ``output`` are processed as they come, except those of a checkpoint's recomputation, which would count one
    forward twice.
    """

    ports: tuple[Port, ...] = ("output",)

    @abstractmethod
    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        """Process one call of a layer.

        Args:
            name: of the layer.
            module: the layer.
            layer_input: its first argument.
            layer_output: what it returned.
        """

    def __call__(self, event: Event) -> None:
        if event.site.port != "output":
            self._refuse(event)
        if event.phase != "recompute":
            given = event.args[0] if event.args else next(iter(event.kwargs.values()), None)
            self.process_fw(name_of(event), event.module, given, event.value)


class AbstractBackwardPreprocessor(AbstractPreprocessor):
    """Base of those that are fed with the gradients of a layer's inputs or outputs.

    An event of ``grad_output`` is processed with no ``grad_input``, one of ``grad_input`` with no ``grad_output``.
    """

    ports: tuple[Port, ...] = ("grad_output",)

    @abstractmethod
    def process_bw(self, name: str, module: Any, grad_input: Any, grad_output: Any) -> None:
        """Process one backward pass of a layer.

        Args:
            name: of the layer.
            module: the layer.
            grad_input: gradients of its inputs: a tuple, in which None stands for what has none.
            grad_output: gradients of its outputs, likewise.
        """

    def __call__(self, event: Event) -> None:
        if event.site.port not in ("grad_output", "grad_input"):
            self._refuse(event)
        inward = event.site.port == "grad_input"
        self.process_bw(name_of(event), event.module, event.value if inward else (), () if inward else event.value)


class AbstractModulePreprocessor(AbstractPreprocessor):
    """Base of those that look at a layer itself.

    Events of ``param``, of which there is one per parameter and optimizer step, have each layer that owns parameters processed
    once per step.
    """

    ports: tuple[Port, ...] = ("param",)
    _seen: dict[str, int] | None = None  # the step at which each layer was last processed

    @abstractmethod
    def process_module(self, name: str, module: Any) -> None:
        """Process the layer *module*, called *name*."""

    def __call__(self, event: Event) -> None:
        if event.site.port != "param":
            self._refuse(event)
        module = event.module
        if module is None:
            raise ArgumentError(f"{type(self).__name__} looks at the layer itself, which the event of {event.site} does not carry")
        if self._seen is None:
            self._seen = {}
        layer = ParameterName.of(event).layer
        if self._seen.get(layer) != event.tick.step:
            self._seen[layer] = event.tick.step
            self.process_module(layer, module)


class AbstractTensorPreprocessor(AbstractPreprocessor):
    """Base of those that are fed with one tensor, mostly a parameter's gradient.

    Events of ``grad`` and ``param`` are processed under the parameter's full name.
    """

    ports: tuple[Port, ...] = ("grad",)

    @abstractmethod
    def process_tensor(self, name: str, tensor: Tensor, /) -> None:
        """Process *tensor*, called *name*."""

    def __call__(self, event: Event) -> None:
        if event.site.port not in ("grad", "param"):
            self._refuse(event)
        self.process_tensor(name_of(event), event.value)


class ParameterName(NamedTuple):
    """A parameter's name in two: the layer's, and that of its attribute.

    Of a parametrized layer, ``up.parametrizations.weight.original0`` is ``weight.original0`` of ``up``.
    """

    layer: str
    attribute: str

    @classmethod
    def parse(cls, name: str, model: str = "") -> ParameterName:
        """The two parts of a full name; that of a *model* goes before the layer's."""
        found = _PARAMETRIZED.fullmatch(name)
        if found is not None:
            layer, attribute = found["layer"] or "", f"{found['attribute']}.{found['original']}"
        else:
            layer, _, attribute = name.rpartition(".")
        return cls(f"{model}/{layer}" if model else layer, attribute)

    @classmethod
    def of(cls, event: Event) -> ParameterName:
        """The two parts of the name of an event's parameter."""
        return cls.parse(event.name, event.site.model)


_PARAMETRIZED = re.compile(r"(?:(?P<layer>.+)\.)?parametrizations\.(?P<attribute>\w+)\.(?P<original>original\d*)")


def name_of(event: Event) -> str:
    """What an event's site is called here: the layer's or parameter's name, after the model's if several are observed."""
    return f"{event.site.model}/{event.name}" if event.site.model else event.name
