"""Subclasses of ``Tensor``: with memory of their own, and around other tensors as quantised weights of libraries are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

_KEEPING = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.clone.default)


class Marked(Tensor):
    """A class with memory of its own, which notes the operations that torch tells it of."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs)


class Packed(nn.Parameter):
    """A parameter with memory of its own that refuses to be viewed, as weights of bitsandbytes do."""

    def __new__(cls, data: Tensor) -> Packed:
        return Tensor._make_subclass(cls, data, False)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "view":
            raise NotImplementedError("Packed: view")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class Wrapper(Tensor):
    """A tensor without memory around another one; abstract."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, *state: Any) -> Wrapper:
        kind = inner.dtype if inner.dtype.is_floating_point else torch.float32
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=kind)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, inner: Tensor, *state: Any) -> None:
        self.inner = inner

    def again(self) -> Wrapper:
        return type(self)(self.inner)


class Counted(Wrapper):
    """Every operation works on the values."""

    @classmethod
    def __torch_dispatch__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _KEEPING:
            return args[0].again()
        args, kwargs = tree_map(lambda each: each.inner if isinstance(each, cls) else each, (args, kwargs or {}))
        return function(*args, **kwargs)


class Uncopied(Counted):
    """Every operation works on the values but that to copy them."""

    @classmethod
    def __torch_dispatch__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.clone.default:
            raise NotImplementedError(f"{cls.__name__}: {function}")
        return super().__torch_dispatch__(function, types, args, kwargs)


class Opaque(Wrapper):
    """No operation works but to detach."""

    @classmethod
    def __torch_dispatch__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0].again()
        raise NotImplementedError(f"{cls.__name__}: {function}")


class Quantised(Wrapper):
    """A weight in 8 bits with a scale: it can be copied, detached, dequantised and multiplied with, as those of torchao can."""

    scale: Tensor

    def __init__(self, inner: Tensor, scale: Tensor) -> None:
        super().__init__(inner)
        self.scale = scale

    def again(self) -> Quantised:
        return Quantised(self.inner, self.scale)

    def dequantize(self) -> Tensor:  # type: ignore[override]
        return self.inner.float() * self.scale

    @classmethod
    def __torch_dispatch__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _KEEPING:
            return args[0].again()
        if function in (torch.ops.aten.t.default, torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            return function(*(each.dequantize() if isinstance(each, cls) else each for each in args), **(kwargs or {}))
        raise NotImplementedError(f"{cls.__name__}: {function}")


def quantised(weight: Tensor) -> Quantised:
    """Return *weight* rounded to 8 bits."""
    scale = weight.detach().abs().max() / 127
    return Quantised((weight.detach() / scale).round().to(torch.int8), scale)
