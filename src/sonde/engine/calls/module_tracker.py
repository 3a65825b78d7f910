"""``ModuleTracker``: the module call that runs now, forward or backward."""

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
from sonde.engine.failures import ProbeError, raise_if_foreign
from sonde.engine.torch_api import autograd_state, compiler_state, hooks
from sonde.engine.torch_api.autograd_state import ACCUMULATES, modules_running, nodes_running, sequence_of_node
from sonde.engine.torch_api.modules import is_called_compiled, is_compiled_wrapper
from sonde.engine.unseen import blocks, is_quiet, next_number
from sonde.site import Phase
from sonde.warn import warn_user
from sonde.words import names_text

_sequence_now: Callable[[], int] = autograd_state.next_sequence
_graph_task: Callable[[], int] = autograd_state.graph_task
_current_node: Callable[[], Any] = autograd_state.current_node
_is_traced = compiler_state.is_traced
_compiler_at_work = hooks.compiler_at_work
_NOWHERE = RootCall(0, -1, False, None)


class ModuleTracker:
    """Knows at any moment which modules run their forward, or have their backward run.

    >>> import sonde, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> with sonde.ModuleTracker() as tracker:
    ...     handle = model[0].register_forward_pre_hook(lambda *_: print(sorted(tracker.parents)))
    ...     output = model(torch.ones(1, 2))
    ['Global', 'Sequential', 'Sequential.0']

    Every model that is called in any thread is tracked; each thread sees its own calls. A model is labelled by its class
    (a second one of that class ``Net-2``) when it is first called; *models* are labelled at once, which also gives a part that is
    called alone its full name. In backward, a node belongs to the module call that made it in the forward, found by autograd's
    numbers: no hook is put on any tensor (only where several threads run models, one on the node of each root's output,
    as each thread numbers for itself). Nodes that a backward pass itself made (``create_graph=True``) belong to no module,
    or to the one in whose forward that pass was run. Inside a compiled region no Python runs: its operations belong to the
    region as a whole.

    Args:
        models: models to name beforehand.
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
        self._names = ModuleNames()
        for model in map(selection.check_model, models):
            self._know(model)
        self._callbacks = Callbacks(
            {"enter": enter, "leave": leave, "enter_backward": enter_backward, "leave_backward": leave_backward}, strict=strict
        )
        self._entered = 0
        self._number = next_number()
        self._handles: list[hooks.Handle] = []
        self._border = weak(self._reach_border)
        self._warned_of: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._local = _Local()
        self._states: list[ThreadState] = []

    def _know(self, model: nn.Module) -> None:
        """Name *model* and all modules below it."""
        if self._names.are_none:
            self._names = ModuleNames.of(model)
        else:
            self._names.register(model)

    # Life

    def __del__(self) -> None:
        names = getattr(self, "_names", None)
        if names is not None:
            names.leave()

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            self._handles = [hooks.on_any_forward_pre(_Enters(self)), hooks.on_any_forward(_Leaves(self))]
            self._number = next_number()
            active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            active.remove(self)
            self._local, self._states = _Local(), []

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
        """The module calls that run now, from the root to the innermost."""
        call = self._now()
        return () if call is None else tuple(held.for_people() for held in call.chain())

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
        repeats = autograd_state.is_repeating() or (top is not None and top.root_call.task == task)
        return "recompute" if repeats else "backward"

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Modules of every known model by name, parents before children."""
        return dict(self._names.modules())

    @property
    def errors(self) -> tuple[ProbeError, ...]:
        """What a callback raised; after that no callback is called."""
        return tuple(self._callbacks.errors)

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
        """Begin a call of *module* in this thread.

        >>> import sonde, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> tracker = sonde.ModuleTracker(net)
        >>> tracker.enter(net[0], (torch.ones(1, 2),))
        >>> tracker.leave(net[0], None)
        """
        if blocks and is_quiet(self._number, module, *modules_running()):
            return
        state = self._local.state or self._state()
        task, top = _graph_task(), state.top
        place: ModuleNode | None = None
        if top is not None:
            if top.root_call.task == task:
                place = top.place.children.get(id(module))
            if place is None or place.held() is not module:
                place, top = self._placed(state, module, task)
        if top is None or place is None:
            if self._names.are_none:
                self._know(module)
            place = self._names.at_top(module)
            if place is None:
                return
            self._warn_if_compiled(place, module)
            root_call = state.open(_sequence_now(), task, recording=task == -1 and torch.is_grad_enabled())
        elif place is top.place:
            return  # one of the two wraps the other
        else:
            root_call = top.root_call
        call = (
            root_call.begin(place, top, state.top, _sequence_now()) if task == -1 else self._repeated(state, place, top, root_call)
        )
        state.top = call
        if self._callbacks.are_any:
            self._callbacks.begin(call, args, self._border)

    def leave(self, module: nn.Module, output: Any) -> None:
        """End a call of *module* in this thread, which has returned or raised."""
        if blocks and is_quiet(self._number, module, *modules_running()):
            return
        state = self._local.state or self._state()
        call = state.top
        if call is None or call.place.key != id(module):
            call = state.skip_to(module, _sequence_now())
            if call is None:
                return  # a wrapper, or what it wraps
        try:
            if self._callbacks.are_any:
                self._callbacks.end(call, output, self._border)
        finally:
            if state.end(call, _sequence_now()):
                call.root_call.tie(output, watched=len(self._states) > 1)

    def _failed(self, error: Exception) -> None:
        """Stop: the tracker itself has raised *error*, which must not reach the forward. If strict, raise it again."""
        raise_if_foreign(error)
        if self._callbacks.strict:
            raise error
        for handle in self._handles:
            handle.remove()
        self._callbacks.stop(error, self)
        warn_user(f"sonde stopped tracking modules: {type(error).__name__}: {error}. The program goes on; the error is in .errors.")

    def _placed(self, state: ThreadState, module: nn.Module, task: int) -> tuple[ModuleNode | None, Call | None]:
        """Return the node of *module* and the call in which it is called; None, None if it is called in no other call."""
        top = state.top
        if top is not None and top.place.children.get(id(module)) is top.place and is_transparent(module):
            return top.place, top
        running = modules_running()
        if running and running[-1] is module:
            running.pop()
        if not any(call.place.module() in self._warned_of for call in state.begun()):  # compiled calls have other frames
            state.end_interrupted(_sequence_now(), running)
        top = state.top
        if top is None or top.root_call.task != task:
            return None, None
        known = top.place.children.get(id(module))
        if known is not None and known.held() is module:
            return known, top
        if isinstance(module, GraphModule) and top.place.module() in self._warned_of:
            return top.place, top  # made by the compiler
        children = top.place.children
        made = self._names.below(top.place, module)
        made.was_checked |= top.place.was_checked
        self._warn_if_compiled(made, module)
        children[id(module)] = made
        if len(children) & (len(children) - 1) == 0:  # a model may make modules in each forward
            for key in [key for key, place in list(children.items()) if place.held() is None]:
                children.pop(key, None)
        return made, top

    # Recomputation

    def _repeated(self, state: ThreadState, place: ModuleNode, top: Call | None, root_call: RootCall) -> Call:
        """Return the call that activation checkpointing repeats; without one begin a call in the backward pass."""
        node = _current_node()
        state.recomputation.begin(root_call.task, node, self._root_call_of(node))
        made = state.recomputation.repeated(place, root_call.task)
        if made is None and top is None:
            top = self._of_node(node)
            made = next((call for call in (top.chain() if top is not None else []) if call.place.key == place.key), None)
        if made is None:
            return root_call.begin(place, top, state.top, _sequence_now())
        call = Call(made.place, made.index, made.above, root_call, state.top)
        root_call.note(_sequence_now(), call)
        return call

    # Backward

    def _now(self) -> Call | None:
        state, task = self._state(), _graph_task()
        if task == -1 or (state.top is not None and state.top.root_call.task == task):
            return state.top
        node = _current_node()
        around = state.recomputation.begin(task, node, self._root_call_of(node)) if autograd_state.is_repeating() else None
        return around or self._of_node(node)

    def _of_node(self, node: Any) -> Call | None:
        """Return the innermost call that made *node*."""
        if node is None:
            return None
        if sequence_of_node(node) == ACCUMULATES:
            return _owner(self._names, node.variable)
        root_call = self._root_call_of(node)
        if root_call is not None:
            return root_call.at(sequence_of_node(node))
        # a reentrant checkpoint has made it outside of any module, and runs its backward
        return next((self._of_node(outer) for outer in nodes_running() if outer is not node), None)

    def _root_call_of(self, node: Any) -> RootCall | None:
        if node is None:
            return None
        number, own = sequence_of_node(node), self._state()
        if len(self._states) == 1:
            return own.root_call_of(number)
        # each thread numbers for itself, and another thread may have made the node; a device has a thread of its own for backward
        states = [own, *(state for state in tuple(self._states) if state is not own)]
        found = [root_call for root_call in (state.root_call_of(number) for state in states) if root_call is not None]
        return min(found, key=lambda root_call: root_call.nearness(_graph_task()), default=None)

    def _reach_border(self) -> None:
        try:
            self._cross()
        except Exception as error:
            self._failed(error)

    def _cross(self) -> None:
        """Call the callbacks for a backward pass that is at the border of a module call."""
        if not self._entered or not self._callbacks.are_any:
            return
        state, call = self._state(), self._of_node(_current_node())
        if blocks and is_quiet(self._number, *(held.place.module() for held in (call.chain() if call is not None else ()))):
            return
        task = _graph_task()
        if state.task != task and not (state.in_backward and nodes_running()):
            self._callbacks.move(state, [])  # a pass that raised did not end
            state.task = task
            hooks.after_backward(partial(self._callbacks.move, state, []))
        self._callbacks.move(state, [] if call is None else call.chain())

    def _warn_if_compiled(self, place: ModuleNode, module: nn.Module) -> None:
        is_compiled = is_called_compiled(module) or is_compiled_wrapper(module)
        if place.was_checked and (not is_compiled or place.module() in self._warned_of):
            return
        place.was_checked = True
        fresh = [region.top for region in regions(module) if region.top not in self._warned_of]
        if not fresh:
            return
        self._warned_of.update(fresh)
        names = [name for name, held in self.modules.items() if held in fresh]
        warn_user(
            f"{names_text(names, 4)} is compiled: no Python runs inside a compiled graph, so "
            "its operations are known to belong to it as a whole, and not to which of the modules in it."
        )


def _owner(names: ModuleNames, parameter: Tensor) -> Call | None:
    """Return the calls, without indices, of the modules from the root down to the one that owns *parameter*."""
    call: Call | None = None
    for place in names.owners(parameter):
        call = Call(place, None, call, _NOWHERE, None)
    return call


class _Local(threading.local):
    state: ThreadState | None = None


class _Enters(hooks.Hook):
    """Called before any forward."""

    __slots__ = ("enter", "failed")

    def __init__(self, tracker: ModuleTracker) -> None:
        self.enter, self.failed = tracker.enter, tracker._failed

    def __call__(self, module: nn.Module, args: Any) -> None:
        if _is_traced():
            return
        try:
            if (compiler := _compiler_at_work()) is None:
                self.enter(module, args)
            else:
                hooks.undisturbed(compiler, self.enter, module, args)
        except Exception as error:
            self.failed(error)


class _Leaves(hooks.Hook):
    """Called after any forward."""

    __slots__ = ("failed", "leave")

    def __init__(self, tracker: ModuleTracker) -> None:
        self.leave, self.failed = tracker.leave, tracker._failed

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if _is_traced():
            return
        try:
            if (compiler := _compiler_at_work()) is None:
                self.leave(module, output)
            else:
                hooks.undisturbed(compiler, self.leave, module, output)
        except Exception as error:
            self.failed(error)


active: list[ModuleTracker] = []
"""The trackers that are entered, the innermost last."""
