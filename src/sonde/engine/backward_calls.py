"""Say what ``torch.autograd.backward`` is given, which ``Tensor.backward`` calls, before it runs and while it does.

As long as anybody listens, the function is replaced by one that passes through. Whoever has taken it before that, as by
``from torch.autograd import backward``, is not seen, nor are ``torch.autograd.grad`` and what a compiler writes down.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from sonde.engine.failures import raise_if_foreign
from sonde.engine.torch_api import autograd_state, hooks

Backward = Callable[..., None]


class Listener(Protocol):
    """Is called before each backward pass."""

    def before_backward(self, sent: list[Tensor]) -> None:
        """See what is *sent* backward, while its graph still holds what it has saved. An error does not reach the user's call."""


_KEY = "sonde.sent_backward"  # of the thread: what the call was given that runs, in the threads of devices, too
_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()  # of all inspectors
_made: list[tuple[Backward, Backward]] = []  # the function that passes through, and that which it calls; the last one made
_standing: list[Backward] = []  # such a function, as long as anybody listens
_changing = threading.RLock()


def listen(listener: Listener) -> None:
    """Call *listener*, which is held weakly, before each backward pass. Idempotent."""
    with _changing:
        _listeners.add(listener)
        if not _standing:
            now = torch.autograd.backward
            if not any(now in each for each in _made):  # or compiled code that names it would be compiled anew
                _made[:] = [(_passing_to(now), now)]
            torch.autograd.backward = _made[0][0]
            _standing.append(_made[0][0])


def listen_no_more(listener: Listener) -> None:
    """Stop calling *listener*. Idempotent."""
    with _changing:
        _listeners.discard(listener)
        _take_off_unused()


def sent_backward() -> list[Tensor]:
    """Return what ``torch.autograd.backward`` was given, whose backward pass runs now; nothing where no call of it is seen."""
    return list(_kept()) if autograd_state.graph_task() != -1 else []


def _kept() -> list[Tensor]:
    return autograd_state.thread_value(_KEY) or []


def passes_through(frame: FrameType) -> bool:
    """Return whether a *frame* is that of the function which stands for torch's: what it calls is the caller's own."""
    return frame.f_code is _CODE


def _passing_to(original: Backward) -> Backward:
    @wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if backward not in _standing:  # somebody else's calls it, who has put it off when it was taken off
            return original(*args, **kwargs)
        before = hooks.apart(_kept) if autograd_state.graph_task() != -1 else []  # else what an interrupted call has left
        try:
            hooks.apart(_begin, args, kwargs)
            return original(*args, **kwargs)
        finally:
            hooks.apart(autograd_state.set_thread_value, _KEY, before)

    return hooks.not_compiled(backward)


_CODE = _passing_to(torch.autograd.backward).__code__


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep what a call is given, and tell listeners."""
    given = args[0] if args else kwargs.get("tensors")
    several = given if isinstance(given, list | tuple) else () if isinstance(given, Iterator) else (given,)
    sent = [each for each in several if isinstance(each, Tensor)]
    is_new = list(map(id, sent)) != list(map(id, _kept()))  # a tensor of a class of its own calls it a second time
    autograd_state.set_thread_value(_KEY, sent)
    with _changing:
        listeners = list(_listeners)
        _take_off_unused()
    for listener in listeners if is_new and sent else ():
        try:
            listener.before_backward(list(sent))
        except Exception as error:
            raise_if_foreign(error)


def _take_off_unused() -> None:
    """Put back what was replaced where nobody listens; what somebody else has put over it stays, and ours below passes through."""
    if _standing and not _listeners and torch.autograd.backward is _standing.pop():
        torch.autograd.backward = _made[0][1]
