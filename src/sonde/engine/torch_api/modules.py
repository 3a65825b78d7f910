"""The private dictionaries of a module (children, parameters, buffers), and what torch's wrappers wrap."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

BatchNorm = _BatchNorm
"""Base class of all batch normalisations."""

ConvTranspose = _ConvTransposeNd
"""Base class of all transposed convolutions."""

# What each wrapper calls the module it wraps. DDP and DataParallel are recognised by their class, since "module" is a name
# that users give as well.
_COMPILED = "_orig_mod"
_FSDP = "_fsdp_wrapped_module"
_WRAPPED = (_COMPILED, _FSDP, "_checkpoint_wrapped_module")
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the dictionary in which *module* holds its children; do not change it."""
    return module._modules


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the dictionary in which *module* holds its own parameters; do not change it."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the dictionary in which *module* holds its own buffers; of TorchScript, which has none, a copy."""
    return dict(module._buffers.items()) if isinstance(module, torch.jit.ScriptModule) else module._buffers


def children(module: nn.Module) -> list[nn.Module]:
    """Return the children of *module*, also one that is there twice."""
    return [child for _, child in named_children(module)]


def named_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children of *module* by name, also one that is there twice. TorchScript keeps them in a mapping of its own."""
    if isinstance(module, torch.jit.ScriptModule):
        yield from module.named_children()
        return
    for step, child in module._modules.items():
        if child is not None:
            yield step, child


class Walk(NamedTuple):
    """What one walk over a model has met.

    Attributes:
        fingerprint: equal for two walks that have met the same objects, if none was freed in between. Holds of each module
            its id, those of its class and parameters, the names of parameters and children, and whether parameters need a
            gradient, the class defines ``forward``, and ``compile()`` was called.
        modules: every module once, wrappers too.
        parameters: every parameter once, as ``parameters_in`` returns them.
        sharded: see ``sharded_parameters``.
    """

    fingerprint: tuple[object, ...]
    modules: list[nn.Module]
    parameters: list[nn.Parameter]
    sharded: dict[int, nn.Parameter]


def walk(model: nn.Module) -> Walk:
    """Return what a walk over *model* meets."""
    found: list[object] = []
    modules: dict[int, nn.Module] = {}
    parameters: dict[int, nn.Parameter] = {}
    pending: list[nn.Module] = [model]
    sharded = sharded_parameters(model)
    put = found.append
    while pending:
        module = pending.pop()
        key = id(module)
        put(key)
        if key in modules:
            continue
        modules[key] = module
        kind = type(module)
        found += (id(kind), getattr(kind, "forward", None) is _NO_FORWARD, module._compiled_call_impl is None)
        for name, held in module._parameters.items():
            if held is not None:
                parameter = sharded.get(id(held), held) if sharded else held
                parameters[id(parameter)] = parameter
                found += (name, id(parameter), parameter.requires_grad)
        for name, child in named_children(module) if isinstance(module, torch.jit.ScriptModule) else module._modules.items():
            if child is not None:
                put(name)
                pending.append(child)
    return Walk(tuple(found), list(modules.values()), list(parameters.values()), sharded)


def outline(modules: Iterable[nn.Module]) -> list[int]:
    """Return the ids of the children and parameters that *modules*, none of TorchScript, hold now: a quarter of a walk."""
    return [id(each) for held in chain.from_iterable(map(_children_and_parameters, modules)) if held for each in held.values()]


_children_and_parameters = attrgetter("_modules", "_parameters")


def is_scripted(module: nn.Module) -> bool:
    """Return whether *module* is of TorchScript, whose structure is fixed, and which takes no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def parameters_in(model: nn.Module) -> list[nn.Parameter]:
    """Return every parameter of *model* once: of one that FSDP2 has gathered, the one that optimizers hold."""
    sharded = sharded_parameters(model)
    return [sharded.get(id(parameter), parameter) for parameter in model.parameters()]


def sharded_parameters(model: nn.Module) -> dict[int, nn.Parameter]:
    """Return, by the ids of parameters that FSDP2 has put into modules of *model* for a while, those that optimizers hold.

    From a forward to the end of its backward, and so after an evaluation up to the next backward, a root of FSDP2 has parameters
    that are whole. Each stands for one that holds this rank's part, as torch's ``FSDPParam`` says.
    """
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    found: dict[int, nn.Parameter] = {}
    if kind is None or not torch.distributed.is_initialized():
        return found
    for module in model.modules():
        if isinstance(module, kind):
            state: Any = module
            for group in getattr(state._get_fsdp_state(), "_fsdp_param_groups", ()):
                for each in group.fsdp_params:
                    now = each._module_info.module._parameters.get(each._module_info.param_name)
                    if now is not None and now is not each.sharded_param:
                        found[id(now)] = each.sharded_param
    return found


_NO_FORWARD = nn.Module.forward


def submodule(module: nn.Module, name: str) -> nn.Module | None:
    """Return the module called *name* in *module*, both without wrappers; None if there is none now, or in TorchScript."""
    found: nn.Module | None = unwrap(module)
    for step in name.split("."):
        child = None if found is None or isinstance(found, torch.jit.ScriptModule) else found._modules.get(step)
        found = None if child is None else unwrap(child)
    return found


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's own module inside of wrappers; *module* itself if it is no wrapper."""
    while True:
        inner = _inner(module)
        if inner is None:
            return module
        module = inner


def _inner(module: nn.Module) -> nn.Module | None:
    children = module._modules
    if not children or isinstance(module, torch.jit.ScriptModule):
        return None
    if "module" in children and isinstance(module, _PARALLEL):
        wrapped: nn.Module = module.module
        return wrapped
    for name in _WRAPPED:
        child = children.get(name)
        if child is not None:
            return child
    return None


def class_of(module: nn.Module) -> type[nn.Module]:
    """Return the class of *module* as its user wrote it: ``Block`` where FSDP2 has made an ``FSDPBlock`` of the module."""
    kind = type(module)
    if kind.__module__.startswith("torch.distributed.") and len(kind.__bases__) == 2 and issubclass(kind.__bases__[1], nn.Module):
        return kind.__bases__[1]
    return kind


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Return whether *module* is what ``torch.compile(another_module)`` has returned."""
    return _COMPILED in module._modules


def has_compiled_part(model: nn.Module) -> bool:
    """Return whether *model*, or a module below it, is marked as compiled. For a fraction of the cost of finding which."""
    pending, seen = [model], set[int]()
    while pending:
        module = pending.pop()
        below = module._modules
        if module._compiled_call_impl is not None or _COMPILED in below:
            return True
        if below and id(module) not in seen:
            seen.add(id(module))
            pending += [child for _, child in named_children(module)]
    return False


def compiled_like(module: nn.Module, original: nn.Module) -> nn.Module | None:
    """Return *module* compiled as *original* is: with its backend and options, or by ``compile()``; None if it is not compiled."""
    if is_compiled_wrapper(original):
        kind: Any = type(original)
        compiled: nn.Module = kind(module, getattr(original, "dynamo_ctx"))  # noqa: B009  # the stubs do not know it
        return compiled
    if is_called_compiled(original):
        module.compile()
        return module
    return None


def compile_parts_like(original: nn.Module, copies: Mapping[int, nn.Module]) -> int:
    """Compile, in a copy of *original*, the modules below it that are compiled in *original*, as these are; return how many.

    Args:
        copies: the modules of the copy, by the id of the module of *original* that each stands for; wrappers have none.
    """
    made: dict[int, nn.Module] = {}
    pending, seen = [original], {original}
    while pending:
        module = pending.pop()
        holder = copies.get(id(module))
        for name, child in module._modules.items():
            if child is None or (child in seen and id(child) not in made):
                continue
            inner = child._modules[_COMPILED] if is_compiled_wrapper(child) else child
            copied = copies.get(id(inner))
            compiled = made.get(id(child)) or (None if copied is None else compiled_like(copied, child))
            seen.add(child)
            if compiled is None:
                pending.append(child)
                continue
            made[id(child)] = compiled
            if holder is not None:
                holder._modules[name] = compiled
    return len(made)


def without_parallel_wrappers(module: nn.Module) -> nn.Module:
    """Return the module that ``DataParallel`` and the like hold; *module* itself if it is none of them."""
    while isinstance(module, _PARALLEL):
        module = module.module
    return module


def is_called_compiled(module: nn.Module) -> bool:
    """Return whether calls of *module* run compiled code: ``module.compile()`` was called."""
    called: Any = module._compiled_call_impl
    return called is not None


def holds_parameters_elsewhere(module: nn.Module) -> bool:
    """Return whether *module* is a wrapper of FSDP, which keeps parameters in plain attributes of modules."""
    return _FSDP in module._modules


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether FSDP, of either kind, keeps the parameters of *module*: the module is a part of its process group."""
    return holds_parameters_elsewhere(module) or all(hasattr(type(module), name) for name in ("unshard", "reshard"))


def wrapped_by_function(module: nn.Module) -> nn.Module | None:
    """Return the module that *module* calls in another way: compiled, or in parallel. None for anything else."""
    if isinstance(module, _PARALLEL):
        wrapped: nn.Module = module.module
        return wrapped
    return None if isinstance(module, torch.jit.ScriptModule) else module._modules.get(_COMPILED)


def state_of(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of *module* that a copy of it has: those that its class pickles, without compiled code."""
    if type(module).__getstate__ is not nn.Module.__getstate__:
        with contextlib.suppress(Exception):  # a class that refuses, as that of a parametrized module
            state = module.__getstate__()
            if isinstance(state, dict):
                return state
    return {name: value for name, value in vars(module).items() if name != "_compiled_call_impl"}
