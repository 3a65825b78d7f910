"""Keep a step on disk with everything that is needed to run it again: safetensors and JSON, no pickle.

::

    step.json              when it was, what was not finite, and each pass: its arguments, autocast, random state; checksums
    model.safetensors      parameters and buffers as before the step, by their names
    passes.safetensors     tensors of the passes: arguments, gradients that arrived at the outputs, states of generators
    report.txt             what was found when the step was run again
    reproduce.py           the operation that made the first bad value, alone, where its numbers fit into a line; needs torch
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine import RandomState, buffers_of, class_of, members, parameters
from sonde.errors import StoreError
from sonde.inspector.sentinel.bad_step import BadStep, Parameters
from sonde.paths import absolute_path
from sonde.run import decode, encode, read_checked, read_tensor_file, write_json, write_tensor_file
from sonde.stats import PLAIN, Piece, in_memory, local, unreadable
from sonde.words import names_text

FORMAT = "sonde-step"
VERSION = 2
STEP = "step.json"
MODEL = "model.safetensors"
PASSES = "passes.safetensors"
_OF_RANK = re.compile(r"(.*)-rank\d+(.*)")


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
        parameters, buffers: as before the step, by name. Parameters that are spread over ranks are not among them.
        parts: of these, by name, this rank's part, and which part that is.
        evaluating: names of the modules that were in evaluation mode.
        passes: in order.
        gradients: by the name of the parameter, of each gradient that is not finite: ``NaN``, or ``inf`` if it holds no NaN.
        loss: a loss that is not finite; None if there was none.
        lost: why parameters are missing, in words; ``""`` if all are there but those that are spread over ranks.
        notes: what is missing or not exact, in words.
        left_out: of parameters and buffers that are no plain memory, and so are not among the others: the kind, by name.
    """

    model: str
    type: str
    epoch: int
    step: int
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    evaluating: list[str]
    passes: list[Pass]
    gradients: dict[str, str]
    loss: float | None = None
    lost: str = ""
    notes: list[str] = field(default_factory=list)
    parts: dict[str, tuple[Tensor, Piece]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

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
        """Write everything into *folder*, which is made; it appears when all is written.

        Raises:
            OSError, StoreError: *folder* cannot be written. Nothing is left of it.
        """
        part = folder.with_name(f"{folder.name}.part")
        try:
            part.mkdir(parents=True)
            self._write(part)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def _write(self, folder: Path) -> None:
        tensors: dict[str, Tensor] = {}
        passes = [_written(each, f"pass{place}", tensors) for place, each in enumerate(self.passes)]
        parts = {name: part for name, (part, _) in self.parts.items()}
        contents = {MODEL: self.parameters | parts | self.buffers, PASSES: tensors}
        written = {name: write_tensor_file(folder / name, held) for name, held in contents.items()}
        data = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "type": self.type,
            "epoch": self.epoch,
            "step": self.step,
            "buffers": sorted(self.buffers),
            "parts": {name: [list(numbers) for numbers in piece] for name, (_, piece) in self.parts.items()},
            "evaluating": self.evaluating,
            "gradients": self.gradients,
            "loss": None if self.loss is None else str(self.loss),
            "lost": self.lost,
            "passes": passes,
            "as_pairs": {name: pairs for name, (pairs, _) in written.items()},
            "checksums": {name: checksum for name, (_, checksum) in written.items()},
            "notes": self.notes,
            "left_out": self.left_out,
            "torch": torch.__version__,
        }
        write_json(folder / STEP, data, sync=False)


def step_of(found: BadStep) -> KeptStep:
    """Return the step *found*, with references to its model's present parameters where these are as before the step."""
    model, notes = found.model, []
    before = found.parameters or Parameters()
    whole: dict[str, Tensor] = {}
    parts: dict[str, tuple[Tensor, Piece]] = {}
    left_out: dict[str, str] = {}
    for name, parameter, _ in parameters(model):
        if is_lazy(parameter) or parameter.is_meta:  # type: ignore[redundant-expr]  # is_lazy narrows
            continue
        part, piece = local(parameter), Piece.of(parameter) if is_spread(parameter) else None
        held = None if part is None else in_memory(part)
        if held is None:
            left_out[name] = _kind_of(parameter if part is None else part)
        if held is None or id(parameter) in before.lost:
            continue
        value = before.copies.get(id(parameter), held.detach())
        if piece is None:
            whole[name] = value
        else:
            parts[name] = value, piece
    if found.is_taken and found.parameters is None:
        notes.append("the parameters are those after the step: the loss was given after the optimizer had stepped")
    kept = [
        Pass(each.args, each.kwargs, each.random, each.autocast, dict(each.gradients), each.is_changed()) for each in found.passes
    ]
    if any(each.is_changed for each in kept):
        notes.append("the program has written into an argument of the model since the forward: it is kept as it is now")
    if any(each.too_large for each in found.passes):
        notes.append("the gradient at an output is too large to be kept")
    if not kept:
        notes.append("no forward of the model itself was seen in this step, in eager code: no arguments are kept")
    evaluating = [item.name for item in members(model) if not item.module.training]
    buffers: dict[str, Tensor] = {}
    for name, buffer in (_buffers(model) | dict(found.buffers)).items():
        held = in_memory(buffer)
        if held is None:
            left_out[name] = _kind_of(buffer)
        else:
            buffers[name] = held.detach()
    if left_out:
        named = names_text(f"{name} ({kind})" for name, kind in left_out.items())
        notes.append(f"not kept, since it is no plain memory: {named}; those of the model that is given are used")
    lost = before.reason if before.lost else ""
    when, kind = (found.epoch, found.step), class_of(model).__name__
    return KeptStep(
        found.name, kind, *when, whole, buffers, evaluating, kept, dict(found.gradients), found.loss, lost, notes, parts, left_out
    )


def is_spread(parameter: Tensor) -> bool:
    """Return whether *parameter* is spread over ranks."""
    return type(parameter) not in PLAIN and local(parameter) is not parameter


def _kind_of(tensor: Tensor) -> str:
    """Return in a word what *tensor* is, which is no plain memory."""
    if kind := unreadable(tensor):
        return kind
    return type(tensor).__name__ if type(tensor) not in PLAIN else str(tensor.layout).removeprefix("torch.")


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{item.name}.{name}" if item.name else name: buffer
        for item in members(model)
        for name, buffer in buffers_of(item.module).items()
        if buffer is not None
    }


def _written(each: Pass, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return *each* as plain data, and add its tensors to *tensors*, by names that begin with *name*."""

    def written(value: Any, path: str) -> dict[str, Any] | None:
        if not isinstance(value, Tensor):
            return None
        if type(value) not in PLAIN or (kind := unreadable(value)):
            of_shape = "" if value.is_nested else f" of shape {tuple(value.shape)}"
            return {"object": f"{type(value).__name__}{of_shape}" if type(value) not in PLAIN else f"{kind} tensor{of_shape}"}
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
        StoreError: the folder holds no step, is not whole or is damaged, or was written by a newer version of sonde.
    """
    folder = absolute_path(path)
    try:
        data, is_sound = read_checked(folder / STEP)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} holds no kept step ({STEP}): give the folder that was printed, RUN/nonfinite/step-..."
        ) from None
    except OSError as error:
        raise StoreError(f"{folder / STEP} cannot be read: {error}") from None
    version = data.get("version")
    if data.get("format") != FORMAT or not isinstance(version, int):
        raise StoreError(f"{folder / STEP} describes no kept step: its format is {data.get('format')!r} and not {FORMAT!r}")
    if not 1 <= version <= VERSION:
        raise StoreError(
            f"{folder} is a kept step of version {version}, and this sonde reads versions 1 to {VERSION}: update sonde"
        )
    if is_sound is False:
        raise StoreError(f"{folder / STEP} is damaged, or was changed since it was written: its checksum does not fit")
    try:
        pairs, sums = data["as_pairs"], data.get("checksums", {})
        model = read_tensor_file(folder / MODEL, pairs[MODEL], sums.get(MODEL))
        tensors = read_tensor_file(folder / PASSES, pairs[PASSES], sums.get(PASSES))
        buffers = {name: model.pop(name) for name in data["buffers"]}
        gradients = {str(name): _kind(written) for name, written in data["gradients"].items()}
        passes = [_read(each, tensors) for each in data["passes"]]
        texts = str(data["model"]), str(data["type"]), int(data["epoch"]), int(data["step"])
        evaluating, notes = [str(name) for name in data["evaluating"]], [str(note) for note in data["notes"]]
        loss = None if data.get("loss") is None else float(data["loss"])
        pieces = {str(name): Piece(*(tuple(map(int, each)) for each in numbers)) for name, numbers in data.get("parts", {}).items()}
        parts = {name: (model.pop(name), piece) for name, piece in pieces.items()}
        left_out = {str(name): str(kind) for name, kind in data.get("left_out", {}).items()}
        return KeptStep(
            *texts, model, buffers, evaluating, passes, gradients, loss, str(data.get("lost", "")), notes, parts, left_out
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{folder} is not whole: it lacks something or has it in another form ({error!r})") from None


def joined(step: KeptStep, path: str | os.PathLike[str]) -> KeptStep:
    """Return *step* with the parameters that are spread over ranks joined from the folders of all ranks beside *path*.

    A part is missing where the gradients of a rank were finite, which has kept nothing then: such parameters are left out, and a
    note says so.
    """
    if not step.parts:
        return step
    folder = absolute_path(path)
    like = _OF_RANK.fullmatch(folder.name)
    beside = [(each, _OF_RANK.fullmatch(each.name)) for each in sorted(folder.parent.iterdir()) if each != folder]
    others = [each for each, found in beside if like is not None and found is not None and found.groups() == like.groups()]
    parts = [step.parts, *(read_step(each).parts for each in others)]
    missing = 0
    for name, (own, piece) in step.parts.items():
        whole = own.new_empty(piece.whole)
        known = torch.zeros(piece.whole, dtype=torch.bool)
        for part, where in (each[name] for each in parts if name in each):
            place = tuple(slice(start, start + size) for start, size in zip(where.offset, where.shape, strict=True))
            whole[place], known[place] = part, True
        if known.all():
            step.parameters[name] = whole
        else:
            missing += 1
    if missing:
        step.notes.append(
            f"{missing:,} parameters are not whole in the folders of {len(parts)} ranks beside each other: those of the model that "
            "was given were used; load a checkpoint into it"
        )
    step.notes.append(f"the parameters were joined from the parts of {len(parts)} ranks, and the batch is that of one")
    return step


def _kind(written: Any) -> str:
    """Return ``NaN`` or ``inf``; version 1 has the numbers of NaN and of infinities, and of all elements."""
    return written if isinstance(written, str) else "NaN" if int(written[0]) else "inf"


def _read(data: dict[str, Any], tensors: dict[str, Tensor]) -> Pass:
    value = {name: decode(data[name], tensors.__getitem__) for name in ("args", "kwargs", "gradients")}
    random = {name: decode(each, tensors.__getitem__) for name, each in data["random"].items()}
    python, numpy = random["python"], random["numpy"]
    state = RandomState(random["cpu"], random["accelerators"], python, None if numpy is None else tuple(numpy))
    autocast = {str(kind): getattr(torch, dtype) for kind, dtype in data["autocast"].items()}
    if not all(isinstance(dtype, torch.dtype) for dtype in autocast.values()):
        raise StoreError(f"{data['autocast']} names no dtypes")
    return Pass(value["args"], value["kwargs"], state, autocast, value["gradients"], bool(data["is_changed"]))


def count_text(gradients: Mapping[str, str], total: int, *, is_sample: bool = False) -> str:
    """Return in words how many of *total* gradients are not finite; *is_sample*: there were more, which were not looked at."""
    kinds = " and ".join(word for kind, word in (("NaN", "NaN"), ("inf", "infinity")) if kind in gradients.values())
    return f"{len(gradients):,} of {total:,} gradients{' that were looked at' if is_sample else ''} hold {kinds}"
