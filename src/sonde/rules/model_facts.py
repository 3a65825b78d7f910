"""What run.json says of the layers of a model: their types, and the shapes of their parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sonde.site import PORTS, Site

_WITH_WEIGHTS = ("Linear", "Conv", "RNN", "LSTM", "GRU", "Bilinear", "Attention")
_FUSED = ("qkv", "c_attn", "in_proj", "query_key_value", "Wqkv")  # names of weights that make queries and keys together
_NO_WEIGHTS = ("bias", "embed", "token", "pos", "table", "scale", "gamma")


@dataclass(frozen=True)
class Fact:
    """What is known of one layer, or of one parameter.

    Attributes:
        kind: the type of the layer, or of the layer that owns the parameter; ``""`` if it is not known.
        name: the last part of the parameter's name; ``""`` of a layer.
        shape: of the parameter; None if it is not known.
        trainable: whether the parameter was meant to be trained as the run began.
        dtype: of the parameter, as ``bfloat16``; ``float32`` where nothing is said.
        rate: of a dropout layer, the share that it drops, as set when the run began; NaN if that is not known.
        eps, momentum: of a normalisation, as set then; NaN if that is not known, or there is none.
        code: where the ``forward`` of the layer's class is written, as ``model.py:25``; ``""`` for torch's own.
    """

    kind: str = ""
    name: str = ""
    shape: tuple[int, ...] | None = None
    trainable: bool = True
    dtype: str = "float32"
    rate: float = math.nan
    eps: float = field(default=math.nan, repr=False)
    momentum: float = field(default=math.nan, repr=False)
    code: str = field(default="", repr=False)

    @property
    def is_offset(self) -> bool:
        """Whether the parameter is one number for each unit or row: a bias, the offset of a user or a place."""
        return self.shape is not None and (len(self.shape) < 2 or max(self.shape[1:]) == 1) and "Norm" not in self.kind

    @cached_property
    def is_matrix(self) -> bool:
        """Whether the parameter is a weight that mixes inputs: no bias, no embedding, no scale of a normalisation."""
        if not self.name or "Embedding" in self.kind or "Norm" in self.kind:
            return False
        if self.shape is None:
            return self.name != "bias"
        if len(self.shape) < 2:
            return False
        if any(kind in self.kind for kind in _WITH_WEIGHTS) and "weight" in self.name:
            return True
        return self.shape[0] > 1 and self.inputs > 1 and not any(word in self.name for word in _NO_WEIGHTS)

    @property
    def inputs(self) -> int:
        """How many inputs each output of the weight has; 0 if that is not known."""
        return math.prod(self.shape[1:]) if self.shape else 0

    @property
    def units(self) -> int:
        """How many outputs the weight has; 0 if that is not known."""
        return self.shape[0] if self.shape else 0

    @property
    def usual(self) -> float:
        """The root mean square of the weight as torch initialises a Linear or a Conv: uniform within 1 / sqrt(inputs)."""
        return (3 * self.inputs) ** -0.5 if self.inputs else 0.0


_UNKNOWN = Fact()


class ModelFacts:
    """The facts about every layer and parameter of the models of a run.

    >>> import sonde
    >>> from sonde.rules import ModelFacts
    >>> facts = ModelFacts({})
    >>> facts.has_attention(""), facts.of(sonde.Site("0"))
    (False, Fact(kind='', name='', shape=None, trainable=True, dtype='float32', rate=nan))

    Args:
        about: the description that the run begins with: ``model`` is the list of its modules. A run that another program wrote
            may have none.
    """

    def __init__(self, about: Mapping[str, object]) -> None:
        lines = about.get("model")
        self._layers: dict[tuple[str, str], Fact] = {}
        self.parameters: dict[tuple[str, str], Fact] = {}
        for line in lines if isinstance(lines, Sequence) else ():
            if isinstance(line, Mapping):
                self._add(line)

    def _add(self, line: Mapping[str, object]) -> None:
        model, layer, kind = str(line.get("model", "")), str(line.get("name", "")), str(line.get("type", ""))
        settings = [line.get(name) for name in ("rate", "eps", "momentum")]
        rate, eps, momentum = (float(each) if isinstance(each, int | float) else math.nan for each in settings)
        self._layers[model, layer] = Fact(kind, rate=rate, eps=eps, momentum=momentum, code=str(line.get("code", "")))
        shapes, frozen, dtypes = line.get("shapes"), line.get("frozen"), line.get("dtypes")
        for name, shape in shapes.items() if isinstance(shapes, Mapping) else ():
            known = tuple([int(size) for size in shape]) if isinstance(shape, Sequence) else None
            dtype = str(dtypes.get(name, "float32")) if isinstance(dtypes, Mapping) else "float32"
            trainable = not (isinstance(frozen, Sequence) and name in frozen)
            self.parameters[model, f"{layer}.{name}" if layer else str(name)] = Fact(kind, str(name), known, trainable, dtype)

    def has_attention(self, model: str) -> bool:
        """Return whether a *model* has attention, by the types of its layers and the names of its weights."""
        layers = any(
            "attention" in fact.kind.lower() or "attn" in fact.kind.lower() for (of, _), fact in self._layers.items() if of == model
        )
        return layers or any(part in path for of, path in self.parameters if of == model for part in _FUSED)

    def of(self, site: Site) -> Fact:
        """Return the facts about the layer or the parameter at *site*."""
        if PORTS[site.port].of != "parameter":
            return self._layers.get((site.model, site.path), _UNKNOWN)
        known = self.parameters.get((site.model, site.path))
        if known is not None:
            return known
        layer, _, name = site.path.rpartition(".")
        return Fact(self._layers.get((site.model, layer), _UNKNOWN).kind, name)
