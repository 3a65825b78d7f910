"""``ModuleTracker``: which module call is running, forward or backward (the third seed)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sonde.engine import selection
from sonde.engine.calls.call_log import Call, ModuleCall, RootCall
from sonde.engine.calls.callbacks import Callback, Callbacks, weak
from sonde.engine.calls.module_paths import ModuleNames, ModuleNode, is_transparent
from sonde.engine.calls.thread_state import ThreadState
from sonde.engine.compiled_regions import regions
from sonde.engine.failures import ProbeError, warn_user
from sonde.engine.torch_api import autograd_state, compiled, hooks
from sonde.engine.torch_api.autograd_state import ACCUMULATES, modules_running, nodes_running, sequence_of_node
from sonde.engine.torch_api.modules import is_called_compiled
from sonde.site import Phase

__all__ = ["ModuleTracker"]

_sequence_now: Callable[[], int] = autograd_state.next_sequence
_graph_task: Callable[[], int] = autograd_state.graph_task
_current_node: Callable[[], Any] = autograd_state.current_node
_is_traced = compiled.is_traced
_compiler_at_work = hooks.compiler_at_work
_NOWHERE = RootCall(0, -1, False, None)


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
    numbers tell: no hook is put on any tensor (only where several threads run models, one on the node of each root's output,
    as each thread numbers for itself). Nodes that a backward pass itself made (``create_graph=True``) belong to no module,
    or to the one in whose forward that pass was run. Inside a compiled region no Python runs: its operations belong to the
    region as a whole.

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
        self._hierarchies = ModuleNames()
        for model in models:
            self._hierarchies.meet(selection.check_model(model))
        self._crossings = Callbacks(
            {"enter": enter, "leave": leave, "enter_backward": enter_backward, "leave_backward": leave_backward}, strict=strict
        )
        self._entered = 0
        self._handles: list[hooks.Handle] = []
        self._border = weak(self._cross)
        self._said_compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._local = _Local()
        self._states: list[ThreadState] = []

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
        return () if call is None else tuple(held.told() for held in call.chain())

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
        repeats = autograd_state.is_repeating() or (top is not None and top.passage.task == task)
        return "recompute" if repeats else "backward"

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
        task, top = _graph_task(), state.top
        place: ModuleNode | None = None
        if top is not None:
            if top.passage.task == task:
                place = top.place.children.get(id(module))
            if place is None or place.held() is not module:
                place, top = self._settled(state, module, task)
        if top is None or place is None:
            place = self._hierarchies.at_top(module)
            if place is None:
                return
            self._say_if_compiled(place, module)
            passage = state.open(_sequence_now(), task, recording=task == -1 and torch.is_grad_enabled())
        elif place is top.place:
            return  # one of the two wraps the other
        else:
            passage = top.passage
        call = passage.begin(place, top, state.top, _sequence_now()) if task == -1 else self._recalled(state, place, top, passage)
        state.top = call
        if self._crossings.are_wanted:
            self._crossings.begin(call, args, self._border)

    def leave(self, module: nn.Module, output: Any) -> None:
        """A module call ends in this thread, or has raised."""
        state = self._local.state or self._state()
        call = state.top
        if call is None or call.place.key != id(module):
            call = state.skip_to(module, _sequence_now())
            if call is None:
                return  # a wrapper, or what it wraps
        try:
            if self._crossings.are_wanted:
                self._crossings.end(call, output, self._border)
        finally:
            if state.end(call, _sequence_now()):
                call.passage.tie(output, watched=len(self._states) > 1)

    def _settled(self, state: ThreadState, module: nn.Module, task: int) -> tuple[ModuleNode | None, Call | None]:
        """Where *module* stands below the call that it is made in; None, None if it is made in none."""
        top = state.top
        if top is not None and top.place.children.get(id(module)) is top.place and is_transparent(module):
            return top.place, top
        running = modules_running()
        if running and running[-1] is module:
            running.pop()
        if not any(call.place.module() in self._said_compiled for call in state.begun()):  # those have frames of their own kind
            state.settle(_sequence_now(), running)
        top = state.top
        if top is None or top.passage.task != task:
            return None, None
        known = top.place.children.get(id(module))
        if known is not None and known.held() is module:
            return known, top
        if isinstance(module, GraphModule) and top.place.module() in self._said_compiled:
            return top.place, top  # what the compiler has made of it
        children = {key: place for key, place in top.place.children.items() if place.held() is not None}
        made = children[id(module)] = self._hierarchies.below(top.place, module)
        self._say_if_compiled(made, module)
        top.place.children = children
        return made, top

    # Recomputation

    def _recalled(self, state: ThreadState, place: ModuleNode, top: Call | None, passage: RootCall) -> Call:
        """The call that activation checkpointing repeats; or, if it is none of those, one made in the backward pass."""
        node = _current_node()
        state.recall.begin(passage.task, node, self._passage_of(node))
        made = state.recall.repeated(place, passage.task)
        if made is None and top is None:
            top = self._of_node(node)
            made = next((call for call in (top.chain() if top is not None else []) if call.place.key == place.key), None)
        if made is None:
            return passage.begin(place, top, state.top, _sequence_now())
        call = Call(made.place, made.index, made.above, passage, state.top)
        passage.note(_sequence_now(), call)
        return call

    # Backward

    def _now(self) -> Call | None:
        state, task = self._state(), _graph_task()
        if task == -1 or (state.top is not None and state.top.passage.task == task):
            return state.top
        node = _current_node()
        around = state.recall.begin(task, node, self._passage_of(node)) if autograd_state.is_repeating() else None
        return around or self._of_node(node)

    def _of_node(self, node: Any) -> Call | None:
        """The innermost call that made *node*."""
        if node is None:
            return None
        if sequence_of_node(node) == ACCUMULATES:
            return self._owner(node.variable)
        passage = self._passage_of(node)
        if passage is not None:
            return passage.at(sequence_of_node(node))
        # a reentrant checkpoint has made it outside of any module, and runs its backward
        return next((self._of_node(outer) for outer in nodes_running() if outer is not node), None)

    def _passage_of(self, node: Any) -> RootCall | None:
        if node is None:
            return None
        number, own = sequence_of_node(node), self._state()
        if len(self._states) == 1:
            return own.passage_of(number)
        # each thread counts for itself: the node may have been made by another one; on a device, backward has its own
        states = [own, *(state for state in tuple(self._states) if state is not own)]
        found = [passage for passage in (state.passage_of(number) for state in states) if passage is not None]
        return min(found, key=lambda passage: passage.nearness(_graph_task()), default=None)

    def _owner(self, parameter: Tensor) -> Call | None:
        call: Call | None = None
        for place in self._hierarchies.owners(parameter):
            call = Call(place, None, call, _NOWHERE, None)
        return call

    def _cross(self) -> None:
        """The backward pass is at the border of a module call."""
        if not self._entered or not self._crossings.are_wanted:
            return
        state, call = self._state(), self._of_node(_current_node())
        task = _graph_task()
        if state.crossing != task and not (state.in_backward and nodes_running()):
            self._crossings.move(state, [])  # a pass that raised did not end
            state.crossing = task
            hooks.after_backward(partial(self._crossings.move, state, []))
        self._crossings.move(state, [] if call is None else call.chain())

    def _say_if_compiled(self, place: ModuleNode, module: nn.Module) -> None:
        if place.was_checked and (not is_called_compiled(module) or place.module() in self._said_compiled):
            return
        place.was_checked = True
        fresh = [region.top for region in regions(module) if region.top not in self._said_compiled]
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

    __slots__ = ("enter",)

    def __init__(self, tracker: ModuleTracker) -> None:
        self.enter = tracker.enter

    def __call__(self, module: nn.Module, args: Any) -> None:
        if _is_traced():
            return
        if (compiler := _compiler_at_work()) is None:
            self.enter(module, args)
        else:
            hooks.undisturbed(compiler, self.enter, module, args)


class _Leaves(hooks.Hook):
    """After any forward."""

    __slots__ = ("leave",)

    def __init__(self, tracker: ModuleTracker) -> None:
        self.leave = tracker.leave

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if _is_traced():
            return
        if (compiler := _compiler_at_work()) is None:
            self.leave(module, output)
        else:
            hooks.undisturbed(compiler, self.leave, module, output)


active: list[ModuleTracker] = []
"""The trackers that are entered, the innermost last."""
