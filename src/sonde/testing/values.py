"""The part of the zoo about modules that take or return more than one ordinary tensor."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn.utils.rnn import pack_sequence

from sonde.testing.zoo import Batch, Net, add, entry, one_layer, rows, two_layers

__all__: list[str] = []

# ---------------------------------------------------------------------------------------------------------------- inputs


def masked(net: Any, x: Tensor, *, mask: Tensor, scale: float = 1.0) -> Any:
    """Compute from keyword arguments."""
    return net.lin(x) * mask * scale


@entry(
    "inputs by keyword alone",
    lambda: {"child": Net(masked, **one_layer())},
    lambda: ((), {"values": torch.randn(3, 4).requires_grad_(), "mask": torch.ones(3, 4)}),
)
def keyword_only(net: Any, *, values: Tensor, mask: Tensor) -> Any:
    return net.child(x=values, mask=mask, scale=2.0)


@entry(
    "a packed sequence goes through an LSTM and comes out of it",
    lambda: {"rnn": nn.LSTM(4, 3)},
    lambda: ((pack_sequence([torch.randn(3, 4), torch.randn(2, 4)]),), {}),
)
def packed_sequence(net: Any, packed: Any) -> Any:
    return net.rnn(packed)[0]


def _of(dtype: torch.dtype, device: str = "cpu") -> Callable[[], Batch]:
    return lambda: ((torch.randn(3, 4, dtype=dtype, device=device),), {})


def _ragged(layout: torch.layout) -> Callable[[], Batch]:
    return lambda: ((torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout),), {})


def _layers(**where: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4, **where), nn.Tanh())


add("a model without data, on the meta device", lambda: _layers(device="meta"), _of(torch.float32, "meta"), name="meta_device")
add("double precision", lambda: _layers(dtype=torch.float64), _of(torch.float64), name="double")
add("half precision throughout", lambda: _layers(dtype=torch.bfloat16), _of(torch.bfloat16), name="bfloat16")
add("complex weights and values", lambda: _layers(dtype=torch.complex64), _of(torch.complex64), name="complex")
add("an empty batch", _layers, rows(0, 4), name="empty_batch", loss=lambda output: output.square().sum())
add("a jagged nested tensor", _layers, _ragged(torch.jagged), name="nested_jagged")
add(
    "a nested tensor of the older kind",
    lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    _ragged(torch.strided),
    name="nested_strided",
)
add(
    "values that are not finite",
    _layers,
    lambda: ((torch.tensor([[1.0, float("nan"), 0.0, 2.0], [float("inf"), 1.0, 1.0, 1.0]]),), {}),
    name="not_finite",
)

# --------------------------------------------------------------------------------------------------------------- outputs


class Pair(NamedTuple):
    """Two values."""

    left: Any
    right: Any


@dataclass
class Plain:
    """A dataclass."""

    hidden: Any
    count: int = 3


@dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    hidden: Any
    count: int = 3


@dataclass(slots=True)
class Slotted:
    """A dataclass with slots."""

    hidden: Any
    count: int = 3


@dataclass
class Labelled(OrderedDict[str, Any]):
    """An ordered dict that is a dataclass as well, as the outputs in ``transformers`` are."""

    logits: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            if getattr(self, item.name) is not None:
                self[item.name] = getattr(self, item.name)


class Tagged(Tensor):
    """A tensor of a class of its own."""


class Made(nn.Module):
    """A layer (4 to 4) that returns its result as a value of the named kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return _MAKERS[self.kind](self.lin(x))


class Used(nn.Module):
    """A child that returns a value of the named kind, and a layer (4 to 2) on a tensor (3 x 4) of that value."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.child = Made(kind)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(_USERS[self.kind](self.child(x)))


# Functions by kind: a module that held its own function could not be pickled.
_MAKERS: dict[str, Callable[[Tensor], Any]] = {}
_USERS: dict[str, Callable[[Any], Tensor]] = {}


def _returns(kind: str, what: str, make: Callable[[Tensor], Any], use: Callable[[Any], Tensor]) -> None:
    _MAKERS[kind], _USERS[kind] = make, use
    add(f"a module returns {what}", lambda: Used(kind), name=f"returns_{kind}")


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor).flatten(1)


def _spread(column: Tensor) -> Tensor:
    return column[:, None].expand(-1, 4)


_returns("tuple_of_one", "a tuple of one tensor", lambda y: (y,), lambda out: out[0])
_returns("tuple", "a tuple", lambda y: (y, y * 2), lambda out: out[0] + out[1])
_returns("list", "a list", lambda y: [y, y * 2], lambda out: out[0] + out[1])
_returns("dict", "a dict", lambda y: {"left": y, "right": y * 2}, lambda out: out["left"] + out["right"])
_returns("namedtuple", "a named tuple", lambda y: Pair(y, y * 2), lambda out: out.left + out.right)
_returns("return_types", "a torch.return_types", lambda y: torch.sort(y, dim=-1), lambda out: out.values)
_returns(
    "nested",
    "a nested mix",
    lambda y: {"h": [(y, None), Pair(y * 2, "text")], 3: y[0]},
    lambda out: out["h"][0][0] + out["h"][1].left * out[3],
)
_returns("dataclass", "a dataclass", lambda y: Plain([y, y * 2]), lambda out: out.hidden[0] * out.hidden[1])
_returns("frozen_dataclass", "a frozen dataclass", Frozen, lambda out: out.hidden)
_returns("slotted_dataclass", "a dataclass with slots", Slotted, lambda out: out.hidden)
_returns(
    "ordered_dict",
    "an ordered dict that is a dataclass",
    lambda y: Labelled(y, (y * 2, y * 3)),
    lambda out: out.logits + out["hidden"][1],
)
_returns("same_tensor_twice", "one tensor twice in a tuple", lambda y: (y, y), lambda out: out[0] * out[1])
_returns("two_one_unused", "two outputs, one is not used", lambda y: (y * 2, y * 3), lambda out: out[1])
_returns("pieces_some_unused", "pieces of one operation, some are not used", lambda y: y.unbind(-1), lambda out: _spread(out[1]))
_returns("bool", "a bool tensor beside another", lambda y: (y > 0, y), lambda out: torch.where(out[0], out[1], 0.1 * out[1]))
_returns(
    "integers",
    "an integer tensor beside another",
    lambda y: (y.argmax(-1), y),
    lambda out: _spread(out[1].gather(-1, out[0][:, None])[:, 0]),
)
_returns("int_beside", "a Python int beside a tensor", lambda y: (len(y), y), lambda out: out[0] * out[1])
_returns("complex", "a complex tensor", torch.fft.fft, torch.abs)
_returns("view_as_complex", "a view as complex numbers", lambda y: torch.view_as_complex(y.view(-1, 2, 2)), _real)
_returns("sparse", "a sparse tensor", Tensor.to_sparse, lambda out: out.to_dense())
_returns("subclass", "a tensor of a subclass", lambda y: y.as_subclass(Tagged), lambda out: (out * 2).as_subclass(Tensor))
_returns("detached", "a detached tensor beside another", lambda y: (y.detach(), y), lambda out: out[0] * out[1])
_returns("scalar", "a tensor without dimensions", lambda y: y.square().mean(), lambda out: out * torch.ones(3, 4))
_returns(
    "distribution",
    "a distribution",
    lambda y: Independent(Normal(y, y.square() + 0.1, validate_args=False), 1, validate_args=False),
    lambda out: out.log_prob(torch.ones(4))[:, None] * out.base_dist.loc,
)
_returns("set", "a set of tensors", lambda y: {y}, lambda out: next(iter(out)))


def output_dataclass(net: Any, x: Tensor) -> Any:
    """Return a dataclass that is a dict, as models of ``transformers`` do."""
    y = net.lin(x)
    return Labelled(y, (y * 2, y * 3))


add(
    "the root returns a dataclass that is a dict; the loss uses one field",
    lambda: Net(output_dataclass, **one_layer()),
    name="root_returns_ordered_dict",
    loss=lambda output: output.logits.square().mean(),
)


@entry("the root returns an int", one_layer, loss=None)
def root_returns_int(net: Any, x: Tensor) -> Any:
    return len(net.lin(x))


@entry("the root returns classes, which have no gradient", one_layer, loss=None)
def root_returns_integers(net: Any, x: Tensor) -> Any:
    return net.lin(x).argmax(dim=-1)


@entry("the root returns two losses in a dict", two_layers)
def root_returns_losses(net: Any, x: Tensor) -> Any:
    h = torch.relu(net.a(x))
    return {"loss": net.b(h).square().mean(), "penalty": h.abs().mean()}


@entry("the root returns a generator of tuples: layers run after it has returned", two_layers)
def root_returns_generator(net: Any, x: Tensor) -> Any:
    return ((net.a(row), net.b(row)) for row in x)


def nothing(net: Any, x: Tensor) -> None:
    """Return None."""
    net.lin(x)


@entry("a child returns None, and what it computed is dropped", lambda: {**one_layer(), "child": Net(nothing, **one_layer())})
def returns_none(net: Any, x: Tensor) -> Any:
    net.child(x)
    return net.lin(x)


def constant(net: Any, x: Tensor) -> Any:
    """Return a result that does not depend on the input."""
    return net.lin(torch.ones(2, 4))


@entry("a child ignores its input", lambda: {**two_layers(), "child": Net(constant, **one_layer())})
def ignores_input(net: Any, x: Tensor) -> Any:
    net.a(x)
    return net.child(x)


def own_parameter(net: Any) -> Any:
    """Return the module's own parameter."""
    return net.scale


@entry(
    "a child without inputs returns its own parameter",
    lambda: {"child": Net(own_parameter, scale=nn.Parameter(torch.ones(4))), **one_layer()},
)
def returns_parameter(net: Any, x: Tensor) -> Any:
    return net.lin(x) * net.child()


@entry(
    "a child returns its own parameter in each of two calls",
    lambda: {"child": Net(own_parameter, scale=nn.Parameter(torch.ones(4))), **one_layer()},
)
def returns_parameter_twice(net: Any, x: Tensor) -> Any:
    return net.lin(x * net.child()) * net.child()
