"""Look at the result of every operation that runs, forward, backward and in the optimizer; note where bad values come about."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sonde.diagnosis.nonfinite.causes import OF_STATE, cause_of, exact_element, limit_of, number_cause
from sonde.diagnosis.nonfinite.derivatives import CHOICES, derivative_cause, forward_name
from sonde.diagnosis.nonfinite.operation import Operation, base_name, first_of, operations_of
from sonde.diagnosis.nonfinite.origins import Cause, Flow, Kind, ModulePlace, Operand, Origin, Producer, Source, Stored, Zeros
from sonde.diagnosis.nonfinite.reproduction import reproductions
from sonde.diagnosis.nonfinite.source_lines import (
    SourceLine,
    calling_frames,
    hooked_module,
    line_of,
    lines_of,
    numbers_in,
    variable_of,
)
from sonde.diagnosis.nonfinite.tensor_facts import TensorFacts, dense, dtype_name, largest, memory_of, zeros_in
from sonde.engine import (
    Derivative,
    ModuleTracker,
    OperatorCall,
    OperatorMode,
    autograd_state,
    class_of,
    flatten,
    is_floating,
    parameters,
    unwrap,
)
from sonde.site import Phase
from sonde.words import number_text

NEAR = 8.0
"""A value is near the limit of its format from an eighth of the limit on: three more doublings, and it overflows."""

_EXPLAINED = 64
"""So many origins are explained, each by a look at all its operands; later ones are followed only."""

_DIVISIONS = {"rsqrt", "reciprocal", "div"}
_BY_ZERO = {"division by zero", "0 / 0"}
_AT_ITS_END = {
    ("betas", 1.0): "give the optimizer betas below 1, by whose powers it divides",
    ("eps", 0.0): "give the optimizer an eps above 0, which it adds to the divisor",
}
_ROOTS = {"sqrt", "vector_norm", "std"}

_OVER = (*CHOICES, "index_put")
"""Operations that leave elements out, or write over them."""

_OFTEN = 64  # operations between two words about the progress

_EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted", "resize")


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest finite value of one dtype that any operation made.

    Attributes:
        dtype: without ``torch.``.
        value: the magnitude.
        limit: the largest finite number of the dtype.
        place: the module call.
        operation: as users call it.
        line: the line of code.
    """

    dtype: str
    value: float
    limit: float
    place: ModulePlace
    operation: str
    line: SourceLine | None

    @property
    def is_near(self) -> bool:
        """Whether the value is within a factor of eight of the limit."""
        return self.value * NEAR >= self.limit

    def __str__(self) -> str:
        times = self.limit / self.value if self.value else math.inf
        far = f", {times:.2g} times as much" if times < 1e6 else ""
        return f"{self.dtype} {number_text(self.value)} by {self.operation}; the limit is {number_text(self.limit)}{far}"


class OperationObserver(OperatorMode):
    """Notes the origin of each non-finite value that operations make while the mode is entered.

    Values are read, never changed: each result costs one reduction and one read by the host.

    Args:
        model: whose modules are named.
        tracker: an entered tracker, which knows the module call that runs.
        loss_scale: by which the loss was multiplied before the backward pass.
        progress: called now and then with words for what runs.

    Attributes:
        flow: which memory holds non-finite values, and from where.
        origins: in the order in which they came about.
        largest: by dtype.
        operations: how many ran.
        failure: raised by the observer itself, which has stopped then.
        refused: the tensors that the last operation was given that has raised an exception.
    """

    def __init__(
        self,
        model: nn.Module,
        tracker: ModuleTracker,
        loss_scale: float = 1.0,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__()
        self.flow = Flow()
        self.origins: list[Origin] = []
        self.largest: dict[torch.dtype, Largest] = {}
        self.operations = 0
        self.failure: Exception | None = None
        self.refused: list[Tensor] = []
        self._model = unwrap(model)
        self._tracker = tracker
        self._loss_scale = loss_scale
        self._progress = progress
        self._held = [(name, parameter) for name, parameter, _ in parameters(model)]
        self._parameters = _by_memory(self._held)
        self._gradients: dict[int, str] | None = None  # read again after each backward pass
        self._was_backward = False
        self._is_update = False  # what runs after a backward pass, is not differentiated, and no module runs it
        self._states: dict[int, tuple[str, str]] = {}
        self._sizes: dict[str, float] = {}  # of each parameter, the largest magnitude that an optimizer holds for it
        self._nodes: dict[tuple[int, int], Producer] = {}
        self._read_out: tuple[Origin, ...] = ()
        self._numbers = itertools.count()
        self._lock = threading.RLock()

    def give(self, source: Source, name: str, tensor: Tensor, path: str | None, kind: str) -> Origin | None:
        """Note a tensor that is there before anything runs, if it holds bad values or values near the limit of its format.

        Return the origin of the bad values; None if there are none.
        """
        size = largest(tensor)
        if size is None:
            return None
        if math.isfinite(size):
            if size * NEAR >= limit_of(tensor.dtype):
                self.flow.note(tensor, (), None, holds_constant=True)
            return None
        origin = self._given(source, name, tensor, ModulePlace(path, kind, None, "forward"))
        self.flow.note(tensor, (origin,), None)
        return origin

    def give_parameters(self, named: list[tuple[str, Tensor]]) -> None:
        """Note all parameters of a model as :meth:`give` does; those without a finite number, beside others, were never filled."""
        given = [self.give("parameter", name, held, name.rpartition(".")[0], "") for name, held in named]
        bad = [origin for origin in given if origin is not None]
        is_whole = all(origin.result is not None and math.isnan(origin.result.low) for origin in bad)  # the lowest finite number
        for origin in bad if is_whole and len(bad) < len(given) else ():
            origin.cause = origin.cause and origin.cause._replace(advice=_NEVER)

    def give_state(self, parameter: str, key: str, tensor: Tensor, optimizer: str) -> None:
        """Note a tensor that an optimizer of the class *optimizer* holds as *key* for the parameter called *parameter*."""
        reference, size = memory_of(tensor), largest(tensor)
        if reference is not None:
            self._states[reference.cdata] = f"{key} of {parameter}", parameter
        if size is not None and math.isfinite(size) and key != "step":
            self._sizes[parameter] = max(size, self._sizes.get(parameter, 0.0))
        if size is not None and not math.isfinite(size):
            origin = self._given("state", f"{key} of {parameter}", tensor, ModulePlace(None, optimizer, None, "step"))
            origin.parameter = parameter
            self.flow.note(tensor, (origin,), None)

    def _given(self, source: Source, name: str, tensor: Tensor, place: ModulePlace) -> Origin:
        held = dense(tensor)
        facts = TensorFacts.of(tensor)
        assert held is not None
        assert facts is not None
        bad = held.isnan() if facts.nan else held.isinf()
        index = first_of(bad)
        value = held[index].item()
        what: Kind = "NaN" if facts.nan else "inf"
        word = {
            "outside": "the tensor",
            "state": "the optimizer's state",
            "rank": "what a collective has brought",
            "uninitialised": "uninitialised memory",
        }.get(source, f"the {source}")
        columns, is_always = _columns(bad) if source == "input" else ("", False)
        where = f", all in {columns}" if columns else ""
        where += ", in every sample" if is_always else ""
        sentence = f"{word} {name} holds {facts.numbers}{where}; the first at {list(index)}".replace("  ", " ")
        operand = Operand(name, facts, value if not isinstance(value, complex) else None)
        given = value if isinstance(value, float) and facts.positive_infinities == 0 else math.inf
        is_statistic = source == "buffer" and name.rpartition(".")[2].startswith("running_")
        advice = _OF_STATISTIC if is_statistic else _ADVICE[source]
        advice = (_OF_COLUMNS if is_always else _IN_COLUMN) if columns else advice
        return Origin(
            next(self._numbers), what, source, place, name, operands=[operand], result=facts, index=index,
            cause=Cause(f"non-finite {source}", sentence, advice), given=given,
        )  # fmt: skip

    def unexplained(self, name: str, tensor: Tensor) -> Origin:
        """Return the origin of bad values in *tensor* that no operation was seen to make."""
        stored = self.flow.of(tensor)
        place = ModulePlace(None, "", None, "forward")
        if stored is not None and stored.is_of_ranks:
            return self._given("rank", "", tensor, place)
        return self._given("outside", name, tensor, place)

    # Operations

    def operator(self, call: OperatorCall) -> Any:
        """Run the operator, and look at its result."""
        if self.failure is not None or autograd_state.transforms() is not None:
            return call.run()
        is_backward = Derivative.now() is not None
        self._was_backward = self._was_backward or is_backward
        self._is_update = self._was_backward and not (is_backward or torch.is_grad_enabled() or self._tracker.stack)
        self._gradients = self._gradients if self._is_update else None
        with torch.no_grad():
            written = _copies(call)
        try:
            result = call.run()
        except Exception:
            self.refused = [part for part in flatten((call.args, call.kwargs))[0] if isinstance(part, Tensor)]
            raise
        try:
            with self._lock, torch.no_grad():
                self._look(call, result, written)
        except Exception as error:
            self.failure = error
        return result

    def _look(self, call: OperatorCall, result: Any, written: dict[str, Any]) -> None:
        self.operations += 1
        if self.operations % _OFTEN == 0:
            place = self._place()
            self._progress(f"{self.operations:,} operations, {place.phase} {place.path or ''}")
        name = base_name(call.function)
        producer = Producer(name, calling_frames())
        self._note_node(call, producer)
        if name == "local_scalar_dense":
            self._note_read(call.args[0], result)
            return
        if call.is_view:
            return
        if name in _EMPTY:
            self._note_uninitialised(result)
            return
        if call.is_unfinished:
            self._note_unfinished(call, result)
            return
        sizes = [(output, largest(output)) for output in _floating(result, call)]
        if any(size is not None and not math.isfinite(size) for _, size in sizes):
            found = [each for each in operations_of(call, result, written) if _is_bad(each.result)]
            parents = [self._parents(operation, producer) for operation in found]  # of all, before any result is noted
            for operation, origins in zip(found, parents, strict=True):
                self._note_bad(operation, producer, origins)
        is_finite = all(size is None or math.isfinite(size) for _, size in sizes)
        for key, part in call.given.items() if is_finite and name in _OVER else ():
            stored = self.flow.of(part) if isinstance(part, Tensor) else None
            if stored is not None and stored.origins and _is_bad(written.get(key, part)):
                self._leave_out(stored.origins, name, producer)
        for output, size in sizes:
            if size is not None and math.isfinite(size):
                if name in _DIVISIONS:
                    self._note_lost(output, call, name, producer)
                self._note_finite(output, size, call, producer)

    def _note_node(self, call: OperatorCall, producer: Producer) -> None:
        """Note *producer* for the autograd node that its operation has made, if it has made one."""
        thread, number = threading.get_ident(), autograd_state.next_sequence() - 1
        held = self._nodes.setdefault((thread, number), producer)
        if call.written and held.operator == "clone" and held.frames == producer.frames:  # autograd keeps what is written over
            self._nodes.setdefault((thread, number - 1), producer)

    def _leave_out(self, origins: tuple[Origin, ...], name: str, producer: Producer) -> None:
        """Note of *origins* that the choice *name* does not take their values."""
        line = line_of(lines_of(producer.frames))
        for origin in origins if self._derivative() is None else ():
            origin.left_out = name + ("" if line is None else f" ({line.name})")

    def _note_lost(self, output: Tensor, call: OperatorCall, name: str, producer: Producer) -> None:
        """Mark the overflows that a division turns into 0, though the exact quotient is none."""
        divisor = call.args[1 if name == "div" else 0]
        stored = self.flow.of(divisor) if isinstance(divisor, Tensor) and _is_bad(divisor) else None
        held = dense(divisor) if isinstance(divisor, Tensor) else None
        if stored is None or held is None:
            return
        is_root = name == "rsqrt" or (stored.producer is not None and stored.producer.operator in _ROOTS)
        for origin in stored.origins:
            if origin.exact is None or origin.lost or origin.kind != "inf":
                continue
            numerator = call.args[0] if name == "div" else None
            most = 1.0 if numerator is None else abs(numerator) if isinstance(numerator, int | float) else largest(numerator) or 0.0
            limits = torch.finfo(output.dtype)
            least = limits.tiny * (limits.eps if name == "rsqrt" else 1.0)
            if most / (math.sqrt(abs(origin.exact)) if is_root else abs(origin.exact)) < least:
                continue
            called = self._call_of(producer)
            line = line_of(called.lines)
            at = f" ({line.name})" if line is not None else ""
            zeros = int(held.isinf().sum())
            origin.lost = (
                f"{zeros:,} of {held.numel():,} divisors in {called.place.path or '(root)'}, which are inf{at}: the quotient is 0"
            )
            origin.cause = origin.cause and origin.cause._replace(
                sentence=f"{origin.cause.sentence}; {called.operation} makes 0 of the infinity, so that nothing shows"
            )

    def _note_finite(self, output: Tensor, size: float, call: OperatorCall, producer: Producer) -> None:
        limit, constant = limit_of(output.dtype), False
        if size * NEAR >= limit:
            parts = (*call.args, *call.kwargs.values())
            numbers = [part for part in parts if isinstance(part, int | float) and abs(part) * NEAR >= limit]
            stored = [self.flow.of(part) for part in parts if isinstance(part, Tensor)]
            constant = bool(numbers) or any(held is not None and held.holds_constant for held in stored)
        self.flow.note(
            output, (), producer, holds_constant=constant, zeros=self._zeros_of(output, call), parameter=self._updated_by(call)
        )
        known = self.largest.get(output.dtype)
        if not constant and (known is None or size > known.value):
            called = self._call_of(producer)
            words = f"the derivative of {called.operation}" if called.node else called.operation
            found = Largest(dtype_name(output.dtype), size, limit, called.place, words, line_of(called.lines))
            self.largest[output.dtype] = found

    def _zeros_of(self, output: Tensor, call: OperatorCall) -> Zeros | None:
        """Return the node that first made zeros of the gradient *output*, or a choice behind it that made more of them.

        None outside of a backward pass, and where nothing is 0.
        """
        derivative = self._derivative()
        count = 0 if derivative is None else zeros_in(output)
        if derivative is None or not count:
            return None
        given = [self.flow.of(part) for part in flatten((call.args, call.kwargs))[0] if isinstance(part, Tensor)]
        before = max((held.zeros for held in given if held and held.zeros), key=lambda zeros: zeros.number, default=None)
        if before is None or (count > before.number and forward_name(derivative.name) in CHOICES):
            return Zeros(derivative.name, derivative.sequence, count)
        return before._replace(number=count)

    def _note_bad(self, operation: Operation, producer: Producer, parents: tuple[Origin, ...]) -> None:
        other = operation.tensors.get("other")
        if operation.name == "mul" and other is not None and min(other.dim(), operation.tensors["self"].dim()) > 0:
            for parent in parents if not operation.find() and bool((operation.result == math.inf).any()) else ():
                parent.is_turned = parent.given == -math.inf
        of_masks = bool(parents) and all(parent.is_mask for parent in parents)
        is_rest = (
            bool(parents) and all(parent.is_intended for parent in parents) and self._derivative() is None and operation.find_rest()
        )
        if is_rest or operation.find() or (of_masks and operation.find_label(self._call_of(producer).operation)):
            origins: tuple[Origin, ...] = (self._made(operation, producer, parents),)
            origins[0].is_rest = is_rest
            origins += tuple(parent for parent in parents if operation.kind == "inf")
        else:
            origins = parents
            if any(not math.isfinite(number) for number in operation.numbers.values()):
                origins += (self._constant(operation, producer),)
        self.flow.note(operation.result, origins, producer)

    def _parents(self, operation: Operation, producer: Producer) -> tuple[Origin, ...]:
        """Return the origins of the bad values that went into *operation*."""
        found: dict[int, Origin] = {}
        for name, tensor in operation.tensors.items():
            size = largest(tensor)
            if size is None or math.isfinite(size):
                continue
            stored = self.flow.of(operation.written.get(name, tensor))
            origins = () if stored is None else stored.origins
            if not operation.takes(name):
                self._leave_out(origins, operation.name, producer)
                continue
            if not origins:
                lines = lines_of(calling_frames())
                is_of_ranks = any("/torch/distributed/" in line.file for line in lines)
                is_of_ranks = is_of_ranks or (stored is not None and stored.is_of_ranks)
                shown = "" if is_of_ranks else variable_of(tensor) or _name_of(name, operation, lines)
                origin = self._given("rank" if is_of_ranks else "outside", shown, tensor, self._place())
                origin.lines = [] if is_of_ranks else lines
                origin.is_of_softmax = operation.name in ("softmax", "log_softmax")
                if tensor.dim() == 0 and (operation.name in ("copy", "fill") or _is_written(lines, tensor)):
                    self._write_down(origin, float(tensor.real), lines)
                origins = (origin,)
                self.flow.note(tensor, origins, None)
            found.update((origin.number, origin) for origin in origins)
        if any(math.isnan(number) for number in operation.numbers.values()):
            found.update((origin.number, origin) for origin in self._read_out)
        return tuple(found.values())

    def _write_down(self, origin: Origin, number: float, lines: list[SourceLine]) -> None:
        """Make *origin* that of a number which the code writes into a tensor."""
        called = next((line.operation for line in lines if line.operation), "setitem")
        origin.source, origin.name = "constant", called
        origin.cause = number_cause(called, "value", number)
        origin.operands = []

    # Origins

    def _made(self, operation: Operation, producer: Producer, parents: tuple[Origin, ...]) -> Origin:
        """Return the origin of the bad values that *operation* made out of good ones."""
        called = self._call_of(producer)
        origin = Origin(
            next(self._numbers), operation.kind, "operation", called.place, called.operation, operation.operator, called.lines,
            index=operation.index, derivative=called.node.rpartition("::")[2], parents=parents,
            parameter=self._parameter_of(operation) if self._is_update or called.place.phase == "step" else "",
        )  # fmt: skip
        self._register(origin, producer)
        if len(self.origins) > _EXPLAINED:
            return origin
        self._read_saved(operation, called)
        origin.result = TensorFacts.of(operation.result)
        for name, tensor in (*operation.tensors.items(), *operation.others.items()):
            facts = TensorFacts.of(tensor)
            if facts is not None:
                shown = name if called.node else _name_of(name, operation, called.lines)
                shown = self._state_name(operation.written.get(name, tensor)) or ("input" if shown == "self" else shown)
                origin.operands.append(Operand(shown, facts, operation.element(name) if operation.by_element else None))
        origin.cause = self._of_setting(operation, self._cause_of(operation, called), called.place.phase)
        origin.cause = _with_lost_number(operation, origin)
        if origin.cause.name == "sqrt of a negative" and (self._parameter_of_state(operation) or self._is_broken(origin)):
            origin.cause = origin.cause._replace(advice=OF_STATE)
        if origin.kind == "inf" and origin.cause.name.startswith("overflow of"):
            origin.exact = exact_element(operation)
        if origin.cause.name == "log of zero" and origin.kind == "inf" and _is_mask(operation):
            origin.source = "constant"
        if called.node and self._loss_scale != 1.0 and origin.cause.name.startswith("overflow"):
            origin.cause = self._scaled(operation, origin.cause)
        origin.reproductions = reproductions(operation)
        return origin

    def _read_saved(self, operation: Operation, called: _CallOf) -> None:
        """Give *operation*, if it is a part of a derivative, what the node of that has saved."""
        if called.node:
            operation.node = called.node
            derivative = Derivative.now()
            saved = {} if derivative is None else derivative.saved()
            tensors = {key: dense(value) for key, value in saved.items() if isinstance(value, Tensor)}
            operation.saved = {key: held for key, held in tensors.items() if held is not None}
            operation.saved_numbers = {key: float(value) for key, value in saved.items() if isinstance(value, int | float)}

    def _cause_of(self, operation: Operation, called: _CallOf) -> Cause:
        stored = {name: self.flow.of(tensor) for name, tensor in operation.tensors.items()}
        made_by = {name: held.producer.operator for name, held in stored.items() if held is not None and held.producer is not None}
        if not called.node:
            return cause_of(operation, made_by)
        own = self._of_derivative(operation, stored)
        zeros = {
            name: self._zeros_text(held.zeros)
            for name, held in stored.items()
            if name not in own and held is not None and held.zeros is not None
        }
        derivative = Derivative.now()
        forward = None if derivative is None else self._forward_of(derivative.name, derivative.sequence)
        left_out = next((each.left_out for each in ([] if forward is None else forward.made) if each.left_out), "")
        return derivative_cause(operation, made_by, own, zeros, left_out)

    def _of_derivative(self, operation: Operation, stored: dict[str, Stored | None]) -> set[str]:
        """Return the names of the operands of *operation* that a derivative has saved or made itself: no gradient that arrives."""
        derivative = Derivative.now()
        saved = {reference.cdata for held in operation.saved.values() if (reference := memory_of(held)) is not None}
        found = set()
        for name, tensor in operation.tensors.items():
            reference, held = memory_of(tensor), stored[name]
            zeros = None if held is None else held.zeros
            is_new = zeros is None and not saved  # nothing is known to be saved, and no derivative has made this
            is_made = zeros is not None and derivative is not None and zeros.sequence == derivative.sequence
            if is_new or is_made or (reference is not None and reference.cdata in saved):
                found.add(name)
        return found

    def _zeros_text(self, zeros: Zeros) -> tuple[str, str]:
        """Return the node that made *zeros*, and its operation in words: ``where (train.py:12)``."""
        forward = self._forward_of(zeros.node, zeros.sequence)
        line = None if forward is None else line_of(lines_of(forward.frames))
        return zeros.node, forward_name(zeros.node) + ("" if line is None else f" ({line.name})")

    def _of_setting(self, operation: Operation, cause: Cause, phase: Phase) -> Cause:
        """Return *cause* with the setting of an optimizer that made it, where *operation* of its step was given one.

        That is one that is not finite, or, of a division by zero, an ``eps`` of 0 or a beta of 1.
        """
        numbers = [*operation.numbers.values(), *(float(held.real) for held in operation.tensors.values() if held.numel() == 1)]
        is_finite = all(map(math.isfinite, numbers))
        if phase != "step" or (is_finite and cause.name not in _BY_ZERO):
            return cause
        optimizer = autograd_state.optimizers_running()[-1]
        for place, group in enumerate(optimizer.param_groups):
            for name, value in _settings(group):
                advice = _AT_ITS_END.get((name, value)) if is_finite else f"give the optimizer a finite {name}"
                if advice is not None and (is_finite or not math.isfinite(value)):
                    where = f" of group {place}" if len(optimizer.param_groups) > 1 else ""
                    sentence = f"{name}{where} of {type(optimizer).__name__} is {number_text(value)}: {cause.sentence}"
                    return cause._replace(sentence=sentence, advice=advice)
        return cause

    def _scaled(self, operation: Operation, cause: Cause) -> Cause:
        """Return *cause* with the remark that the gradient would fit without the scale of the loss."""
        exact = exact_element(operation)
        if exact is None or abs(exact) / self._loss_scale > limit_of(operation.result.dtype):
            return cause
        without = f"without the loss scale {number_text(self._loss_scale)} it would be {number_text(exact / self._loss_scale)}"
        advice = "nothing, if it is rare: a GradScaler skips such a step and lowers its scale; else begin with a smaller scale"
        return Cause(f"{cause.name} by the loss scale", f"{cause.sentence}; {without}", advice)

    def _parameter_of(self, operation: Operation) -> str:
        """Return the name of the parameter that *operation* wrote or updates, or whose state it read; ``""`` if it is none."""
        reference = memory_of(operation.result)
        own = "" if reference is None else self._parameters.get(reference.cdata, "")
        tensors = (operation.written.get(name, tensor) for name, tensor in operation.tensors.items())
        return own or self._parameter_of_state(operation) or self._updated(tensors)

    def _updated_by(self, call: OperatorCall) -> str:
        parts = flatten((call.args, call.kwargs))[0] if self._is_update else ()
        return self._updated(part for part in parts if isinstance(part, Tensor))

    def _updated(self, tensors: Iterable[Tensor]) -> str:
        """Return the name of the one parameter that *tensors* are of: itself, its gradient, or what an update made of them."""
        if self._gradients is None:
            self._gradients = _by_memory([(name, held.grad) for name, held in self._held if held.grad is not None])
        names = set()
        for tensor in tensors:
            reference, stored = memory_of(tensor), self.flow.of(tensor)
            known = "" if reference is None else self._parameters.get(reference.cdata, self._gradients.get(reference.cdata, ""))
            names.add(known or ("" if stored is None else stored.parameter))
        names.discard("")
        return names.pop() if len(names) == 1 else ""

    def _parameter_of_state(self, operation: Operation) -> str:
        """Return the name of the parameter for which an optimizer holds an operand of *operation*; ``""`` if it holds none."""
        held = (memory_of(operation.written.get(name, tensor)) for name, tensor in operation.tensors.items())
        return next((self._states[each.cdata][1] for each in held if each is not None and each.cdata in self._states), "")

    def _is_broken(self, origin: Origin) -> bool:
        """Return whether torch's own optimizer has taken a root of what no step makes: below 0 by more than rounding."""
        size = self._sizes.get(origin.parameter, 0.0)
        least = min((operand.facts.low for operand in origin.operands), default=0.0)
        is_of_torch = bool(origin.lines) and "/torch/optim/" in origin.lines[0].file
        return origin.place.phase == "step" and is_of_torch and 0 < _ROUNDING * max(size, size**2) < -least

    def _state_name(self, tensor: Tensor) -> str:
        """Return the name of a tensor that an optimizer holds: ``exp_avg of head.weight``; ``""`` of any other."""
        reference = memory_of(tensor)
        return "" if reference is None else self._states.get(reference.cdata, ("", ""))[0]

    def _constant(self, operation: Operation, producer: Producer) -> Origin:
        """Return the origin of the bad values that *operation* was given as a number."""
        called = self._call_of(producer)
        name, number = next((name, number) for name, number in operation.numbers.items() if not math.isfinite(number))
        is_inside = bool(called.operation) and not called.node and not _is_call_of(called.operation, operation.name)
        if operation.name == "scalar_tensor":  # made of a number that another operation is given, as where() is
            name, is_inside = "value", False
        cause = number_cause(f"{operation.name} in {called.operation}" if is_inside else called.operation, name, number)
        kind: Kind = "NaN" if math.isnan(number) else "inf"
        source: Source = "operation" if called.place.phase == "step" else "constant"
        if source == "operation":
            cause = cause._replace(advice="look at the settings of the optimizer, its learning rate first")
            cause = self._of_setting(operation, cause, "step")
        if called.is_of_torch:  # the number is torch's own, and not one of the code
            self._read_saved(operation, called)
            source, cause = "operation", self._cause_of(operation, called)
        elif called.operation == "logdet":
            source, cause = "operation", Cause("log of a negative", "the determinant is negative: its logarithm is NaN", _NEGATIVE)
        origin = Origin(
            next(self._numbers), kind, source, called.place, called.operation, operation.operator, called.lines,
            result=TensorFacts.of(operation.result), cause=cause, parameter=self._parameter_of(operation),
            derivative=called.node.rpartition("::")[2], parents=self._read_out if kind == "NaN" else (),
        )  # fmt: skip
        self._register(origin, producer)
        return origin

    def _register(self, origin: Origin, producer: Producer) -> None:
        """Add *origin*, which *producer* has made, with the operation of the forward that it is a part of."""
        self.origins.append(origin)
        derivative = Derivative.now() if origin.derivative else None
        if derivative is not None:
            origin.forward = self._forward_of(derivative.name, derivative.sequence)
        elif not origin.derivative:
            origin.forward = producer
        producer.made.append(origin)

    def _note_read(self, tensor: Tensor, value: Any) -> None:
        """Note the origins of a bad number that Python has read from a tensor."""
        stored = self.flow.of(tensor)
        if isinstance(value, float) and not math.isfinite(value) and stored is not None:
            self._read_out = tuple({*self._read_out, *stored.origins})

    def _note_uninitialised(self, result: Any) -> None:
        if isinstance(result, Tensor) and is_floating(result):
            size = largest(result)
            if size is not None and not math.isfinite(size):
                self.flow.note(result, (self._given("uninitialised", "", result, self._place()),), None)

    def _note_unfinished(self, call: OperatorCall, result: Any) -> None:
        """Note where bad values of what a collective brings come from, if they are of this rank; it is read when it is there."""
        given = [self.flow.of(part) for part in flatten((call.args, call.kwargs))[0] if isinstance(part, Tensor)]
        known = {each.number: each for held in given if held is not None for each in held.origins if each.source != "uninitialised"}
        for output in _floating(result, call):
            self.flow.note(output, tuple(known.values()), None, is_of_ranks=True)

    # Places

    def _place(self) -> ModulePlace:
        phase: Phase = self._tracker.phase
        if phase == "forward" and autograd_state.optimizers_running():
            return ModulePlace(None, type(autograd_state.optimizers_running()[-1]).__name__, None, "step")
        stack = self._tracker.stack
        hooked = hooked_module() if phase == "forward" else None
        if hooked is not None and not any(call.module is hooked for call in stack):  # a hook of the forward, which has ended
            path = next((name for name, module in self._model.named_modules() if module is hooked), None)
            if path is not None:
                return ModulePlace(path, f"hook of {class_of(hooked).__name__}", None, phase)
        if not stack:
            return ModulePlace(None, "", None, phase)
        root = stack[0].module
        if root is not None and unwrap(root) is not self._model:
            return ModulePlace(None, class_of(root).__name__, None, phase)  # as a module that is the loss function
        last = stack[-1]
        return ModulePlace(last.path, "" if last.module is None else class_of(last.module).__name__, last.call, phase)

    def _call_of(self, producer: Producer) -> _CallOf:
        """Return the operation that runs now as users know it: its module call, its name, the lines that lead to it."""
        place, lines = self._place(), lines_of(producer.frames)
        derivative = Derivative.now() if place.phase == "backward" else None
        if derivative is None or (_is_of_torch(derivative.name) and _is_hook(lines)):
            inner = next((line.operation for line in lines if line.operation), "")
            known = inner if inner not in _VARIABLES and not inner.startswith("_") else ""
            place = place if derivative is None else self._place_of_hook(place, derivative.name, lines)
            return _CallOf(place, known or producer.operator, lines, "")
        forward = self._forward_of(derivative.name, derivative.sequence)
        if forward is not None and all(line.owner == "torch" for line in lines):
            lines = lines_of(forward.frames)
            inner = next((line.operation for line in lines if line.operation), "")
            known = inner if inner not in _VARIABLES else ""
            return _CallOf(place, known or forward_name(derivative.name), lines, derivative.name)
        return _CallOf(place, forward_name(derivative.name), lines, derivative.name)

    def _place_of_hook(self, place: ModulePlace, node: str, lines: list[SourceLine]) -> ModulePlace:
        """Return the place of a hook on a gradient that runs before the derivative *node* of *place*.

        That is the module in whose function the hook is written; where none is known, the one that has made the tensor.
        """
        inside = itertools.takewhile(lambda line: "/torch/autograd/" not in line.file, lines)
        hook = [line for line in inside if line.owner != "torch"][-1]
        maker = hook.function.rpartition(".<locals>.")[0]
        while maker:
            found = [each for each in self._model.named_modules() if _is_written_in(type(each[1]), maker, hook.file)]
            if found:
                path = found[0][0] if len(found) == 1 else None  # of a class that is there more than once, the class alone
                kind = f"hook in {class_of(found[0][1]).__name__}"
                return ModulePlace(path, kind if path is not None else f"a {kind}", None, place.phase)
            maker = maker.rpartition(".<locals>.")[0]
        what = "parameter" if node.rpartition("::")[2] == "AccumulateGrad" else "tensor"
        is_of_module = node.rpartition("::")[2] == "BackwardHookFunctionBackward"
        return place if is_of_module or not place.kind else replace(place, kind=f"hook on a {what} of {place.kind}")

    def _derivative(self) -> Derivative | None:
        """Return the node whose derivative runs now; None outside of a backward pass, and in a checkpoint's forward within one."""
        return Derivative.now() if self._tracker.phase == "backward" else None

    def _forward_of(self, node: str, number: int) -> Producer | None:
        """Return the forward operation that made the node called *node* with this sequence number."""
        number -= node.rpartition("::")[2] == "CopySlices"  # of a write into a view, made after the node of the operation itself
        own = self._nodes.get((threading.get_ident(), number))
        return own or next((held for (_, each), held in self._nodes.items() if each == number), None)


class _CallOf(NamedTuple):
    """An operation as users know it.

    Attributes:
        place: the module call.
        operation: the function; in a backward pass the one whose derivative runs.
        lines: of Python, the innermost first; of a derivative, those of the forward operation.
        node: the name of the autograd node whose derivative runs; ``""`` in a forward.
    """

    place: ModulePlace
    operation: str
    lines: list[SourceLine]
    node: str

    @property
    def is_of_torch(self) -> bool:
        """Whether a derivative runs that torch has, and no function of the user's own."""
        return _is_of_torch(self.node)


_HOOKED = {"AccumulateGrad", "BackwardHookFunctionBackward"}
"""Nodes of torch that compute nothing themselves: what runs there are hooks."""


def _is_of_torch(node: str) -> bool:
    return re.search(r"Backward\d+$", node) is not None or node.rpartition("::")[2] in _HOOKED


def _is_hook(lines: list[SourceLine]) -> bool:
    """Return whether *lines*, which run while a backward pass does, are those of a hook: inside of what torch calls it from."""
    inside = itertools.takewhile(lambda line: "/torch/autograd/" not in line.file, lines)
    return any(line.owner != "torch" for line in inside)


def _is_written_in(kind: type, function: str, file: str) -> bool:
    """Return whether *function* of *file*, a name with its class, is a method of the class *kind*."""
    method = getattr(kind, function.rpartition(".")[2], None)
    code = getattr(inspect.unwrap(method), "__code__", None) if method is not None else None
    return code is not None and (code.co_qualname, code.co_filename) == (function, file)


_NEGATIVE = "use slogdet, which gives sign and logarithm apart, or keep the matrix positive definite"

_VARIABLES = {"apply", "forward", "func", "fn", "f", "function", "op"}
"""Words for whatever function is called, which name none."""

_NEVER = "most likely never initialised, as torch.empty leaves it: use nn.init; if an update has broken it, load the last good one"

_OF_STATISTIC = "reset or reload the buffer: an earlier step has broken the running statistics"

_OF_COLUMNS = (
    "look at how it is made: what is constant has a deviation of 0, and was divided by it. Leave it out, or divide by the "
    "deviation + 1e-8; or the data have no value there"
)
_IN_COLUMN = (
    "look at how it is made: values that the table lacks, a division by 0, a log of 0. Fill them in before the model sees them, or "
    "leave it out"
)

_ADVICE: dict[Source, str] = {
    "operation": "",
    "constant": "write a finite number, or keep the infinity away from the loss",
    "input": "look at the data: drop or repair this sample before the model sees it",
    "parameter": "never initialised (torch.empty), or broken by an update before this step: use nn.init, or load the last good one",
    "buffer": "look at where the buffer is written; load the last good checkpoint if a step has broken it",
    "state": OF_STATE,
    "gradient": "call zero_grad() first: the gradient of an earlier step is there",
    "uninitialised": "torch.empty holds whatever was in memory: fill it, or use torch.zeros",
    "rank": "look at the answer of the other ranks: call why_nan on each of them",
    "outside": "see where this tensor is made: no operation of torch in this step has made the value",
}


def _columns(bad: Tensor) -> tuple[str, bool]:
    """Return in words the columns, or channels, of a batch that hold all *bad* elements, and whether they are so in every sample.

    One may hold them in some samples; several do in every one, at the same places. ``""`` where it is not so.
    """
    if bad.dim() < 2:
        return "", False
    of_samples = bad.flatten(1).any(1)
    is_always = bool(of_samples.all()) and torch.equal(bad.any(0), bad.all(0))
    for axis in dict.fromkeys((bad.dim() - 1, 1)):
        each = bad.movedim(axis, -1).flatten(0, -2).any(0)
        at = each.nonzero().flatten().tolist()
        if int(of_samples.sum()) > 1 and 2 * len(at) <= len(each) and (len(at) == 1 or is_always):
            kind = "column" if axis == bad.dim() - 1 else "channel"
            return f"{kind}{'s' * (len(at) > 1)} {', '.join(map(str, at[:3]))}{', ...' * (len(at) > 3)}", is_always
    return "", False


def _settings(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers among the settings of a group of an optimizer, by name."""
    for name, value in group.items():
        parts = value if isinstance(value, tuple | list) else [value]
        yield from ((name, float(part)) for part in parts if name != "params" and (type(part) in (int, float) or _is_number(part)))


def _is_number(part: Any) -> bool:
    return isinstance(part, Tensor) and part.numel() == 1 and not part.is_complex()


def _by_memory(named: Iterable[tuple[str, Tensor]]) -> dict[int, str]:
    """Return the names of tensors by the memory that they lie in."""
    found = ((name, memory_of(tensor)) for name, tensor in named)
    return {reference.cdata: name for name, reference in found if reference is not None}


def _copies(call: OperatorCall) -> dict[str, Any]:
    """Return copies of the floating-point arguments that the operator is going to write into, by name."""
    names = call.written
    if not names:
        return {}
    given = call.given
    return {name: _copied(given[name]) for name in names if name in given and name != "out"}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [_copied(part) for part in value] if isinstance(value, list | tuple) else value


def _floating(result: Any, call: OperatorCall) -> Iterator[Tensor]:
    """Yield each floating-point tensor that the operator returned or wrote into, once."""
    given = call.given
    pending = [result, *(given.get(name) for name in call.written)]
    seen: set[int] = set()
    while pending:
        value = pending.pop(0)
        if isinstance(value, list | tuple):
            pending = [*value, *pending]
        elif isinstance(value, Tensor) and is_floating(value) and id(value) not in seen:
            seen.add(id(value))
            yield value


def _name_of(name: str, operation: Operation, lines: list[SourceLine]) -> str:
    """Return the text in the code of the operand *name*; *name* itself where the code calls something else than the operator."""
    called = (line for line in (line_of(lines), *lines[:1]) if line is not None and _is_call_of(line.operation, operation.name))
    return next((shown for line in called if (shown := line.operand(name, operation.call.names))), name)


_SAME = {
    "truediv": "div",
    "matmul": "mm bmm",
    "linear": "mm addmm",
    "square": "pow",
    "norm": "vector_norm",
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "convolution"),
    "instance_norm": "batch_norm",
    "rms_norm": "fused_rms_norm",
    "nll_loss": "nll_loss_forward nll_loss2d_forward",
}


def _is_call_of(called: str, operator: str) -> bool:
    called = called.strip("_")
    return called == operator or operator in _SAME.get(called, "").split()


def _is_written(lines: list[SourceLine], tensor: Tensor) -> bool:
    """Return whether the code writes *tensor*, which it has as a number, into elements of another: ``x[x < 0] = math.nan``."""
    line = line_of(lines)
    return line is not None and line.operation == "setitem" and not variable_of(tensor)


_ROUNDING = 1e-3  # of the largest number of a state or its square, below which a difference of them may be rounding


def _with_lost_number(operation: Operation, origin: Origin) -> Cause:
    """Return the cause of *origin* with the number that its code adds, and its format does not have, where that leaves a 0."""
    assert origin.cause is not None
    dtype = operation.result.dtype
    for operand in origin.operands if origin.cause.name in _OF_ZERO and not origin.derivative else ():
        lost = [
            number for number in numbers_in(operand.name) if number and float(torch.tensor(number, dtype=dtype, device="cpu")) == 0
        ]
        if operand.value == 0 and lost:
            sentence = f"{origin.cause.sentence}: {lost[0]:g} in {operand.name} is 0 in {dtype_name(dtype)}"
            advice = f"compute this in float32, or write a number that {dtype_name(dtype)} has"
            return origin.cause._replace(sentence=sentence, advice=advice)
    return origin.cause


_OF_ZERO = ("log of zero", "division by zero", "0 / 0")


def _is_mask(operation: Operation) -> bool:
    """Return whether the operand is no function of a parameter and holds 0 and 1 alone: the log of a mask is one of 0 and -inf."""
    first = operation.first()
    return (
        first is not None
        and not _depends(operation)
        and bool(((first[1] == 0) | (first[1] == 1)).all())
        and bool((first[1] == 1).any())
    )


def _depends(operation: Operation) -> bool:
    """Return whether a tensor that *operation* was given requires a gradient."""
    return any(isinstance(part, Tensor) and part.requires_grad for part in operation.call.args)


def _is_bad(tensor: Tensor) -> bool:
    size = largest(tensor)
    return size is not None and not math.isfinite(size)
