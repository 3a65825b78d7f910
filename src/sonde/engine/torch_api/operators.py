"""Operators by which compiled code runs ordinary Python, and the tokens that name its owner.

A hook that ``torch.compile`` traces may not count, look anything up, or append to a list: the hook would be recompiled for
each module, or be silently wrong. But a hook may call an operator on a tensor that the hook owns, the *ticket* of its *token*. At
run time the operator reads from the ticket which hook called it, and runs ordinary Python there.

* ``sonde::deliver`` hands tensors to the hook at their place in the execution, or the rows of a statistic that the compiled code
  has measured. No buffer of a size known beforehand is needed.
* ``sonde::deliver_gradient`` hands over a gradient in the backward pass, or its measured row. It names the call of ``deliver`` that
  it belongs to by the ticket, a new one for each execution of a graph, and by the place in the graph.

No compiler may drop, duplicate or reorder these. The first runs in the forward and declares a write into a tensor that all hooks
share, ``WRITTEN``: an *effect* there is refused in a graph with an activation checkpoint. It returns nothing, so that the backward
needs nothing from it: a result would be computed again in a checkpoint, which reads the ticket that another graph has been given
meanwhile; or it would be saved, as a buffer of the graph's own, and torch refuses ``retain_graph=True`` where there is any. A
ticket is an input of the graph, and nobody writes into it; no version counts the write into ``WRITTEN``, since autograd would
refuse the backward of a model that was called twice before it ("modified by an inplace operation").

AOT's graphs hold no operator that writes: torch would wrap the first in one that runs fifty microseconds of Python at each call.
There ``sonde::delivered`` stands for it, which does the same and returns what would have been written, from one call to the next.

The second operator, in the backward, writes nothing: a tensor that a backward graph writes into is saved by the forward pass.
Nobody drops it, since it is declared to have side effects, and is marked as a part of the backward (``_in_backward``); nobody
reorders its calls, since each gets the result of the call before. An ordered *effect* of torch does the same, and costs fifteen
microseconds of Python at each call in a graph that no compiler has lowered, and more nodes and calls where the graph is traced.

Compiled code runs without gradients where the program has them: an argument of ``deliver`` says what the program has, and the
Python of a hook runs with that.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import has_side_effect

AS_TENSOR = "tensor "
"""Begins the port of a tensor that compiled code delivers in place of its row."""

# ------------------------------------------------------------------------------------------------------------- tokens


class Replayed(Protocol):
    """What compiled code reaches through a token."""

    token: Token

    def replay(self, leaves: list[Tensor], form: int, port: str) -> Moment:
        """Run the Python of a module hook."""


Moment = tuple[int, int]
"""The indices of a forward and of a call."""


class _Owner(weakref.ref[Any]):
    """The owner of a token, held weakly. A dictionary of these costs half of a ``WeakValueDictionary``."""

    __slots__ = ("number",)
    number: int


_owners: dict[int, _Owner] = {}
_numbers = count(1)
_gone: deque[_Owner] = deque()  # filled by a function in C: what a signal handler raises within one in Python would be lost


def _owner_of(number: int) -> Any:
    """Return the owner of the token with *number*; None if it is gone."""
    held = _owners.get(number)
    return None if held is None else held()


def _integers(*numbers: int) -> Tensor:
    """Return a tensor of *numbers* in main memory, also in inference mode. Costs a fifth of ``torch.tensor``."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _integers(*numbers)
    return torch.from_numpy(np.array(numbers, np.int64))


WRITTEN = _integers(0)
"""Where the operator in the forward declares that it writes, and so is neither dropped nor moved (but what has no elements is).

One tensor for all hooks: each tensor that a graph gets costs time when the graph is compiled.
"""


class Token:
    """Names a hook in compiled code, and there each execution of a graph.

    Attributes:
        ticket: holds the number of the hook, and that of the next execution.
    """

    __slots__ = ("_given", "_moments", "_number", "ticket")

    def __init__(self, owner: Replayed) -> None:
        number = self._number = next(_numbers)
        with suppress(IndexError):
            while True:
                _owners.pop(_gone.popleft().number, None)
        held = _owners[number] = _Owner(owner, _gone.append)
        held.number = number
        self._moments: dict[int, tuple[weakref.ref[Tensor], dict[tuple[int, int], Moment]]] = {}
        self._given = 1
        self.ticket = _integers(number, 1)

    def _next_ticket(self) -> None:
        self._given += 1
        self.ticket = _integers(self._number, self._given)

    def note(self, ticket: int, place: int, moment: Moment) -> None:
        """Note when the hook was called at *place* in the execution that has *ticket*, as long as anything holds the ticket."""
        moments = self._moments
        if ticket == self._given:
            moments[ticket] = weakref.ref(self.ticket, lambda _: moments.pop(ticket, None)), {}
            self._next_ticket()
        if ticket in moments:
            moments[ticket][1][place, threading.get_ident()] = moment

    def forget(self) -> None:
        """Let the gradients of executions that have been come to nobody; the hook begins to work for another probe."""
        self._moments.clear()

    def moment(self, ticket: int, place: int) -> Moment | None:
        """Return when the hook was called at *place* in the execution that has *ticket*; None if nothing was delivered there.

        Where several threads have begun one execution at the same time, they have one ticket.
        """
        noted = self._moments[ticket][1] if ticket in self._moments else {}
        own = noted.get((place, threading.get_ident()))
        return own or next((moment for (at, _), moment in noted.items() if at == place), None)


# --------------------------------------------------------------------------------------------------- what is delivered


@dataclass(frozen=True, slots=True)
class Sent:
    """What one call of the operators in compiled code delivers. Compiled code has the number of it.

    Attributes:
        port, gradient_port: where the tensors, and their gradients, are delivered; ``""`` for nowhere.
        form: the number of the form of the value.
        place: of the call in its graph; 0 if no gradient is delivered.
        measure: the number of the statistic whose rows may be delivered in place of the tensors; 0 for none.
        outside: the bits of a number: those of the tensors that come from outside of the compiled code, and have gradients.
    """

    port: str
    gradient_port: str
    form: int
    place: int
    measure: int
    outside: int


_sent: list[Sent] = []


def sent(number: int) -> Sent:
    """Return what has *number*."""
    return _sent[number]


@cache
def number_of(what: Sent) -> int:
    """Return the number of *what*. Equal ones have one number."""
    _sent.append(what)
    return len(_sent) - 1


# ---------------------------------------------------------------------------------------------------------- operators

_library = torch.library.Library("sonde", "DEF")
_unsafe = (torch.Tag.cudagraph_unsafe,)  # a replayed CUDA graph would not run Python
_given = "Tensor ticket, Tensor[] leaves, int what, bool measured, bool recording"
_library.define(f"deliver(Tensor(a!) written, {_given}) -> ()", tags=_unsafe)
_library.define(f"delivered(Tensor written, {_given}) -> Tensor", tags=_unsafe)
_of_gradient = "Tensor? before, Tensor ticket, Tensor gradient, int what, bool measured, int leaf"
_library.define(f"deliver_gradient({_of_gradient}) -> Tensor", tags=_unsafe)


def _deliver(written: Tensor, ticket: Tensor, leaves: list[Tensor], what: int, measured: bool, recording: bool) -> None:
    number, execution = ticket.tolist()
    owner = _owner_of(number)
    if owner is None:
        return
    given = _sent[what]
    runs_with = torch.is_grad_enabled()
    torch.set_grad_enabled(recording)
    try:
        # new objects: the compiler writes into memory again under the same object and version, so a change could not be found
        moment = owner.replay([leaf.detach() for leaf in leaves], given.form, _port(given.port, given, measured))
        if given.place:
            owner.token.note(execution, given.place, moment)
    except Exception as error:
        owner.failed(error)
    finally:
        torch.set_grad_enabled(runs_with)


def _delivered(written: Tensor, ticket: Tensor, leaves: list[Tensor], what: int, measured: bool, recording: bool) -> Tensor:
    _deliver(written, ticket, leaves, what, measured, recording)
    return torch.empty(1, dtype=torch.int64, device="cpu")


def _deliver_in_graph(written: Tensor, ticket: Tensor, leaves: list[Tensor], *constants: Any) -> None:
    """Call ``delivered`` where AOT traces without writes, and let *written* be its result from now on."""
    plain, *given = map(_plain, (written, ticket, *leaves))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
        if plain is written:  # torch.func.functionalize knows its arguments alone
            deliver(written, given[0], given[1:], *constants)
            return
        result = delivered(plain, given[0], given[1:], *constants)
    torch._functionalize_replace(written, result)
    torch._functionalize_mark_mutation_hidden_from_autograd(written)
    torch._functionalize_commit_update(written)
    torch._functionalize_sync(written)


def _plain(tensor: Tensor) -> Tensor:
    """Return the tensor that *tensor* stands for where writes are traced as results."""
    if not torch._is_functional_tensor(tensor):
        return tensor
    torch._functionalize_sync(tensor)
    return torch._from_functional_tensor(tensor)


def _deliver_gradient(before: Tensor | None, ticket: Tensor, gradient: Tensor, what: int, measured: bool, leaf: int) -> Tensor:
    number, execution = ticket.tolist()
    owner = _owner_of(number)
    given = _sent[what]
    moment = None if owner is None else owner.token.moment(execution, given.place)
    if owner is not None and moment is not None:
        try:
            owner.replay_gradient(*moment, gradient.detach(), leaf, given.form, _port(given.gradient_port, given, measured))
        except Exception as error:
            owner.failed(error)
    return torch.empty(2, dtype=torch.int64, device="cpu")


def _port(port: str, given: Sent, measured: bool) -> str:
    return port if measured or not given.measure or not port else AS_TENSOR + port


_library.impl("deliver", _deliver, "CompositeExplicitAutograd")
_library.impl("deliver", lambda *_: None, "Meta")
_library.impl("deliver", _deliver_in_graph, "Functionalize")
_library.impl("delivered", _delivered, "CompositeExplicitAutograd")
_library.impl("deliver_gradient", _deliver_gradient, "CompositeExplicitAutograd")
# A kernel for "Meta" does not do: torch then demands that the ticket, which is on the host, and the leaves share a device.
torch.library.register_fake("sonde::delivered", lambda written, *_: torch.empty_like(written), lib=_library)
torch.library.register_fake("sonde::deliver_gradient", lambda before, ticket, *_: torch.empty_like(ticket), lib=_library)
for _name in ("deliver", "delivered", "deliver_gradient"):
    for _key in ("Autograd", "ADInplaceOrView"):
        _library.impl(_name, torch.library.fallthrough_kernel, _key)

deliver = torch.ops.sonde.deliver.default
delivered = torch.ops.sonde.delivered.default
deliver_gradient = has_side_effect(torch.ops.sonde.deliver_gradient.default)
