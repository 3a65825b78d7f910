"""Run ordinary Python from compiled code: two operators, and the setting by which compiled code notices hooks.

A hook that ``torch.compile`` traces may not count, look anything up, or append to a list: the hook would be recompiled for
each module, or be silently wrong. But a hook may call an operator on tensors that the hook owns, its *token*. At run time the
operator reads from the token which hook called it, and runs ordinary Python there.

* ``sonde::deliver`` hands tensors to the hook at their place in the execution: of an event the tensors themselves, of a statistic
  the rows that the compiled code has measured. No buffer of a size known beforehand is needed.
* ``sonde::deliver_gradient`` hands over a gradient in the backward pass, or its measured row. It names the call of ``deliver`` that
  it belongs to by the token's *ticket*, a new one for each execution of a graph, and by the place in the graph.

No compiler may drop, duplicate or reorder these. The first runs in the forward and declares a write into the token: an *effect*
there is refused in a graph with an activation checkpoint. It returns nothing, so that the backward needs nothing from it: a result
would be computed again in a checkpoint, which reads the token that another graph has written into meanwhile; or it would be
saved, as a buffer of the graph's own, and torch refuses ``retain_graph=True`` where there is any. A ticket is an input of the
graph, and nobody writes into it. The second operator has an effect, and declares no write into an argument: a tensor that a
backward graph writes into is saved by the forward pass, and autograd then refuses the backward of a model that was called twice
before it ("modified by an inplace operation"). For the same reason a token that a forward graph writes into is handed over as
``.data``. The rows of a statistic are no arguments of compiled code.

Compiled code runs without gradients where the program has them: an argument of ``deliver`` says what the program has, and the
Python of a hook runs with that.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import count
from types import CodeType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._library.effects import EffectType

__all__ = [
    "UNMEASURED",
    "Replayed",
    "Token",
    "come_out_together",
    "compile_error",
    "has_compiled",
    "is_exported",
    "is_traced",
    "notice_hooks",
    "paths_of",
    "rebuild",
    "trace_gradient",
    "trace_mark",
    "trace_value",
]

is_traced: Callable[[], bool] = torch.compiler.is_dynamo_compiling
"""Return whether the code that calls this is being traced by ``torch.compile``."""

is_exported: Callable[[], bool] = torch.compiler.is_exporting
"""Return whether ``torch.export`` runs: a program that is written down must not hold sonde's operators."""

UNMEASURED = "unmeasured "
"""Begins the port of a tensor that compiled code delivers in place of its row, since it cannot be measured there."""

# ------------------------------------------------------------------------------------------------------------- tokens


class Replayed(Protocol):
    """What compiled code reaches through a token."""

    token: Token

    def replay(self, leaves: list[Tensor], form: int, port: str) -> Moment:
        """Run the Python of a module hook."""


Measure = Callable[[Tensor], Tensor]
"""Returns the row of a statistic for a tensor."""

Moment = tuple[int, int]
"""The indices of a forward and of a call."""

_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = count(1)


class Token:
    """Names a hook in compiled code, and there each execution of a graph.

    Attributes:
        written: the operator in the forward declares that it writes here, and so is neither dropped nor moved.
        ticket: holds the number of the hook, and that of the next execution.
    """

    __slots__ = ("_given", "_moments", "_number", "ticket", "written")

    def __init__(self, owner: Replayed) -> None:
        self._number = next(_numbers)
        _owners[self._number] = owner
        self._given = 0
        self._moments: dict[int, tuple[weakref.ref[Tensor], dict[tuple[int, int], Moment]]] = {}
        with torch.inference_mode(False):
            self.written = torch.zeros(1, dtype=torch.int64)
        self._next_ticket()

    def _next_ticket(self) -> None:
        self._given += 1
        with torch.inference_mode(False):
            self.ticket = torch.tensor([self._number, self._given])

    def note(self, ticket: int, place: int, moment: Moment) -> None:
        """Note when the hook was called at *place* in the execution that has *ticket*, as long as anything holds the ticket."""
        moments = self._moments
        if ticket == self._given:
            moments[ticket] = weakref.ref(self.ticket, lambda _: moments.pop(ticket, None)), {}
            self._next_ticket()
        if ticket in moments:
            moments[ticket][1][place, threading.get_ident()] = moment

    def moment(self, ticket: int, place: int) -> Moment | None:
        """Return when the hook was called at *place* in the execution that has *ticket*; None if nothing was delivered there.

        Where several threads have begun one execution at the same time, they have one ticket.
        """
        noted = self._moments[ticket][1] if ticket in self._moments else {}
        own = noted.get((place, threading.get_ident()))
        return own or next((moment for (at, _), moment in noted.items() if at == place), None)


# -------------------------------------------------------------------------------------------------------------- forms
# The structure of a value as nested tuples of constants, which a traced function can build: ("tensor",), ("value", v),
# ("sequence", type, children), ("mapping", type, keys, children), ("fields", type, names, children), ("other",).

_forms: list[Any] = []


def _intern(form: Any) -> int:
    """Return the number of *form*. Runs once for each region, while the region is traced."""
    notice_hooks()
    if form not in _forms:
        _forms.append(form)
    return _forms.index(form)


_intern._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does, unimported


def _form(value: Any, leaves: list[Tensor], floating: bool) -> Any:
    """Return the form of *value*; append its tensors, or those that are *floating*, to *leaves*.

    Traced, so only plain containers are known.
    """
    if isinstance(value, Tensor):
        if floating and not (value.is_floating_point() or value.is_complex()):
            return ("other",)
        leaves.append(value)
        return ("tensor",)
    if value is None or isinstance(value, str):
        return ("value", value)
    if isinstance(value, tuple | list):
        return ("sequence", type(value), tuple([_form(item, leaves, floating) for item in value]))
    if isinstance(value, dict):
        keys = tuple(value.keys())
        return ("mapping", type(value), keys, tuple([_form(value[key], leaves, floating) for key in keys]))
    if hasattr(type(value), "__dataclass_fields__"):
        names = tuple(type(value).__dataclass_fields__.keys())
        return ("fields", type(value), names, tuple([_form(getattr(value, name), leaves, floating) for name in names]))
    return ("other",)


def rebuild(form: int, leaves: list[Any]) -> Any:
    """Return the value of form number *form* with *leaves* as its tensors; anything but tensors and text is None."""
    remaining = iter(leaves)
    return _rebuild(_forms[form], remaining)


def _rebuild(form: Any, leaves: Iterator[Any]) -> Any:
    kind = form[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "value":
        return form[1]
    if kind == "other":
        return None
    children = [_rebuild(child, leaves) for child in form[-1]]
    made = form[1]
    if kind == "sequence":
        return list(children) if made is list else tuple.__new__(made, children)
    if kind == "mapping":
        pairs = dict(zip(form[2], children, strict=True))
        return pairs if made is dict else made(pairs) if not hasattr(made, "__dataclass_fields__") else made(**pairs)
    whole = object.__new__(made)
    for name, child in zip(form[2], children, strict=True):
        object.__setattr__(whole, name, child)
    return whole


@cache
def paths_of(form: int) -> tuple[str, ...]:
    """Return the leaf paths of the tensors of form number *form*."""
    return tuple(_paths(_forms[form], ""))


def _paths(form: Any, path: str) -> Iterator[str]:
    kind = form[0]
    if kind == "tensor":
        yield path
    elif kind == "sequence":
        names = getattr(form[1], "_fields", None)
        for index, child in enumerate(form[2]):
            yield from _paths(child, f"{path}[{index}]" if names is None else f"{path}.{names[index]}")
    elif kind == "mapping":
        attributes = hasattr(form[1], "__dataclass_fields__")
        for key, child in zip(form[2], form[3], strict=True):
            yield from _paths(child, f"{path}.{key}" if attributes else f"{path}[{key!r}]")
    elif kind == "fields":
        for name, child in zip(form[2], form[3], strict=True):
            yield from _paths(child, f"{path}.{name}")


# ---------------------------------------------------------------------------------------------------------- operators

_library = torch.library.Library("sonde", "DEF")
_unsafe = (torch.Tag.cudagraph_unsafe,)  # a replayed CUDA graph would not run Python
_library.define(
    "deliver(Tensor(a!) written, Tensor ticket, int place, Tensor[] leaves, int form, str port, bool recording) -> ()", tags=_unsafe
)
_library.define("deliver_gradient(Tensor ticket, int place, Tensor gradient, int leaf, int form, str port) -> ()", tags=_unsafe)


def _deliver(written: Tensor, ticket: Tensor, place: int, leaves: list[Tensor], form: int, port: str, recording: bool) -> None:
    number, execution = ticket.tolist()
    owner = _owners.get(number)
    if owner is None:
        return
    runs_with = torch.is_grad_enabled()
    torch.set_grad_enabled(recording)
    try:
        # new objects: the compiler writes into memory again under the same object and version, so a change could not be found
        moment = owner.replay([leaf.detach() for leaf in leaves], form, port)
        if place:
            owner.token.note(execution, place, moment)
    except Exception as error:
        owner.failed(error)
    finally:
        torch.set_grad_enabled(runs_with)


def _deliver_gradient(ticket: Tensor, place: int, gradient: Tensor, leaf: int, form: int, port: str) -> None:
    number, execution = ticket.tolist()
    owner = _owners.get(number)
    moment = None if owner is None else owner.token.moment(execution, place)
    if owner is not None and moment is not None:
        try:
            owner.replay_gradient(*moment, gradient.detach(), leaf, form, port)
        except Exception as error:
            owner.failed(error)


_library.impl("deliver", _deliver, "CompositeExplicitAutograd")
_library.impl("deliver", lambda *_: None, "Meta")
_library.impl("deliver_gradient", _deliver_gradient, "CompositeExplicitAutograd")
_library.impl("deliver_gradient", lambda *_: None, "Meta")
_library._register_effectful_op("sonde::deliver_gradient", EffectType.ORDERED)

_op_deliver = torch.ops.sonde.deliver.default
_op_gradient = torch.ops.sonde.deliver_gradient.default

# ------------------------------------------------------------------------------------------------- called while traced


_places: weakref.WeakKeyDictionary[Any, count[int]] = weakref.WeakKeyDictionary()


def _next_place() -> int:
    """Return a number that no other place in the code that is being compiled has, from 1."""
    return next(_places.setdefault(TracingContext.get(), count(1)))


_next_place._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as of _intern


def trace_mark(token: Token) -> None:
    """Call ``replay`` of the token's owner at run time, without a value."""
    if is_exported():
        return
    _op_deliver(token.written.data, token.ticket, 0, [], _intern(("other",)), "", torch.is_grad_enabled())


def trace_value(
    token: Token, value: Any, port: str, gradient_port: str, measure: Measure | None = None, most: int | None = None
) -> None:
    """Deliver *value* at *port*, and its gradients at *gradient_port*, where these are not ``""``.

    With *measure* its rows of the floating-point tensors, the first *most* of them, are delivered in place of the tensors.
    """
    if is_exported():
        return
    leaves: list[Tensor] = []
    form = _intern(_form(value, leaves, measure is not None))
    leaves = leaves[:most]
    sent = [leaf.detach() for leaf in leaves] if port else []
    if measure is not None and not _can_measure(leaves, measure):
        measure, port, gradient_port = None, port and UNMEASURED + port, gradient_port and UNMEASURED + gradient_port
    place = _next_place() if gradient_port else 0
    rows = sent if measure is None else [measure(leaf) for leaf in sent]
    _op_deliver(token.written.data, token.ticket, place, rows, form, port, torch.is_grad_enabled())
    if gradient_port:
        for index, leaf in enumerate(leaves):
            if leaf.requires_grad:
                trace_gradient(token.ticket, place, leaf, index, form, gradient_port, measure)


def _can_measure(leaves: list[Tensor], measure: Measure) -> bool:
    """Return whether *measure* takes each of *leaves*. An error of traced code would end the user's program.

    Python tries that while the code is traced, with the tensors without content that stand for *leaves*.
    """
    from torch._dynamo.comptime import comptime

    for leaf in leaves:  # noqa: B007  # read from the frame that is traced
        comptime(_try)
        if _has_failed():
            return False
    return True


_local = threading.local()


def _try(context: Any) -> None:
    """Call the measure of the traced frame with its leaf, and note whether that raised. Runs while the code is traced."""
    _local.has_failed = False
    try:
        leaf: Any = context.get_local("leaf").as_fake()
        method = context.get_local("measure")._ComptimeVar__variable
        of = (method.obj if hasattr(method, "obj") else method.im_self).value
    except AttributeError:  # another version of torch tells the object in another way: an error is the compiler's then
        return
    silent, _fakes.disabled = _fakes.disabled, True  # torch logs an operator that does not take its tensors as an error
    try:
        with leaf.fake_mode, torch.no_grad():
            of.measured(leaf.detach())
    except Exception:
        _local.has_failed = True
    finally:
        _fakes.disabled = silent


_fakes = logging.getLogger("torch._subclasses.fake_tensor")


def _has_failed() -> bool:
    return bool(_local.has_failed)


_has_failed._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as of _intern


def trace_gradient(ticket: Tensor, place: int, tensor: Tensor, leaf: int, form: int, port: str, measure: Measure | None) -> None:
    """Deliver the gradient of *tensor*, or its row, when the backward pass computes the gradient."""

    def hook(gradient: Tensor) -> None:
        gradient = gradient.detach()
        _op_gradient(ticket, place, gradient if measure is None else measure(gradient), leaf, form, port)

    tensor.register_hook(hook)


# ---------------------------------------------------------------------------------------------------- compiled code


def notice_hooks() -> None:
    """Make code that is compiled from now on notice hooks that are put in or taken out later.

    By default Dynamo does not check whether a module has got or lost hooks since it was traced
    (``skip_nnmodule_hook_guards``), so an observer attached later would silently see nothing.
    """
    config = sys.modules.get("torch._dynamo.config")
    if config is not None and getattr(config, "skip_nnmodule_hook_guards", False):
        config.skip_nnmodule_hook_guards = False  # type: ignore[attr-defined]


def compile_error() -> type[Exception]:
    """Return the class of the errors that Dynamo raises where code cannot be traced. Imports Dynamo, which takes seconds."""
    import torch._dynamo

    return torch._dynamo.exc.TorchDynamoException


def has_compiled(code: CodeType) -> bool:
    """Return whether Dynamo has compiled anything for *code*."""
    return bool(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code))


def come_out_together(tensors: Iterable[Tensor]) -> bool:
    """Return whether two of *tensors* are results of one call of compiled code.

    Autograd sees that call as one node. A hook on such a result gets the gradient from uses outside of the compiled code alone; the
    code may use one result to compute another.
    """
    nodes = [id(tensor.grad_fn) for tensor in tensors if tensor.grad_fn is not None and tensor.grad_fn.name() == _COMPILED_NODE]
    return len(set(nodes)) < len(nodes)


_COMPILED_NODE = "CompiledFunctionBackward"
