"""Register, take out and put back torch hooks. The only file that does so.

A ``Hook`` sits in the dictionaries of the user's modules, and must not follow the model elsewhere. A pickle cannot leave an entry
of a dictionary out: it carries a method of the standard library that does nothing, and ``weakref.finalize`` objects that
remove the entry and its marks when the loader lets go of what it remembers, as it returns. So loading the file does not need sonde.
A deep copy works the same. Where a class has a ``__getstate__`` or ``__reduce__`` of its own, which may leave entries out or copy
the dictionaries, only the method is put into the pickle, and stays; a deep copy carries a stray, which removes itself at its
first call.

Other threads may call a module while a hook is put in or taken out. Torch decides by a mark beside the hook whether the hook is
given keyword arguments: the mark is set before the hook is put in, and removed after the hook was taken out. A thread that has
read the hook and not the mark calls the hook without keyword arguments: every hook of a module accepts that (``NOT_GIVEN``).

Compiled code is guarded by the keys of the hooks with which it was compiled. A hook is put in under the first key of sonde's own
that is not in its dictionary. What is attached again, or to another module of the same kind, gets the same keys, so that compiled
code is used again.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle, unserializable_hook

NOT_GIVEN: Any = NotImplemented
"""Default of the last argument of a module hook: torch has called the hook without keyword arguments."""

_dynamo = torch._C._dynamo.eval_frame
_set_strategy: Callable[[Any, Any], None] = _dynamo.set_code_exec_strategy
_SKIP = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.DEFAULT)

compiler_at_work: Callable[[], Any] = _dynamo.get_eval_frame_callback
"""Return the compiler's callback if functions that are called now would be compiled, else None. Cannot be traced."""

_is_traced: Callable[[], bool] = torch.compiler.is_dynamo_compiling

not_saved = unserializable_hook
"""Mark a hook, or a class of hooks, on a tensor: ``torch.save`` of the tensor leaves it out and says nothing."""


def on_gradients(tensor: Tensor) -> tuple[list[Any], list[Any]]:
    """Return the hooks of *tensor* that are called with its gradient, and those called when the gradient was added up.

    Hooks of observers, which no copy of the tensor takes along, are left out.
    """
    held = [getattr(tensor, name, None) or {} for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    own, after = ([hook for hook in each.values() if not hasattr(hook, "__torch_unserializable__")] for each in held)
    return own, after


def undisturbed(callback: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, run by Python alone; *callback* is the value of ``compiler_at_work()``."""
    _dynamo.set_eval_frame(None)
    try:
        return function(*args)
    finally:
        _dynamo.set_eval_frame(callback)


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``. Nothing of the call is compiled, also within a compiled function that holds a whole step."""
    if _is_traced() or (compiler := compiler_at_work()) is None:
        return function(*args)
    return undisturbed(compiler, function, *args)


_F = TypeVar("_F", bound=Callable[..., Any])


def not_compiled(function: _F) -> _F:
    """Mark *function*, which torch calls in a call of compiled code, too: the compiler leaves its own code as it is."""
    _set_strategy(function.__code__, _SKIP)
    return function


not_compiled(undisturbed)
not_compiled(apart)


class Hook:
    """A callable that sonde puts into a hook dictionary of the user's model.

    ``torch.compile`` calls the hooks of a region's outermost module from eager code, and would compile each of them as a
    function of its own. ``__call__`` is kept from that (tracing ``__call__`` as a part of a region is not); a hook that is
    called under the compiler hands its work to ``undisturbed``, so that the compiler does not compile the called functions.
    """

    __slots__ = ("__weakref__", "handles")
    handles: tuple[Handle, ...]
    """Of the entries of this hook that a copy of the model gets; not set without any."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__:
            not_compiled(cls.__dict__["__call__"])

    @property
    def __name__(self) -> str:
        raise AttributeError(
            "this model is observed by sonde, and torch.jit.script cannot compile the hooks of an observer: detach the probes first"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Stray:
        copy.deepcopy(self._removals(), memo)
        return _Stray()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(self._removals()), "__exit__")  # takes any positional arguments, returns None

    def _removals(self) -> list[_Removal]:
        """Return what removes the entries of this hook from a copy of the model."""
        return [removal for handle in getattr(self, "handles", ()) for removal in handle.removals()]


class _Removal:
    """Is copied, and pickled, as a ``weakref.finalize`` object, which removes *key* from the copy of *held*.

    It waits for the end of an object that only the memo of the copying, or of the loader, holds.
    """

    def __init__(self, held: dict[int, Any], key: int) -> None:
        self.held = held
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return weakref.finalize, (contextlib.nullcontext(), type(self.held).pop, self.held, self.key, None)


class Weak(Hook):
    """Calls the hook of a parameter, held weakly: Python's collector does not see what a parameter's hooks hold."""

    __slots__ = ("hook",)

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = weakref.ref(hook)

    def __call__(self, parameter: Tensor) -> None:
        hook = self.hook()
        if hook is None:
            return
        if _is_traced() or (compiler := compiler_at_work()) is None:
            hook(parameter)
        else:
            undisturbed(compiler, hook, parameter)


class _Stray:
    """Stands for a hook in a deep copy of an observed module; at its first call it removes all strays of the module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        for held in module.modules():  # also those that are never called
            held_flags = (held._forward_hooks_with_kwargs, held._forward_hooks_always_called)
            for hooks, flags in (
                (held._forward_pre_hooks, (held._forward_pre_hooks_with_kwargs,)),
                (held._forward_hooks, held_flags),
            ):
                for key in [key for key, hook in hooks.items() if isinstance(hook, _Stray)]:
                    del hooks[key]  # torch iterates over a copy of the dictionary
                    for flag in flags:
                        flag.pop(key, None)


class Handle:
    """Takes a hook out and puts it back in, for a part of what torch's own registering and handles cost.

    A handle does not hold its hook, which may hold the handle, nor the dictionary of the hook.

    Attributes:
        id: the hook's key in its dictionary; None while the hook is out.

    Args:
        held: the dictionary.
        marks: dictionaries in which torch looks for a mark beside the hook.
        wrap: makes of a hook what is put into the dictionary.
        first: the hook is called before the others.
        key: of a hook that is there already; None if there is none as yet.
    """

    __slots__ = ("_first", "_held", "_marks", "_wrap", "id")

    def __init__(
        self,
        held: dict[int, Any],
        marks: Iterable[dict[int, bool]] = (),
        *,
        wrap: Callable[[Any], Callable[..., Any]] | None = None,
        first: bool = False,
        key: int | None = None,
    ) -> None:
        self.id = key
        self._held = weakref.ref(held)
        self._marks = [weakref.ref(mark) for mark in marks] if marks else _NO_MARKS
        self._wrap = wrap
        self._first = first

    @classmethod
    def of(cls, handle: RemovableHandle) -> Handle:
        """Return the handle of a hook that torch has put in."""
        marks = [mark for reference in handle.extra_dict_ref if handle.id in (mark := reference() or {})]
        return cls(handle.hooks_dict_ref() or OrderedDict(), marks, key=handle.id)

    def remove(self) -> None:
        """Take the hook out, then its marks. Idempotent."""
        with _changing:
            key, self.id = self.id, None
            if key is not None:
                for reference in (self._held, *self._marks):
                    if (each := reference()) is not None:
                        each.pop(key, None)

    def is_on(self, holder: nn.Module | Tensor) -> bool:
        """Return whether the dictionary is one of those that torch calls for *holder*, a module or a parameter."""
        held = self._held()
        if isinstance(holder, nn.Module):
            return held is holder._forward_hooks or held is holder._forward_pre_hooks
        return held is not None and held is getattr(holder, "_post_accumulate_grad_hooks", None)

    def removals(self) -> list[_Removal]:
        """Return what removes the entry and its marks from a copy of the dictionaries; nothing while the hook is out."""
        key, held = self.id, [reference() for reference in (self._held, *self._marks)]
        if key is None or key not in (held[0] or ()):
            return []
        return [_Removal(each, key) for each in held if each is not None]

    def put_back(self, hook: Hook | Callable[..., Any]) -> bool:
        """Put *hook*, whose handle this is, in as the last, or first, after its marks; return False if a dictionary is gone."""
        held = self._held()
        if held is None:
            return False
        with _changing:
            if self.id is not None:
                self.remove()
            key = self.id = _keys[0] if _keys and _keys[0] not in held else _free_key(held)
            for reference in self._marks:
                if (marks := reference()) is None:
                    self.remove()
                    return False
                marks[key] = True
            held[key] = hook if self._wrap is None else self._wrap(hook)
            if self._first and len(held) > 1:
                for other in [other for other in held if other != key]:
                    held[other] = held.pop(other)  # torch's C++ reads an OrderedDict as a dict, which move_to_end does not change
        return True


_NO_MARKS: list[weakref.ref[dict[int, bool]]] = []
_changing = threading.RLock()  # a key is free before a hook is put in under it, and after the marks of a hook were taken out
_keys: list[int] = []  # of sonde's own; no hook of anybody else gets one


def _free_key(held: dict[int, Any]) -> int:
    """Return the first key of sonde's own that is not in *held*."""
    for key in _keys:
        if key not in held:
            return key
    key = RemovableHandle.next_id
    RemovableHandle.next_id = key + 1
    _keys.append(key)
    return key


def on_forward(module: nn.Module, hook: Callable[..., Any], *, always: bool = False) -> Handle:
    """After the module's forward call ``hook(module, args, kwargs, output)``; with *always* also when the forward raised.

    The hook must accept ``hook(module, args, output)`` too.
    """
    marks = [module._forward_hooks_with_kwargs]
    if always:
        marks.append(module._forward_hooks_always_called)
    return _put_in(module, module._forward_hooks, marks, hook)


def on_forward_pre(module: nn.Module, hook: Callable[..., Any], *, first: bool = False) -> Handle:
    """Before the module's forward call ``hook(module, args, kwargs)``, which may return new ``(args, kwargs)``.

    The hook must accept ``hook(module, args)`` too. With *first* the hook is called before the others.
    """
    handle = _put_in(module, module._forward_pre_hooks, [module._forward_pre_hooks_with_kwargs], hook)
    if first:
        module._forward_pre_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]  # an OrderedDict
    return handle


def _makes_no_state(kind: type[nn.Module]) -> bool:
    """Return whether modules of *kind* are copied and pickled as torch does it."""
    return (
        kind.__getstate__ is nn.Module.__getstate__
        and kind.__reduce__ is nn.Module.__reduce__
        and kind.__reduce_ex__ is nn.Module.__reduce_ex__
    )


def _put_in(module: nn.Module, held: dict[int, Any], marks: list[dict[int, bool]], hook: Hook | Callable[..., Any]) -> Handle:
    """Put *hook* into *held*, of *module*, after its marks; ``register_forward_hook`` of torch does so in the other order."""
    handle = Handle(held, marks)
    handle.put_back(hook)
    if isinstance(hook, Hook) and _makes_no_state(type(module)):
        hook.handles = (*getattr(hook, "handles", ()), handle)
    return handle


_OF_MODULES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def hooks_on(holder: nn.Module | Tensor) -> dict[str, dict[Any, Any]]:
    """Return the hook dictionaries of a module or tensor, by their names; those of a tensor are empty without hooks."""
    names = _OF_MODULES if isinstance(holder, nn.Module) else _OF_TENSORS
    return {name: getattr(holder, name, None) or {} for name in names}


def without_ours(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Return copies of the hook dictionaries of *module*, by their names, without hooks of sonde and the marks of these."""
    held = {name: dict(hooks) for name, hooks in hooks_on(module).items()}
    if not any(held.values()):  # as of most modules
        return held
    ours = {name: {key for key, hook in hooks.items() if isinstance(hook, Hook | _Stray)} for name, hooks in held.items()}
    of_hooks = {name: name.removesuffix("_with_kwargs").removesuffix("_always_called") for name in held}
    return {name: {key: hook for key, hook in hooks.items() if key not in ours[of_hooks[name]]} for name, hooks in held.items()}


@contextlib.contextmanager
def taken_out(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Take all hooks of sonde out of *modules*; at the end put all hooks back that were there, and no others."""
    held = [(vars(module).get(name, {}), wanted) for module in modules for name, wanted in without_ours(module).items()]
    before = [(hooks, dict(hooks)) for hooks, _ in held]
    try:
        for hooks, wanted in held:
            _refill(hooks, wanted)
        yield
    finally:
        for hooks, kept in before:
            _refill(hooks, kept)


def _refill(held: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    if list(held.items()) != list(wanted.items()):
        held.clear()
        held.update(wanted)


def registered_later(module: nn.Module, handle: Handle) -> list[Any]:
    """Return the forward hooks of *module* that run after the one of *handle*."""
    if next(reversed(module._forward_hooks), None) == handle.id:
        return []
    held = list(module._forward_hooks.items())
    place = next((index for index, (key, _) in enumerate(held) if key == handle.id), len(held))
    return [hook for _, hook in held[place + 1 :]]


def on_any_forward_pre(hook: Callable[..., Any]) -> Handle:
    """Before the forward of any module in the process call ``hook(module, args)``."""
    return Handle.of(register_module_forward_pre_hook(hook))


def on_any_forward(hook: Callable[..., Any]) -> Handle:
    """After the forward of any module in the process, also when the forward raised, call ``hook(module, args, output)``."""
    return Handle.of(register_module_forward_hook(hook, always_call=True))


def on_node(node: Node, hook: Callable[..., Any]) -> None:
    """Before the backward of an autograd node call ``hook(gradients)``. The hook lives as long as the node."""
    node.register_prehook(partial(apart, hook))


def on_tensor(tensor: Tensor, hook: Callable[[Tensor], Any]) -> Handle:
    """When the gradient of *tensor* is computed call ``hook(gradient)``."""
    return Handle.of(tensor.register_hook(_OnTensor(apart, hook)))


def on_result(tensor: Tensor, hook: Callable[[Tensor], Any]) -> None:
    """When the gradient of *tensor*, the result of an operation, is computed call ``hook(gradient)``. There is no handle.

    Does what ``Tensor.register_hook`` does, for a third of its cost. *hook* is of a class that is ``not_saved``, as a ``Bound``.
    """
    node = tensor.grad_fn if type(tensor) is Tensor else None
    if node is None or tensor._backward_hooks is not None:
        tensor.register_hook(hook)
        return
    held: OrderedDict[int, Callable[[Tensor], Any]] = OrderedDict()
    held[RemovableHandle.next_id] = hook
    RemovableHandle.next_id += 1
    tensor._backward_hooks = held
    node._register_hook_dict(tensor)


Listener = Callable[[Tensor], None]


@not_saved
class Bound(partial[None]):
    """A hook made of a function and its first arguments. ``torch.save`` of a tensor leaves it out without a warning."""


class _OnTensor(Bound):
    """A listener that has a handle."""


# A program that calls submodules without ever calling the root has no end of forward at which these are let go.
_MOST_WATCHED = 4096


@not_saved
class GradientHooks:
    """The one hook on a tensor of a forward, and all who listen to that tensor's gradient.

    A module that returns its last child's tensor shares the tensor with the child. Listeners are called in reverse order, so
    that the parent comes first, as in a backward pass.
    """

    __slots__ = ("_tensor", "_version", "listeners")

    def __init__(self, tensor: Tensor, listener: Listener) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version
        self.listeners = [listener]

    def is_on(self, tensor: Tensor) -> bool:
        """Return whether this is the same tensor, not written into since (which makes another tensor of it to autograd)."""
        return self._tensor() is tensor and self._version == tensor._version

    @not_compiled
    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is None:  # the engine gives None for an output of a multi-output node that nothing used
            return
        if _is_traced() or (compiler := compiler_at_work()) is None:
            for listener in reversed(self.listeners):
                listener(gradient)
        else:
            undisturbed(compiler, self.__call__, gradient)


def listen(watched: dict[int, GradientHooks], tensor: Tensor, listener: Listener) -> None:
    """Call *listener* with each gradient of *tensor*, the result of an operation (not a leaf).

    *watched* holds the hooks of one forward, by the ids of their tensors.
    """
    key = id(tensor)
    watch = watched.get(key)
    if watch is not None and watch.is_on(tensor):
        watch.listeners.append(listener)
        return
    watch = GradientHooks(tensor, listener)
    on_result(tensor, watch)
    if len(watched) >= _MOST_WATCHED:
        watched.clear()
    watched[key] = watch


def on_accumulated(parameter: nn.Parameter, hook: Callable[[Tensor], Any]) -> Handle:
    """After a backward pass has accumulated into ``parameter.grad`` call ``hook(parameter)``. *hook* is held weakly.

    It is called before other such hooks: one of the user's may step an optimizer and drop the gradient. A ``Weak`` hook is put in
    as it is: one serves all parameters.
    """
    held: Any = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if held is None:
        made = parameter.register_post_accumulate_grad_hook(_nothing)
        held = made.hooks_dict_ref()
        made.remove()
    handle = Handle(held, wrap=None if type(hook) is Weak else Weak, first=True)
    handle.put_back(hook)
    return handle


def _nothing(parameter: Tensor) -> None:
    """The first hook of a parameter, with which torch makes the dictionary."""


def on_before_optimizer_step(hook: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]) -> Handle:
    """Before the step of any optimizer in the process call ``hook(optimizer, args, kwargs)``."""
    return Handle.of(register_optimizer_step_pre_hook(hook))


def on_optimizer_step(hook: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]) -> Handle:
    """After the step of any optimizer in the process call ``hook(optimizer, args, kwargs)``; not after one that raised."""
    return Handle.of(register_optimizer_step_post_hook(hook))


def after_backward(callback: Callable[[], None]) -> None:
    """Call *callback* when the backward pass that is running has ended. Only inside a backward pass."""
    Variable._execution_engine.queue_callback(partial(apart, callback))
