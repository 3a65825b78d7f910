"""A device for tests on machines without an accelerator: its tensors are no CPU tensors, and its numbers come late.

It stands on torch's backends that are written in Python. A tensor of it has sizes and a storage without an address, as one on a
real accelerator has none that the host can read; its elements lie in a CPU buffer that only the operators here reach. Numbers that
are sent to the host arrive late. The device cannot be taken away again, so it lives in a process of its own: ``-p
tests.accelerator.fake`` gives it to pytest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fake"
DELAY = 2
"""So many copies are sent to the host before one arrives."""

_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Storage(Tensor):
    """Gives storages that belong to the device; no tensor of this class is used otherwise."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


_buffers: dict[int, tuple[weakref.ref[Any], torch.UntypedStorage]] = {}


def _on_host(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor of the device, as a CPU tensor that shares them."""
    if tensor.device.type != NAME:
        return tensor
    held = _buffers[tensor.untyped_storage()._cdata][1]
    return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(held, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[call-overload, no-any-return]


def _to_device(host: Tensor, tensor: Tensor | None = None) -> Tensor:
    """Return *tensor*, or a new one of the device: its elements are from now on those of *host*, and in the same buffer."""
    buffer = host.untyped_storage()
    made = torch.Tensor._make_wrapper_subclass(_Storage, (0,), dtype=torch.uint8, device=f"{NAME}:0", storage_size=buffer.nbytes())  # type: ignore[attr-defined]
    storage = made.untyped_storage()
    key = storage._cdata
    _buffers[key] = (weakref.ref(storage, lambda _: _buffers.pop(key, None)), buffer)
    if tensor is None:
        tensor = torch._C._acc.create_empty_tensor((0,), host.dtype)
    return torch.ops.aten.set_.source_Storage_storage_offset.redispatch(  # type: ignore[no-any-return]
        _HOST, tensor, storage, host.storage_offset(), list(host.size()), list(host.stride())
    )


# Operators

_SAME_MEMORY = {  # operators whose code for the CPU makes nothing but another tensor over the same storage
    "aten::as_strided",
    "aten::view",
    "aten::_reshape_alias",
    "aten::unfold",
    "aten::view_as_real",
    "aten::view_as_complex",
    "aten::view.dtype",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor",
}


def _each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return *value* with each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _each(change, item) for name, item in value.items()}
    return type(value)([_each(change, item) for item in value]) if type(value) in (list, tuple) else value


def _operator(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run any operator of torch for tensors of the device: on their buffers."""
    name = function.name()
    if name in _SAME_MEMORY:
        return function.redispatch(_HOST, *args, **kwargs)
    owners: dict[int, tuple[Tensor, Tensor]] = {}

    def reach(tensor: Tensor) -> Tensor:
        host = _on_host(tensor)
        owners[id(host)] = host, tensor
        return host

    given, named = _each(reach, args), _each(reach, kwargs)
    if named.get("device") is not None:
        named["device"] = torch.device("cpu")
    named.pop("pin_memory", None)
    result = function(*given, **named)
    for host, tensor in owners.values():
        if host is not tensor and host.shape != tensor.shape:  # an operator with ``out=`` has given it its size
            _to_device(host, tensor)
    return _each(lambda host: owners[id(host)][1] if id(host) in owners else _to_device(host), result)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the device and the host, or within the device."""
    _on_host(target).copy_(_on_host(source))
    return target


class _Event:
    """An event of the device: it has happened once ``DELAY`` more were recorded, or once somebody has waited for it."""

    _recorded = 0

    def __init__(self, device: Any = None, **_: Any) -> None:
        self._number = 0

    def record(self, stream: Any = None) -> None:
        _Event._recorded += 1
        self._number = _Event._recorded

    def query(self) -> bool:
        return _Event._recorded >= self._number + DELAY

    def synchronize(self) -> None:
        """Wait."""

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait, in which everything happens in order anyway."""


class _Module:
    """What ``torch.get_device_module`` gives."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Its random numbers are those of the CPU."""

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: Any = None) -> str:
        return "a fake device over the memory of the CPU"

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> Sequence[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_clone = torch.UntypedStorage.clone


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of *storage*, as ``copy.deepcopy`` of a tensor asks for it."""
    if storage.device.type != NAME:
        return _clone(storage)
    return _to_device(torch.empty(0, dtype=torch.uint8, device="cpu").set_(_clone(_buffers[storage._cdata][1]))).untyped_storage()


_data_ptr = torch.UntypedStorage.data_ptr


def _address(storage: torch.UntypedStorage) -> int:
    """Return an address that no other storage has, and that the host cannot read."""
    return (1 << 62) + _data_ptr(_buffers[storage._cdata][1]) if storage.device.type == NAME else _data_ptr(storage)


_libraries: list[torch.library.Library] = []


def install() -> None:
    """Give this process the device: torch.accelerator names it from now on."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(_operator, "PrivateUse1")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # which changes no precision here
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    _libraries[:] = [every, aten]
    torch.UntypedStorage.clone = _cloned  # type: ignore[method-assign, assignment]
    torch.UntypedStorage.data_ptr = _address  # type: ignore[method-assign]
    torch.Event = _Event  # type: ignore[misc, assignment]
    torch.accelerator.synchronize = lambda device=None, /: None
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor.clone()  # type: ignore[method-assign, assignment, misc]
    _device_constructors()  # which remembers the functions that it finds
    empty = torch.empty

    def unpinned(*size: Any, pin_memory: bool = False, **how: Any) -> Tensor:
        return empty(*size, **how)

    torch.empty = unpinned


install()
