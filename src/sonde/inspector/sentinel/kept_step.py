"""Keep a step on disk with everything that is needed to run it again: safetensors and JSON, no pickle.

::

    step.json              when it was, which gradients were not finite, and each pass: its arguments, autocast, random state
    model.safetensors      parameters and buffers as before the step, by their names
    passes.safetensors     tensors of the passes: arguments, gradients that arrived at the outputs, states of generators
    report.txt             what was found when the step was run again
    reproduce.py           the operation that made the first bad value, alone, where its numbers fit into a line; needs torch
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.random_state import RandomState
from sonde.engine.selection import members, parameters
from sonde.engine.torch_api.modules import buffers_of, class_of
from sonde.errors import StoreError
from sonde.inspector.sentinel.training_passes import KeptPass
from sonde.paths import absolute_path, is_inside
from sonde.run.folder.json_file import parse_json, read_bytes, write_json
from sonde.run.json_tree import decode, encode
from sonde.run.tensors import needs_pairs, writable
from sonde.stats.pieces import PLAIN

__all__ = ["FORMAT", "KeptStep", "Pass", "count_text", "read_step", "step_of"]

FORMAT = "sonde-step"
VERSION = 1
STEP = "step.json"
MODEL = "model.safetensors"
PASSES = "passes.safetensors"


@dataclass(slots=True)
class Pass:
    """One training pass of a kept step.

    Attributes:
        args, kwargs: of the call of the model.
        random: the random state before the call.
        autocast: by device type, the dtype of the autocast block around the call.
        gradients: that arrived at the outputs, by the position of the output among the tensors of the output.
        is_changed: the program has written into an argument before the pass was kept.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState
    autocast: dict[str, torch.dtype] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    is_changed: bool = False


@dataclass(slots=True)
class KeptStep:
    """A step of a training, to be run again.

    Attributes:
        model: the name of the model in the sites; ``""`` for the only one.
        type: the class of the model.
        epoch, step: when.
        parameters, buffers: as before the step, by name. A tensor that is spread over ranks is not among them.
        evaluating: names of the modules that were in evaluation mode.
        passes: in order.
        gradients: by the name of the parameter, the numbers of NaN and of infinities in its gradient, and of its elements.
        notes: what is missing or not exact, in words.
    """

    model: str
    type: str
    epoch: int
    step: int
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    evaluating: list[str]
    passes: list[Pass]
    gradients: dict[str, tuple[int, int, int]]
    notes: list[str] = field(default_factory=list)

    def load_into(self, model: nn.Module, *, with_parameters: bool = True) -> list[str]:
        """Write parameters and buffers into *model*, and set the mode of its modules; return the names that it lacks."""
        own: dict[str, Tensor] = {name: parameter for name, parameter, _ in parameters(model)}
        own |= _buffers(model)
        missing = []
        with torch.no_grad():
            for name, value in (*(self.parameters.items() if with_parameters else ()), *self.buffers.items()):
                target = own.get(name)
                if target is None or target.shape != value.shape:
                    missing.append(name)
                else:
                    target.copy_(value)
        evaluating = set(self.evaluating)
        for item in members(model):
            item.module.training = item.name not in evaluating
        return missing

    def write(self, folder: Path) -> None:
        """Write everything into *folder*, which is made.

        Raises:
            OSError: *folder* cannot be written.
        """
        folder.mkdir(parents=True)
        tensors: dict[str, Tensor] = {}
        passes = [_written(each, f"pass{place}", tensors) for place, each in enumerate(self.passes)]
        pairs = _save(folder / MODEL, self.parameters | self.buffers)
        data = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "type": self.type,
            "epoch": self.epoch,
            "step": self.step,
            "buffers": sorted(self.buffers),
            "evaluating": self.evaluating,
            "gradients": {name: list(numbers) for name, numbers in self.gradients.items()},
            "passes": passes,
            "as_pairs": {MODEL: pairs, PASSES: _save(folder / PASSES, tensors)},
            "notes": self.notes,
            "torch": torch.__version__,
        }
        write_json(folder / STEP, data, sync=False)


def step_of(
    model: nn.Module,
    name: str,
    when: tuple[int, int],
    buffers: Mapping[str, Tensor],
    passes: Sequence[KeptPass],
    gradients: Mapping[str, tuple[int, int, int]],
) -> KeptStep:
    """Return a step of *model* at *when* (epoch, step), with references to its present parameters.

    *buffers* replace the present buffers of these names.
    """
    notes = []
    held = {each: parameter.detach() for each, parameter, _ in parameters(model) if not is_lazy(parameter)}  # type: ignore[redundant-expr]
    whole = {each: tensor for each, tensor in held.items() if type(tensor) in PLAIN and not tensor.is_meta}
    if len(whole) < len(held):
        notes.append(f"{len(held) - len(whole):,} parameters are spread over ranks and are not kept: load a checkpoint")
    kept = [Pass(each.args, each.kwargs, each.random, each.autocast, dict(each.gradients), each.is_changed()) for each in passes]
    if any(each.is_changed for each in kept):
        notes.append("the program has written into an argument of the model since the forward: it is kept as it is now")
    if any(each.too_large for each in passes):
        notes.append("the gradient at an output is too large to be kept")
    if not kept:
        notes.append("no forward of the model itself was seen in this step, in eager code: no arguments are kept")
    evaluating = [item.name for item in members(model) if not item.module.training]
    now = {each: tensor.detach() for each, tensor in (_buffers(model) | dict(buffers)).items()}
    return KeptStep(name, class_of(model).__name__, *when, whole, now, evaluating, kept, dict(gradients), notes)


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{item.name}.{name}" if item.name else name: buffer
        for item in members(model)
        for name, buffer in buffers_of(item.module).items()
        if buffer is not None
    }


def _save(file: Path, tensors: Mapping[str, Tensor]) -> list[str]:
    """Write *tensors* to *file*; return the names of those that are written as pairs of real numbers."""
    from safetensors.torch import save_file

    storages: set[int] = set()
    save_file({name: writable(tensor, storages) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    return [name for name, tensor in tensors.items() if needs_pairs(tensor)]


def _written(each: Pass, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return *each* as plain data, and add its tensors to *tensors*, by names that begin with *name*."""

    def written(value: Any, path: str) -> dict[str, Any] | None:
        if not isinstance(value, Tensor):
            return None
        if type(value) not in PLAIN or value.is_meta or value.is_nested or value.is_quantized:
            return {"object": f"{type(value).__name__} of shape {tuple(value.shape)}"}
        key = f"{name}.{path}"
        tensors[key] = value
        return {"tensor": key}

    def inside(what: str) -> Any:
        return lambda value, path: written(value, what + path)

    random = each.random
    return {
        "args": encode(each.args, inside("args")),
        "kwargs": encode(each.kwargs, inside("kwargs")),
        "gradients": encode(each.gradients, inside("gradients")),
        "random": {
            "cpu": encode(random.cpu, inside("random.cpu")),
            "accelerators": encode(random.accelerators, inside("random.accelerators")),
            "python": encode(random.python, inside("random.python")),
            "numpy": encode(_plain(random.numpy), inside("random.numpy")),
        },
        "autocast": {kind: str(dtype).removeprefix("torch.") for kind, dtype in each.autocast.items()},
        "is_changed": each.is_changed,
    }


def _plain(state: Any) -> Any:
    """Return a state of NumPy's generator with a list in the place of the array."""
    return None if state is None else [part.tolist() if hasattr(part, "tolist") else part for part in state]


def read_step(path: str | os.PathLike[str]) -> KeptStep:
    """Read a step that was kept. Nothing in the folder is executed.

    Raises:
        StoreError: the folder holds no step, or is not whole.
    """
    folder = absolute_path(path)
    try:
        data, _ = parse_json(read_bytes(folder / STEP), STEP)
    except FileNotFoundError:
        raise StoreError(
            f"{folder} holds no kept step ({STEP}): give the folder that was printed, RUN/nonfinite/step-..."
        ) from None
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise StoreError(f"{folder / STEP} is no step of version {VERSION}: it was written by another version of sonde")
    try:
        pairs = data["as_pairs"]
        model = _load(folder, MODEL, pairs[MODEL])
        tensors = _load(folder, PASSES, pairs[PASSES])
        buffers = {name: model.pop(name) for name in data["buffers"]}
        gradients = {str(name): (int(nan), int(inf), int(count)) for name, (nan, inf, count) in data["gradients"].items()}
        passes = [_read(each, tensors) for each in data["passes"]]
        texts = data["model"], data["type"], int(data["epoch"]), int(data["step"])
        evaluating, notes = [str(name) for name in data["evaluating"]], [str(note) for note in data["notes"]]
        return KeptStep(*texts, model, buffers, evaluating, passes, gradients, notes)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{folder} is not whole: it lacks something or has it in another form ({error!r})") from None


def _load(folder: Path, name: str, pairs: list[str]) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / name
    if not is_inside(folder, file):
        raise StoreError(f"{file} is a link out of this folder, and is not followed")
    try:
        found: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from None
    return {key: torch.view_as_complex(tensor) if key in pairs else tensor for key, tensor in found.items()}


def _read(data: dict[str, Any], tensors: dict[str, Tensor]) -> Pass:
    value = {name: decode(data[name], tensors.__getitem__) for name in ("args", "kwargs", "gradients")}
    random = {name: decode(each, tensors.__getitem__) for name, each in data["random"].items()}
    python, numpy = random["python"], random["numpy"]
    state = RandomState(random["cpu"], random["accelerators"], python, None if numpy is None else tuple(numpy))
    autocast = {str(kind): getattr(torch, dtype) for kind, dtype in data["autocast"].items()}
    if not all(isinstance(dtype, torch.dtype) for dtype in autocast.values()):
        raise StoreError(f"{data['autocast']} names no dtypes")
    return Pass(value["args"], value["kwargs"], state, autocast, value["gradients"], bool(data["is_changed"]))


def count_text(gradients: Mapping[str, tuple[int, int, int]], total: int) -> str:
    """Return in words how many of *total* gradients are not finite."""
    nan, inf = (sum(numbers[place] for numbers in gradients.values()) for place in (0, 1))
    kinds = " and ".join(kind for kind, number in (("NaN", nan), ("infinity", inf)) if number)
    return f"{len(gradients):,} of {total:,} gradients hold {kinds}"
