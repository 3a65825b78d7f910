"""Run ordinary Python from compiled code: two operators, and the setting by which compiled code notices hooks.

A hook that ``torch.compile`` traces may not count, look anything up, or append to a list: the hook would be recompiled for
each module, or be silently wrong. But a hook may call an operator on tensors that the hook owns, its *token*. At run time the
operator reads from the token which hook called it, and runs ordinary Python there.

* ``sonde::deliver`` hands tensors to the hook at their place in the execution, or the rows of a statistic that the compiled code
  has measured. No buffer of a size known beforehand is needed.
* ``sonde::deliver_gradient`` hands over a gradient in the backward pass, or its measured row. It names the call of ``deliver`` that
  it belongs to by the token's *ticket*, a new one for each execution of a graph, and by the place in the graph.

What compiled code does for an observer costs time twice: when it is compiled, and when it runs. Therefore Dynamo, the slowest
part, traces no more of a hook than the structure of the value; all else is one call in its graph (``_observe``), which the
backend traces. And a statistic is a part of the compiled code only on accelerators (``sonde.stats.kernels.fused.is_fused``):
there its operations are fused with the model's own. On the CPU the operator gets the tensor, and the row is added as in eager
mode.

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
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from types import CodeType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._guards import TracingContext
from torch._library.effects import EffectType

from sonde.engine.torch_api.forms import form_of, number_of
from sonde.stats.pieces import local

__all__ = [
    "AS_TENSOR",
    "Measure",
    "Replayed",
    "Token",
    "come_out_together",
    "compile_error",
    "has_compiled",
    "is_exported",
    "is_traced",
    "limits_raised",
    "notice_hooks",
    "plan_of",
    "trace_mark",
    "trace_value",
]

is_traced: Callable[[], bool] = torch.compiler.is_dynamo_compiling
"""Return whether the code that calls this is being traced by ``torch.compile``."""

is_exported: Callable[[], bool] = torch.compiler.is_exporting
"""Return whether ``torch.export`` runs: a program that is written down must not hold sonde's operators."""

AS_TENSOR = "tensor "
"""Begins the port of a tensor that compiled code delivers in place of its row: see ``_sent``."""


def _at_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have *function* called by Python while the code that calls it is traced; its result is a constant of the compiled code."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result, unimported
    return function


# ------------------------------------------------------------------------------------------------------------- tokens


class Replayed(Protocol):
    """What compiled code reaches through a token."""

    token: Token

    def replay(self, leaves: list[Tensor], form: int, port: str) -> Moment:
        """Run the Python of a module hook."""


Moment = tuple[int, int]
"""The indices of a forward and of a call."""

_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = count(1)


def _integers(*numbers: int) -> Tensor:
    """Return a tensor of *numbers* in main memory, also in inference mode. Costs a fifth of ``torch.tensor``."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _integers(*numbers)
    return torch.from_numpy(np.array(numbers, np.int64))


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
        self.written = _integers(0)
        self._next_ticket()

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

    def moment(self, ticket: int, place: int) -> Moment | None:
        """Return when the hook was called at *place* in the execution that has *ticket*; None if nothing was delivered there.

        Where several threads have begun one execution at the same time, they have one ticket.
        """
        noted = self._moments[ticket][1] if ticket in self._moments else {}
        own = noted.get((place, threading.get_ident()))
        return own or next((moment for (at, _), moment in noted.items() if at == place), None)


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


@dataclass(frozen=True, slots=True)
class _Plan:
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


_plans: list[_Plan] = []


@cache
def plan_of(port: str, gradient_port: str, most: int | None = None, measure: int = 0) -> int:
    """Return the number of a plan, which traced code gives to :func:`trace_value`. Equal plans have one number.

    Args:
        port, gradient_port: where the tensors, and their gradients, are delivered; ``""`` for nowhere.
        most: deliver so many floating-point tensors, the first ones; None for all tensors.
        measure: a ``Measure.number``: deliver rows in place of tensors, where measuring is worth being compiled.
    """
    _plans.append(_Plan(port, gradient_port, most, measure))
    return len(_plans) - 1


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
            found = _by_key.get(key)
        except TypeError:  # a statistic that has a list
            key, found = id(key), None
        if found is None:
            found = _by_key[key] = make()
            if type(key).__eq__ is not object.__eq__:  # a value: later ones that are equal get the number, and with it the plan
                found.number = _numbers_of_values.setdefault(key, found.number)
            _measures[found.number] = found
        return found


_by_key: weakref.WeakValueDictionary[Hashable, Measure] = weakref.WeakValueDictionary()
_measures: weakref.WeakValueDictionary[int, Measure] = weakref.WeakValueDictionary()
_numbers_of_values: dict[Hashable, int] = {}


@_at_trace
def _intern(form: Any) -> int:
    """Return the number of *form*. Runs while code is traced, before the first call of ``_observe`` in that code."""
    notice_hooks()
    torch.compiler.allow_in_graph([_observe, _as_result])
    return number_of(form)


_places: weakref.WeakKeyDictionary[Any, count[int]] = weakref.WeakKeyDictionary()


@_at_trace
def _next_place() -> int:
    """Return a number that no other place in the code that is being compiled has, from 1."""
    return next(_places.setdefault(TracingContext.get(), count(1)))


def trace_mark(token: Token) -> None:
    """Call ``replay`` of the token's owner at run time, without a value."""
    if not is_exported():
        _observe(token.written, token.ticket, 0, torch.is_grad_enabled(), _intern(("other",)), _NOTHING, 0)


def trace_value(token: Token, plan: int, value: Any) -> None:
    """Deliver *value*, and its gradients, as *plan* says."""
    if is_exported():
        return
    if type(value) is Tensor and (_takes_all(plan) or value.is_floating_point() or value.is_complex()):
        leaves, form = [value], _intern(("tensor",))
    else:
        found: list[Tensor] = []
        form = _intern(form_of(value, found, not _takes_all(plan)))
        leaves = found[: _most(plan)]
    inputs = place = 0
    if _has_gradients(plan):
        place = _next_place()
        for index, leaf in enumerate(leaves):
            if leaf.requires_grad:
                _comptime()(_look_at_leaf)
                inputs += _is_input() << index
    _observe(token.written, token.ticket, place, torch.is_grad_enabled(), form, plan, inputs, *leaves)
    if inputs:
        ticket = _as_result(token.ticket)
        for index, leaf in enumerate(leaves):
            if inputs >> index & 1:
                _listen_outside(ticket, place, leaf, index, form, plan)


@_at_trace
def _takes_all(plan: int) -> bool:
    return _plans[plan].most is None


@_at_trace
def _most(plan: int) -> int | None:
    return _plans[plan].most


@_at_trace
def _has_gradients(plan: int) -> bool:
    return bool(_plans[plan].gradient_port)


_NOTHING = plan_of("", "")
_local = threading.local()


def _comptime() -> Any:
    from torch._dynamo.comptime import comptime

    return comptime


def _look_at_leaf(context: Any) -> None:
    """Note whether the tensor ``leaf`` of the traced frame comes from outside of the compiled code, and is no parameter.

    Hooks on a parameter would stay there; uses of it in other compiled code are not in the gradient that is delivered.
    """
    leaf = context.get_local("leaf")
    try:
        _local.is_input = leaf._ComptimeVar__variable.source is not None and not isinstance(leaf.as_fake(), nn.Parameter)
    except AttributeError:  # another version of torch
        _local.is_input = False


@_at_trace
def _is_input() -> int:
    return int(_local.is_input)


def _as_result(ticket: Tensor) -> Tensor:
    """Return *ticket* as a result of compiled code; what follows that code would read the next ticket from the token."""
    return ticket


def _observe(
    written: Tensor, ticket: Tensor, place: int, recording: bool, form: int, plan: int, inputs: int, *leaves: Tensor
) -> None:
    """Deliver *leaves*, and their gradients but for the *inputs*, which are the bits of a number.

    Dynamo puts the call into its graph and does not look inside; the backend traces what is called here, or runs it.
    """
    wanted = _plans[plan]
    port, sent = _sent(wanted, wanted.port, [leaf.detach() for leaf in leaves] if wanted.port else [])
    _op_deliver(written.data, ticket, place, sent, form, port, recording)
    if wanted.gradient_port:
        for index, leaf in enumerate(leaves):
            if leaf.requires_grad and not inputs >> index & 1:
                deliver = partial(_observe_gradient, ticket, place, index, form, plan)
                if isinstance(leaf, nn.Parameter):  # only code that runs has real ones
                    if not _is_fake(leaf):
                        _listen_once(leaf, deliver)
                else:
                    leaf.register_hook(deliver)


def _is_fake(tensor: Tensor) -> bool:
    """Return whether *tensor* stands for a tensor while Dynamo looks at the code."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def _listen_once(leaf: Tensor, deliver: Callable[[Tensor], None]) -> None:
    """Call *deliver* with the next gradient of *leaf*."""

    def hook(gradient: Tensor) -> None:
        handle.remove()
        deliver(gradient)

    handle = leaf.register_hook(hook)


def _observe_gradient(ticket: Tensor, place: int, leaf: int, form: int, plan: int, gradient: Tensor) -> None:
    """Deliver the gradient of tensor number *leaf* of a value when the backward pass computes the gradient."""
    wanted = _plans[plan]
    port, (sent,) = _sent(wanted, wanted.gradient_port, [gradient.detach()])
    _op_gradient(ticket, place, sent, leaf, form, port)


def _listen_outside(ticket: Tensor, place: int, leaf: Tensor, index: int, form: int, plan: int) -> None:
    """Deliver the gradient of *leaf*, a tensor from outside of the compiled code: the sum over all uses, inside and outside."""

    def hook(gradient: Tensor) -> None:
        _observe_gradient(ticket, place, index, form, plan, gradient)

    leaf.register_hook(hook)


def _sent(wanted: _Plan, port: str, tensors: list[Tensor]) -> tuple[str, list[Tensor]]:
    """Return what the operator is given, and the port: rows, or with ``AS_TENSOR`` before the port the tensors themselves.

    An error of the statistic is raised again, and reported, where the tensor is measured at run time.
    """
    measure = _measures.get(wanted.measure)
    tensors = [torch.empty(0, device=tensor.device) if (part := local(tensor)) is None else part for tensor in tensors]
    if measure is None or not tensors:
        return port, tensors
    if all(map(measure.is_compiled, tensors)):
        silent, _fakes.disabled = _fakes.disabled, True  # torch logs an operator that does not take its tensors as an error
        try:
            with torch.no_grad():
                return port, [measure.row_of(tensor) for tensor in tensors]
        except Exception:  # an error of traced code would end the user's program
            pass
        finally:
            _fakes.disabled = silent
    return AS_TENSOR + port, tensors


_fakes = logging.getLogger("torch._subclasses.fake_tensor")


# ---------------------------------------------------------------------------------------------------- compiled code


def notice_hooks() -> None:
    """Let code that is compiled from now on notice hooks put in or taken out later, and have a graph for each state of a probe.

    By default Dynamo does not check whether a module has got or lost hooks since it was traced, so an observer attached later would
    silently see nothing. And it compiles one function a limited number of times, here once for each state of the probes.
    """
    config: Any = sys.modules.get("torch._dynamo.config")
    if getattr(config, "skip_nnmodule_hook_guards", False):
        config.skip_nnmodule_hook_guards = False
    for name in _LIMITS:
        limit = getattr(config, name, None)
        if limit is not None and limit not in _raised[name]:
            _raised[name][limit * _STATES] = limit
            setattr(config, name, limit * _STATES)


_STATES = 4  # of probes, for which code may be compiled: without them, with a few lenses, with all, in evaluation
_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_raised: dict[str, dict[int, int]] = {name: {} for name in _LIMITS}  # of each limit: values it was raised to, with former ones


def limits_raised() -> dict[str, tuple[int, int]]:
    """Return the limits of Dynamo on recompilations, each with its value and the one that it has once a model is observed."""
    config: Any = sys.modules.get("torch._dynamo.config")
    found = {name: value for name in _LIMITS if (value := getattr(config, name, None)) is not None}
    return {name: (former[now], now) if now in (former := _raised[name]) else (now, now * _STATES) for name, now in found.items()}


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
