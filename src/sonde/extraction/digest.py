"""Digests of what a store is made from: weights, batches, and the code of functions."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from inspect import unwrap
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sonde.engine import class_of, sharded_parameters, walk
from sonde.extraction.crew import Crew
from sonde.stats import PLAIN, local

_SIZE = 16  # bytes of a digest
_THREADS = min(4, os.cpu_count() or 1)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ATOMS = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size, re.Pattern)


def digest(*values: object) -> str:
    """Return a text that is equal for equal values, in this process and in others.

    Of a tensor or an array count type, shape and bytes; of a function its code with all values that it reaches, as far as they are
    of its own module; of an object its class and attributes. Where a class shows nothing of what it holds, its name alone counts.
    """
    hasher = blake2b(digest_size=_SIZE)
    feed = _Feed(hasher.update)
    for value in values:
        feed(value)
    return hasher.hexdigest()


class Weights:
    """The digests of all parameters and buffers of each model, which threads form while the models already run.

    Args:
        models: by name; nobody writes into their parameters meanwhile.
        copies: of buffers that a model itself may write into, by id.
    """

    def __init__(self, models: Mapping[str, nn.Module], copies: Mapping[int, Tensor]) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "sonde digest")
        self._made = {
            model: {name: self._pool.submit(digest, copies.get(id(tensor), tensor)) for name, tensor in _tensors(module)}
            for model, module in models.items()
        }

    def digests(self) -> dict[str, str]:
        """Return the digest of each model, as soon as all are there."""
        return {model: digest({name: each.result() for name, each in made.items()}) for model, made in self._made.items()}

    def stop(self) -> None:
        """Form nothing more."""
        self._pool.shutdown(cancel_futures=True)


def weights_together(models: Mapping[str, nn.Module], copies: Mapping[int, Tensor], crew: Crew) -> dict[str, str]:
    """Return the digest of each model, as :class:`Weights` forms it, on all processes of *crew*: that of the whole tensors.

    A tensor that is spread over processes is made whole, one at a time, and one of them forms its digest.

    Raises:
        RankError: processes hold other weights than each other.
    """
    found: dict[str, str] = {}
    spread: dict[str, str] = {}
    named = [(f"{model} {name}".strip(), tensor) for model, module in models.items() for name, tensor in _tensors(module)]
    for place, (name, tensor) in enumerate(named):
        if not hasattr(tensor, "full_tensor"):
            found[name] = digest(copies.get(id(tensor), tensor))
            continue
        with crew.needed():
            whole = tensor.full_tensor()
        if place % crew.size == crew.rank:
            spread[name] = digest(whole)
    crew.agree({f"the weights {name}": each for name, each in found.items()}, lambda: None)
    for told in crew.all(spread):
        found |= told
    return {
        model: digest({name: found[f"{model} {name}".strip()] for name, _ in _tensors(module)}) for model, module in models.items()
    }


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of *model* as optimizers hold them, by the names that they have without DDP."""
    model = bare(model)
    spread = sharded_parameters(model)
    return [(name, spread.get(id(each), each)) for name, each in (*model.named_parameters(), *model.named_buffers())]


def bare(model: nn.Module) -> nn.Module:
    """Return *model* without a wrapper of DDP, which changes nothing of what it computes."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def code_of(model: nn.Module) -> str:
    """Return the digest of how *model* computes: its structure as it is printed, and the code of each class in it.

    How the model is spread over processes does not count.
    """
    modules = dict(bare(model).named_modules())
    kinds = {class_of(module) for module in modules.values()}
    forwards = {f"{kind.__module__}.{kind.__qualname__}": getattr(kind, "forward", None) for kind in kinds}
    codes = {name: getattr(unwrap(forward), "__code__", None) for name, forward in sorted(forwards.items()) if callable(forward)}
    structure = [(name, class_of(module).__qualname__, _said_by(module)) for name, module in modules.items()]
    return digest(structure, codes)


def _said_by(module: nn.Module) -> str:
    """Return what *module* says of itself when it is printed, without its children."""
    is_of_torch = type(module).__repr__.__module__.startswith("torch.")
    return _without_addresses(module.extra_repr() if is_of_torch else module)


def _without_addresses(value: object) -> str:
    return _ADDRESS.sub("", repr(value))


class _Feed:
    """Hands the parts of a value to *update*, each with its kind and its length, so that no two values give the same bytes."""

    def __init__(self, update: Callable[[Any], object], home: str | None = None) -> None:
        self._update = update
        self._home = home  # the module of the function that is being read: others of it are read too
        self._inside: set[int] = set()

    def __call__(self, value: Any) -> None:
        if isinstance(value, _ATOMS):
            self._text(type(value).__name__, repr(value))
        elif id(value) in self._inside:
            self._text("itself")
        else:
            self._inside.add(id(value))
            self._of(value)
            self._inside.discard(id(value))

    def _of(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            held = np.asarray(value)
            self._text("array", held.dtype.str, str(held.shape))
            self._each(held.ravel().tolist()) if held.dtype.hasobject else self._bytes(np.ascontiguousarray(held))
        elif isinstance(value, Mapping):
            self._text(type(value).__name__, str(len(value)))
            for key, item in value.items():
                self._each((key, item))
        elif isinstance(value, set | frozenset):
            self._text("set", *sorted(digest(item) for item in value))
        elif isinstance(value, Sequence):
            self._text(type(value).__name__, str(len(value)))
            self._each(value)
        elif isinstance(value, ModuleType):
            self._text("module", value.__name__)
        elif isinstance(value, CodeType):
            self._code(value)
        elif isinstance(value, FunctionType | MethodType | functools.partial | BuiltinFunctionType | type):
            self._callable(value)
        elif isinstance(value, nn.Module):
            self._text("model", code_of(value), str(value.training))
            self._each(dict(value.named_parameters()).items())
            self._each(dict(value.named_buffers()).items())
        else:
            self._object(value)

    def _text(self, *parts: str) -> None:
        for part in parts:
            held = part.encode("utf-8", "surrogatepass")
            self._update(len(held).to_bytes(8, "little") + held)

    def _bytes(self, array: np.ndarray[Any, Any]) -> None:
        if array.size:
            self._update(array.reshape(-1).view(np.uint8).data)

    def _each(self, values: Any) -> None:
        for value in values:
            self(value)

    def _tensor(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._text("tensor", str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.layout))
        held = local(tensor)
        if held is None or type(held) not in PLAIN:
            flatten: Any = getattr(tensor, "__tensor_flatten__", lambda: ([], None))
            self._each([type(tensor).__qualname__, *(getattr(tensor, name) for name in flatten()[0])])
            return
        held = held.cpu()
        if held.layout is not torch.strided:
            held = held.to_dense()
        if held.is_quantized:
            self._text(str(held.qscheme()))
            held = held.int_repr()
        held = held.resolve_conj().resolve_neg().contiguous()
        held = held.as_strided((held.numel(),), (1,))  # the one element of a slice keeps the stride of the slice
        self._bytes((torch.view_as_real(held) if held.is_complex() else held).view(torch.uint8).numpy())

    def _code(self, code: CodeType) -> None:
        self._text("code", code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars)
        self._each((code.co_code, code.co_consts, code.co_flags))

    def _callable(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            self._text("partial")
            self._each((value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            self._text("method", value.__func__.__qualname__)
            self._each((value.__self__, value.__func__))
        elif isinstance(value, BuiltinFunctionType):
            self._text("builtin", str(value.__module__), value.__qualname__)
        else:
            self._text(type(value).__name__, value.__module__, value.__qualname__)
            outer, self._home = self._home, self._home or value.__module__
            if value.__module__ == self._home:
                self._function(value) if isinstance(value, FunctionType) else self._class(value)
            self._home = outer

    def _function(self, function: FunctionType) -> None:
        self._each((function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self(cell.cell_contents)
            except ValueError:  # not yet filled
                self._text("empty")
        for name in sorted(_names_in(function.__code__) & function.__globals__.keys()):
            held = function.__globals__[name]
            self._text(name)
            if isinstance(held, (*_ATOMS, FunctionType, type, ModuleType, Tensor, np.ndarray, tuple, list, dict, set, frozenset)):
                self(held)
            else:
                self._text(type(held).__qualname__)

    def _class(self, kind: type) -> None:
        self._each(sorted((name, held.__code__) for name, held in vars(kind).items() if isinstance(held, FunctionType)))

    def _object(self, value: Any) -> None:
        self._text("object", type(value).__module__, type(value).__qualname__)
        if callable(value):
            self(type(value).__call__)
        leaves = walk(value)
        attributes = getattr(value, "__dict__", None)
        if leaves:
            self._each(leaves)
        elif callable(getattr(value, "tobytes", None)):  # an image
            self(value.tobytes())
        elif attributes:
            self(attributes)
        else:
            self._text(_without_addresses(value))


def _names_in(code: CodeType) -> set[str]:
    """Return the names that *code* and the functions defined in it use."""
    return set(code.co_names).union(*(_names_in(held) for held in code.co_consts if isinstance(held, CodeType)))
