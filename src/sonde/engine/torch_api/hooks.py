"""The only file that registers torch hooks; and what a hook of ours is.

A ``Hook`` sits in the dictionaries of the user's modules, so it must not follow the model elsewhere: a deep copy of an
observed model carries an inert stray that removes itself at its first call, and a pickle carries a method of the standard
library that does nothing, so that loading the file does not need sonde.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

__all__ = [
    "Handle",
    "Hook",
    "after_backward",
    "compiler_at_work",
    "on_accumulated",
    "on_any_forward",
    "on_any_forward_pre",
    "on_before_optimizer_step",
    "on_forward",
    "on_forward_pre",
    "on_node",
    "on_optimizer_step",
    "on_result",
    "on_tensor",
    "undisturbed",
]

_dynamo = torch._C._dynamo.eval_frame
_set_strategy: Callable[[Any, Any], None] = _dynamo.set_code_exec_strategy
_SKIP = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.DEFAULT)

compiler_at_work: Callable[[], Any] = _dynamo.get_eval_frame_callback
"""The compiler's callback if functions that are called now would be compiled, else None."""


def undisturbed(callback: Any, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, run by Python alone; *callback* is what ``compiler_at_work`` gave."""
    _dynamo.set_eval_frame(None)
    try:
        return function(*args)
    finally:
        _dynamo.set_eval_frame(callback)


_set_strategy(undisturbed.__code__, _SKIP)


class Hook:
    """A callable that sonde puts into a hook dictionary of the user's model.

    ``torch.compile`` calls the hooks of a region's outermost module from eager code, and would compile each of them as a
    function of its own. ``__call__`` is kept from that (tracing it as a part of a region is not); a hook that finds
    itself called so hands its work to ``undisturbed``, lest the compiler compile what it calls.
    """

    __slots__ = ("__weakref__",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__:
            _set_strategy(cls.__dict__["__call__"].__code__, _SKIP)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Stray:
        return _Stray()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any positional arguments, returns None


class _Weak(Hook):
    """Holds the hook of a parameter weakly: Python's collector does not see what a parameter's hooks hold."""

    __slots__ = ("hook",)

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = weakref.ref(hook)

    def __call__(self, parameter: Tensor) -> None:
        hook = self.hook()
        if hook is not None:
            hook(parameter)


class _Stray:
    """What a deep copy of an observed module holds instead of a hook, until its first call."""

    __reduce__ = Hook.__reduce__

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
    """A hook that is in, and can be taken out and put back in, which costs a tenth of registering it with torch again.

    It does not hold the hook, which may hold it.
    """

    __slots__ = ("_flags", "_handle", "_wrap")

    def __init__(self, handle: RemovableHandle, wrap: Callable[[Any], Callable[..., Any]] | None = None) -> None:
        self._handle = handle
        self._wrap = wrap  # what torch was given is not the hook but this, made of it
        self._flags = [reference for reference in handle.extra_dict_ref if handle.id in (reference() or ())]

    @property
    def id(self) -> int:
        """Its key among the hooks that it is one of."""
        return self._handle.id

    def remove(self) -> None:
        """Take it out. Again does nothing."""
        self._handle.remove()

    def put_back(self, hook: Hook) -> bool:
        """Put *hook*, which this is the handle of, in again, as the last; whether the others that it is among are still there."""
        held = self._handle.hooks_dict_ref()
        if held is None:
            return False
        held[self._handle.id] = hook if self._wrap is None else self._wrap(hook)
        for reference in self._flags:
            if (flags := reference()) is not None:
                flags[self._handle.id] = True
        return True


def on_forward(module: nn.Module, hook: Callable[..., Any], *, always: bool = False) -> Handle:
    """After the module's forward: ``hook(module, args, kwargs, output)``; with *always* also when it raised."""
    return Handle(module.register_forward_hook(hook, with_kwargs=True, always_call=always))


def on_forward_pre(module: nn.Module, hook: Callable[..., Any], *, first: bool = False) -> Handle:
    """Before the module's forward: ``hook(module, args, kwargs)``, which may return new ``(args, kwargs)``."""
    return Handle(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=first))


def on_any_forward_pre(hook: Callable[..., Any]) -> Handle:
    """Before the forward of any module in the process: ``hook(module, args)``."""
    return Handle(register_module_forward_pre_hook(hook))


def on_any_forward(hook: Callable[..., Any]) -> Handle:
    """After the forward of any module in the process, also when it raised: ``hook(module, args, output)``."""
    return Handle(register_module_forward_hook(hook, always_call=True))


def on_node(node: Node, hook: Callable[..., Any]) -> None:
    """Before the backward of an autograd node: ``hook(gradients)``. It lives as long as the node."""
    node.register_prehook(hook)


def on_tensor(tensor: Tensor, hook: Callable[[Tensor], Any]) -> Handle:
    """When the gradient of *tensor* is computed: ``hook(gradient)``."""
    return Handle(tensor.register_hook(hook))


def on_result(tensor: Tensor, hook: Callable[[Tensor], Any]) -> None:
    """The same for a tensor that an operation made, for good. It does what torch does, and makes no handle: a third of the cost."""
    node = tensor.grad_fn if type(tensor) is Tensor else None
    if node is None or tensor._backward_hooks is not None:
        tensor.register_hook(hook)
        return
    held: OrderedDict[int, Callable[[Tensor], Any]] = OrderedDict()
    held[RemovableHandle.next_id] = hook
    RemovableHandle.next_id += 1
    tensor._backward_hooks = held
    node._register_hook_dict(tensor)


def on_accumulated(parameter: nn.Parameter, hook: Callable[[Tensor], Any]) -> Handle:
    """After a backward pass has accumulated into ``parameter.grad``: ``hook(parameter)``. *hook* is held weakly."""
    return Handle(parameter.register_post_accumulate_grad_hook(_Weak(hook)), _Weak)


def on_before_optimizer_step(hook: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]) -> Handle:
    """Before the step of any optimizer in the process."""
    return Handle(register_optimizer_step_pre_hook(hook))


def on_optimizer_step(hook: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]) -> Handle:
    """After the step of any optimizer in the process."""
    return Handle(register_optimizer_step_post_hook(hook))


def after_backward(callback: Callable[[], None]) -> None:
    """Call *callback* when the backward pass that is running has ended. Only inside a backward pass."""
    Variable._execution_engine.queue_callback(callback)
