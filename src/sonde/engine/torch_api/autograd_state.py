"""State of this thread: backward pass, autograd node, activation checkpoint, running module calls and optimizer steps.

torch has no public function for any of these. What can be read from C is read from C; module calls, nodes written in Python,
optimizer steps and ``functional_call`` are found by walking the Python frames: exact at any moment, and slow (about 50 ns
for each frame), so only for rare questions.

An activation checkpoint is known by name. The non-reentrant kind keeps a frame, which its hooks on saved tensors hold: those
that save while the checkpoint is made, and those that recompute. The reentrant kind runs its part of the forward without
gradients, so that all calls in it are made at the sequence number after that of its node, which is the node that repeats them.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from operator import methodcaller
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless
from torch.optim.optimizer import Optimizer
from torch.utils.checkpoint import CheckpointFunction

graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""Return the number of the backward pass that runs in this thread; -1 outside of backward passes."""

current_node: Callable[[], Any] = torch._C._current_autograd_node
"""Return the autograd node whose backward runs in this thread; None if none does."""

next_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Return the sequence number that the next autograd node of this thread gets."""

sequence_of_node: Callable[[Any], int] = methodcaller("_sequence_nr")
"""Return the sequence number of an autograd node. The engine runs nodes in descending order of these numbers."""

set_gradient_mode: Callable[[bool], None] | None = getattr(torch._C, "_set_grad_enabled", None)
"""What ``no_grad`` and ``enable_grad`` call, as a ``TorchFunctionMode`` sees it; None where a torch lacks it."""

ACCUMULATES = 2**64 - 1
"""The sequence number of every node that writes a ``.grad``."""

transforms: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
"""Return the innermost ``torch.func`` transform that runs; None outside of transforms."""

_is_grad_enabled = torch.is_grad_enabled
saved_tensor_hooks: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
"""Return the innermost hooks on saved tensors of this thread; None without any. Given True, those that are switched off count."""


def is_transformed() -> bool:
    """Return whether a ``torch.func`` transform runs: its tensors are wrappers that must not outlive the transform."""
    return transforms() is not None


# Values of a thread, which the threads that run a backward pass for it share (a device has one of its own)

_is_kept: Callable[[str], bool] | None = getattr(torch._C, "_is_key_in_tls", None)
_kept: Callable[[str], Any] | None = getattr(torch._C, "_get_obj_in_tls", None)
_keep: Callable[[str, Any], None] | None = getattr(torch._C, "_stash_obj_in_tls", None)
_plain = threading.local()


def thread_value(key: str) -> Any:
    """Return the value of this thread that is called *key*; None without one."""
    if _is_kept is None or _kept is None or _keep is None:
        return getattr(_plain, key, None)
    return _kept(key) if _is_kept(key) else None


def set_thread_value(key: str, value: Any) -> None:
    """Set the value of this thread that is called *key*."""
    if _is_kept is None or _kept is None or _keep is None:
        setattr(_plain, key, value)
    else:
        _keep(key, value)


# Activation checkpoints


def checkpoint_made() -> Hashable | None:
    """Return the name of the checkpoint that a module called now is part of; None outside of checkpoints."""
    return _frame_of_checkpoint()[0] if _is_grad_enabled() else ("node", next_sequence())


def checkpoint_repeated() -> tuple[Hashable, bool]:
    """Return the name of the checkpoint that the backward pass repeats now.

    Also returns whether that checkpoint is made for the first time, inside another one that is repeated.
    """
    frame, is_made = _frame_of_checkpoint()
    if frame is not None:
        return frame, is_made
    node = current_node()
    return ("node", -1 if node is None else sequence_of_node(node) + 1), False


def is_repeating() -> bool:
    """Return whether the running backward pass repeats a part of the forward."""
    if _frame_of_checkpoint()[0] is not None:
        return True
    node = current_node()
    return node is not None and node.name() == "CheckpointFunctionBackward"


def _frame_of_checkpoint() -> tuple[Hashable | None, bool]:
    """Return the frame of the running non-reentrant checkpoint (or None), and whether the checkpoint is being made."""
    hooks = saved_tensor_hooks(True)
    if hooks is None:
        return None, False
    pack = getattr(hooks[0], "_torchdynamo_orig_callable", hooks[0])
    code = getattr(pack, "__code__", None)
    if code is None:
        return None, False
    held = {name: cell.cell_contents for name, cell in zip(code.co_freevars, pack.__closure__ or (), strict=False)}
    if "target_frame_ref" in held:
        return held["target_frame_ref"], False
    frame = held.get("frame")
    # by reference, and not by id: a later frame may get the same id
    return (None, False) if frame is None else (weakref.ref(frame), True)


# Python frames

_CALL = nn.Module._call_impl.__code__
_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__
_RUN_BACKWARD: CodeType | None = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
_INFERENCE = ("_forward_metadata_inference", "_shape_inference")  # since torch 2.13, and before
_GATHERING = ("pre_forward", "post_forward", "unshard", "wait_for_unshard", "reshard")
_CHECKPOINT = CheckpointFunction.forward.__code__
_SUBSTITUTED = getattr(getattr(stateless, "_functional_call", None), "__code__", None)
# every optimizer's step is wrapped by this one function
_STEP = next((code for code in Optimizer.profile_hook_step.__code__.co_consts if isinstance(code, CodeType)), None)


def call_of(frame: FrameType) -> nn.Module | None:
    """Return the module whose call *frame* is; None if *frame* is anything else."""
    module: nn.Module | None = frame.f_locals["self"] if frame.f_code is _CALL else None
    return module


def modules_running() -> list[nn.Module]:
    """Return the modules whose calls run in this thread, the outermost first; one that calls itself comes several times."""
    return [frame.f_locals["self"] for frame in _frames() if frame.f_code is _CALL][::-1]


def nodes_running() -> list[Any]:
    """Return the running nodes whose backward is written in Python, the innermost first.

    A reentrant checkpoint is such a node: a backward pass inside its backward is a part of another pass.
    """
    return [frame.f_locals["self"] for frame in _frames() if frame.f_code is _BACKWARD]


def is_nested_pass() -> bool:
    """Return whether the backward pass that runs in this thread was begun by a node of another, as by a reentrant checkpoint."""
    has_begun = _RUN_BACKWARD is None
    for frame in _frames():
        if frame.f_code is _RUN_BACKWARD:
            has_begun = True
        elif has_begun and frame.f_code is _BACKWARD:
            return True
    return False


def is_in_reentrant_checkpoint() -> bool:
    """Return whether a reentrant checkpoint runs its part of the forward, which it does without gradients."""
    return any(frame.f_code is _CHECKPOINT for frame in _frames())


def is_shape_inference() -> bool:
    """Return whether a pipeline stage calls its module only to learn the shapes of its tensors, as before its first step."""
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
    if stage is None:
        return False
    codes = {getattr(getattr(stage, name, None), "__code__", None) for name in _INFERENCE} - {None}
    return bool(codes) and any(frame.f_code in codes for frame in _frames())


def is_gathering() -> bool:
    """Return whether FSDP2 gathers parameters from their shards, or frees them, in the hooks around a module's call."""
    group = getattr(sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param_group"), "FSDPParamGroup", None)
    codes = {getattr(getattr(group, name, None), "__code__", None) for name in _GATHERING} - {None}
    return bool(codes) and any(frame.f_code in codes for frame in _frames())


def optimizers_running(innermost: Optimizer | None = None) -> list[Optimizer]:
    """Return the optimizers whose ``step`` runs in this thread, the innermost first: *innermost*, if the caller knows that one."""
    frames = [frame for frame in _frames() if frame.f_code is _STEP]
    if innermost is not None and len(frames) == 1:  # as at nearly every step: locals are made a dictionary as they are read
        return [innermost]
    return [frame.f_locals["args"][0] for frame in frames]


def has_substituted_parameters() -> bool:
    """Return whether modules hold tensors that are not their parameters: in a ``functional_call`` and in ``torch.export``."""
    return torch.compiler.is_exporting() or any(frame.f_code is _SUBSTITUTED for frame in _frames())


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
