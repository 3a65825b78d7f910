"""Notice trainable parameters that the training leaves as they are: those of no optimizer, and those that no gradient reaches."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.diagnosis import written_at
from sonde.engine import SiteHook, parameters_of, raise_if_foreign, version_of
from sonde.inspector.forward_modes import acts_by_mode
from sonde.inspector.measurement.execution_order import Ran
from sonde.rules import RULES, Chosen, Finding, Severity, among
from sonde.stats import HostCopy, in_memory
from sonde.words import percent

_LOOKS = 2 * int(RULES["unmoved"].thresholds["least"])  # logged steps, from the first on
_NEAR = 0.7  # distance of a copy, of its size: initial weights are 1.4 of their size apart
_SAMPLE, _ENOUGH = 4096, 256  # elements of a frozen weight that are looked at, at most; and the fewest that tell something
_LEAST = {False: _ENOUGH, True: 200}  # of a table, whose normal numbers tell more
_SURE = 2048  # elements of frozen weights in a row: a training that moves each by a hundredth takes ten of these beyond their bound
_SHARED = 3  # weights of one deviation, which a training would have moved apart
_EDGE, _MANY = 0.02, 1024  # of the range of uniform numbers; and how many tell these from trained ones, whatever their bounds
_STD = 0.02  # of the normal numbers that transformers begin with
_MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_REPLACED = (
    "the optimizer holds as many parameters that are none of the model's: where a layer was replaced, or moved, make the optimizer "
    "after that"
)
_NOT_FROZEN = "train it (requires_grad_(True)), or give it the weights of a training (load_state_dict())"
_NOT_IN_LOSS = (
    "the model returns what this layer makes, and no loss takes it: add the loss of this output to the one that is sent "
    "backward, or look for what cuts it off (a detach()); freeze the layer with requires_grad_(False) if that is meant"
)
_NOT_CALLED = "the model holds this part and never calls it: call it in forward(), or take it out"
_NOT_READ = "forward() runs, and nothing that this parameter takes part in comes to the loss: use it there (add it), or take it out"
_NOT_USED = (
    "the model calls this part, and nothing of what it returns comes to the loss: look whether that is used at all, and is not "
    "overwritten or taken from another place, or for what cuts it off (a detach(), no_grad(), an argmax); freeze it with "
    "requires_grad_(False) if that is meant"
)
_RESTING = (
    "call eval() on what is frozen after each model.train(): statistics of its normalisations go over to the new data, and its "
    "dropouts make noise of features that nothing adapts any more"
)
_MOST = 0.5  # share of the layers without an optimizer; if so many are, the others may be what is meant to be trained: a note


@dataclass
class _Left:
    """A parameter that was left as it is so far.

    Attributes:
        hook: around the steps of the parameter.
        version: how often the parameter had been changed in place when it was first looked at.
        is_held: an optimizer holds the parameter, and no gradient has come to it; otherwise none is known to hold it.
        steps: how many logged steps left it: with a gradient if it is not held.
        had: in how many of these steps a backward pass had left a gradient, which was gone as the optimizer stepped.
        gradient: what there was at the last look, held weakly, since another one may get its memory, and how often it had been
            written: one that stays is of another training.
    """

    hook: SiteHook
    version: int
    is_held: bool
    steps: int = 0
    had: int = 0
    gradient: tuple[ref[Tensor], int] | None = None

    def is_left(self, had: Collection[int]) -> bool:
        """Look at the parameter after a logged step; return whether it is still left as it is."""
        parameter = self.hook.target
        if not (parameter.requires_grad and _is_current(self.hook) and version_of(parameter) == self.version):
            return False
        before, now = self.gradient, parameter.grad
        self.gradient = None if now is None else (ref(now), version_of(now))
        stays = before is not None and self.gradient is not None and before[0]() is now and before[1] == self.gradient[1]
        has_gradient = now is not None and (self.is_held or not stays)
        self.steps += has_gradient is not self.is_held
        self.had += self.is_held and id(parameter) in had
        return not has_gradient if self.is_held else not self.hook.was_stepped()


class _NeverTrained:
    """Which weights that nothing moves are exactly as initialised: their numbers at one moment, copied without a wait for a device.

    They are uniform up to their very bounds, as torch begins within 1 / sqrt(inputs); or normal with a deviation of 0.02, or with
    one that several have, where frozen norms are 1 and biases 0 throughout: a training moves some element beyond that. Tables of
    embeddings are normal with a deviation of 1.
    """

    def __init__(self, frozen: Sequence[SiteHook]) -> None:
        known = [hook for hook in frozen if hook.target.is_floating_point() and not hook.target.is_inference()]
        plain = [hook for hook in known if in_memory(hook.target.detach()) is not None]
        self._weights = [
            hook for hook in plain if _mixes(hook) or (isinstance(hook.module, nn.Embedding) and hook.target.dim() > 1)
        ]
        self._weights = [hook for hook in self._weights if hook.target.numel() >= _LEAST[_is_table(hook)]]
        self._others = [hook for hook in plain if hook.target.dim() == 1 and hook.target.numel()] if self._weights else []
        self._versions = {id(hook): version_of(hook.target) for hook in self._weights}
        self.tables: list[SiteHook] = []  # those whose numbers are normal, of whatever deviation: once hooks() was asked
        self.alike: list[SiteHook] = []  # of these the ones around 0 whose deviation three of them have
        with torch.inference_mode(False), torch.no_grad():
            numbers = [_moments(hook.target.detach()) for hook in self._weights]
            numbers += [(hook.target.detach() - _at_first(hook)).abs().max().double() for hook in self._others]
            self._numbers = HostCopy.of(numbers)

    def hooks(self) -> list[SiteHook]:
        """Return those of the weights that were as initialised, and that nothing has written into since."""
        numbers = self._numbers.unpack()
        is_plain = len(self._others) > 0 and not any(float(each) for each in numbers[len(self._weights) :])
        found, usual = [], _shared_sizes(self._weights, numbers) if is_plain else [_STD]
        self.tables, sizes = [], dict[SiteHook, tuple[float, float]]()
        for hook, (largest, mean, square, fourth, edge, scatter) in zip(self._weights, numbers[: len(self._weights)], strict=True):
            weight, count = hook.target, min(hook.target.numel(), _SAMPLE)
            bound, size, error = math.prod(weight.shape[1:]) ** -0.5, math.sqrt(square), 1 / math.sqrt(count)
            is_within = bound * (1 - 12 / count) <= largest <= bound * (1 + torch.finfo(weight.dtype).eps)
            is_uniform = is_within and abs(size * math.sqrt(3) / bound - 1) <= 2 * error
            is_uniform |= _is_flat(largest, mean, square, fourth, edge, count)
            is_table = _is_table(hook)
            std = 1.0 if is_table else min([(abs(each - size), each) for each in usual])[1]
            is_normal = abs(size / std - 1) <= 3 * error and abs(mean) <= 4 * std * error and largest <= 6 * std
            is_drawn = is_uniform or (is_plain and is_normal)
            if is_table:  # tables that are trained may be scaled to that size, and are not normal then
                is_drawn = is_normal and abs(fourth / square**2 - 3) <= 40 * error
            if is_table and abs(fourth / square**2 - 3) <= 15 * error and abs(scatter - 1) <= 3 * math.sqrt(2 / len(weight)):
                self.tables.append(hook)
                sizes |= {hook: (size, 3 * error)} if abs(mean) <= 4 * size * error else {}
            if is_drawn and version_of(weight) == self._versions[id(hook)]:
                found.append(hook)
        shared = [
            one for one, _ in sizes.values() if sum(abs(each / one - 1) <= error for each, error in sizes.values()) >= _SHARED
        ]
        self.alike = [hook for hook, (size, error) in sizes.items() if any(abs(each / size - 1) <= error for each in shared)]
        return found


class LeftOut:
    """The parameters of one model that its first logged steps leave as they are. They have no rows, since no step is made of them.

    It is looked at in few logged steps, at the parameters that were left out in all of them so far: no values are read.

    Args:
        chosen: the rules that are applied.
        model: the model.
    """

    def __init__(self, chosen: Chosen, model: nn.Module) -> None:
        self._chosen, self._model = chosen, model
        self._left: list[_Left] | None = None
        self._frozen: list[SiteHook] = []  # of parameters that are not trained so far
        self._raw: _NeverTrained | None = None  # what was frozen at the first look
        self._acting: dict[str, tuple[nn.Module, list[int]]] = {}  # frozen parts that act as in training, and versions of weights
        self._blank: list[tuple[SiteHook, HostCopy]] = []  # frozen weights: their largest magnitude, and that of a gradient before
        self._looks = 0
        self._first = (0, 0)  # epoch and step of the first look
        self._layers = 0  # that have trainable parameters
        self._strange = 0  # parameters that the optimizer of the first look holds, and that are none of the model's
        self._had: set[int] = set()  # ids of the parameters that backward passes of this step have left a gradient
        self._found: tuple[Finding, ...] = ()

    @property
    def looks(self) -> bool:
        """Whether further logged steps matter."""
        lasts = self._left != [] or self._raw is not None or bool(self._blank)
        return (self._looks < _LOOKS and lasts) or any(hook.target.requires_grad for hook in self._frozen)

    def look_at_gradients(self, hooks: Sequence[SiteHook]) -> None:
        """Note which parameters a backward pass of the step has left a gradient."""
        self._had.update(id(hook.target) for hook in hooks if hook.target.grad is not None)

    def check(self, hooks: Sequence[SiteHook], held: frozenset[int] | None, epoch: int, step: int, ran: Mapping[str, Ran]) -> None:
        """Look at the parameters after a logged step.

        Args:
            hooks: of all parameters.
            held: the ids of the parameters of the optimizer that has made the step; None if that is not known.
            epoch, step: the moment.
            ran: what is known of each module that runs.
        """
        had, self._had = self._had, set()
        if held is None:
            self._left = []
        elif self._left is None:
            self._first, self._strange = (epoch, step), len(held.difference(id(hook.target) for hook in hooks))
            self._frozen = [hook for hook in hooks if not hook.is_on_module and not hook.target.requires_grad]
            self._left = list(self._first_left(hooks, held))
            self._look_at_frozen(hooks, ran)
        elif thawed := [hook for hook in self._frozen if hook.target.requires_grad]:
            self._frozen = [hook for hook in self._frozen if not hook.target.requires_grad]
            self._first, self._looks = (epoch, step), 0
            self._left = [*self._left, *self._first_left(thawed, held)]
        for each in self._left or ():
            each.is_held |= held is not None and id(each.hook.target) in held  # one of several optimizers may step first
        self._left = [each for each in self._left or () if each.is_left(had)]
        self._looks += 1
        if self._looks == _LOOKS:
            self.end(hooks, ran)

    def _first_left(self, hooks: Sequence[SiteHook], held: frozenset[int]) -> Iterator[_Left]:
        trained = [hook for hook in hooks if not hook.is_on_module and _is_trained(hook.target)]
        self._layers += len({id(hook.module) for hook in trained})
        for hook in trained:
            is_held = id(hook.target) in held
            if hook.target.grad is None if is_held else not hook.was_stepped():
                yield _Left(hook, version_of(hook.target), is_held)

    def end(self, hooks: Sequence[SiteHook], ran: Mapping[str, Ran]) -> None:
        """Judge what was seen, unless that is done."""
        left, self._left = self._left or [], []
        raw: Sequence[SiteHook] = [] if self._raw is None else self._raw.hooks()
        tables, alike = ([], []) if self._raw is None else (self._raw.tables, self._raw.alike)
        self._raw = None
        self._found = (*self._found, *self._never_trained(raw, tables, hooks, ran), *self._frozen_at_zero())
        self._found += () if (acting := self._told_acting()) is None else (acting,)
        if not left:
            return
        loose = [each for each in left if not each.is_held and not each.hook.was_stepped()]
        are_most = len({id(each.hook.module) for each in loose}) >= _MOST * self._layers and not _adapts_frozen(loose, hooks)
        was_replaced = len(loose) == self._strange
        unmoved = self._judged("unmoved", loose, ran)
        if unmoved is not None and was_replaced:
            unmoved = replace(unmoved, advice=f"{_REPLACED}; else {unmoved.advice}")
        cleared = [each for each in left if 2 * each.had > each.steps]
        grave = self._must_move(loose, [*raw, *alike], hooks, ran) if are_most and not was_replaced else "bad"
        found = [unmoved and replace(unmoved, severity=grave)]
        found.append(self._judged("gradient_cleared", cleared, ran))
        out = {id(each.hook) for each in left}
        reached = [hook for hook in hooks if id(hook) not in out and _is_trained(hook.target)]
        cut = [each for each in left if each.is_held and each not in cleared]
        if copied := _copied(cut, reached):
            cut = [each for each in cut if id(each.hook.module) not in copied and _has_matrices(each.hook)]
        found += self._unreached(cut, reached, ran)
        self._found = (*self._found, *[each for each in found if each is not None])

    def _must_move(
        self, loose: Sequence[_Left], raw: Sequence[SiteHook], hooks: Sequence[SiteHook], ran: Mapping[str, Ran]
    ) -> Severity:
        """Return how grave it is that no optimizer moves most layers: that is all that could be trained, or they never were.

        A head on trained layers may be all that is meant to be trained, and a layer or two may be random features; where the last
        layer is not moved either, they are not. Layers of enough elements say whether any was trained.
        """
        left, never = {id(each.hook) for each in loose}, {id(hook) for hook in raw}
        weights = [each for each in loose if isinstance(each.hook.module, (*_MIXING, nn.Embedding)) and each.hook.target.dim() > 1]
        placed = [(place, hook) for hook in hooks if _mixes(hook) and (place := _place(hook, ran)) is not None]
        last = max(placed, key=lambda two: two[0], default=(0, None))[1]
        is_last = last is not None and any(each.hook is last for each in weights)
        is_half = 2 * len({id(each.hook.module) for each in loose}) <= self._layers
        if (is_last and is_half) or all(id(hook) in left for hook in hooks if not hook.is_on_module and _is_trained(hook.target)):
            return "bad"
        known = [each.hook for each in weights if each.hook.target.numel() >= _LEAST[_is_table(each.hook)]]
        drawn = [hook for hook in known if id(hook) in never]
        if 2 * len(drawn) <= len(known):
            return "note"
        if last is not None and is_last:
            return "bad" if last.target.numel() < _ENOUGH or last in drawn else "note"
        if len(drawn) > RULES["frozen_raw"].thresholds["few"]:
            return "bad"
        return "warn" if sum(hook.target.numel() for hook in drawn) >= _MANY else "note"

    def _look_at_frozen(self, hooks: Sequence[SiteHook], ran: Mapping[str, Ran]) -> None:
        """Copy numbers of the weights that are frozen, or in no optimizer, if these are plain."""
        still = [*self._frozen, *[each.hook for each in self._left or () if not each.is_held]]
        try:
            self._acting = dict(self._frozen_in_training(hooks, ran)) if self._chosen.is_on("norm_setting") else {}
            self._raw = _NeverTrained(still) if still and self._chosen.is_on("frozen_raw") else None
            self._blank = list(_sizes_around(self._frozen, hooks, ran)) if self._chosen.is_on("constant_weight") else []
        except Exception as error:
            raise_if_foreign(error)

    def _frozen_in_training(
        self, hooks: Sequence[SiteHook], ran: Mapping[str, Ran]
    ) -> Iterator[tuple[str, tuple[nn.Module, list[int]]]]:
        """Yield what runs without a graph before all that is trained, as in training, and how often it was written into."""
        layers = [(seen, hook) for hook in hooks if (seen := ran.get(hook.name.rpartition(".")[0])) is not None]
        begins = min((seen.place for seen, hook in layers if seen.has_graph and _is_trained(hook.target)), default=-1)
        first = min((seen.place for seen, _ in layers if not seen.has_graph), default=begins)
        for name, module in self._model.named_modules():
            seen = ran.get(name)
            acts = module.training and acts_by_mode(module) and getattr(module, "momentum", 1.0) != 0  # a momentum of 0 moves none
            if acts and seen is not None and first < seen.place < begins and not seen.has_graph:
                yield name, (module, [version_of(each) for each in module.parameters()])

    def _told_acting(self) -> Finding | None:
        """Return the note that frozen parts, which nothing else has written into, work as in training, as of many fine-tunings."""
        held, self._acting = self._acting, {}
        still = {
            name: module
            for name, (module, versions) in held.items()
            if module.training and versions == [version_of(each) for each in module.parameters()]
        }
        norms = [name for name, module in still.items() if hasattr(module, "running_mean")]
        rates = [rate for name, module in still.items() if name not in norms and isinstance(rate := getattr(module, "p", 0), float)]
        found = self._chosen.judge("norm_setting", math.nan, 0.0) if still else None
        if found is None:
            return None
        names = [*norms, *[name for name in still if name not in norms]]
        does = "its statistics move" if norms else f"it drops {percent(max(rates, default=0.0))}"
        message = among(names, f"frozen, and in training mode: {does}")
        told = found.at(f"{names[0]}:output", *self._first, message)
        return replace(told, first_step=self._first[1], severity="note", advice=_RESTING, places=tuple(names))

    def _never_trained(
        self, raw: Sequence[SiteHook], tables: Sequence[SiteHook], hooks: Sequence[SiteHook], ran: Mapping[str, Ran]
    ) -> Iterator[Finding]:
        """Yield a finding about frozen layers in a row that were never trained, a note where no trained one takes what they return.

        Nor is more than a note said of a network that is the twin of a trained one, as a target that another part learns. Few of
        them are a note, and a warning, too, which counts where the loss stands. Frozen *tables* of normal numbers that are looked
        up before them are named with them.
        """
        ids = {id(hook) for hook in raw if not hook.target.requires_grad and _is_current(hook)}
        weights = [hook for hook in hooks if _mixes(hook)]
        known = sorted(((place, hook) for hook in weights if (place := _place(hook, ran)) is not None), key=lambda two: two[0])
        small = {id(hook) for _, hook in known if not hook.target.requires_grad and hook.target.numel() < _ENOUGH}
        told = [each for each in known if id(each[1]) not in small]
        rows = [list(held) for is_raw, held in groupby(told, key=lambda two: id(two[1]) in ids) if is_raw]
        rows = [row for row in rows if sum(hook.target.numel() for _, hook in row) >= _SURE]
        if not rows:
            yield from self._drawn_tables(tables, hooks)
            return
        row = max(rows, key=len)
        found = self._chosen.judge("frozen_raw", float(len(row)))
        if found is None:
            return
        end, last = row[-1]
        trained = {id(hook.module) for hook in hooks if not hook.is_on_module and _is_trained(hook.target)}
        behind = next((hook for place, hook in known if place >= end and id(hook.module) in trained), None)
        sizes = (
            last.target.shape[:1],
            last.target.shape[-1:],
        )  # the outputs of a weight are its lines, of transformers its columns
        made = last.module.hidden_size if isinstance(last.module, nn.RNNBase) else sizes[_is_transposed(last)][0]
        taken = 0 if behind is None else behind.target.shape[0] if _is_transposed(behind) else math.prod(behind.target.shape[1:])
        takes = behind is not None and (behind is last or taken % made == 0)
        takes |= behind is None and not any(hook.target.dim() > 1 and id(hook.module) in trained for hook in hooks)  # norms alone
        others = {_below(hook) for hook in weights if hook.target.requires_grad}
        is_twin = all(_below(hook) in others for _, hook in row)
        names = [hook.sites["param"].name for each in (row, *[each for each in rows if each is not row]) for _, hook in each]
        begins = min((place for place, hook in known if id(hook.module) in trained), default=math.inf)
        first = row[0][0]
        before = [hook for hook in tables if not hook.target.requires_grad and first <= begins and (_place(hook, ran) or 0) < first]
        names += [hook.sites["param"].name for hook in before]
        told_at = found.at(str(row[0][1].sites["param"]), *self._first, among(names, found.message))
        told_at = replace(told_at, first_step=self._first[1], places=tuple(names))
        if takes and not is_twin:
            yield replace(told_at, severity="warn")
        if found.severity == "note" or not takes or is_twin:
            yield replace(told_at, severity="note")

    def _drawn_tables(self, tables: Sequence[SiteHook], hooks: Sequence[SiteHook]) -> Iterator[Finding]:
        """Yield that frozen *tables* were never trained, of a model that trains biases alone beside them: numbers for one index."""
        wide = (hook for hook in hooks if not hook.is_on_module and hook.target.dim() > 1 and math.prod(hook.target.shape[1:]) > 1)
        names = [hook.sites["param"].name for hook in tables if not hook.target.requires_grad]
        found = (
            None if any(_is_trained(hook.target) for hook in wide) or not names else self._chosen.judge("frozen_raw", len(names))
        )
        if found is not None:
            told = found.at(f"{names[0]}:param", *self._first, among(names, found.message))
            yield replace(told, first_step=self._first[1], places=tuple(names), severity="bad")

    def _frozen_at_zero(self) -> Iterator[Finding]:
        """Yield a finding about frozen weights that are zero throughout, where no gradient comes to what runs before them."""
        blank, self._blank = self._blank, []
        names = [hook.sites["param"] for hook, sizes in blank if not any(float(each) for each in sizes.unpack())]
        found = self._chosen.judge("constant_weight", 0.0, 0.0) if names else None
        if found is not None:
            message = among([each.name for each in names], "is frozen, and zero throughout: no gradient goes through it")
            yield replace(found.at(str(names[0]), *self._first, message), first_step=self._first[1], advice=_NOT_FROZEN)

    def _unreached(self, cut: Sequence[_Left], reached: Sequence[SiteHook], ran: Mapping[str, Ran]) -> Iterator[Finding | None]:
        """Yield a finding about parameters that a gradient must come to, and a note about those that may be unused.

        It must come to all of a model, to what runs before all that is reached, to what has no graph, and to what repeats: the
        same part of a later block is reached. Elsewhere what is returned may be unused, as that of a pooler, or may be cut off:
        it is a warning where layers that learn run behind, and a note where what was returned is passed on, or is last, and of what
        a library's module holds. It is a warning, too, of what a model of the user's own returns, and of what it holds and never
        calls, as no other layer is.
        """
        places = [place for hook in reached if (place := _place(hook, ran)) is not None]
        begins, ends = min(places, default=0), max(places, default=-1)
        blocks: dict[str, int] = {}  # by the same part of all blocks of a row, the place of the last one that is reached
        for hook in reached:
            if part := _part_of_blocks(hook):
                blocks[part] = max(blocks.get(part, -1), _place(hook, ran) or -1)
        graded: dict[Severity, list[_Left]] = {"bad": [], "warn": [], "note": []}
        advice: dict[str, str] = {}  # by site
        given = {id(each) for each in cut if self._is_given_away(each.hook, ran)}
        unused = {id(each) for each in cut if self._is_forgotten(each.hook, ran)}
        tables = {id(each) for each in cut if self._is_unread_table(each.hook, ran)}
        learning = {id(hook.module) for hook in reached}
        given = given if all(id(each) in given | unused for each in cut) else set()  # a whole network may make targets
        for each in cut:
            seen, place = ran.get(each.hook.name.rpartition(".")[0]), _place(each.hook, ran)
            last = blocks.get(_part_of_blocks(each.hook))
            if not places or (place is not None and place < begins):
                graded["bad"].append(each)
            elif self._is_of_users("") and id(each) in given:
                advice[str(each.hook.sites["param"])] = _NOT_IN_LOSS
                graded["warn"].append(each)
            elif self._is_of_users("") and id(each) in unused:
                advice[str(each.hook.sites["param"])] = _NOT_CALLED
                graded["warn"].append(each)
            elif id(each) in tables:
                advice[str(each.hook.sites["param"])] = _NOT_READ
                graded["warn"].append(each)
            elif seen is None or place is None:
                graded["note"].append(each)
            elif place < ends and (not seen.has_graph or (last is not None and place < last)):
                graded["bad"].append(each)
            else:  # the last one of a row may be left unused, as the backcast of a forecaster
                is_own = last is None and self._is_of_users(self._holder(each.hook))
                is_cut = is_own and place < ends and not _is_passed_on(each.hook, ran)
                is_beside = id(each.hook.module) in learning  # a parameter that learns
                advice |= {str(each.hook.sites["param"]): _NOT_READ if is_beside else _NOT_USED} if is_cut else {}
                graded["warn" if is_cut else "note"].append(each)
        strong = [*graded["bad"], *graded["warn"]]
        found = self._judged("unreached", strong, ran)
        if found is not None and not graded["bad"]:
            found = replace(found, severity="warn", advice=advice.get(found.site, found.advice))
        yield found
        noted = self._judged("unreached", graded["note"], ran)
        yield None if noted is None else replace(noted, severity="note")

    def _is_given_away(self, hook: SiteHook, ran: Mapping[str, Ran]) -> bool:
        """Return whether the model returns what the layer has made, which no loss takes; a pooler may be left unused."""
        seen = ran.get(hook.name.rpartition(".")[0])
        return seen is not None and seen.is_returned and seen.has_graph and "pool" not in hook.name.lower()

    def _is_forgotten(self, hook: SiteHook, ran: Mapping[str, Ran]) -> bool:
        """Return whether the parameter is in a part that a module holds and never calls, where it calls others.

        It may be meant of one of a list or a dict, and of one that is like another one, as an expert is.
        """
        parts = hook.name.split(".")[:-1]
        inside = (parts[:length] for length in range(1, len(parts) + 1))
        unused = next((each for each in inside if not any(_is_in(name, ".".join(each)) for name in ran)), None)
        around = "" if unused is None else ".".join(unused[:-1])
        if unused is None or around not in ran or not self._is_of_users(around):
            return False
        children = dict(self._model.get_submodule(around).named_children())
        own = children.pop(unused[-1])
        return not isinstance(own, (nn.ModuleList, nn.ModuleDict)) and not any(_is_like(own, each) for each in children.values())

    def _is_unread_table(self, hook: SiteHook, ran: Mapping[str, Ran]) -> bool:
        """Return whether the parameter is a table of rows, as of positions, of a module of the user's own that runs without it."""
        path, _, _ = hook.name.rpartition(".")
        return path in ran and hook.target.numel() > hook.target.shape[-1] > 1 and self._is_of_users(path)

    def _holder(self, hook: SiteHook) -> str:
        """Return the path of the innermost module around a parameter that is none of torch's own."""
        path = hook.name.rpartition(".")[0]
        while path and type(self._model.get_submodule(path)).__module__.startswith("torch."):
            path = path.rpartition(".")[0]
        return path

    def _is_of_users(self, path: str) -> bool:
        """Return whether the module at *path* is of the user's own code: libraries hold and return more than one needs."""
        code = written_at(getattr(type(self._model.get_submodule(path)), "forward", None))
        return bool(code) and "/" not in code

    def never_stepped(self, hooks: Sequence[SiteHook], passes: int, epoch: int, step: int, ran: Mapping[str, Ran]) -> None:
        """Judge a model that no optimizer has stepped, while another one was, or one was given: *passes* left it gradients."""
        left = [_Left(hook, 0, False, passes) for hook in hooks if not hook.is_on_module and _is_trained(hook.target)]
        self._first = epoch, step
        found = self._judged("unmoved", [each for each in left if each.hook.target.grad is not None], ran)
        self._found = () if found is None else (found,)

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far."""
        return self._found

    def _judged(self, rule: str, left: Sequence[_Left], ran: Mapping[str, Ran]) -> Finding | None:
        found = [(each, judged) for each in left if (judged := self._chosen.judge(rule, float(each.steps))) is not None]
        if not found:
            return None
        found.sort(key=lambda two: (two[0].hook.target.dim() < 2, _place(two[0].hook, ran) or 0, two[0].hook.name))
        (first, judged), names = found[0], [each.hook.sites["param"].name for each, _ in found]
        told = judged.at(str(first.hook.sites["param"]), *self._first, among(names, judged.message))
        return replace(told, first_step=self._first[1])


def _moments(weight: Tensor) -> Tensor:
    """Return the largest magnitude and the means of first, second and fourth powers of a sample of a *weight*.

    Then come the share of the sample that lies in the outer fiftieth, up to the largest magnitude, and how far sizes of lines
    scatter, of what those of normal numbers of one deviation do.
    """
    flat = weight.flatten()
    sample = flat[:: max(1, len(flat) // _SAMPLE)][:_SAMPLE].double()
    sizes = sample.abs()
    edge = (sizes > (1 - _EDGE) * sizes.max()).double().mean()
    lines = weight.flatten(1)[:_SAMPLE].double().square().mean(1)
    own = (lines > 0).double()  # that of padding is zero
    mean = lines.sum() / own.sum()
    scatter = ((lines / mean - 1).square() * own).sum() / own.sum() * math.prod(weight.shape[1:]) / 2
    return torch.stack([sizes.max(), sample.mean(), sample.square().mean(), sample.pow(4).mean(), edge, scatter])


def _shared_sizes(weights: Sequence[SiteHook], numbers: Iterable[Any]) -> list[float]:
    """Return the deviations of normal numbers that three of the *weights* or more have in common, and that of transformers."""
    known: list[tuple[float, float]] = []  # with the error of each
    for hook, (_, mean, square, fourth, *_) in zip(weights, numbers, strict=False):
        size, error = math.sqrt(square), 1 / math.sqrt(min(hook.target.numel(), _SAMPLE))
        if size > 0 and abs(mean) <= 4 * size * error and abs(fourth / square**2 - 3) <= 20 * error and _mixes(hook):
            known.append((size, 3 * error))
    shared = [size for size, error in known if sum(abs(other / size - 1) <= error for other, _ in known) >= _SHARED]
    return [_STD, *shared]


def _is_flat(largest: float, mean: float, square: float, fourth: float, edge: float, count: int) -> bool:
    """Return whether *count* numbers are those of a uniform distribution around 0, up to its very bounds.

    Its second moment is a third of its bound squared, the fourth a fifth of its fourth power, and so much as is its width lies at
    its edge. A training leaves few elements at the edge: each weight moves by an amount of its own.
    """
    if not (largest > 0 and count >= _MANY):
        return False
    error = 1 / math.sqrt(count)
    is_uniform = abs(3 * square / largest**2 - 1) <= 3 * error and abs(5 * fourth / largest**4 - 1) <= 4 * error
    at_edge = abs(edge - _EDGE) <= 3 * math.sqrt(_EDGE / count)
    return is_uniform and at_edge and abs(mean) <= 3 * largest * error / math.sqrt(3)


def _is_transposed(hook: SiteHook) -> bool:
    return type(hook.module).__name__ == "Conv1D"


def _is_table(hook: SiteHook) -> bool:
    return isinstance(hook.module, nn.Embedding)


def _mixes(hook: SiteHook) -> bool:
    """Return whether a parameter is a weight of a layer that mixes its inputs: a Linear, a Conv, a recurrent layer."""
    is_layer = isinstance(hook.module, (*_MIXING, nn.RNNBase)) or _is_transposed(hook)
    return is_layer and hook.target.dim() > 1


def _sizes_around(
    frozen: Iterable[SiteHook], hooks: Iterable[SiteHook], ran: Mapping[str, Ran]
) -> Iterator[tuple[SiteHook, HostCopy]]:
    """Yield the *frozen* weights, and of each the largest magnitude, with that of the gradient of the trained one before it.

    Of a module that is no layer of torch's own, as an adapter, it is that of the trained one beside it.
    """
    trained = [
        (place, gradient, hook.module)
        for hook in hooks
        if (gradient := hook.target.grad) is not None and gradient.dim() > 1 and in_memory(gradient) is not None
        if (place := _place(hook, ran)) is not None
    ]
    for hook in frozen:
        at = _place(hook, ran) if hook.target.dim() > 1 else None
        is_layer = isinstance(hook.module, _MIXING)
        held = [each for each in trained if at is not None and (each[0] < at if is_layer else each[2] is hook.module)]
        before = max(held, key=lambda each: each[0], default=None)
        if before is not None and in_memory(hook.target.detach()) is not None:
            with torch.inference_mode(False), torch.no_grad():
                yield hook, HostCopy.of([each.detach().abs().max().double() for each in (hook.target, before[1])])


def _at_first(hook: SiteHook) -> float:
    """Return what a bias, or a weight of a normalisation, begins with."""
    return float("Norm" in type(hook.module).__name__ and hook.name.endswith("weight"))


def _below(hook: SiteHook) -> tuple[str, torch.Size]:
    """Return the name of a parameter without that of the part of the model which it belongs to, and its shape."""
    part, _, rest = hook.name.partition(".")
    return rest if "." in rest else part, hook.target.shape


def _place(hook: SiteHook, ran: Mapping[str, Ran]) -> int | None:
    """Return the place of the parameter's layer in the order of execution; None if the layer was not seen to run."""
    seen = ran.get(hook.name.rpartition(".")[0])
    return None if seen is None else seen.place


def _is_passed_on(hook: SiteHook, ran: Mapping[str, Ran]) -> bool:
    """Return whether the parameter's layer, or one around it, returned what a module around that passed on."""
    parts = hook.name.split(".")[:-1]
    above = (ran.get(".".join(parts[:length])) for length in range(1, len(parts) + 1))
    return any(seen is not None and seen.is_passed_on for seen in above)


def _is_in(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _is_like(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules are of one class, with parameters of the same shapes."""
    return type(one) is type(other) and [each.shape for each in one.parameters()] == [each.shape for each in other.parameters()]


def _part_of_blocks(hook: SiteHook) -> str:
    """Return the name of a parameter of a numbered block, without the numbers, as ``blocks.*.q.weight``; else ``""``."""
    parts = hook.name.split(".")
    return ".".join("*" if part.isdigit() else part for part in parts) if any(part.isdigit() for part in parts[:-2]) else ""


def _copied(left: Sequence[_Left], reached: Iterable[SiteHook]) -> set[int]:
    """Return the ids of the modules whose weights are near others of this shape that are trained: target networks, and averages.

    Initial weights are as far apart as they are large. Blocks of one name may begin as copies, and are none.
    """
    trained = [hook for hook in reached if hook.target.dim() > 1]
    return {
        id(each.hook.module)
        for each in left
        if each.hook.target.dim() > 1
        and any(_is_near(each.hook, hook) for hook in trained if each.hook.target.shape == hook.target.shape)
    }


def _is_near(one: SiteHook, other: SiteHook) -> bool:
    blocks = _part_of_blocks(one)
    if blocks and blocks == _part_of_blocks(other):
        return False
    with torch.no_grad():
        a, b = (each.target.detach() for each in (one, other))
        if type(a) is not Tensor or type(b) is not Tensor or a.device != b.device or not a.is_floating_point():
            return False
        return bool(torch.linalg.vector_norm(a.float() - b.float()) < _NEAR * torch.linalg.vector_norm(a.float()))


def _adapts_frozen(left: Sequence[_Left], hooks: Iterable[SiteHook]) -> bool:
    """Return whether most of these matrices are beside a frozen one, in its module or the one around: they are to be trained."""
    frozen = {around for hook in hooks if hook.target.dim() > 1 and not hook.target.requires_grad for around in _around(hook)}
    matrices = [each.hook for each in left if each.hook.target.dim() > 1]
    return bool(matrices) and sum(bool(frozen.intersection(_around(hook))) for hook in matrices) > _MOST * len(matrices)


def _around(hook: SiteHook) -> set[str]:
    """Return the names of the parameter's module and of the one around, but for the model."""
    own = hook.name.rpartition(".")[0]
    return {own, own.rpartition(".")[0]} - {""}


def _has_matrices(hook: SiteHook) -> bool:
    return any(parameter is not None and parameter.dim() > 1 for parameter in parameters_of(hook.module).values())


def _is_trained(parameter: Tensor) -> bool:
    return not is_lazy(parameter) and parameter.requires_grad and not parameter.is_inference()


def _is_current(hook: SiteHook) -> bool:
    """Return whether the layer still has this very parameter."""
    current: Tensor | None = parameters_of(hook.module).get(hook.name.rpartition(".")[2])
    return current is hook.target
