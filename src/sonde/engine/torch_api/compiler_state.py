"""What torch's compiler is doing, what it has compiled, and the settings by which compiled code notices hooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine.torch_api.modules import is_compiled_wrapper

is_traced: Callable[[], bool] = torch.compiler.is_dynamo_compiling
"""Return whether the code that calls this is being traced by ``torch.compile``."""

is_exported: Callable[[], bool] = torch.compiler.is_exporting
"""Return whether ``torch.export`` runs: a program that is written down must not hold sonde's operators."""

_is_jit_traced: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]  # public, but torch's stubs do not say so
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_mode: Callable[[Any], Any] = getattr(torch._C, "_get_dispatch_mode", lambda _: None)
_RECORDING = [getattr(getattr(torch._C, "_TorchDispatchModeKey", None), name, None) for name in ("PROXY", "FAKE")]


def is_recorded() -> bool:
    """Return whether operators that are called now are written down, or computed on tensors without values.

    So it is in ``torch.export``, ``torch.jit.trace``, ``make_fx`` and a ``FakeTensorMode``.
    """
    return is_exported() or _is_jit_traced() or (_modes() > 0 and any(_mode(key) is not None for key in _RECORDING))


def notice_hooks() -> None:
    """Let code that is compiled from now on notice hooks put in or taken out later, and have a graph for each state of a probe.

    By default Dynamo does not check whether a module has got or lost hooks since it was traced, so an observer attached later would
    silently see nothing. And it compiles one function a limited number of times, here once for each state of the probes.
    """
    config: Any = sys.modules.get("torch._dynamo.config")
    if getattr(config, "skip_nnmodule_hook_guards", False):
        config.skip_nnmodule_hook_guards = False
    for name in _LIMITS:
        limit = getattr(config, name, None)
        if limit is not None and limit not in _raised[name]:
            _raised[name][limit * _STATES] = limit
            setattr(config, name, limit * _STATES)


_STATES = 4  # of probes, for which code may be compiled: without them, with a few lenses, with all, in evaluation
_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_raised: dict[str, dict[int, int]] = {name: {} for name in _LIMITS}  # of each limit: values it was raised to, with former ones


def limits_raised() -> dict[str, tuple[int, int]]:
    """Return the limits of Dynamo on recompilations, each with its value and the one that it has once a model is observed."""
    config: Any = sys.modules.get("torch._dynamo.config")
    found = {name: value for name in _LIMITS if (value := getattr(config, name, None)) is not None}
    return {name: (former[now], now) if now in (former := _raised[name]) else (now, now * _STATES) for name, now in found.items()}


def compile_error() -> type[Exception]:
    """Return the class of the errors that Dynamo raises where code cannot be traced. Imports Dynamo, which takes seconds."""
    import torch._dynamo

    return torch._dynamo.exc.TorchDynamoException


def backend_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function that compiles the graphs of *module*; None if *module* is not compiled itself."""
    if is_compiled_wrapper(module):
        callback: Any = getattr(module, "dynamo_ctx").callback  # noqa: B009  # the stubs do not know it
    else:
        called: Any = module._compiled_call_impl
        names = getattr(getattr(called, "__code__", None), "co_freevars", ())
        callback = called.__closure__[names.index("callback")].cell_contents if "callback" in names else None
    if callback is None:
        return None
    from torch._dynamo.eval_frame import innermost_backend

    found: Callable[..., Any] = innermost_backend(callback)
    return found


def inductor() -> Callable[..., Any]:
    """Return the backend that ``torch.compile`` uses by default. Imports Dynamo, which takes seconds."""
    from torch._dynamo.backends.registry import lookup_backend

    found: Callable[..., Any] = lookup_backend("inductor")
    return found


def graph_breaks() -> int:
    """Return how often a graph was broken off since the process began."""
    return sum(_counted("graph_break").values())


def has_compiled_any() -> bool:
    """Return whether Dynamo has compiled anything in this process."""
    return any(_counted("frames").values())


def compiles_backward() -> bool:
    """Return whether a backward pass that is called now would be compiled (compiled autograd)."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


def backward_passes_compiled() -> int:
    """Return how many backward passes were compiled in this process (compiled autograd), whenever each is called."""
    return _counted("compiled_autograd").get("captures", 0)


def has_compiled(code: CodeType) -> bool:
    """Return whether Dynamo has compiled anything for *code*."""
    return bool(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code))


def come_out_together(tensors: Iterable[Tensor]) -> bool:
    """Return whether two of *tensors* are results of one call of compiled code, or a single one is beside others.

    Autograd sees that call as one node. A hook on such a result gets the gradient from uses outside of the compiled code alone; the
    code may use one result to compute another.
    """
    found = [tensor.grad_fn for tensor in tensors]
    nodes: list[Any] = [node for node in found if node is not None and node.name() == _COMPILED_NODE]
    if len(found) == len(nodes) == 1:
        return len(getattr(nodes[0], "_input_metadata", ())) > 1
    return len(set(map(id, nodes))) < len(nodes)


_COMPILED_NODE = "CompiledFunctionBackward"


def _counted(what: str) -> Mapping[str, int]:
    """Return Dynamo's counters of *what*; none where Dynamo was not imported, or has no counters."""
    counters: Mapping[str, Mapping[str, int]] = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return counters.get(what, {})
