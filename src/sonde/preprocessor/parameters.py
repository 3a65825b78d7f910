"""Of parameters as they are: how large, and how well conditioned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sonde.engine import Event, Site
from sonde.engine.layer_axes import as_matrix
from sonde.errors import ArgumentError
from sonde.preprocessor.aggregates import Aggregate
from sonde.preprocessor.base import AbstractModulePreprocessor, ParameterName
from sonde.preprocessor.interval import NumberSpec
from sonde.preprocessor.measured import Measured, nothing_to_measure
from sonde.stats import Norm
from sonde.stats.samples import MatrixCondition
from sonde.stats.statistic import dense

__all__ = ["Condition", "Conditioning", "ParameterNorm"]


class _OfAttributes(Measured, AbstractModulePreprocessor):
    """Measures tensors that are attributes of a layer; ``value`` has them by layer and attribute."""

    def __init__(self, attrs: Iterable[str], specs: Iterable[NumberSpec], inplace: bool, form: Any = None) -> None:
        self.attrs_ = [attrs] if isinstance(attrs, str) else list(attrs)
        if not self.attrs_ or not all(isinstance(name, str) for name in self.attrs_):
            raise ArgumentError(f"attrs must be names of attributes such as ['weight', 'bias'], not {attrs!r}")
        super().__init__(specs, inplace, form)

    @abstractmethod
    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor | None:
        """Return the tensor to measure of an attribute of *owner*; None if there is no such number."""

    def process_module(self, name: str, module: Any) -> None:
        """Measure the attributes of a layer; one that is missing, None or uninitialised has no data.

        A parametrized attribute is computed as in evaluation (spectral normalisation takes no step of its power
        iteration), and without calling the hooks of its parametrizations.
        """
        for attribute in self.attrs_:
            self._measure((name, attribute), _attribute(module, attribute), module)

    def __call__(self, event: Event) -> None:
        if event.site.port != "param":
            self._refuse(event)
        key = ParameterName.of(event)
        if key.attribute.partition(".")[0] in self.attrs_:
            self._measure((key.layer, key.attribute), event.value, event.module)

    def _measure(self, key: tuple[str, str], tensor: Any, owner: nn.Module | None) -> None:
        self._interval.expect(key)
        if nothing_to_measure(tensor, f"{key[0]}.{key[1]}"):
            return
        arranged = self._arranged(tensor, owner)
        if arranged is not None:
            self._interval.add(key, arranged)

    def _path(self, key: Any) -> tuple[str, ...]:
        return tuple(key)

    def expect(self, sites: Iterable[Site | str]) -> None:
        """These layers by name, or parameters by site, have no data until they are processed, instead of being unknown."""
        for site in sites:
            for key in self._keys(site):
                self._interval.expect(key)

    def _keys(self, site: Site | str) -> Iterator[tuple[str, str]]:
        if isinstance(site, str):
            yield from ((site, attribute) for attribute in self.attrs_)
            return
        key = ParameterName.parse(site.path, site.model)
        if key.attribute.partition(".")[0] in self.attrs_:
            yield key.layer, key.attribute


class ParameterNorm(_OfAttributes):
    """Preprocessor: the norm of the parameters of layers.

    *Tensor to number*: the Euclidean norm of an attribute of the layer, with *normalize* divided by the root of its number of
    elements (:class:`sonde.stats.Norm`), formed in float64. *Numbers to aggregates*: over the calls of ``process_module``,
    or, through ``observe``, over optimizer steps. ``value[layer][attribute]`` is the aggregate.

    Through ``observe`` the parameter ``original0`` of a parametrized ``weight`` stands as ``value[layer]["weight.original0"]``.

    Args:
        attrs: names of attributes, or a single one. A layer need not have them.
        normalize: divide by the root of the number of elements.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.

    Raises:
        ArgumentError: *attrs* holds no names.
    """

    def __init__(self, attrs: Iterable[str] = ("weight", "bias"), normalize: bool = False, inplace: bool = True) -> None:
        number = "rms" if normalize else "norm"
        super().__init__(attrs, [NumberSpec(Norm(), {number: number})], inplace)

    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor:
        return tensor


class Condition(NamedTuple):
    """Condition number and stable rank of a parameter, over an interval."""

    condition: Aggregate
    stable_rank: Aggregate


class Conditioning(_OfAttributes):
    """Condition number and stable rank of the parameters of layers.

    *Tensor to number*: the parameter is read as a matrix with a row per neuron (output channel), and its singular values are
    computed in float64; ``condition`` is the largest over the smallest (Golub and Van Loan, Matrix Computations, 4th ed.,
    2.6.2), ``stable_rank`` the squared Frobenius norm over the squared largest (Rudelson and Vershynin: Sampling from large
    matrices, 2007). *Numbers to aggregates*: as :class:`ParameterNorm`. ``value[layer][attribute]`` is a :class:`Condition`.

    A vector has no condition and gives no number; nor does a zero matrix. A condition that is infinite is counted as
    ``nonfinite`` in the aggregate. The decomposition of an m x n matrix takes of the order of m n min(m, n) operations, and on an
    accelerator waits for it: choose layers, and a ``schedule``.

    Args:
        attrs: names of attributes, or a single one. A layer need not have them.
        inplace: aggregate in a :class:`~sonde.stats.RunningMeanVar`, otherwise keep all numbers in a list.

    Raises:
        ArgumentError: *attrs* holds no names.
    """

    def __init__(self, attrs: Iterable[str] = ("weight",), inplace: bool = True) -> None:
        names = {"condition": "condition", "stable_rank": "stable_rank"}
        super().__init__(attrs, [NumberSpec(MatrixCondition(), names)], inplace, Condition)

    def _arranged(self, tensor: Tensor, owner: nn.Module | None) -> Tensor | None:
        return None if tensor.dim() < 2 else as_matrix(dense(tensor.detach()), owner)


def _attribute(module: nn.Module, name: str) -> Any:
    """An attribute of a layer, None if it has no such tensor; read without a trace in the layer."""
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
