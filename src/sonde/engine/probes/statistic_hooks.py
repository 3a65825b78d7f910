"""Hooks that add what passes to rows of a statistic: a row for each port, leaf and call of a module.

A row is taken where its first tensor comes, since what a module returns, and how often it is called, shows at run time. Compiled
code hands the tensor, or the row that was measured on an accelerator, to Python at run time, which knows the call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sonde.engine import structure
from sonde.engine.clock.clock import Clock
from sonde.engine.failures import raise_if_foreign
from sonde.engine.layer_axes import LayerAxes, unit_axis
from sonde.engine.probes.delivery import Delivery, Switch
from sonde.engine.probes.site_hook import SiteHook
from sonde.engine.torch_api import compiled, compiler_state, hooks, operators
from sonde.engine.torch_api.autograd_state import graph_task
from sonde.engine.torch_api.forms import paths_of
from sonde.engine.torch_api.input_alias import alias, aliased_in_trace
from sonde.engine.unseen import blocks
from sonde.errors import ArgumentError
from sonde.site import OTHER_CALLS, Port
from sonde.stats import PLAIN, Kernel, Piece, Table, dense, is_fused, local, unreadable

_graph_task: Callable[[], int] = graph_task
_with_gradients: Callable[[], bool] = torch.is_grad_enabled
_is_traced = compiler_state.is_traced
_trace_value = compiled.trace_value  # what traced code reaches by two names has a guard for each use
_thread: Callable[[], int] = threading.get_ident

Calls = Literal["each", "joined"] | int
"""Which calls of a module in one forward have rows of their own: the first 8, none, or the first so many."""

RowPlace = tuple[Port, str, int]
"""Of a row: its port, leaf and call."""

_EACH = 8
_MOST_LEAVES = 16
_ONLY_FIRST = (
    "of several tensors the first floating-point one is added: the statistic reads axes, which are known of the first alone"
)
_UNSEEN = (-1, -1)  # the forward and the call that compiled code runs unseen
_taking = threading.Lock()  # a row for a place; several threads may call one module


def rows_for_calls(calls: Calls) -> int:
    """Return how many calls of a module in one forward have rows of their own.

    Raises:
        ArgumentError: *calls* is no such number, ``"each"`` or ``"joined"``.
    """
    if calls == "each":
        return _EACH
    if calls == "joined":
        return 0
    given: object = calls
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ArgumentError(
            f"calls={calls!r}: give 'each' (the first {_EACH} calls of a module in a forward apart, all others together), "
            "'joined' (all together), or the number of calls that are kept apart"
        )
    return given


def row_of_call(call: int, apart: int) -> int:
    """Return the number under which rows have *call*, if the first *apart* calls have rows of their own."""
    return call if call < apart else OTHER_CALLS


def _is_compiled(tensor: Tensor) -> bool:
    """Return whether compiled code measures *tensor*, and does not hand it over."""
    return is_fused(tensor)


class StatisticHook(SiteHook):
    """A hook that adds tensors to rows of a statistic; abstract.


    Attributes:
        value_port, gradient_port: of the value that passes, and of its gradient; None for a parameter.
        adds, listens: the same, as far as they are observed.
        rows: by place.
        unused: by port, a row without a place as yet.
        apart: how many calls in a forward have rows of their own.
        table: holds the rows.
        kernel: adds to rows on the CPU; None without one.
        addresses: by place, of the row, if the kernel can add to it; else 0.
        own: by port, the rows that the hook was given, which it keeps from one probe to the next.
        former: by place, the addresses of those of them that the probe before has used.
        by_axis: by the axis of the units, a table without rows that measures tensors; for a statistic that finds this axis.
        measure: measures in compiled code; the axis of the units is known beforehand or guessed from the structure.
        plan: what compiled code delivers.
        token: names this hook in compiled code.
    """

    __slots__ = (
        "addresses",
        "adds",
        "apart",
        "by_axis",
        "former",
        "kernel",
        "listens",
        "measure",
        "own",
        "plan",
        "rows",
        "table",
        "token",
        "unused",
    )

    value_port: ClassVar[Port | None] = None
    gradient_port: ClassVar[Port | None] = None

    def hold(self, table: Table, unused: dict[Port, Tensor], apart: int, like: StatisticHook | None = None) -> None:
        """Add to rows of *table* from now on, to those *unused* first; *like* is another hook that does, if there is one."""
        self.table = table
        self.own = dict(unused)
        self.former: dict[RowPlace, int] = {}
        self.adds = self.value_port if self.value_port in self.sites else None
        self.listens = self.gradient_port if self.gradient_port in self.sites else None
        self.unused = unused
        self.apart = apart if self.is_on_module else 0
        self.rows: dict[RowPlace, Tensor] = {}
        self.by_axis: dict[int, Table] = {}
        self.addresses: dict[RowPlace, int] = {}
        statistic = table.statistic.on_axis(unit_axis(self.module)) if table.statistic.finds_units else table.statistic
        self.kernel: Kernel | None = None if table.statistic.finds_units else statistic.kernel
        self.measure: compiled.Measure
        if like is not None and like is not self and not table.statistic.finds_units:
            self.measure = like.measure
        else:
            self.measure = compiled.Measure.of(statistic, lambda: compiled.Measure(Table(statistic).measured, _is_compiled))
        most = _MOST_LEAVES if statistic.is_of_every_leaf else 1
        self.plan = compiled.plan_of(self.adds or "", self.listens or "", most, self.measure.number)
        self.token = operators.Token(self)
        if not self.is_on_module:  # each port of a parameter has one tensor
            for port, row in self.own.items():
                self._take((port, "", OTHER_CALLS), row.device)

    def hold_again(self) -> None:
        """Add to the rows that the hook has kept, in which there is nothing: those of a parameter are where they were."""
        if self.is_on_module and self.rows:
            self.former, self.unused, self.rows, self.addresses = self.addresses, dict(self.own), {}, {}

    @property
    def has_own_rows(self) -> bool:
        """Whether the hook has taken no other rows than those that it was given, which lie where they were."""
        own = self.own
        for (port, _, _), row in self.rows.items():
            if row is not own.get(port):
                return False
        return not self.table.statistic.finds_units

    def give_up(self) -> None:
        super().give_up()
        self.token.forget()

    def take_over(self, old: SiteHook) -> None:
        if isinstance(old, StatisticHook):
            self.hold(old.table, {}, old.apart)
            self.rows, self.addresses, self.unused = old.rows, old.addresses, old.unused

    def counts(self, added: Mapping[int, int]) -> dict[Port, int]:
        of_leaf: dict[tuple[Port, str], int] = {(port, ""): 0 for port in self.sites}
        for (port, leaf, _), row in list(self.rows.items()):
            of_leaf[port, leaf] = of_leaf.get((port, leaf), 0) + added.get(id(row), 0)
        return {port: max(count for (each, _), count in of_leaf.items() if each == port) for port in self.sites}

    @property
    def has_fired(self) -> bool:
        return self.is_on_module and bool(self.rows)  # a module's row is taken where a tensor comes

    # Rows

    def places(self) -> list[tuple[RowPlace, Tensor]]:
        """Return every row with its place: by port, leaf and call; also rows to which nothing was added."""
        call = 0 if self.apart else OTHER_CALLS
        found = [*list(self.rows.items()), *(((port, "", call), row) for port, row in list(self.unused.items()))]
        ports = list(self.sites)

        def order(each: tuple[RowPlace, Tensor]) -> tuple[Any, ...]:
            (port, leaf, call), _ = each
            steps = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", leaf)]  # [2] before [10]
            return ports.index(port), steps, call == OTHER_CALLS, call

        return sorted(found, key=order)

    def _row(self, place: RowPlace, device: torch.device) -> Tensor | None:
        """Return the row of *place*, moved to *device*; None if there are too many leaves."""
        row = self.rows.get(place)
        if row is None:
            with _taking:
                row = self.rows.get(place)
                if row is None:
                    row = self._take(place, device)
        if row is not None and row.device != device:  # the model was moved
            row = self.rows[place] = self.table.move(row, device)
            self.addresses[place] = self._address(row)
        return row

    def _take(self, place: RowPlace, device: torch.device) -> Tensor | None:
        """Let *place* have a row."""
        port, leaf, _ = place
        leaves = {known for each, known, _ in self.rows if each == port}
        if leaf not in leaves and len(leaves) >= _MOST_LEAVES:
            self.note(f"its tensors have changed, and {_MOST_LEAVES} leaves have a row: others are not added")
            return None
        row = self.unused.pop(port, None)
        if row is None:
            (row,) = self.table.allocate(1, device)
        else:
            self.table.changes += 1
        self.rows[place] = row
        self.addresses[place] = self._address(row)
        return row

    def _take_again(self, place: RowPlace, tensor: Tensor) -> bool:
        """Add *tensor*, the first of *place*, to the row that the probe before had there; return False if that was not done."""
        port, kernel = place[0], self.kernel
        if kernel is None or self.delivery.stopped:
            return False
        with _taking:
            row, address = self.unused.get(port), self.former[place]
            if row is None or not address or not kernel.add_at(address, tensor, 1):
                return False
            del self.unused[port]
            self.table.changes += 1
            self.rows[place], self.addresses[place] = row, address
        return True

    def _address(self, row: Tensor) -> int:
        """Return where *row* lies, if the kernel for the CPU can add to it there; else 0."""
        return row.data_ptr() if self.kernel is not None and self.kernel.fits(row, led=1) else 0

    # Adding

    def _add(self, place: RowPlace, tensor: Tensor) -> None:
        try:
            address = self.addresses.get(place, 0)
            if address:
                if self.kernel is not None and self.kernel.add_at(address, tensor, 1):
                    return
            elif place in self.former and self._take_again(place, tensor):
                return
        except Exception as error:
            self._failed_at(place, error)
        else:
            self._add_part(place, tensor)

    def _add_part(self, place: RowPlace, tensor: Tensor, minus: Tensor | None = None) -> None:
        """Add what this rank holds of *tensor*, or its difference to *minus*; the kernel did not take *tensor* as it is."""
        try:
            if self.delivery.stopped and self.delivery.has_stopped(self.sites[place[0]], place[1]):
                return
            if kind := unreadable(tensor):
                self._note_kind(kind)
                return
            part = tensor if type(tensor) in PLAIN else self._part_of(place[0], tensor)
            if part is None:
                return
            if minus is not None:
                address = self.addresses.get(place, 0) if part is not tensor else 0
                if address and self.kernel is not None and not self.kernel.add_each([address], [part], [minus]):
                    return
                part = _difference(part.detach(), minus)
            row = self._row(place, tensor.device)
            if row is not None:
                table = self.table
                if table.statistic.finds_units:  # those of a gradient are on the axis that the output had
                    units = LayerAxes.of(tensor, self.module).units
                    table = self._on_axis(1 if units is None else units)
                table.add(row, part.detach())
        except Exception as error:
            self._failed_at(place, error)

    def _note_kind(self, kind: str) -> None:
        """Note in the coverage that a tensor is of a *kind* without values to read."""
        self.note(f"a {kind} tensor, which the statistic cannot be taken of")

    def _part_of(self, port: Port, tensor: Tensor) -> Tensor | None:
        """Return the part of *tensor* that this rank holds; None if the statistic cannot be taken of that."""
        part = self.gradient_part(tensor) if port == "grad" else local(tensor)
        if part is None or part.shape == tensor.shape or self.table.statistic.takes_part(tensor.shape, part.shape):
            self.note_part(port, tensor)
            return part
        site = self.sites[port]
        if site not in self.delivery.notes:
            self.delivery.note([site], f"left out: {self.table.statistic} cannot be taken of {Piece.in_words(tensor)}")
        return None

    def _on_axis(self, units: int) -> Table:
        found = self.by_axis.get(units)
        if found is None:
            found = self.by_axis[units] = Table(self.table.statistic.on_axis(units))
        return found

    def _merge(self, place: RowPlace, measured: Tensor) -> None:
        """Add a row that compiled code has measured."""
        try:
            if self.delivery.stopped and self.delivery.has_stopped(self.sites[place[0]], place[1]):
                return
            self.table.check(measured)
            row = self._row(place, measured.device)
            if row is not None:
                self.table.merge(row, measured)
        except Exception as error:
            self._failed_at(place, error)

    def _failed_at(self, place: RowPlace, error: Exception) -> None:
        """Add nothing more at the site of *place*, in any call."""
        raise_if_foreign(error)
        port, leaf, _ = place
        for known in self.addresses:
            if known[:2] == (port, leaf):
                self.addresses[known] = 0
        self.delivery.failed_at(self.sites[port].at(leaf), error)

    def stop_at(self, port: Port, why: str) -> None:
        self.addresses |= {place: 0 for place in self.addresses if place[0] == port}
        super().stop_at(port, why)

    def failed(self, error: Exception) -> None:
        """Report *error*, and add nothing more at any site of the hook."""
        raise_if_foreign(error)
        self.addresses = dict.fromkeys(self.addresses, 0)
        super().failed(error)

    @staticmethod
    def add_each(
        hooked: Sequence[StatisticHook], port: Port, tensors: Sequence[Tensor], minus: Sequence[Tensor] | None = None
    ) -> None:
        """Add to each parameter's row one of *tensors*, or its difference to one of *minus*; by one kernel call where possible."""
        kernel = hooked[0].kernel
        place: RowPlace = (port, "", OTHER_CALLS)
        left: Sequence[int] = range(len(hooked))
        if kernel is not None:
            left = kernel.add_each([hook.addresses[place] for hook in hooked], tensors, minus, 1)
        for index in left:
            hooked[index]._add_part(place, tensors[index], None if minus is None else minus[index])

    @hooks.not_compiled
    def _add_gradient(self, switch: Switch, place: RowPlace, gradient: Tensor | None) -> None:
        if not _is_traced() and (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self._add_gradient, switch, place, gradient)
        # the engine gives None for an output of its node that nothing used; the switch is of the probe that saw the forward
        elif gradient is not None and switch.on and switch is self.switch and not (blocks and self.is_quiet()):
            self._add(place, gradient)

    def _pass(self, value: Any) -> None:
        """Add the tensors of *value*, which passes in eager code, and their gradients when these come."""
        try:
            forward = self._admitted()
            if forward is None:
                return
            task = _graph_task()
            call = OTHER_CALLS
            if self.apart:
                call = forward.call_of(self, task)
                if call >= self.apart:
                    call = OTHER_CALLS
            if forward.is_on_ranks and self.value_port == "output":
                self.note_units(value)
            if type(value) is Tensor and value.is_floating_point():
                self._pass_one(value, "", call, forward.index, task)
                if self.listens is not None and value.requires_grad and not self.has_looked:
                    self.look_at_border(self.listens, value)
                return
            for leaf, tensor in self._leaves(value):
                self._pass_one(tensor, leaf, call, forward.index, task)
        except Exception as error:
            self.failed(error)

    def _pass_one(self, tensor: Tensor, leaf: str, call: int, forward: int, task: int) -> None:
        if self.adds is not None and task == -1:
            self._add((self.adds, leaf, call), tensor)
        if self.listens is not None and tensor.requires_grad and _with_gradients():
            listener = hooks.Bound(self._add_gradient, self.switch, (self.listens, leaf, call))
            if tensor.is_leaf:
                self.delivery.listen_to_leaf(self, forward, tensor, listener)
            else:
                hooks.on_result(tensor, listener)  # for sums the order in which modules get a gradient does not matter

    def _leaves(self, value: Any) -> list[tuple[str, Tensor]]:
        """Return the tensors of *value* that are added, each with its leaf; note in the coverage if there are none."""
        tensors = list(structure.walk(value))
        found = [(self.leaf_of(path), tensor) for path, tensor in tensors if structure.is_floating(tensor)]
        kind = "" if found else next(filter(None, (unreadable(tensor) for _, tensor in tensors)), "")
        if kind:
            self._note_kind(kind)
        else:
            self._note_extent(len(found))
        if self.listens is not None and len(found) > 1:
            self.note_border(self.listens, (tensor for _, tensor in found))
        return found[: self._most]

    @property
    def _most(self) -> int:
        """How many tensors of one value are added."""
        return _MOST_LEAVES if self.table.statistic.is_of_every_leaf else 1

    def _note_extent(self, tensors: int) -> None:
        """Note in the coverage if not all of so many *tensors* are added, or if there are none."""
        if not tensors:
            self.note("no floating-point tensor in its value")
        elif tensors > self._most:
            self.note(f"of {tensors} floating-point tensors the first {self._most} are added" if self._most > 1 else _ONLY_FIRST)

    @staticmethod
    def leaf_of(path: str) -> str:
        """Return the leaf of the tensor at *path* in the value."""
        return path

    # Compiled code

    def replay(self, leaves: list[Tensor], form: int, port: Port | str) -> tuple[int, int]:
        """Add the rows of a value, where compiled code has reached the module.

        Returns:
            The indices of the forward and of the call; -1 where nothing may be added, of gradients either.
        """
        forward = self._admitted_compiled()
        if forward is None:
            return _UNSEEN
        task = _graph_task()
        call = forward.call_of(self, task) if self.apart else OTHER_CALLS
        thread = self.delivery.thread
        if port and task == -1 and self.switch.on and (thread is None or thread == _thread()):
            paths = paths_of(form)
            if len(paths) != 1:
                self._note_extent(len(paths))
            for path, tensor in zip(paths, leaves, strict=False):
                self._replayed(port, self.leaf_of(path), call, tensor)
        return forward.index, call

    def replay_gradient(self, forward: int, call: int, measured: Tensor, leaf: int, form: int, port: Port) -> None:
        """Add the row of a gradient that compiled code has measured, of tensor number *leaf* of the value of call number *call*."""
        if self.switch.on and forward != _UNSEEN[0] and not (blocks and self.is_quiet()):
            self._replayed(port, self.leaf_of(paths_of(form)[leaf]), call, measured)

    def _replayed(self, port: str, leaf: str, call: int, tensor: Tensor) -> None:
        """Add a row that compiled code has measured, or a tensor that it has handed over."""
        place: Any = port.removeprefix(operators.AS_TENSOR), leaf, row_of_call(call, self.apart)
        (self._merge if place[0] == port else self._add)(place, tensor)


class OutputStatisticHook(StatisticHook):
    """Adds the output of a module, and the gradient of the output.

    A subclass with other ports adds another value: its ``__call__`` calls this one with the value in place of the output.
    """

    __slots__ = ()

    value_port: ClassVar[Port | None] = "output"
    gradient_port: ClassVar[Port | None] = "grad_output"
    register = staticmethod(hooks.on_forward)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = hooks.NOT_GIVEN) -> None:
        if _is_traced():
            _trace_value(self, output)
        elif not self.switch.on or output is hooks.NOT_GIVEN:
            return
        elif (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self._pass, output)
        else:
            self._pass(output)


class InputStatisticHook(StatisticHook):
    """Adds the input of a module, and the gradient of the input through this module alone."""

    __slots__ = ()

    value_port: ClassVar[Port | None] = "input"
    gradient_port: ClassVar[Port | None] = "grad_input"
    register = staticmethod(hooks.on_forward_pre)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] = hooks.NOT_GIVEN) -> Any:
        if _is_traced():
            return self._traced(args, kwargs)
        if not self.switch.on or kwargs is hooks.NOT_GIVEN or (blocks and self.is_quiet()):
            return None
        compiler = hooks.compiler_at_work()
        aliases = self.listens is not None and torch.is_grad_enabled() and not compiler_state.is_recorded()
        if aliases:
            try:
                args, kwargs = hooks.undisturbed(compiler, structure.remap, (args, kwargs), alias)
            except Exception as error:
                self.failed(error)
                return None
        only = args[0] if len(args) == 1 and not kwargs and type(args[0]) is Tensor else None  # as of most modules
        hooks.undisturbed(compiler, self._pass, (args, kwargs) if only is None else only)
        return (args, kwargs) if aliases else None

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.listens is None or not torch.is_grad_enabled() or compiler_state.is_exported() or self.rests_in_trace():
            _trace_value(self, (args, kwargs))
            return None
        given, seen = aliased_in_trace((args, kwargs))
        _trace_value(self, seen)
        return given

    @staticmethod
    def leaf_of(path: str) -> str:
        """Return the leaf of the tensor at *path* in ``(args, kwargs)``: ``""`` for the first positional argument."""
        return "" if path == "[0][0]" else path[3:]


class ParameterStatisticHook(StatisticHook):
    """Adds the gradient that a backward pass has accumulated into a parameter."""

    __slots__ = ("_last",)

    register = staticmethod(hooks.on_accumulated)

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        super().begin(delivery, clock, module, parameter)
        self._last = (-1, -1, 0)  # the pass in which the last gradient came

    def __call__(self, parameter: nn.Parameter) -> None:
        if self.switch.on and parameter.grad is not None and not _is_traced() and not (blocks and self.is_quiet()):
            self.was_eager = True
            self._last = self.look_at_pass("grad", self._last)
            self._add(("grad", "", OTHER_CALLS), parameter.grad)


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """Return ``after - before``, not rounded to the precision of the two."""
    after, before = dense(after), dense(before)
    if after.device.type != "mps" and (after.is_floating_point() or after.is_complex()):  # mps has no float64
        wide = torch.complex128 if after.is_complex() else torch.float64
        after, before = after.to(wide), before.to(wide)
    return after - before
