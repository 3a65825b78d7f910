"""``ModuleTracker``: which module call is running, forward or backward (the third seed)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sonde.engine import compiled, hooks, selection
from sonde.engine.crossings import Callback, Crossings, weak
from sonde.engine.forward import checkpoint_made_in, checkpoint_recomputed
from sonde.engine.passage import Call, ModuleCall, Passage, ThreadState
from sonde.engine.places import Hierarchies, Place
from sonde.engine.running import modules_running, nodes_running
from sonde.engine.site import Phase
from sonde.engine.trouble import ProbeError, warn_user

__all__ = ["ModuleTracker"]

_sequence_now: Callable[[], int] = torch._C._autograd._get_sequence_nr
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_is_traced = compiled.is_traced
_ACCUMULATES = 2**64 - 1  # the number of every node that writes a .grad


class ModuleTracker:
    """Tells at any moment which modules are running their forward, or having their backward run.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> with sonde.ModuleTracker() as tracker:
    ...     handle = model[0].register_forward_pre_hook(lambda *_: print(sorted(tracker.parents)))
    ...     output = model(torch.ones(1, 2))
    ['Global', 'Sequential', 'Sequential.0']

    Every model that is called in any thread is tracked; each thread sees its own calls. A model is labelled by its class
    (a second one of that class ``Net-2``) when it is first called; *models* are labelled at once, which also gives a part that is
    called alone its full name. In backward, what runs belongs to the module call that made it in the forward, as autograd's
    numbers tell: no hook is put on any tensor. Nodes that a backward pass itself made (``create_graph=True``) belong to
    no module. Inside a compiled region no Python runs: its operations belong to the region as a whole.

    Args:
        models: models to know by name beforehand.
        enter, leave: called with a :class:`ModuleCall` as a forward (or a recomputation) begins and ends.
        enter_backward, leave_backward: called as the backward of a module call begins, and when that of another one begins
            or the pass ends. Only these need hooks: on the autograd nodes at the borders of modules.
        strict: raise what a callback raises, instead of warning and calling none any more.

    Raises:
        ModelError: one of *models* is none.
    """

    def __init__(
        self,
        *models: nn.Module,
        enter: Callback | None = None,
        leave: Callback | None = None,
        enter_backward: Callback | None = None,
        leave_backward: Callback | None = None,
        strict: bool = False,
    ) -> None:
        self._hierarchies = Hierarchies()
        for model in models:
            self._hierarchies.meet(selection.check_model(model))
        self._crossings = Crossings(
            {"enter": enter, "leave": leave, "enter_backward": enter_backward, "leave_backward": leave_backward}, strict=strict
        )
        self._entered = 0
        self._handles: list[hooks.Handle] = []
        self._said_compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._local = _Local()
        self._states: list[ThreadState] = []
        self._owners: dict[int, tuple[weakref.ref[Tensor], Call | None]] = {}

    # Life

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            self._handles = [hooks.on_any_forward_pre(_Enters(self)), hooks.on_any_forward(_Leaves(self))]
            active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            active.remove(self)
            self._begin_anew()

    # Reading

    @property
    def parents(self) -> set[str]:
        """The names of all modules that run now (in backward: whose backward runs), and ``"Global"``.

        A name begins with the model's label, ``GPT.blocks.0``; what follows is the module's key in the ``state_dict``.
        """
        call = self._now()
        return {"Global"} if call is None else {"Global", *(held.place.name for held in call.chain())}

    @property
    def stack(self) -> tuple[ModuleCall, ...]:
        """The same as calls, from the root to the innermost."""
        call = self._now()
        listed = () if call is None else (held.told() for held in call.chain())
        return tuple(told for told in listed if told is not None)

    @property
    def is_bw(self) -> bool:
        """Whether a backward pass runs in this thread now; also while a checkpoint recomputes a forward in it."""
        return _graph_task() != -1

    @property
    def phase(self) -> Phase:
        """``forward``, ``backward``, or ``recompute`` while a checkpoint repeats a forward inside a backward pass."""
        task = _graph_task()
        if task == -1:
            return "forward"
        top = self._state().top
        return "recompute" if top is not None and top.task == task else "backward"

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Name to module, for every model that was met, parents before children."""
        return dict(self._hierarchies.modules())

    @property
    def errors(self) -> tuple[ProbeError, ...]:
        """What a callback raised; none is called after that."""
        return tuple(self._crossings.errors)

    def __repr__(self) -> str:
        if not self._entered:
            return "ModuleTracker(not entered)"
        call = self._now()
        return f"ModuleTracker({self.phase} of {'no module' if call is None else call.place.name})"

    # Forward

    def _state(self) -> ThreadState:
        state = self._local.state
        if state is None:
            state = self._local.state = ThreadState()
            self._states = [held for held in self._states if held.is_needed()] + [state]
        return state

    def enter(self, module: nn.Module, args: Any) -> None:
        """A module call begins in this thread."""
        state = self._local.state or self._state()
        task = _graph_task()
        top, passage = state.top, state.passage
        place: Place | None = None
        if top is not None and passage is not None and top.task == task:
            place = top.place.children.get(id(module))
            if place is None or place.held() is not module:
                place = self._new_place(state, top, module)  # None: nothing ran in truth
            if place is top.place:
                return
        if place is None or top is None or passage is None:
            place = self._hierarchies.at_top(module)
            if place is None:
                return
            self._say_if_compiled(module)
            call = Call(place, 0, None, task, state.top) if task == -1 else self._recalled(state, place, None, task)
            passage = state.open(_sequence_now(), task, torch.is_grad_enabled())
            passage.counts[place.key] = 1
        elif task == -1:
            call = Call(place, passage.count(place), top, -1, top)
        else:
            call = self._recalled(state, place, top, task)
        state.top = call
        passage.note(_sequence_now(), call)
        if passage.recording and (checkpoint := checkpoint_made_in()) is not None:
            passage.made.setdefault(checkpoint, []).append(call)
        if self._crossings.in_backward and torch.is_grad_enabled():
            self._crossings.watch(args, weak(self._cross))
        if self._crossings.in_forward:
            self._crossings.tell("enter", call)

    def leave(self, module: nn.Module, output: Any) -> None:
        """A module call ends in this thread, or has raised."""
        state = self._local.state or self._state()
        call, passage = state.top, state.passage
        while call is not None and call.place.key != id(module):
            call = call.beneath  # what is skipped never ended; what a wrapper wraps is not found, and nothing changes
        if call is None or passage is None:
            return
        if self._crossings.in_forward:
            self._crossings.tell("leave", call)
        if self._crossings.in_backward and torch.is_grad_enabled():
            self._crossings.watch(output, weak(self._cross))
        beneath = state.top = call.beneath
        if beneath is None or beneath.task != call.task:
            passage.note(_sequence_now(), None)
            passage.tie(output)
            state.close()
        else:
            passage.note(_sequence_now(), beneath)

    def _new_place(self, state: ThreadState, top: Call, module: nn.Module) -> Place | None:
        """Where *module* stands below *top*; None if that does not run any more, since an interrupt kept it from ending."""
        if self._hierarchies.is_root(module) and not any(running is top.place.module() for running in modules_running()):
            state.abandon()
            return None
        if isinstance(module, GraphModule) and top.place.module() in self._said_compiled:
            return top.place  # what the compiler has made of it
        self._say_if_compiled(module)
        made = top.place.children[id(module)] = self._hierarchies.below(top.place, module)
        return made

    # Recomputation

    def _recalled(self, state: ThreadState, place: Place, top: Call | None, task: int) -> Call:
        """The call that activation checkpointing repeats; or, if it is none of those, one made in the backward pass."""
        node, checkpoint = _current_node(), checkpoint_recomputed()
        origin = self._passage_of(node)
        made = origin.made.get(checkpoint, ()) if origin is not None else ()
        position = state.recalled[1] if state.recalled[0] == (task, checkpoint) else 0
        for index in range(position, len(made)):
            if made[index].place.key == place.key:
                state.recalled = (task, checkpoint), index + 1
                return Call(made[index].place, made[index].index, made[index].above, task, state.top)
        if top is not None and state.passage is not None:
            return Call(place, state.passage.count(place), top, task, state.top)
        of_node = self._of_node(node)
        for call in [] if of_node is None else of_node.chain():
            if call.place.key == place.key:
                return Call(call.place, call.index, call.above, task, state.top)
        return Call(place, 0, None, task, state.top)

    # Backward

    def _now(self) -> Call | None:
        state, task = self._state(), _graph_task()
        if task == -1 or (state.top is not None and state.top.task == task):
            return state.top
        return self._of_node(_current_node())

    def _of_node(self, node: Any) -> Call | None:
        """The innermost call that made *node*."""
        if node is None:
            return None
        if node._sequence_nr() == _ACCUMULATES:
            return self._owner(node.variable)
        passage = self._passage_of(node)
        if passage is not None:
            return passage.at(node._sequence_nr())
        # a reentrant checkpoint has made it outside of any module, and runs its backward
        return next((self._of_node(outer) for outer in nodes_running() if outer is not node), None)

    def _passage_of(self, node: Any) -> Passage | None:
        if node is None:
            return None
        number, own = node._sequence_nr(), self._state()
        found = own.passage_of(number)
        if found is None:  # made by another thread: on a device, backward has a thread of its own
            others = (state.passage_of(number) for state in tuple(self._states) if state is not own)
            found = next((passage for passage in others if passage is not None), None)
        return found

    def _owner(self, parameter: Tensor) -> Call | None:
        known = self._owners.get(id(parameter))
        if known is None or known[0]() is not parameter:
            call: Call | None = None
            for place in self._hierarchies.owners(parameter):
                call = Call(place, None, call, -1, None)
            known = self._owners[id(parameter)] = weakref.ref(parameter), call
        return known[1]

    def _cross(self) -> None:
        """The backward pass is at the border of a module call."""
        if not self._entered or not self._crossings.in_backward:
            return
        state, call = self._state(), self._of_node(_current_node())
        if not state.in_backward:
            hooks.after_backward(self._end_backward)
        self._crossings.move(state, [] if call is None else call.chain())

    def _end_backward(self) -> None:
        self._crossings.move(self._state(), [])

    def _say_if_compiled(self, module: nn.Module) -> None:
        fresh = [region.top for region in compiled.regions(module) if region.top not in self._said_compiled]
        if not fresh:
            return
        self._said_compiled.update(fresh)
        names = [name for name, held in self.modules.items() if held in fresh]
        warn_user(
            f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''} is compiled: no Python runs inside a compiled graph, so "
            "its operations are known to belong to it as a whole, and not to which of the modules in it."
        )


class _Local(threading.local):
    state: ThreadState | None = None


class _Enters(hooks.Hook):
    """Before any forward."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: ModuleTracker) -> None:
        self.tracker = tracker

    def __call__(self, module: nn.Module, args: Any) -> None:
        if _is_traced():
            return
        if (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self.tracker.enter, module, args)
        else:
            self.tracker.enter(module, args)


class _Leaves(hooks.Hook):
    """After any forward."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: ModuleTracker) -> None:
        self.tracker = tracker

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if _is_traced():
            return
        if (compiler := hooks.compiler_at_work()) is not None:
            hooks.undisturbed(compiler, self.tracker.leave, module, output)
        else:
            self.tracker.leave(module, output)


active: list[ModuleTracker] = []
"""The trackers that are entered, the innermost last."""
