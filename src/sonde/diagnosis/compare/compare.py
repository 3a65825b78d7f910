"""``compare``: find the first place where two models, two saved trackers or two runs part, and say why."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from sonde.checked import checked
from sonde.diagnosis.compare.aligned import NOT_COMPARED, Place, compared, frame_of, without_made_up
from sonde.diagnosis.compare.causes import causes_of, differing_parameters, not_called, setting_differences, words_of_setting
from sonde.diagnosis.compare.changes import disturbed
from sonde.diagnosis.compare.comparison import Comparison, first_parted
from sonde.diagnosis.compare.copies import Copies
from sonde.diagnosis.compare.formulas import where_it_differs
from sonde.diagnosis.compare.joined import liken, of_ranks, settle_gradients
from sonde.diagnosis.compare.live_runs import Loss, Request, live_side
from sonde.diagnosis.compare.names import Names, check_match
from sonde.diagnosis.compare.portions import Joined, cut_calls, joined_projections
from sonde.diagnosis.compare.proposal import few_in_common, proposed_match
from sonde.diagnosis.compare.recorded_runs import compare_recorded, is_recorded
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.sides import Kept, Side, of_stashes, of_store, without_partner
from sonde.diagnosis.compare.undoing import Explained, left_out
from sonde.diagnosis.compare.weights import matched, of_equal_values
from sonde.diagnosis.compare.written_out import count_joined
from sonde.diagnosis.distance import as_numbers, distance, readable
from sonde.engine import check_loss_fn, check_numbers, remap
from sonde.errors import ArgumentError
from sonde.keep import Tracker
from sonde.rules import Finding
from sonde.run import Run, TensorStore, open_tensors
from sonde.site import Site
from sonde.suggest import nearest
from sonde.view import RunComparison, progress
from sonde.words import many, names_text


class _NotGiven:
    """What stands in a signature for a batch that is not given: None is a batch, too."""

    def __repr__(self) -> str:
        return "<not given>"


_NOTHING: Any = _NotGiven()
_MATCHING = "one way to match them"
_LONGEST = 240  # characters of an error of torch, some of which list every backend


@overload
def compare(
    a: Run, b: Run, *, match: Mapping[str, str] | None = None, baseline: Sequence[Run | str | os.PathLike[str]] = ()
) -> RunComparison: ...


@overload
def compare(
    a: Any,
    b: Any,
    batch: Any = _NOTHING,
    *,
    batch_b: Any = _NOTHING,
    loss_fn: Loss | tuple[Loss, Loss] | None = None,
    optimizer: Any = None,
    match: Mapping[str, str] | None = None,
    noise: float | None = None,
    backward: bool = True,
    memory: int | None = None,
    verbose: bool = True,
) -> Comparison: ...


@checked("loss_fn", "match")
def compare(
    a: Any,
    b: Any,
    batch: Any = _NOTHING,
    *,
    batch_b: Any = _NOTHING,
    loss_fn: Loss | tuple[Loss, Loss] | None = None,
    optimizer: Any = None,
    match: Mapping[str, str] | None = None,
    noise: float | None = None,
    backward: bool = True,
    memory: int | None = None,
    verbose: bool = True,
    baseline: Sequence[Run | str | os.PathLike[str]] = (),
) -> Comparison | RunComparison:
    """Compare two models on one batch, saved trackers, or two recorded runs: the first place where they part, and the cause.

    >>> import sonde, torch
    >>> mine, theirs = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    >>> _ = mine.load_state_dict({"weight": theirs.weight.T, "bias": theirs.bias})
    >>> sonde.compare(mine, theirs, torch.randn(4, 3)).cause.message
    "b's weight equals a's weight.T"

    Copies of the models run, each from the present random state; models, batch, gradients and random state stay as they are. A
    model that is compiled, as a whole or in parts, runs compiled.
    Every output of a module is compared, and every input, in the order of execution; then gradients; then the step of an optimizer.
    How far rounding alone moves each tensor is measured by two more runs of each side, in which the result of every operation is
    multiplied by ``1 + d``, with random ``|d|`` up to the ``eps`` of its type.

    Two *runs* are compared by what they have recorded: the first step and layer at which they part beyond what seeds and noise
    explain; see :func:`sonde.view.run_comparison.compare_runs`. Of the arguments only *match* and *baseline* are for runs.

    Args:
        a, b: two models; or two trackers, opened folders or paths of folders (``Tracker.save``): a list of folders, or a folder of
            them, is what the ranks of one model have saved; or one of each; or two runs, opened or as paths.
        batch: the arguments of the models' call: a tuple or list holds positional arguments, a dict or another mapping keyword
            arguments, anything else is the only argument. Beside a saved side the batch of that; not for two saved sides.
        batch_b: the batch of ``b``, if it needs another form; the default is *batch* on the device of ``b``, and in the type of
            its parameters where *batch* has the type of those of ``a``.
        loss_fn: from the output to a scalar, which is sent backward; or two functions, for ``a`` and ``b``. By default the output's
            own ``loss``, or the mean square of the first floating-point tensor of the output; beside a saved side no gradients are
            compared then.
        optimizer: compare one step too: an optimizer of ``a``, from which one of the same class and settings is made for ``b``; or
            a function from parameters to an optimizer; or a tuple of two of these.
        match: from names of modules (or parameters) of ``a`` to those of ``b``, with ``*`` for any text:
            ``{"layers.*": "blocks.*"}``. Without it, where less than half of the names are in both, layers are matched by order,
            class, shapes and values; the notes of the result say how.
        noise: the relative distance that counts as equal everywhere, in place of the measured one.
        backward: compare gradients.
        memory: bytes of kept tensors that lie in main memory; more of them lie in files of the temporary folder (``TMPDIR``)
            meanwhile. The default is a quarter of the machine's memory.
        verbose: show the progress.
        baseline: of runs, repeats of ``a`` with other seeds, as runs or paths: what these differ by counts as equal.

    Returns:
        The comparison: ``ok``, ``culprit``, ``cause``, ``places``. In a console or notebook it shows a ladder of layers that
        stops at the culprit.

    Raises:
        ArgumentError: the two cannot be compared, or an argument cannot be used.
        ModelError, StoreError: a side is no model, or a folder cannot be read.
    """
    if is_recorded(a) or is_recorded(b):
        of_batch = {"batch": batch is not _NOTHING, "batch_b": batch_b is not _NOTHING, "loss_fn": loss_fn is not None}
        others = of_batch | {"optimizer": optimizer is not None, "noise": noise is not None, "backward": not backward}
        others |= {"memory": memory is not None}
        return compare_recorded(a, b, match, baseline, others)
    if baseline:
        raise ArgumentError("baseline= is for two runs: repeats of a with other seeds")
    _check(noise, batch, batch_b, backward, optimizer, memory)
    if isinstance(a, nn.Module) or isinstance(b, nn.Module):
        return _models(a, b, batch, batch_b, loss_fn, optimizer, match, noise, backward, Copies(memory), verbose)
    if batch is not _NOTHING or batch_b is not _NOTHING:
        raise ArgumentError("batch= is for two models; saved sides hold the tensors of their own batch")
    return _compared(_saved("a", a), _saved("b", b), match, noise)


def _check(noise: Any, batch: Any, batch_b: Any, backward: bool, optimizer: Any, memory: Any) -> None:
    if noise is not None and not (isinstance(noise, int | float) and noise >= 0):
        raise ArgumentError(
            f"noise={noise!r}: give the relative distance that counts as equal, as 1e-5; or leave it out to measure it"
        )
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 0):
        raise ArgumentError(f"memory={memory!r}: give a number of bytes, as 8 * 2**30; or leave it out for a quarter of the memory")
    if batch is _NOTHING and batch_b is not _NOTHING:
        raise ArgumentError("batch_b= is the batch of b beside batch=, which is missing")
    if optimizer is not None and not backward:
        raise ArgumentError("optimizer= needs gradients, and backward=False says not to compute any")


def _models(
    a: Any,
    b: Any,
    batch: Any,
    batch_b: Any,
    loss_fn: Any,
    optimizer: Any,
    match: Mapping[str, str] | None,
    noise: float | None,
    backward: bool,
    copies: Copies,
    verbose: bool,
) -> Comparison:
    if batch is _NOTHING:
        raise ArgumentError("models are compared on a batch: sonde.compare(a, b, batch)")
    both = isinstance(a, nn.Module) and isinstance(b, nn.Module)
    for side, model in (("a", a), ("b", b)):
        if isinstance(model, nn.Module):
            check_numbers(model, side)
    losses = loss_fn if isinstance(loss_fn, tuple) else (loss_fn, loss_fn)
    for each in losses:
        check_loss_fn(each)
    steps = _optimizers(optimizer)
    is_written_out = both and not any(hasattr(step, "param_groups") for step in steps) and count_joined(a) != count_joined(b)
    batches = (batch, (_for_b(a, b, batch) if both else batch) if batch_b is _NOTHING else batch_b)
    sides = []
    with progress("compare", verbose=verbose) as show:
        for name, model, given, loss, step in zip("ab", (a, b), batches, losses, steps, strict=True):
            if isinstance(model, nn.Module):
                request = Request(model, given, loss, step, backward, copies, not both, is_written_out)
                sides.append(live_side(name, request, measure=noise is None, progress=show))
            else:
                sides.append(_saved(name, model))
        show("differences")
        found = _compared(sides[0], sides[1], match, noise)
    return replace(found, notes=(*found.notes, note)) if (note := copies.note()) else found


def _optimizers(optimizer: Any) -> tuple[Any, Any]:
    if isinstance(optimizer, tuple):
        if len(optimizer) != 2:
            raise ArgumentError(f"optimizer= holds {len(optimizer)}: give one, or two, for a and b")
        return optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        kind: Any = type(optimizer)
        settings = {name: held for name, held in optimizer.param_groups[0].items() if name != "params"}
        if len(optimizer.param_groups) > 1:
            raise ArgumentError(
                "the optimizer of a has several groups of parameters: give b's optimizer too, optimizer=(of_a, of_b)"
            )
        return optimizer, lambda parameters: kind([{"params": list(parameters), **settings}])
    return optimizer, optimizer


def _for_b(a: nn.Module, b: nn.Module, batch: Any) -> Any:
    """Return *batch* on the device of ``b``, and in the type of its parameters where it has the type of those of ``a``."""
    one, other = _first_parameter(a), _first_parameter(b)
    if one is None or other is None or (one.device == other.device and one.dtype == other.dtype):
        return batch

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(other.device, other.dtype if tensor.dtype == one.dtype else tensor.dtype)

    return remap(batch, moved)


def _first_parameter(model: nn.Module) -> Tensor | None:
    return next((held for held in model.parameters() if held.is_floating_point() or held.is_complex()), None)


def _saved(name: str, side: Any) -> Side:
    if isinstance(side, Tracker):
        return of_stashes(name, list(side), f"a tracker of {len(side)} stashes")
    if isinstance(side, str | os.PathLike) and (below := _stores_below(Path(side))):
        side = below
    if isinstance(side, list | tuple) and side and all(isinstance(each, str | os.PathLike | TensorStore) for each in side):
        return of_ranks(name, [each if isinstance(each, TensorStore) else open_tensors(Path(each)) for each in side])
    if isinstance(side, TensorStore):
        return of_store(name, side)
    if isinstance(side, str | os.PathLike):
        return of_store(name, open_tensors(Path(side)))
    raise ArgumentError(
        f"{name}={side!s:.80} cannot be compared: give two models and a batch, or two trackers, or two folders of Tracker.save"
    )


def _stores_below(folder: Path) -> list[Path]:
    """Return the folders in *folder*, which is none of tensors itself, that ranks have saved."""
    if not folder.is_dir() or (folder / "index.json").exists():
        return []
    return sorted(each.parent for each in folder.glob("*/index.json"))


def _compared(a: Side, b: Side, match: Mapping[str, str] | None, noise: float | None) -> Comparison:
    types = a.types(), b.types()
    if match is not None:
        here, there = ([*types[place], *(kept.site.path for kept in side.kept)] for place, side in enumerate((a, b)))
        check_match(match, here, there)
    notes = [f"{side.name}: {note}" for side in (a, b) for note in side.notes]
    _liken(a, b, Names(match, *types))
    joined, failed = list[Joined](), list[Finding]()
    with left_out("projections", failed, _MATCHING):
        joined += [] if a.ranks or b.ranks else joined_projections(a, b)
    if match is None:
        with left_out("layers", failed, _MATCHING):
            match = proposed_match(a, b, {name for each in joined for name in (each.module, *each.parts)})
        if match:
            what = "few names are equal; the" if few_in_common(a, b) else "some"
            notes.insert(0, f"{what} layers were matched by order, class, shapes and values: match={match}")
    names = Names(match, types[0], types[1])
    for each in joined:
        if not any(names.of_b(name) for name in ([each.module] if each.is_in_a else each.parts)):
            names.add(each.divide(a, b))
            notes.append(f"{each.module} of {'a' if each.is_in_a else 'b'} is compared in parts: {', '.join(each.parts)}")
    for side, alone in ((a, names.only_a()), (b, names.only_b())):
        side.alone = {*alone} - {portion.module for portion in side.portions.values()}
    with left_out("parameters", failed, _MATCHING):
        names.add_parameters(_parameters(a, b, names))
    _liken(a, b, names)
    notes += _cut(a, b, names, failed) + [note for side in (a, b) if side.ranks and (note := settle_gradients(side))]
    places = _places(a, b, names, noise, failed)
    _check_common(a, b, names, places)
    apart = [place for place in places if place.remark.startswith(NOT_COMPARED)]
    if apart:
        which = names_text([str(place.site) for place in apart])
        count = many(len(apart), "place")
        notes.append(f"this rank holds parts of distributed tensors, which were not compared, at {count}: {which}")
    notes += _not_compared(a, b)
    culprit = first_parted(places)
    found = Explained()
    owner = ""
    if culprit is not None:
        scene = Scene(a, b, names, culprit, places, noise)
        owner = a.real(frame_of(culprit.key, a.forward).owner if culprit.stage == "forward" else scene.frame.owner)
        with left_out("causes", failed):
            found = causes_of(scene)
        for look in () if found.causes else (where_it_differs, differing_parameters):
            with left_out(look.__name__, failed):
                found.refuted.extend(look(scene))
    hints = list[Finding]()
    with left_out("modules that are not called", failed):
        hints.extend(() if culprit is None else not_called(a, b))
    with left_out("settings", failed):
        hints.extend(_hints(a, b, names, places, culprit))
    said = [cause.message for cause in found.causes]
    told = [_told(place, a, b) for place in places]
    where = "" if culprit is None else str(told[places.index(culprit)].site)
    return Comparison(
        _titled(a),
        _titled(b),
        tuple(told),
        None if culprit is None else told[places.index(culprit)],
        owner,
        tuple(replace(each, site=where) for each in found.causes),
        (*found.refuted, *(each for each in (*hints, *failed) if each.message not in said)),
        names.match,
        tuple(name for name in names.only_a() if name in a.alone),
        tuple(name for name in names.only_b() if name in b.alone),
        tuple(notes),
        tuple(_error(side) for side in (a, b) if side.error is not None),
    )


def _cut(a: Side, b: Side, names: Names, failed: list[Finding]) -> list[str]:
    """Cut calls of one side that are several in the other, and return which, in words."""
    pairs, notes = [] if a.ranks or b.ranks else list(names.pairs()), list[str]()
    for one, other, held in ((a, b, pairs), (b, a, [(beside, name) for name, beside in pairs])):
        with left_out("calls", failed, _MATCHING):
            cut = cut_calls(one, other, held)
            what = f"{other.name} calls in parts, as step by step, what {one.name} calls once, which is cut"
            notes += [f"{what}: {names_text(cut, 4)}"] if cut else []
    return notes


def _places(a: Side, b: Side, names: Names, noise: float | None, failed: list[Finding]) -> list[Place]:
    """Return the places that both sides have; of live ones without those that the code behind makes up for."""
    places = compared(a, b, names, noise)
    with left_out("differences that are made up for", failed, _MATCHING):
        if a.model is not None and b.model is not None and a.again is not None:
            return without_made_up(places, a, b, functools.partial(_depends, a))
    return places


def _depends(side: Side, first: Place, met: Place, factor: Tensor) -> bool:
    """Return whether the tensor at *met* moves where entries of that at *first* are multiplied by *factor*."""
    known, moved = next(kept for kept in side.kept if kept.key == met.key).main, list[float]()

    def take(kept: Kept) -> None:
        if kept.key == met.key and kept.main is not None and known is not None and kept.main[1].shape == known[1].shape:
            moved.append(distance(as_numbers(known[1]), as_numbers(kept.main[1])).relative)

    change = disturbed(side, first.site.path, first.call, factor)
    is_run = first.site.path not in side.portions and side.again is not None and side.again(change, False, take)
    return is_run and bool(moved) and moved[0] > max(_LEAST_MOVED, met.floor)


_LEAST_MOVED = 1e-3
"""Relative distance by which a tensor moves that is made of one that is moved by a quarter of its entries."""


def _not_compared(a: Side, b: Side) -> Iterator[str]:
    """Yield which tensors of what the models return were not compared, since the other side returns none of their shape."""
    root = Site("", "output")
    one, other = (next((kept for kept in side.kept if kept.site == root), None) for side in (a, b))
    if one is not None and other is not None:
        for which, leaves in zip("ab", without_partner(one, other), strict=True):
            if leaves:
                yield f"not compared, since the other side returns no such: {names_text(leaves)} of {which}"


def _liken(a: Side, b: Side, names: Names) -> None:
    """Tell the tensors of ranks which event of the other side is theirs."""
    if a.ranks or b.ranks:
        there = [kept.site.path for kept in b.kept]
        liken(a, b, {kept.key: (other, kept.call) for kept in a.kept if (other := names.site_of_b(kept.site, there)) is not None})


def _parameters(a: Side, b: Side, names: Names) -> dict[str, str]:
    """Return the parameters and buffers that have other names, by their names in ``a``: of matched modules, and of equal values."""
    here, there, found = a.modules(), b.modules(), {}
    for name, other in names.pairs():
        if name not in here or other not in there or name in a.portions or other in b.portions:
            continue
        own, beside = (dict(module.named_parameters(recurse=False)) for module in (here[name], there[other]))
        if own.keys() != beside.keys():
            readable_own, readable_beside = ({key: readable(held) for key, held in each.items()} for each in (own, beside))
            for one, two in matched(readable_own, readable_beside):
                found[f"{name}.{one}" if name else one] = f"{other}.{two}" if other else two
    if a.model is None or b.model is None:
        return found
    held = [{key: readable(each) for key, each in _tensors(side.model)} for side in (a, b) if side.model is not None]
    known = {key: found.get(key) or names.parameter_of_b(key, held[1]) for key in held[0]}
    taken = {other for other in known.values() if other is not None}
    lonely = [key for key, other in known.items() if other is None], [key for key in held[1] if key not in taken]
    return found | of_equal_values(*({key: each[key] for key in keys} for keys, each in zip(lonely, held, strict=True)))


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from ((name, held) for name, held in model.named_buffers() if held.is_floating_point())


def _told(place: Place, a: Side, b: Side) -> Place:
    """Return *place* with the names of the modules themselves in the place of those of portions."""
    here, there = _real(a, place.site), _real(b, place.other)
    if (here, there) == (place.site.path, place.other.path):
        return place
    remark = "; ".join(filter(None, (f"{place.site.path} in a, {place.other.path} in b", place.remark)))
    return replace(place, site=replace(place.site, path=here), other=replace(place.other, path=there), remark=remark)


def _real(side: Side, site: Site) -> str:
    return side.real(site.layer) + site.path[len(site.layer) :]


def _titled(side: Side) -> str:
    if side.model is None:
        return side.title
    kinds = dict.fromkeys(str(held.dtype).removeprefix("torch.") for held in side.model.parameters())
    return f"{side.title} ({', '.join([*kinds][:3])})" if kinds else side.title


def _check_common(a: Side, b: Side, names: Names, places: list[Place]) -> None:
    if places:
        return
    for side in (a, b):
        if side.error is not None:
            raise side.error
    here, there = list(a.types()), list(b.types())
    first = next((name for name in here if name), "(root)")
    raise ArgumentError(
        f"the two sides have no place in common: a has {len(here)} modules that ran, b {len(there)}. "
        f"Give match=, as {{{first!r}: ...}}. In b: {nearest(first, there)}"
    )


def _error(side: Side) -> str:
    text = f"{type(side.error).__name__}: {side.error}".splitlines()[0]
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition('. ')[0] or text[:_LONGEST]} ..."
    return f"{side.name} raised in the {side.stage}, and was compared up to there: {text}"


def _hints(a: Side, b: Side, names: Names, places: list[Place], culprit: Place | None) -> Iterator[Finding]:
    """Settings and modes that differ elsewhere, and types."""
    here, there = a.modules(), b.modules()
    for name, other in names.pairs():
        one, two = here.get(name), there.get(other)
        if one is None or two is None or (culprit is not None and name == culprit.site.owner.path):
            continue
        if name in a.portions or other in b.portions:
            continue
        for setting, x, y in setting_differences(one, two):
            yield Finding("setting", words_of_setting(name, setting, x, y), name, severity="note")
    modes = {name: (here[name].training, there[other].training) for name, other in names.pairs() if name in here and other in there}
    differing = [name for name, (x, y) in modes.items() if x != y]
    if differing:
        which = "all modules" if len(differing) == len(modes) else ", ".join(name or "(root)" for name in differing[:3])
        sides = ("training", "evaluation") if modes[differing[0]][0] else ("evaluation", "training")
        yield Finding("training_mode", f"{which}: {sides[0]} mode in a, {sides[1]} mode in b", severity="note")
    typed = [place for place in places if " in a, " in place.remark and not place.parts]
    if typed and culprit is None:
        yield Finding(
            "dtype",
            f"{typed[0].remark} from {typed[0].site} on: equal up to the rounding of the coarser type",
            str(typed[0].site),
            severity="note",
        )
    elif culprit is None:
        yield from _of_rounding(a, b, places)


def _of_rounding(a: Side, b: Side, places: list[Place]) -> Iterator[Finding]:
    """Yield where rounding begins to move one side far more than the other, though all tensors are of one type."""
    for place in places:
        moved = {"a": a.scatter.get(place.key, 0.0), "b": b.scatter.get(place.other_key, 0.0)}
        less, more = sorted(moved, key=lambda side: moved[side])
        if place.stage == "forward" and 0 < _COARSER * moved[less] < moved[more] < _CHOSEN:  # else it changes a choice
            times = moved[more] / moved[less]
            message = (
                f"from {place.site} on rounding moves {more} {times:,.0f} x as far as {less}: in front of it {more} computes in a "
                "coarser type, or in a way that loses digits; equal up to that"
            )
            yield Finding("dtype", message, str(place.site), severity="note")
            return


_CHOSEN = 0.1
_COARSER = 1000.0
"""How many times as far rounding moves one side that computes in a coarser type: float16 has 8,192 x the spacing of float32."""
