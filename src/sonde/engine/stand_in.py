"""Copy a model and the arguments of a call so that nothing in the copy can reach the originals.

``copy.deepcopy`` does not do: it refuses tensors that are results of operations (a weight under ``weight_norm``, a kept hidden
state), copies ``.grad``, rebuilds wrappers, takes sonde's hooks along, and leaves functions alone, so that a hook or a replaced
``forward`` that closes over a module would run the original. Here modules, tensors, containers, methods and closures are copied by
hand, and ``copy.deepcopy`` only makes the objects between them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import os
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph
from torch.nn.parameter import is_lazy

from sonde.engine.torch_api import hooks
from sonde.engine.torch_api.modules import is_fully_sharded, state_of, wrapped_by_function
from sonde.engine.unseen import Observer
from sonde.errors import ModelError

_ATOMS = {bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, range, slice, type(None), type(...)}
_SHARED = (
    type,
    ModuleType,
    BuiltinFunctionType,
    Graph,
    logging.Logger,
    io.IOBase,
    threading.local,
    type(threading.Lock()),
    type(threading.RLock()),
)
"""Kinds of objects that a forward does not change, or that stand for something outside of the model."""

_EMPTY = {dict, OrderedDict, set, list}
"""Containers of which an empty one is copied without a look at it."""

_CACHED: Any = type(functools.lru_cache(lambda: None))

_MOST_OF_MEMORY = 0.25
"""Parameters are copied if they take no more than this part of the memory: of the machine's, or of a device's free memory."""


class StandIn:
    """Copies of a model and of values that go with it.

    Attributes:
        kept: places of the model whose objects cannot be copied, each with the kind of the object: it is in the copy itself.
        hooks_left: hooks on tensors that the copies do not have, each with its tensor: they would reach the originals.
        shares_parameters: parameters are too large to copy: those of the copy lie in the same memory.

    Args:
        model: its parameters decide whether they are copied.

    Raises:
        ModelError: from ``copied``: a part of the model cannot be copied at all.
    """

    def __init__(self, model: nn.Module) -> None:
        self.kept: dict[str, str] = {}
        self.hooks_left: list[tuple[Tensor, str]] = []
        self.shares_parameters = not _fit(model.parameters())
        self._memo: dict[int, Any] = {}  # by id of the original, as copy.deepcopy has it
        self._originals: list[Any] = []  # keeps these ids from being used again
        self._by_copy: dict[int, Any] | None = None
        self._looked_at: set[int] = set()
        self._place = ""

    def copied(self, value: Any) -> Any:
        """Return the copy of *value*; *value* itself if it cannot change."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        made = _MAKERS.get(kind)
        if made is not None:
            self._originals.append(value)
            return made(self, value)
        if isinstance(value, _SHARED):
            return value
        if isinstance(value, Observer):
            return None
        self._originals.append(value)
        if isinstance(value, weakref.ref):
            return self._weak(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, torch.optim.Optimizer):
            return self._optimizer(value)
        return self._tensor(value) if isinstance(value, Tensor) else self._object(value)

    def original(self, made: Any) -> Any:
        """Return the module, parameter or other object that *made* is the copy of; *made* itself if it is none."""
        if self._by_copy is None:
            self._by_copy = {id(self._memo[id(value)]): value for value in self._originals if id(value) in self._memo}
        return self._by_copy.get(id(made), made)

    def _note(self, value: Any, made: Any) -> Any:
        self._memo[id(value)] = made
        return made

    # Modules

    def _scripted(self, module: torch.jit.ScriptModule) -> Any:
        """Return the copy of *module*, whose parameters are leaves: torch makes each the result of an operation on the original."""
        with torch.no_grad():
            made = self._object(module)
        if made is not module:
            for tensor, copied in zip(module.parameters(), made.parameters(), strict=True):
                self._originals.append(tensor)
                self._note(tensor, copied.requires_grad_(tensor.requires_grad))  # an optimizer that is copied holds the copies
        return made

    def _module(self, module: nn.Module) -> Any:
        inner = wrapped_by_function(module)
        if inner is not None:  # nothing of torch.compile or of a parallel wrapper is wanted
            return self._note(module, self.copied(inner))
        if is_fully_sharded(module):
            raise ModelError(f"a {type(module).__name__} is a part of its process group")
        if isinstance(module, torch.jit.ScriptModule):
            return self._scripted(module)
        made = self._note(module, object.__new__(type(module)))
        held, theirs, own = vars(made), hooks.without_ours(module), vars(module)
        for name in theirs:
            if name in own:
                self._originals.append(own[name])
                held[name] = self._note(own[name], type(own[name])())
        outer, revive = self._place, type(module).__setstate__
        for name, value in state_of(module).items():
            kind = type(value)
            if name in theirs:
                if theirs[name]:
                    self._place = f"{type(module).__name__}.{name}"
                    held[name].update((key, self.copied(hook)) for key, hook in theirs[name].items())
            elif kind in _ATOMS:
                held[name] = value
            elif kind in _EMPTY and not value and id(value) not in self._memo:  # as most attributes of most modules are
                self._originals.append(value)
                held[name] = self._note(value, kind())
            else:
                self._place = f"{type(module).__name__}.{name}"
                held[name] = self.copied(value)
        self._place = outer
        has_own = type(module).__getstate__ is not nn.Module.__getstate__ and revive is not nn.Module.__setstate__
        if has_own and _revives_attributes(module):
            state = dict(held)
            held.clear()
            revive(made, state)
        return made

    def _optimizer(self, value: torch.optim.Optimizer) -> Any:
        """Return the copy of an optimizer with all that it holds: torch itself copies of any class what the base class has."""
        made = self._object(value)
        for name in vars(value).keys() - vars(made).keys():
            if not hasattr(type(value), name):  # as the step that a scheduler counts
                vars(made)[name] = self.copied(vars(value)[name])
        return made

    # Tensors

    def _tensor(self, tensor: Tensor) -> Tensor:
        if is_lazy(tensor):
            kind: Any = type(tensor)
            lazy: Tensor = self._note(tensor, kind(tensor.requires_grad, tensor.data.device, tensor.data.dtype))
            return lazy
        made: Tensor
        try:
            if isinstance(tensor, nn.Parameter) and self.shares_parameters:
                data = tensor.detach()
            else:
                data = _copied(tensor.detach(), self._memo)
            if isinstance(tensor, nn.Parameter):
                made = data if isinstance(data, nn.Parameter) else nn.Parameter(data, tensor.requires_grad)
            else:
                made = data
            made.requires_grad_(tensor.requires_grad)
        except Exception as error:
            return cast(Tensor, self._note(tensor, self._keep(tensor, error)))
        self._note(tensor, made)
        for name in vars(tensor).keys() - vars(made).keys():  # a nested tensor has copied its own
            held = vars(tensor)[name]  # torch's hooks that step an optimizer of a parameter are not copied
            vars(made)[name] = held if name == "_in_backward_optimizers" else self.copied(held)
        if tensor.is_leaf and tensor.requires_grad:
            own, after = hooks.on_gradients(tensor)
            for hook, register in (
                *((each, made.register_hook) for each in own),
                *((each, made.register_post_accumulate_grad_hook) for each in after),
            ):
                if _holds_all(hook):
                    register(self.copied(hook))
                else:
                    self.hooks_left.append((tensor, getattr(hook, "__qualname__", type(hook).__name__)))
        return made

    # Containers and functions

    def _sequence(self, value: Any) -> Any:
        made = self._note(value, type(value)())
        made.extend(map(self.copied, value))
        return made

    def _deque(self, value: deque[Any]) -> Any:
        made = self._note(value, deque[Any](maxlen=value.maxlen))
        made.extend(map(self.copied, value))
        return made

    def _mapping(self, value: Any) -> Any:
        made = self._note(value, defaultdict(value.default_factory) if isinstance(value, defaultdict) else type(value)())
        for key, held in tuple(value.items()):
            made[self.copied(key)] = self.copied(held)
        return made

    def _set(self, value: Any) -> Any:
        return self._note(value, type(value)(map(self.copied, tuple(value))))

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        made = tuple(map(self.copied, value))
        same = all(new is old for new, old in zip(made, value, strict=True))
        return self._memo.get(id(value)) or self._note(value, value if same else made)  # it may hold itself, in a list

    def _method(self, value: MethodType) -> Any:
        return self._note(value, MethodType(self.copied(value.__func__), self.copied(value.__self__)))

    def _partial(self, value: functools.partial[Any]) -> Any:
        given = [self.copied(part) for part in (value.func, value.args, value.keywords)]
        made = functools.partial(given[0], *given[1], **given[2])
        vars(made).update(vars(value))
        return self._note(value, made)

    def _function(self, value: FunctionType) -> Any:
        """Return a function of the same code that holds copies: in its closure, defaults and attributes.

        Where these would be the originals, *value* itself is returned.
        """
        if not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value)):
            return self._note(value, value)
        cells = tuple(CellType() for _ in value.__closure__ or ())
        made = FunctionType(value.__code__, value.__globals__, value.__name__, None, cells)
        made.__module__, made.__qualname__ = value.__module__, value.__qualname__
        made.__doc__, made.__annotations__ = value.__doc__, value.__annotations__
        self._note(value, made)
        same = True

        def copied(held: Any) -> Any:
            nonlocal same
            known = type(held) in _MAKERS or isinstance(held, nn.Module | Tensor) or self._leads_to_modules(held)
            new = self.copied(held) if known else held
            same &= new is held or new is made
            return new

        for old, cell in zip(value.__closure__ or (), cells, strict=True):
            with contextlib.suppress(ValueError):  # not assigned as yet
                cell.cell_contents = copied(old.cell_contents)
        made.__defaults__ = tuple(map(copied, value.__defaults__)) if value.__defaults__ else None
        made.__kwdefaults__ = {name: copied(held) for name, held in (value.__kwdefaults__ or {}).items()}
        vars(made).update((name, copied(held)) for name, held in vars(value).items())
        return self._note(value, value) if same else made

    def _cached(self, value: Any) -> Any:
        """Return the result of ``functools.lru_cache`` for a copied function: with a cache of its own, which is empty."""
        made = self.copied(value.__wrapped__)
        return self._note(value, value if made is value.__wrapped__ else functools.lru_cache(**value.cache_parameters())(made))

    def _weak(self, value: Any) -> Any:
        """Return a weak reference, or a proxy, to the copy of a module, tensor or method; *value* itself for any other object."""
        is_proxy = type(value) in weakref.ProxyTypes
        held = value.__init__.__self__ if is_proxy else value()
        if not isinstance(held, nn.Module | Tensor | MethodType):
            return self._note(value, value)
        made: Callable[[Any], Any] = weakref.proxy if is_proxy else type(value)
        return self._note(value, made(self.copied(held)))

    # Everything else

    def _object(self, value: Any) -> Any:
        if not isinstance(value, nn.Module):
            self._leads_to_modules(value)
        before = dict(self._memo)
        try:
            made = value.clone_state() if isinstance(value, torch.Generator) else copy.deepcopy(value, self._memo)
        except Exception as error:
            made = self._keep(value, error)
            self._memo.clear()  # of objects that were not finished
            self._memo.update(before)
        return self._note(value, made)

    def _keep(self, value: Any, error: Exception) -> Any:
        if isinstance(error, ModelError):
            raise error
        self.kept[self._place or type(value).__name__] = type(value).__name__
        return value

    def _leads_to_modules(self, value: Any) -> bool:
        """Copy all modules and tensors that can be reached from *value*; return whether there is a module."""
        pending, found = [value], False
        while pending:
            part = pending.pop()
            if type(part) in _ATOMS or isinstance(part, _SHARED):
                continue
            if isinstance(part, nn.Module | Tensor | FunctionType | weakref.ref) or type(part) is _CACHED:
                found |= self.copied(part) is not part and not isinstance(part, Tensor)
            elif id(part) not in self._looked_at:
                self._looked_at.add(id(part))
                self._originals.append(part)
                pending += _parts(part)
            else:
                found = True  # looked at before: whether it led to a module is not known any more
        return found


_MAKERS: dict[type, Callable[[StandIn, Any], Any]] = {
    list: StandIn._sequence,
    deque: StandIn._deque,
    dict: StandIn._mapping,
    OrderedDict: StandIn._mapping,
    defaultdict: StandIn._mapping,
    set: StandIn._set,
    frozenset: StandIn._set,
    tuple: StandIn._tuple,
    MethodType: StandIn._method,
    functools.partial: StandIn._partial,
    FunctionType: StandIn._function,
    _CACHED: StandIn._cached,
    weakref.ProxyType: StandIn._weak,
    weakref.CallableProxyType: StandIn._weak,
    weakref.WeakKeyDictionary: StandIn._mapping,
    weakref.WeakValueDictionary: StandIn._mapping,
    weakref.WeakSet: StandIn._set,
}


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a copy of *tensor*, with its memory, which other views of the same memory share."""
    if tensor.is_nested:  # a deep copy of its offsets is those of another nested tensor, and backward refuses to mix the two
        return tensor.clone()
    try:
        is_plain = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided and not vars(tensor)
        if not is_plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return copy.deepcopy(tensor, memo)
        # what a deep copy of a plain tensor comes to, for a third of its time
        memory = copy.deepcopy(tensor.untyped_storage(), memo)
        return tensor.new_empty(0).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    except (NotImplementedError, RuntimeError):
        return tensor.clone()


def _holds_all(hook: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Return whether a copy of *hook* reaches nothing but copies: it reads no variable of its file, and is none of torch's."""
    if isinstance(hook, functools.partial):
        return _holds_all(hook.func, seen)
    function = getattr(hook, "__func__", hook)
    function = function if isinstance(function, FunctionType) else vars(type(hook)).get("__call__")
    if not isinstance(function, FunctionType):
        return isinstance(hook, BuiltinFunctionType) and isinstance(hook.__self__, ModuleType)  # else a list's append, or the like
    if function.__module__.split(".")[0] in ("torch", "sonde"):
        return False
    names = set(_names(function.__code__))
    known = {id(each) for each in (hook, *seen)}
    read = [value for name, value in function.__globals__.items() if name in names and id(value) not in known]
    return all(
        type(value) in _ATOMS
        or isinstance(value, type | ModuleType | BuiltinFunctionType)
        or (isinstance(value, FunctionType) and (value.__module__.startswith("torch") or _holds_all(value, (*seen, hook, value))))
        for value in read
    )


def _names(code: CodeType) -> Iterable[str]:
    """Yield the names that *code* reads from outside of its function, also those of functions inside of it."""
    yield from code.co_names
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield from _names(held)


def _parts(value: Any) -> Iterable[Any]:
    """Return the objects that *value* holds: items, attributes, the object of a method."""
    if isinstance(value, dict):
        return (*value.keys(), *value.values(), *getattr(value, "__dict__", {}).values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return (*value, *getattr(value, "__dict__", {}).values())
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return tuple(getattr(value, "__dict__", {}).values())


def _revives_attributes(module: nn.Module) -> bool:
    """Return whether ``__setstate__`` takes a module's attributes; that of a quantized layer takes a tuple, and is not needed."""
    try:
        return not isinstance(module.__getstate__(), tuple)
    except Exception:  # a parametrized module refuses to be pickled, and yet takes its attributes
        return True


def _fit(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether copies of *parameters* take a small part of the memory where they lie."""
    needed: dict[torch.device, int] = {}
    for parameter in parameters:
        if not is_lazy(parameter) and not parameter.is_meta:  # type: ignore[redundant-expr]  # is_lazy narrows too much
            needed[parameter.device] = needed.get(parameter.device, 0) + parameter.numel() * parameter.element_size()
    return all(size <= _MOST_OF_MEMORY * memory_of(device) for device, size in needed.items())


def memory_of(device: torch.device) -> float:
    """Return the bytes of memory of *device*, on an accelerator those that are free; infinity where that is not known."""
    if device.type == "cpu":
        names = os.sysconf_names if hasattr(os, "sysconf") else {}
        known = {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= names.keys()
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if known else float("inf")
    look: Callable[[torch.device], tuple[int, int]] | None = getattr(torch.get_device_module(device), "mem_get_info", None)
    return float("inf") if look is None else float(look(device)[0])
