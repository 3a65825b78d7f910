"""List every private name of torch that sonde uses: what for, and what happens with a torch that lacks it.

Where a name is missing that sonde cannot do without, :func:`require` says so as the engine is imported; without another one,
sonde does less.
``sonde doctor`` prints which of these names are present. A test compares the list with the code: a private name may be used only
in this folder, in ``stats/kernels/torch_private.py``, ``stats/pieces.py`` and ``stats/distributed/torch_c10d.py``, and only if
it is listed here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sonde
from sonde.errors import TorchVersionError


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A private name of torch.

    Attributes:
        name: where it is; ``Module``, ``Tensor``, ``Parameter``, ``Node`` and ``GradScaler`` stand for an object of that class,
            ``EmbeddingNode`` and so on for the node of such an operation.
        used_for: what sonde does with it.
        without: what happens where a torch lacks it.
    """

    name: str
    used_for: str
    without: str

    @property
    def is_needed(self) -> bool:
        """Whether nothing can be observed without it."""
        return self.without == _NO_IMPORT

    def is_present(self) -> bool:
        """Return whether the installed torch has it. Imports modules that the name lies in, as Dynamo, which takes seconds."""
        first, *rest = self.name.split(".")
        with torch.inference_mode(False), torch.enable_grad():
            found: Any = _example(first)
        path = first
        for part in rest:
            path = f"{path}.{part}"
            if not hasattr(found, part):
                try:
                    found = importlib.import_module(path)
                except ImportError:
                    return False
                continue
            found = getattr(found, part)
        return True


def _example(kind: str) -> Any:
    if kind == "Module":
        return nn.Module()
    if kind == "Tensor":
        return torch.zeros((), device="cpu")
    if kind == "Parameter":
        return nn.Parameter(torch.zeros((), device="cpu"))
    if kind == "Node":
        return torch.zeros(1, requires_grad=True, device="cpu").softmax(0).grad_fn
    if kind in _NODES:
        return _NODES[kind]().grad_fn
    return torch.amp.GradScaler("cpu", enabled=False) if kind == "GradScaler" else torch


def _ones(*shape: int) -> Tensor:
    return torch.ones(shape, requires_grad=True, device="cpu")


_NODES: dict[str, Callable[[], Tensor]] = {
    "EmbeddingNode": lambda: nn.functional.embedding(torch.zeros(1, dtype=torch.int64, device="cpu"), _ones(1, 1)),
    "LinearNode": lambda: torch.addmm(_ones(1), _ones(1, 1), _ones(1, 1)),
    "ProductNode": lambda: torch.mm(_ones(1, 1), _ones(1, 1)),
    "ConvolutionNode": lambda: nn.functional.conv1d(_ones(1, 1, 1), _ones(1, 1, 1)),
    "BatchNormNode": lambda: nn.functional.batch_norm(_ones(2, 1), _ones(1).detach(), _ones(1).detach(), training=True),
    "ActivationNode": lambda: _ones(1).tanh(),
    "LossNode": lambda: nn.functional.mse_loss(_ones(1), _ones(1).detach()),
    "AttentionNode": lambda: nn.functional.scaled_dot_product_attention(_ones(1, 1, 1, 1), _ones(1, 1, 1, 1), _ones(1, 1, 1, 1)),
    "TransposeNode": lambda: _ones(1, 1).transpose(0, 1),
    "PermuteNode": lambda: _ones(1, 1).permute(1, 0),
}
"""Results of operations, by what stands for the node of each."""


_NO_IMPORT = "models cannot be observed: one error says so when they are to be"
_NO_COMPILE = "models that are compiled cannot be observed"
_NO_MESH = "the ranks that run a model on batches of their own are taken from the mesh of its parameters, or from group="
_NO_GATHERING = "a graph holds the operations that gather parameters"

_NO_MOVE = "a view that mixes classes with other axes is not found in a loss"
_NO_INPUT = "what the outputs of a training pass depend on is not known"
_NO_ATTENTION = "attention in one operation that begins with one place alone is not found"
_NO_NORM = "running statistics that are not those of the batches are not found"

_TABLE = {
    "to find the backward pass, the node and the numbers of autograd": {
        "torch._C._current_graph_task_id": _NO_IMPORT,
        "torch._C._current_autograd_node": _NO_IMPORT,
        "torch._C._autograd._get_sequence_nr": _NO_IMPORT,
        "Node._sequence_nr": "gradients of structured values, and the module that runs in a backward pass, cannot be found",
        "Node._register_hook_dict": "gradients cannot be observed",
        "Node._input_metadata": (
            "a gradient at the border of compiled code is not named where one tensor is returned; a loss whose shapes broadcast is "
            "not found"
        ),
        "Node._saved_dim": "a softmax over the samples is not found in a loss",
        "TransposeNode._saved_dim0": _NO_MOVE,
        "TransposeNode._saved_dim1": _NO_MOVE,
        "PermuteNode._saved_dims": _NO_MOVE,
        "EmbeddingNode._saved_indices": _NO_INPUT,
        "LinearNode._saved_mat1": _NO_INPUT,
        "ProductNode._saved_self": _NO_INPUT,
        "ConvolutionNode._saved_input": _NO_INPUT,
        "BatchNormNode._saved_training": _NO_NORM,
        "BatchNormNode._saved_running_mean": _NO_NORM,
        "BatchNormNode._saved_running_var": _NO_NORM,
        "BatchNormNode._saved_result1": _NO_NORM,
        "BatchNormNode._saved_result2": _NO_NORM,
        "BatchNormNode._saved_eps": _NO_NORM,
        "BatchNormNode._saved_weight": _NO_NORM,
        "ActivationNode._saved_result": "targets beyond an activation whose result is scaled are not found",
        "LossNode._saved_target": "targets of a loss that is computed within a model are not read",
        "AttentionNode._saved_query": _NO_ATTENTION,
        "AttentionNode._saved_key": _NO_ATTENTION,
        "AttentionNode._saved_scale": _NO_ATTENTION,
        "Tensor._base": "a view that was given in the place of a transposed tensor is not found",
        "torch.autograd.Variable._execution_engine": "the end of a backward pass cannot be seen: no micro-steps",
    },
    "to undo on a copy that no_grad cuts a graph": {
        "torch._C._set_grad_enabled": "such a cut is not told as the cause of a difference",
    },
    "to know which activation checkpoint runs": {
        "torch._C._autograd._top_saved_tensors_default_hooks": "a recomputed call may get the index of another call",
    },
    "to find what runs in this thread, by the Python frames": {
        "Module._call_impl": _NO_IMPORT,
        "torch.autograd.graph._engine_run_backward": "the end of a backward pass under FSDP is noticed as late as at the next step",
        "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference": "the call for shapes is counted",
        "torch.nn.utils.stateless._functional_call": "tensors given to functional_call are taken for new parameters",
    },
    "to deliver nothing where a program is written down": {
        "torch._C._get_dispatch_mode": "make_fx writes down what observers compute",
        "torch._C._TorchDispatchModeKey": "the same",
    },
    "to deliver nothing inside torch.func transforms": {
        "torch._C._functorch.peek_interpreter_stack": "tensors are delivered that must not outlive the transform",
    },
    "to put hooks in and take them out beside calls of other threads": {
        "Module._forward_hooks": "modules cannot be observed",
        "Module._forward_hooks_with_kwargs": "modules cannot be observed",
        "Module._forward_hooks_always_called": "forwards that raise are not noticed",
        "Module._forward_pre_hooks": "modules cannot be observed",
        "Module._forward_pre_hooks_with_kwargs": "modules cannot be observed",
        "Tensor._backward_hooks": "gradients cannot be observed",
    },
    "to let a quiet block hold for the backward passes that other threads run for its thread": {
        "torch._C._is_key_in_tls": "on a device, the backward of a forward outside of the block is observed inside it",
        "torch._C._get_obj_in_tls": "the same",
        "torch._C._stash_obj_in_tls": "the same",
    },
    "to check that no hook is left": {
        "Module._backward_hooks": "such a hook is not found",
        "Module._backward_pre_hooks": "such a hook is not found",
        "Module._state_dict_hooks": "such a hook is not found",
        "Module._state_dict_pre_hooks": "such a hook is not found",
        "Module._load_state_dict_pre_hooks": "such a hook is not found",
        "Module._load_state_dict_post_hooks": "such a hook is not found",
        "Parameter._post_accumulate_grad_hooks": "such a hook is not found",
    },
    "to walk over a model and find what wrappers wrap": {
        "Module._modules": "models cannot be observed",
        "Module._parameters": "models cannot be observed",
        "Module._buffers": "models cannot be left as they were",
        "Module._compiled_call_impl": _NO_COMPILE,
        "torch.nn.modules.batchnorm._BatchNorm": _NO_IMPORT,
        "torch.nn.modules.conv._ConvTransposeNd": _NO_IMPORT,
    },
    "to see that a tensor was written into, and where it lies": {
        "Tensor._values": "non-finite values of sparse gradients are not followed to where they came from",
        "Tensor._version": "tensors that were changed in place cannot be recognised",
        "torch._C._storage_id": _NO_IMPORT,
    },
    "to find the part of a distributed tensor that this rank holds": {
        "torch.distributed._functional_collectives.AsyncCollectiveTensor": "results of running collectives may be read too early",
        "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": "distributed parameters cannot be observed",
    },
    "to copy parameters, look at gradients, take structured values apart, and call functions without overrides": {
        "torch._foreach_clone": "parameters are copied one by one, more slowly",
        "torch._foreach_copy_": "parameters are copied one by one, more slowly",
        "torch._foreach_norm": "gradients are looked at one by one, more slowly",
        "torch.utils._pytree": _NO_IMPORT,
        "torch._C.DisableTorchFunction": _NO_IMPORT,
    },
    "to keep hooks from being compiled by themselves": {
        "torch._C._dynamo.eval_frame": _NO_IMPORT,
    },
    "to run Python from compiled code, and have compiled code notice hooks": {
        "torch._C.DispatchKey": _NO_COMPILE,
        "torch._C.DispatchKeySet": _NO_COMPILE,
        "torch._C._ExcludeDispatchKeyGuard": _NO_COMPILE,
        "torch._from_functional_tensor": _NO_COMPILE,
        "torch._functionalize_commit_update": _NO_COMPILE,
        "torch._functionalize_mark_mutation_hidden_from_autograd": _NO_COMPILE,
        "torch._functionalize_replace": _NO_COMPILE,
        "torch._functionalize_sync": _NO_COMPILE,
        "torch._is_functional_tensor": _NO_COMPILE,
        "torch._C._dynamo.eval_frame._debug_get_cache_entry_list": "hooks that compiled code left out may not be noticed",
        "torch._guards.TracingContext": _NO_IMPORT,
        "torch._dynamo.comptime.comptime": "gradients cannot be observed in compiled code",
        "torch._subclasses.fake_tensor.FakeTensor": "gradients cannot be observed where compiled code returns a parameter",
        "torch._dynamo.config": "probes that are attached after a model was compiled may see nothing",
        "torch._dynamo.compiled_autograd.compiled_autograd_enabled": "gradients are missing under compiled autograd, unsaid",
        "torch._dynamo.exc.TorchDynamoException": "the law that a statistic can be traced cannot be tested",
    },
    "to compile copies as a model is compiled, and count their graphs": {
        "torch._dynamo.eval_frame.innermost_backend": "copies are compiled by inductor",
        "torch._dynamo.backends.registry.lookup_backend": "copies of a model that is not compiled cannot be compiled",
        "torch._dynamo.utils.counters": "graph breaks and compiled backward passes are not counted",
    },
    "to find the ranks over which FSDP2 shards a model": {
        "torch.distributed.fsdp.FSDPModule._get_fsdp_state": _NO_MESH,
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._fsdp_param_group": _NO_MESH,
    },
    "to know what a parameter stands for that FSDP2 has gathered": {
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam": "parameters are missed after an evaluation",
    },
    "to leave the gathering of parameters by FSDP2 out of a graph": {
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.pre_forward": _NO_GATHERING,
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.post_forward": _NO_GATHERING,
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.unshard": _NO_GATHERING,
    },
    "to capture a graph without computing": {
        "torch._subclasses.fake_tensor.FakeTensorMode": "a graph can be captured of real tensors alone",
    },
    "to unscale gradients without waiting for the device": {
        "GradScaler._get_scale_async": "a GradScaler is refused",
    },
    "to see each operation and what it read and wrote": {
        "torch.utils._python_dispatch.TorchDispatchMode": _NO_IMPORT,
        "torch.utils._python_dispatch._disable_current_modes": _NO_IMPORT,
        "torch.ops.aten.add.Tensor._schema": "the first bad operation is not found where it writes into its own input",
    },
    "to find the other ranks of a distributed training": {
        "torch.distributed.distributed_c10d._get_default_store": "ranks cannot act together",
    },
    "to use the compiled kernels only where nothing intercepts operations": {
        "torch._C._len_torch_dispatch_stack": "statistics are computed by plain torch, more slowly",
    },
}

PRIVATE_NAMES: tuple[PrivateName, ...] = tuple(
    PrivateName(name, used_for, without) for used_for, names in _TABLE.items() for name, without in names.items()
)
"""Every private name of torch that sonde uses."""


def private_parts() -> dict[PrivateName, bool]:
    """Return every private part of torch that sonde uses, with whether the installed torch has it."""
    return {private: private.is_present() for private in PRIVATE_NAMES}


def missing() -> list[PrivateName]:
    """Return the names that the installed torch lacks and that sonde cannot be imported without."""
    return [private for private in PRIVATE_NAMES if private.is_needed and not private.is_present()]


def require(lacking: list[PrivateName]) -> None:
    """Raise one error with all *lacking* parts of torch, what works without them, and the remedy.

    Raises:
        TorchVersionError: there are any.
    """
    if lacking:
        names = "; ".join(f"{private.name}, {private.used_for}" for private in lacking)
        raise TorchVersionError(
            f"torch {torch.__version__} lacks what sonde {sonde.__version__} needs to observe a model: {names}. Models cannot be "
            "observed with this torch. Runs and kept tensors can be read (sonde.open_run, sonde.open_tensors, sonde ui). "
            "Install a newer sonde, or torch 2.13 to 2.15",
            tuple(private.name for private in lacking),
        )
