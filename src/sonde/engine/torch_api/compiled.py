"""Deliver what passes a hook that ``torch.compile`` traces, by the operators of ``operators.py``.

What compiled code does for an observer costs time twice: when it is compiled, and when it runs. Dynamo, the slowest part, traces
no more of a hook than the structure of the value. Python decides while Dynamo traces what is to be delivered (``_decide``), and all
else is one call in Dynamo's graph (``_observe``), which the backend traces. And a statistic is a part of the compiled code only on
accelerators (``sonde.stats.kernels.fused.is_fused``): there its operations are fused with the model's own. On the CPU the operator
gets the tensor, and the row is added as in eager mode.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._guards import TracingContext
from torch.fx import Graph, traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from sonde.engine.torch_api.compiler_state import is_exported, notice_hooks
from sonde.engine.torch_api.forms import form_of
from sonde.engine.torch_api.forms import number_of as number_of_form
from sonde.engine.torch_api.operators import WRITTEN, Sent, Token, deliver, deliver_gradient, number_of, sent
from sonde.stats import local


def _at_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have *function* called by Python while the code that calls it is traced; its result is a constant of the compiled code."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result, unimported
    return function


@dataclass(frozen=True, slots=True)
class _Delivery:
    """How compiled code delivers a value.

    Attributes:
        port, gradient_port: where the tensors, and their gradients, are delivered; ``""`` for nowhere.
        most: how many floating-point tensors are delivered; None for all tensors.
        measure: the number of the statistic whose rows may be delivered in place of the tensors; 0 for none.
    """

    port: str
    gradient_port: str
    most: int | None
    measure: int


_plans: list[_Delivery] = []


@cache
def plan_of(port: str, gradient_port: str, most: int | None = None, measure: int = 0) -> int:
    """Return the number of a plan, which traced code gives to :func:`trace_value`. Equal plans have one number.

    Args:
        port, gradient_port: where the tensors, and their gradients, are delivered; ``""`` for nowhere.
        most: deliver so many floating-point tensors, the first ones; None for all tensors.
        measure: a ``Measure.number``: deliver rows in place of tensors, where measuring is worth being compiled.
    """
    _plans.append(_Delivery(port, gradient_port, most, measure))
    return len(_plans) - 1


class Traced(Protocol):
    """A hook whose value compiled code delivers.

    Attributes:
        plan: the number of its plan.
        token: names the hook in compiled code.
    """

    plan: int
    token: Token

    @property
    def switch(self) -> Hashable:
        """The switch of its probe."""

    def rests_in_trace(self) -> bool:
        """Return whether code that is traced now is to deliver nothing. Traced."""


class Measure:
    """How compiled code measures tensors; one for all hooks of equal statistics, so that equal layers share their code.

    Attributes:
        number: names this measure in compiled code, as long as it lives.
        row_of: returns the row of a tensor.
        is_compiled: returns whether compiled code measures such a tensor; else it hands the tensor over.
    """

    __slots__ = ("__weakref__", "is_compiled", "number", "row_of")

    def __init__(self, row_of: Callable[[Tensor], Tensor], is_compiled: Callable[[Tensor], bool]) -> None:
        self.number = next(_numbers)
        self.row_of = row_of
        self.is_compiled = is_compiled

    @classmethod
    def of(cls, key: Hashable, make: Callable[[], Measure]) -> Measure:
        """Return the one measure for *key*, a statistic; *make* returns a new one."""
        try:
            found, is_value = _by_key.get(key), type(key).__eq__ is not object.__eq__
        except TypeError:  # a statistic that has a list
            key = id(key)
            found, is_value = _by_key.get(key), False
        if found is None:
            found = _by_key[key] = make()
            if is_value:  # later ones that are equal get the number, and with it the plan
                found.number = _numbers_of_values.setdefault(key, found.number)
            _measures[found.number] = found
        return found


_numbers = count(1)
_by_key: weakref.WeakValueDictionary[Hashable, Measure] = weakref.WeakValueDictionary()
_measures: weakref.WeakValueDictionary[int, Measure] = weakref.WeakValueDictionary()
_numbers_of_values: dict[Hashable, int] = {}

# ------------------------------------------------------------------------------------------------- called while traced


def trace_mark(token: Token) -> None:
    """Call ``replay`` of the token's owner at run time, without a value."""
    if not is_exported():
        _observe(WRITTEN, token.ticket, torch.is_grad_enabled(), _decide(_NOTHING, ("other",)))


def trace_value(hook: Traced, value: Any) -> None:
    """Deliver *value*, and its gradients, by the plan of *hook*, unless the hook rests."""
    look = _comptime()
    look(_look_at_hook)
    if not _is_awake() and (is_exported() or hook.rests_in_trace()):
        return
    plan = hook.plan
    leaves: tuple[Tensor, ...]
    if type(value) is Tensor and (value.is_floating_point() or value.is_complex() or _takes_all(plan)):
        leaves, form = (value,), ("tensor",)
    else:
        found: list[Tensor] = []
        form = form_of(value, found, not _takes_all(plan))
        leaves = tuple(found[: _most(plan)])
    look(_look_at_leaves)
    what = _decide(plan, form)
    _observe(WRITTEN, hook.token.ticket, torch.is_grad_enabled(), what, *leaves)
    if what & 1:
        ticket = _as_result(hook.token.ticket)
        for index, leaf in enumerate(leaves):
            if _is_outside(what, index):
                _listen_outside(ticket, leaf, index, what)


@_at_trace
def _takes_all(plan: int) -> bool:
    return _plans[plan].most is None


@_at_trace
def _most(plan: int) -> int | None:
    return _plans[plan].most


@_at_trace
def _decide(plan: int, form: Any) -> int:
    """Return twice the number of what is sent, plus 1 if gradients of tensors from outside of the compiled code are.

    Runs while code is traced, after ``_look_at_leaves`` and before ``_observe`` in that code.
    """
    notice_hooks()
    torch.compiler.allow_in_graph([_observe, _as_result])
    wanted = _plans[plan]
    place = outside = 0
    if wanted.gradient_port:
        place = next(_places.setdefault(TracingContext.get(), count(1)))
        outside = _local.outside
    what = Sent(wanted.port, wanted.gradient_port, number_of_form(form), place, wanted.measure, outside)
    return 2 * number_of(what) + bool(outside)


_places: weakref.WeakKeyDictionary[Any, count[int]] = weakref.WeakKeyDictionary()  # the next one, from 1, in what is compiled now
_NOTHING = plan_of("", "")
_local = threading.local()


def _comptime() -> Any:
    from torch._dynamo.comptime import comptime

    return comptime


def _look_at_hook(context: Any) -> None:
    """Note whether ``hook`` of the traced frame surely is awake: another one of its probe was asked here. False in an export.

    Asking costs guards for each hook. A hook that is awake needs none of its own: where the code is used for another probe, the
    operator asks again at run time. A hook that rests needs them: the operator is not called for that hook.
    """
    _local.is_awake = False
    try:
        hook = context.get_local("hook")._ComptimeVar__variable.value
    except AttributeError:  # another version of torch
        return
    asked = _asked.setdefault(TracingContext.get(), set())
    if not (is_exported() or hook.rests_in_trace()):
        _local.is_awake = hook.switch in asked
        asked.add(hook.switch)


_asked: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()  # the switches, in what is compiled now


@_at_trace
def _is_awake() -> bool:
    return bool(_local.is_awake)


def _look_at_leaves(context: Any) -> None:
    """Note which of the tensors ``leaves`` of the traced frame come from outside of the compiled code, and are no parameters.

    Hooks on a parameter would stay there; uses of it in other compiled code are not in the gradient that is delivered.
    """
    _local.outside = 0
    try:
        leaves = context.get_local("leaves")
        for index, leaf in enumerate(leaves._ComptimeVar__variable.items):
            shown = type(leaves)(leaf.realize())
            if leaf.realize().source is not None and (fake := shown.as_fake()).requires_grad:
                _local.outside |= (not isinstance(fake, nn.Parameter)) << index
    except AttributeError:  # another version of torch
        pass


@_at_trace
def _is_outside(what: int, index: int) -> bool:
    return bool(sent(what >> 1).outside >> index & 1)


def _as_result(ticket: Tensor) -> Tensor:
    """Return *ticket* as a result of compiled code; what follows that code would read the next ticket from the token."""
    return ticket


def _observe(written: Tensor, ticket: Tensor, recording: bool, what: int, *leaves: Tensor) -> None:
    """Deliver *leaves*, and their gradients but for those from outside of the compiled code.

    Dynamo puts the call into its graph and does not look inside; the backend traces what is called here, or runs it.
    """
    if _is_looked_at(ticket):
        return
    number = what >> 1
    given = sent(number)
    measured, tensors = _measured(given, leaves if given.port else ())
    deliver(written, ticket, tensors, number, measured, recording)
    if given.gradient_port:
        for index, leaf in enumerate(leaves):
            if leaf.requires_grad and not given.outside >> index & 1:
                listener = partial(_observe_gradient, ticket, index, number)
                if not isinstance(leaf, nn.Parameter):
                    leaf.register_hook(listener)
                elif not isinstance(leaf, _fakes()):  # only code that runs has real ones
                    _listen_once(leaf, listener)


def _is_looked_at(ticket: Tensor) -> bool:
    """Return whether Dynamo runs the code on tensors without data, only to learn what comes out: nothing does."""
    return isinstance(ticket, _fakes()) and get_proxy_mode() is None


def _fakes() -> type[Tensor]:
    """Return the class of tensors that stand for others where code is compiled."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def _listen_once(leaf: Tensor, deliver: Callable[[Tensor], None]) -> None:
    """Call *deliver* with the next gradient of *leaf*."""

    def hook(gradient: Tensor) -> None:
        handle.remove()
        deliver(gradient)

    handle = leaf.register_hook(hook)


def _observe_gradient(ticket: Tensor, leaf: int, number: int, gradient: Tensor) -> None:
    """Deliver the gradient of tensor number *leaf* of a value when the backward pass computes the gradient."""
    measured, (tensor,) = _measured(sent(number), (gradient,))
    mode = get_proxy_mode()
    if mode is None:  # nothing is traced
        deliver_gradient(None, ticket, tensor, number, measured, leaf)
        return
    before = _last.get(mode.tracer)
    with _in_backward():
        _last[mode.tracer] = deliver_gradient(before, ticket, tensor, number, measured, leaf)
    if before is None:
        _take_a_tangent(mode.tracer.graph)


_last: weakref.WeakKeyDictionary[Any, Tensor] = weakref.WeakKeyDictionary()  # what the last such call returned in each trace


def _take_a_tangent(graph: Graph) -> None:
    """Give the first ``deliver_gradient`` in *graph* a gradient of the graph's results, in place of the result of a call before.

    Of the backward graph torch drops what comes before the first use of such a gradient, unless something after it needs it.
    """
    given = (node for node in graph.find_nodes(op="placeholder") if "tangents" in str(node.target))
    tangent = next((node for node in given if isinstance(node.meta.get("val"), Tensor)), None)
    if tangent is not None:
        graph.find_nodes(op="call_function", target=deliver_gradient)[0].update_arg(0, tangent)


@contextmanager
def _in_backward() -> Iterator[None]:
    """Have calls traced meanwhile be in the backward graph alone, also with a gradient that needs nothing of that graph."""
    tag = traceback.current_meta.get(_TAG)
    if tag != "is_backward":
        yield
        return
    traceback.current_meta[_TAG] = "must_be_in_backward"
    try:
        yield
    finally:
        traceback.current_meta[_TAG] = tag


_TAG = "partitioner_tag"


def _listen_outside(ticket: Tensor, leaf: Tensor, index: int, what: int) -> None:
    """Deliver the gradient of *leaf*, a tensor from outside of the compiled code: the sum over all uses, inside and outside."""

    def hook(gradient: Tensor) -> None:
        _observe_gradient(ticket, index, what >> 1, gradient)

    leaf.register_hook(hook)


def _measured(given: Sent, tensors: tuple[Tensor, ...]) -> tuple[bool, list[Tensor]]:
    """Return what an operator is given: rows, or the tensors themselves, and whether these are rows.

    An error of the statistic is raised again, and reported, where the tensor is measured at run time.
    """
    measure = _measures.get(given.measure)
    parts = [torch.empty(0, device=tensor.device) if (part := local(tensor)) is None else part for tensor in tensors]
    if measure is None or not parts or not all(map(measure.is_compiled, parts)):
        return False, parts
    silent, _fake_log.disabled = _fake_log.disabled, True  # torch logs an operator that does not take its tensors as an error
    try:
        with torch.no_grad():
            return True, [measure.row_of(part.detach()) for part in parts]
    except Exception:  # an error of traced code would end the user's program
        return False, parts
    finally:
        _fake_log.disabled = silent


_fake_log = logging.getLogger("torch._subclasses.fake_tensor")
