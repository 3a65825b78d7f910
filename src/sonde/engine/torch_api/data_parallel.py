"""Find the ranks of a data-parallel group: those that run the same model on different batches."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from sonde.engine.torch_api.modules import class_of, holds_parameters_elsewhere, is_fully_sharded


def data_parallel_ranks(model: nn.Module) -> tuple[int, ...] | None:
    """Return the ranks that run *model* on batches of their own, found in its wrappers; None without such a wrapper.

    They are those of DDP's or FSDP1's process group, or of the mesh over which FSDP2 shards and replicates. A model whose
    parameters are distributed otherwise (tensor parallel) is run by several ranks on one batch: then this rank alone is returned.
    """
    is_distributed = False
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel) or holds_parameters_elsewhere(module):
            return ranks_of(module.process_group)
        mesh = _mesh_of(module)
        if mesh is not None:
            return ranks_of(mesh)
        is_distributed = is_distributed or any(hasattr(each, "device_mesh") for each in module.parameters(recurse=False))
    return (torch.distributed.get_rank(),) if is_distributed else None


def communicates(model: nn.Module) -> str:
    """Return in words why a call of *model*, without a wrapper of DDP, needs other ranks; ``""`` where one rank can run it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()) or torch.distributed.get_world_size() < 2:
        return ""
    for name, module in model.named_modules():
        kind = f"{class_of(module).__name__} {name}".rstrip()
        if is_fully_sharded(module):
            return f"FSDP keeps the parameters of {kind} on several ranks"
        if isinstance(module, nn.SyncBatchNorm):
            return f"{kind} averages over several ranks"
        held = (*module.named_parameters(kind, recurse=False), *module.named_buffers(kind, recurse=False))
        split = [own for own, tensor in held if hasattr(tensor, "device_mesh") and tensor.device_mesh.size() > 1]
        if split:
            return f"{split[0]} is distributed over several ranks"
    return ""


def spread_parameters(model: nn.Module) -> set[int]:
    """Return the ids of parameters of *model* under whose names ranks may hold different parts of one model, as experts.

    They are those that DDP or FSDP2 ignore on request, and those with the mark that libraries for experts leave for an average
    written by hand: ``parameter.allreduce = False``.
    """
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    found = {id(parameter) for parameter in model.parameters() if getattr(parameter, "allreduce", True) is False}
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            ignored = module.parameters_to_ignore
            found |= {id(parameter) for name, parameter in module.module.named_parameters() if name in ignored}
        elif isinstance(module, kind):
            found |= {id(parameter) for parameter in module.parameters() if not hasattr(parameter, "device_mesh")}
    return found


def is_averaged_later(model: nn.Module) -> bool:
    """Return whether DDP averages gradients of *model* over several ranks after these were accumulated."""
    wrappers = (module for module in model.modules() if isinstance(module, nn.parallel.DistributedDataParallel))
    return any(module.process_group.size() > 1 for module in wrappers)


def ranks_of(group: Any) -> tuple[int, ...]:
    """Return the ranks of a process group, or of all dimensions of a ``DeviceMesh``, ascending; none if *group* is neither."""
    mesh = getattr(group, "mesh", None)
    if mesh is not None:
        return tuple(sorted(mesh.flatten().tolist()))
    is_group = isinstance(group, getattr(torch.distributed, "ProcessGroup", ()))
    return tuple(sorted(torch.distributed.get_process_group_ranks(group))) if is_group else ()


def _mesh_of(module: nn.Module) -> Any:
    """Return the mesh over which FSDP2 shards and replicates the parameters of *module*; None without FSDP2."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None or not isinstance(module, kind):
        return None
    try:
        group = module._get_fsdp_state()._fsdp_param_group
        return None if group is None else group.mesh_info.mesh
    except AttributeError:
        return next((each.device_mesh for each in module.parameters() if hasattr(each, "device_mesh")), None)
