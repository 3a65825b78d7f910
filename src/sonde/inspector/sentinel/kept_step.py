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
from sonde.run import Absent, Form, decode, encode, form, read_checked, read_tensor_file, write_json, write_tensor_file
from sonde.stats import PLAIN, Piece, in_memory, local, unreadable
from sonde.words import names_text, shape_text

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
        held = _STEP(data, "")
    except StoreError as error:
        raise StoreError(f"{folder} is not whole: in its {STEP}, {error}") from None
    pairs, sums = held.pop("as_pairs"), held.pop("checksums")
    model, tensors = (read_tensor_file(folder / name, pairs[name], sums[name]) for name in (MODEL, PASSES))
    try:
        buffers = {name: _taken(model, name) for name in held.pop("buffers")}
        parts = {name: (_part(_taken(model, name), piece, name), piece) for name, piece in held.pop("parts").items()}
        passes = [_pass(each, f"passes[{place}]", tensors) for place, each in enumerate(held.pop("passes"))]
    except StoreError as error:
        raise StoreError(f"{folder} is not whole: {error}") from None
    return KeptStep(parameters=model, buffers=buffers, passes=passes, parts=parts, **held)


def joined(step: KeptStep, path: str | os.PathLike[str]) -> KeptStep:
    """Return *step* with the parameters that are spread over ranks joined from the folders of all ranks beside *path*.

    A part is missing where the gradients of a rank were finite, which has kept nothing then: such parameters are left out, and a
    note says so.

    Raises:
        StoreError: a folder beside *path* holds parts of other parameters.
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
        known = torch.zeros(piece.whole, dtype=torch.bool, device="cpu")
        for part, where in (each[name] for each in parts if name in each):
            if where.whole != piece.whole or part.dtype != own.dtype:
                raise StoreError(
                    f"the folders beside {folder} are of another training: {name!r} is {shape_text(where.whole)} of "
                    f"{part.dtype} there, and {shape_text(piece.whole)} of {own.dtype} here"
                )
            place = tuple([slice(start, start + size) for start, size in zip(where.offset, where.shape, strict=True)])
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


# The forms of step.json, of what its values are decoded to, and of the tensors that they name


def _list(of: Form) -> Form:
    return lambda held, where: list(form.listed(of)(held, where))


def _kind(held: Any, where: str) -> str:
    """Return ``NaN`` or ``inf``; version 1 has the numbers of NaN and of infinities, and of all elements."""
    return str(held) if isinstance(held, str) else "NaN" if form.listed(form.count, 3)(held, where)[0] else "inf"


def _loss(held: Any, where: str) -> float:
    try:
        return float(held) if isinstance(held, str) else form.number(held, where)
    except ValueError:
        form.refuse(where, held, "a number, as text")


def _piece(held: Any, where: str) -> Piece:
    piece = Piece(*form.row(whole=_SIZES, shape=_SIZES, offset=_SIZES)(held, where))
    if not len(piece.whole) == len(piece.shape) == len(piece.offset):
        form.refuse(where, held, "three lists of one length")
    if any(start + size > whole for whole, size, start in zip(*piece, strict=True)):
        form.refuse(where, held, "a part inside of the whole")
    return piece


def _dtype(held: Any, where: str) -> torch.dtype:
    found = getattr(torch, form.text(held, where), None)
    return found if isinstance(found, torch.dtype) else form.refuse(where, held, "the name of a dtype")


def _device(held: Any, where: str) -> str:
    try:
        is_known = torch.amp.is_autocast_available(form.text(held, where))
    except RuntimeError:  # torch has no such name
        is_known = False
    return str(held) if is_known else form.refuse(where, held, "a device with autocast")


def _tensor(held: Any, where: str) -> Tensor:
    return held if isinstance(held, Tensor) else form.refuse(where, held, "a tensor")


def _bytes(held: Any, where: str) -> Tensor:
    if not (isinstance(held, Tensor) and held.dtype == torch.uint8 and held.ndim == 1):
        form.refuse(where, held, "a tensor of bytes")
    return held


_SIZES = form.listed(form.count)
_STEP = form.members(
    model=form.text,
    type=form.text,
    epoch=form.count,
    step=form.count,
    buffers=form.listed(form.text),
    parts=Absent(form.named(_piece), {}),
    evaluating=_list(form.text),
    gradients=form.named(_kind),
    loss=Absent(form.optional(_loss)),
    lost=Absent(form.text, ""),
    left_out=Absent(form.named(form.text), {}),
    passes=form.listed(form.mapping),
    as_pairs=form.members(**{name: form.listed(form.text) for name in (MODEL, PASSES)}),
    checksums=Absent(form.members(**{name: Absent(form.text) for name in (MODEL, PASSES)}), {MODEL: None, PASSES: None}),
    notes=_list(form.text),
)
_VALUES = form.members(
    args=form.listed(form.anything),
    kwargs=form.named(form.anything),
    gradients=form.named(_tensor, form.count),
)
_WORD = form.whole(0, 2**32 - 1)
_RANDOM = form.members(
    cpu=_bytes,
    accelerators=form.named(_bytes, form.listed(form.count)),
    python=form.optional(form.row(version=form.whole(3, 3), state=form.listed(_WORD, 625), gauss=form.optional(form.number))),
    numpy=form.optional(
        form.row(
            generator=form.one_of("MT19937"),
            key=form.listed(_WORD, 624),
            position=form.whole(0, 624),
            has_gauss=form.whole(0, 1),
            gauss=form.number,
        )
    ),
)
_PASS = form.members(
    args=form.anything,
    kwargs=form.anything,
    gradients=form.anything,
    random=form.members(**dict.fromkeys(("cpu", "accelerators", "python", "numpy"), form.anything)),
    autocast=form.named(_dtype, _device),
    is_changed=form.flag,
)


def _taken(model: dict[str, Tensor], name: str) -> Tensor:
    if name not in model:
        raise StoreError(f"its {STEP} names a tensor {name!r:.80} that {MODEL} lacks")
    return model.pop(name)


def _part(tensor: Tensor, piece: Piece, name: str) -> Tensor:
    if tuple(tensor.shape) != piece.shape:
        raise StoreError(
            f"the part of {name!r:.80} is {shape_text(tuple(tensor.shape))}, and its {STEP} says {shape_text(piece.shape)}"
        )
    return tensor


def _pass(given: Any, where: str, tensors: dict[str, Tensor]) -> Pass:
    def tensor(name: str) -> Tensor:
        return tensors[name] if name in tensors else form.refuse(where, name, f"the name of a tensor in {PASSES}")

    held = _PASS(given, where)
    value = _VALUES({name: decode(held[name], tensor) for name in ("args", "kwargs", "gradients")}, where)
    random = _RANDOM({name: decode(each, tensor) for name, each in held["random"].items()}, f"{where}.random")
    return Pass(random=RandomState(**random), autocast=held["autocast"], is_changed=held["is_changed"], **value)


def count_text(gradients: Mapping[str, str], total: int, *, is_sample: bool = False) -> str:
    """Return in words how many of *total* gradients are not finite; *is_sample*: there were more, which were not looked at."""
    kinds = " and ".join(word for kind, word in (("NaN", "NaN"), ("inf", "infinity")) if kind in gradients.values())
    return f"{len(gradients):,} of {total:,} gradients{' that were looked at' if is_sample else ''} hold {kinds}"
