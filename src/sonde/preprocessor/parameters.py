"""Preprocessors of parameters as they are: how large, and how well conditioned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sonde.engine import Event, LayerAxes
from sonde.errors import ArgumentError
from sonde.preprocessor.aggregates import Aggregate
from sonde.preprocessor.base import AbstractModulePreprocessor, ParameterName
from sonde.preprocessor.interval import NumberSpec, size_of
from sonde.preprocessor.measured import Measured
from sonde.site import Port, Site
from sonde.stats import MatrixCondition, Norm, Piece, dense


class _OfAttributes(Measured, AbstractModulePreprocessor):
    """Measures tensors that are attributes of a layer; ``value`` has them by layer and attribute."""

    ports: tuple[Port, ...] = ("param",)
    _accepted: ClassVar[tuple[Port, ...]] = ("param",)

    def __init__(self, attrs: Iterable[str], spec: NumberSpec, inplace: bool, form: Callable[..., Any] | None = None) -> None:
        self.attrs_ = [attrs] if isinstance(attrs, str) else list(attrs)
        if not self.attrs_ or not all(isinstance(name, str) for name in self.attrs_):
            raise ArgumentError(f"attrs must be names of attributes such as ['weight', 'bias'], not {attrs!r}")
        super().__init__([spec], inplace, form)

    def process_module(self, name: str, module: Any) -> None:
        """Measure the attributes of a layer; an attribute that is missing, None or uninitialised has no data.

        A parametrized attribute is computed as in evaluation (spectral normalisation takes no step of its power
        iteration), and without calling the hooks of its parametrizations.
        """
        for attribute in self.attrs_:
            self._measure((name, attribute), _attribute(module, attribute), module, what=f"{name}.{attribute}")

    def _process(self, event: Event) -> None:
        for key in self._keys(event.site):
            self._measure(key, event.value, event.module, what=event.site.path)

    def _path(self, key: Any) -> tuple[str, ...]:
        return tuple(key)

    def _keys(self, site: Site | str) -> list[tuple[str, str]]:
        if isinstance(site, str):
            return [(site, attribute) for attribute in self.attrs_]
        key = ParameterName.of(site)
        return [key] if key.attribute.partition(".")[0] in self.attrs_ else []


class ParameterNorm(_OfAttributes):
    """Preprocessor: the norm of the parameters of layers.

    >>> import torch
    >>> from sonde.preprocessor import ParameterNorm
    >>> layer = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> lengths = ParameterNorm(attrs=("weight",))
    >>> lengths.process_module("0", layer)
    >>> lengths.value["0"]["weight"].mean
    0.0

    *Tensor to number*: the Euclidean norm of an attribute of the layer, with *normalize* divided by the root of its number of
    elements (:class:`sonde.stats.Norm`), computed in float64. *Numbers to aggregates*: over the calls of ``process_module``,
    or, through ``observe``, over optimizer steps. ``value[layer][attribute]`` is the aggregate.

    Through ``observe`` the parameter ``original0`` of a parametrized ``weight`` is ``value[layer]["weight.original0"]``.

    Args:
        attrs: names of attributes, or a single one. A layer need not have them.
        normalize: divide by the root of the number of elements.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.

    Raises:
        ArgumentError: *attrs* holds no names.
    """

    def __init__(self, attrs: Iterable[str] = ("weight", "bias"), normalize: bool = False, inplace: bool = True) -> None:
        super().__init__(attrs, size_of(Norm(), normalize), inplace)


class Condition(NamedTuple):
    """Condition number and stable rank of a parameter, over an interval.

    >>> import torch
    >>> from sonde.preprocessor import Conditioning
    >>> numbers = Conditioning()
    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.eye_(layer.weight)
    >>> numbers.process_module("0", layer)
    >>> found = numbers.value["0"]["weight"]
    >>> found.condition.mean, found.stable_rank.mean
    (1.0, 2.0)
    """

    condition: Aggregate
    stable_rank: Aggregate


class Conditioning(_OfAttributes):
    """Preprocessor: the condition number and the stable rank of the parameters of layers.

    >>> import torch
    >>> from sonde.preprocessor import Conditioning
    >>> numbers = Conditioning()
    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.eye_(layer.weight)
    >>> numbers.process_module("0", layer)
    >>> numbers.value["0"]["weight"].condition.mean
    1.0

    *Tensor to number*: the parameter is read as a matrix with a row per neuron (output channel), and its singular values are
    computed in float64; ``condition`` is the largest over the smallest (Golub and Van Loan, Matrix Computations, 4th ed.,
    2.6.2), ``stable_rank`` the squared Frobenius norm over the squared largest (Rudelson and Vershynin: Sampling from large
    matrices, 2007). *Numbers to aggregates*: as :class:`ParameterNorm`. ``value[layer][attribute]`` is a :class:`Condition`.

    A vector has no condition and gives no number; a zero matrix gives no number either, nor does a parameter that is split among
    ranks. An infinite condition is counted as ``nonfinite`` in the aggregate. The decomposition of an m x n matrix takes of the
    order of m n min(m, n) operations, and makes the host wait for an accelerator: choose layers, and a ``schedule``.

    Args:
        attrs: names of attributes, or a single one. A layer need not have them.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.

    Raises:
        ArgumentError: *attrs* holds no names.
    """

    def __init__(self, attrs: Iterable[str] = ("weight",), inplace: bool = True) -> None:
        numbers = {name: name for name in Condition._fields}
        super().__init__(attrs, NumberSpec(MatrixCondition(), numbers), inplace, Condition)

    def _process(self, event: Event) -> None:
        parameter = getattr(event.module, event.site.path.rpartition(".")[2], None)
        if not (isinstance(parameter, Tensor) and Piece.is_part(parameter)):
            super()._process(event)

    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor | None:
        return None if tensor.dim() < 2 else LayerAxes.neurons_first(dense(tensor.detach()), owner).flatten(1)


def _attribute(module: nn.Module, name: str) -> Any:
    """Return the tensor *name* of a layer, None if there is none; the layer is left unchanged."""
    if not parametrize.is_parametrized(module, name):
        found = getattr(module, name, None)
        return found if isinstance(found, Tensor) else None
    chain: Any = module.parametrizations[name]  # type: ignore[index]
    steps = [step for step in chain.modules() if step is not chain]
    training = [step.training for step in steps]
    try:
        for step in steps:
            step.training = False
        with torch.no_grad():
            originals = [chain.original] if chain.is_tensor else [getattr(chain, f"original{i}") for i in range(chain.ntensors)]
            value = chain[0].forward(*originals)
            for step in list(chain)[1:]:
                value = step.forward(value)
            return value
    finally:
        for step, was in zip(steps, training, strict=True):
            step.training = was
