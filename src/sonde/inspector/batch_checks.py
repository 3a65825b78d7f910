"""Look at some training passes: what outputs depend on, which labels their gradient shows, and whether samples stay apart."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.engine import autograd_state, communicates, graph_nodes, hooks, raise_if_foreign, walk
from sonde.inspector.dependence import NODES, dependence_of, is_graph_operation, is_statistic, layers_in_a_row, padded, samples_of
from sonde.inspector.target_reading import AHEAD, column_numbers, numbers_of, range_numbers, scale_numbers
from sonde.rules import DEAD_SAMPLES, Chosen, Finding
from sonde.stats import HostCopy
from sonde.words import percent

_RULES = (
    "labels_alike", "label_seen", "padding_counted", "padding_alone", "future_seen", "target_shifted", "target_beyond",
    "target_own", "samples_mixed", "outputs_alike", "input_unread", "all_linear", "terms_uneven", "penalty_alone",
    "generator_misled", "begins_large", "weight_of_ones", "few_indices", "running_off", "norm_starved",
)  # fmt: skip
_EACH = 16  # logged steps that are looked at each; of later ones those whose number has grown by half since the last
_GROWN = 1.5
_DEPENDS = (0, 3, 10, 24)  # of the looks, those that walk the graph: a branch may begin at zero
PASSES = 4
"""Of a step, that are looked at: those of a discriminator on samples of both kinds, and of its generator."""
_ROWS, _COLUMNS = 64, 1024  # of outputs, whose distances are measured
_ALONG, _ACROSS, _TURNED = 0, 1, 2  # tokens as (samples, places), as (places, samples), and labels of outputs in the other order
_OTHER_ORDER = "the loss compares the outputs of one place with the targets of another: one goes by samples, the other by places"
_TRANSPOSED = "transpose or permute its axes, where view or reshape is called"
_SAME_ORDER = "look for a transposition before a view that is made of outputs and not of targets, or the other way round"
_MATCHES, _DIFFERS = 0.99, 0.9  # share of the labels that are tokens at one place, and that are not at any other
_LABELS = 16  # of a pass, with fewer no place is known
_OFF = 0.02  # of a gradient in half precision, rounding of its sum
_NOTHING = 1e-6  # of a gradient, rounding
_LINEAR = 3  # layers in a row
_MOST_CLASSES = 256
_SPARE = 8  # samples more than there are classes
_OUTPUTS = 6  # of one pass
_OWN, _VARIED = 1e-10, 0.05  # of a gradient that is no multiple of outputs, rounding; of the size of outputs that vary
_DIFFERENCES = ("Sub", "Rsub", "Abs", "Pow", "Mul")  # what makes an error, which may be what is returned
_SCALED = ("Mm", "Mul", "Div", "Bmm", "UnsafeView", "Add", "Sub")  # by which logits are made that no layer has made
_SCALES = "look at what multiplies the outputs: a temperature, a scale, a missing 1 / sqrt(size)"
_SQUARE = 8  # samples whose similarities are a table of classes
_ALIKE = 1e-5  # of the size of outputs, rounding
_UNLIKE = 0.8  # as far as any two are samples apart that stand next to each other, and are in no order
_SLOW = 0.005  # momentum of running statistics: a tenth of them is new after 20 passes
_SETTLED, _ELEMENTS = 50, 32  # logged steps after which running statistics have settled; elements of a channel
_OFTEN = 10  # looks at the rows of an embedding that are needed
_MOST_AXES = 8
_KEPT, _LAST = 6, 3  # looks at distances that are needed; of these the last
_SHAPES = ("View", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone")
_BEHIND = (*_SHAPES, "Div", "Mul")


@dataclass(frozen=True)
class _Depends:
    """What of a dependence is known at once.

    Attributes:
        inputs: of each whose part in the output was measured, tokens first: its shape, and whether it is an argument as it is.
        sought: it was asked which operation mixes samples.
        operations: those that may have: their name, and the modules they stand behind and before.
        is_graph, is_cut: as :class:`~sonde.inspector.dependence.Dependence` has them.
    """

    inputs: list[tuple[tuple[int, ...], bool]]
    sought: bool
    operations: list[tuple[str, str, str]]
    is_graph: bool
    is_cut: bool


@dataclass
class _Look:
    """What is known of one training pass, once its numbers have arrived.

    Attributes:
        epoch, step: the moment.
        shape: of the output, samples first.
        number: which pass of the step it is.
        made_by: the operation that has made the output.
        samples: of the output, that are looked at.
        viewed: what goes in, and the shape of which it is a view, if its axes are those of that tensor in another order.
        taken: the first argument's storage, and whether a gradient comes to it.
        is_linear: nothing but layers with weights, three or more in a row, has made the output.
        outputs: the names of those that are looked at; of further ones, whether their targets are in their range.
        depends: what the output depends on, if that was measured.
        tokens: how many arguments are tokens; first those whose part in the output was measured.
        copies: names and numbers, on their way.
    """

    epoch: int
    step: int
    shape: tuple[int, ...]
    number: int
    made_by: str
    samples: int
    outputs: list[str]
    viewed: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None
    taken: tuple[StorageWeakRef, bool] | None = None
    is_linear: bool = False
    depends: _Depends | None = None
    tokens: int = 0
    copies: list[tuple[list[str], HostCopy]] = field(default_factory=list)

    def add(self, numbers: Mapping[str, Tensor]) -> None:
        """Begin to copy *numbers* to the host."""
        self.copies.append((list(numbers), HostCopy.of([each.detach().double() for each in numbers.values()])))

    def read(self) -> dict[str, float]:
        """Return the numbers. Waits for the device."""
        return {name: float(one) for names, copy in tuple(self.copies) for name, one in zip(names, copy.unpack(), strict=True)}


@dataclass
class _Table:
    """An embedding in the first passes.

    Attributes:
        counts: how often each row was asked for, without padding.
        is_sequence: it is asked for several places of each sample.
        looks: passes that were judged.
    """

    counts: Tensor
    is_sequence: bool
    looks: int = 0


class BatchChecks:
    """Looks at some of a model's training passes as they return, and at the gradient that comes back. No host sync.

    Args:
        chosen: the rules that are applied.
        model: the model.
        name: its name in the sites; ``""`` where there is one model.
        part: the module of it whose passes these are; ``"(root)"`` for the model.
    """

    def __init__(self, chosen: Chosen, model: nn.Module, name: str, part: str = "(root)") -> None:
        self._chosen, self._model, self._name, self._part = chosen, model, f"{name}/" if name else "", part
        self._is_on = any(map(chosen.is_on, _RULES))
        self._steps = self._next = 0  # logged steps, and the one that is looked at next
        self._depended = 0  # first passes of a step that were looked at
        self._may_walk = not communicates(model)  # what ranks share may not run twice
        self._looks: list[_Look] = []
        self._read = 0  # looks that were judged
        self._has_ended = False
        self._found: dict[str, Finding] = {}
        self._labels: dict[bool, list[tuple[float, float]]] = {True: [], False: []}  # see _of_labels
        self._apart: list[tuple[float, float]] = []  # how far outputs of each step were apart, and their size
        self._tables: dict[str, _Table] = {}  # embeddings by the name of the parameter
        self._norms: dict[str, list[Finding | None]] = {}  # by what was read of which batch normalisation, what was judged
        self._sides: dict[
            tuple[int, int], list[float]
        ] = {}  # by output and pass of a step: the sign of all errors, 0 where they differ
        self._fades: dict[int, list[tuple[float, float]]] = {}  # by further output: its size, and what is no multiple of it
        self._columns: dict[int, list[float]] = {}  # by input: the column that tells the label, NaN for none
        self._kinds: deque[tuple[StorageWeakRef, bool, float]] = deque(maxlen=2 * PASSES)  # what passes took, and their one label
        self._misled: list[bool] = []  # whether samples that are made were given one label in both of their passes
        self._own: list[bool] = []  # whether the gradient of each pass was a multiple of the outputs
        self._parts: list[
            tuple[int, int, float]
        ] = []  # the outputs with the largest and the least gradient, and how far these differ
        self._axes = {*range(1, _MOST_AXES)}  # that may be of classes, as far as is known
        self._padded = self._mixed = self._unread = 0  # looks that found the padding read alone, samples mixed, and no input read
        self._viewed = 0  # and an input whose axes a view has exchanged

    @property
    def looks(self) -> bool:
        """Whether the passes of the step that comes are looked at."""
        return self._is_on and self._steps >= self._next

    def end_step(self) -> None:
        """Count a logged step."""
        if self._steps >= self._next:
            self._next = self._steps + 1 if self._steps < _EACH else int(_GROWN * self._steps)
        self._steps += 1

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, moment: tuple[int, int], number: int) -> None:
        """Look at what a training pass has returned, which is the one with this *number* of its step."""
        try:
            returned = {name: each for name, each in walk(output) if _is_of_samples(each)}
            if returned and not autograd_state.is_transformed():
                held, *others = returned.values()
                with torch.inference_mode(False), torch.no_grad(), torch.autocast(held.device.type, enabled=False):
                    look = _Look(*moment, tuple(held.shape), number, _made_by(held), samples_of(held), list(returned)[:_OUTPUTS])
                    first = next((each for _, each in walk([args, dict(kwargs)]) if type(each) is Tensor), None)
                    if first is not None and first.layout == torch.strided:
                        look.taken = StorageWeakRef(first.untyped_storage()), first.requires_grad  # type: ignore[no-untyped-call]
                    self._look(args, kwargs, held, others, look)
                    for at, each in enumerate(others[: _OUTPUTS - 1], start=1):
                        hooks.on_result(each, hooks.Bound(_gradient_of_other, each.detach(), at, _made_by(each), look))
        except Exception as error:
            raise_if_foreign(error)
            self._may_walk = False

    def _look(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Tensor, others: Sequence[Tensor], look: _Look) -> None:
        depends = None
        if look.number == 0:
            self._depended += 1
            look.viewed = _viewed([*walk(list(args)), *walk(dict(kwargs))])
            sought = self._depended > 1
            if self._may_walk and self._depended - 1 in _DEPENDS:
                with torch.autograd.graph.disable_saved_tensors_hooks("an activation checkpoint would run again"):
                    depends = dependence_of(self._model, output, others, args, kwargs, seeks=sought)
            if depends is not None:
                inputs = [(tuple(each.given.shape), each.is_argument) for each in (*depends.tokens, *depends.inputs)]
                look.depends = _Depends(inputs, sought, list(depends.mixed_by), depends.is_graph, depends.is_cut)
                look.add(dict(depends.numbers()) | {f"mixed {at}": each for at, each in enumerate(depends.mixed_by.values())})
            nodes = list(graph_nodes.nodes_before(output.grad_fn, NODES))
            look.is_linear = layers_in_a_row(nodes) >= _LINEAR
            names = {id(each): name for name, each in self._model.named_parameters()}
            look.add(self._count_indices(output, nodes, names))
            look.add(_norm_numbers(nodes, names, self._slow_norms() if self._steps >= _SETTLED else ()))
            look.add(_distances(output, [each for _, each in walk([args, dict(kwargs)])]))
        self._looks.append(look)
        if graph_nodes.operation_of(_behind(output.grad_fn, _BEHIND)) in ("Cat", "Stack"):
            return  # the labels of a positive in front of others, or of pairs, are alike
        tokens = [] if depends is None else [each.given for each in depends.tokens]
        if look.number == 0 and self._depended - 1 in _DEPENDS:  # of an embedding that is frozen, the arguments tell
            tokens += [each for _, each in walk([args, dict(kwargs)]) if _are_tokens(each, len(output), tokens)]
        look.tokens, count = len(tokens), samples_of(output)
        kept = output.detach() if count == len(output) else output.detach()[:count].clone()  # which lets go of the others
        place = None if depends is None else (depends.sample, depends.place)
        features = [each for _, each in walk([args, dict(kwargs)]) if _are_features(each, len(output))]
        hooks.on_result(output, hooks.Bound(_gradient_comes, kept, self._axes, tokens, features, place, look))

    def _count_indices(self, output: Tensor, nodes: Sequence[Any], names: Mapping[int, str]) -> dict[str, Tensor]:
        """Count which rows of embeddings a pass has asked for; return of each: the largest share, rows that were, and how often."""
        found: dict[str, Tensor] = {}
        for node in (each for each in nodes if graph_nodes.operation_of(each) == "Embedding"):
            leaf = next((graph_nodes.leaf_of(each) for each in graph_nodes.sources_of(node)), None)
            name, indices = names.get(id(leaf), ""), next(graph_nodes.taken_by(node), None)
            if not name or leaf is None or indices is None:
                continue
            is_sequence = indices.dim() == 2 and indices.shape[0] == len(output)
            if name not in self._tables:
                self._tables[name] = _Table(torch.zeros(len(leaf), dtype=torch.float64, device=leaf.device), is_sequence)
            counts = self._tables[name].counts
            counted = (1 - padded(indices) if is_sequence else torch.ones_like(indices)).double()
            counts.index_add_(0, indices.flatten(), counted.flatten())
            total = counts.sum()
            found |= {f"most {name}": counts.max() / total.clamp(min=1), f"rows {name}": (counts > 0).sum(), f"count {name}": total}
        return found

    def _slow_norms(self) -> set[str]:
        """Return the names of the batch normalisations whose running statistics hardly move: others are off where inputs move."""
        known = ((name, getattr(module, "momentum", None)) for name, module in self._model.named_modules())
        return {name for name, momentum in known if isinstance(momentum, float) and momentum < _SLOW}

    def end(self) -> None:
        """Judge the last pass, too: no gradient comes any more."""
        self._has_ended = True

    # Judging

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far. Waits for the device."""
        while self._read < len(self._looks) - (not self._has_ended):  # of the last one, the gradient may be on its way
            look = self._looks[self._read]
            self._read += 1
            numbers = look.read()
            judged = [*self._of_labels(look, numbers), *self._of_distances(look, numbers), *self._of_dependence(look, numbers)]
            judged += [*self._of_range(look, numbers), *self._of_indices(numbers), *self._of_norms(numbers)]
            for each in (one for one in judged if one is not None):
                said = f"{self._name.removesuffix('/')}: {each.message}" if self._name else each.message
                placed = each.at(self._name + (each.site or f"{self._part}:output"), look.epoch, look.step, said)
                since = self._looks[0].step if each.first_step is None else each.first_step
                self._found.setdefault(each.rule, replace(placed, first_step=since))
            look.copies.clear()
        return tuple(self._found.values())

    def _of_labels(self, look: _Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that labels are alike: how many each pass had, and their one class, NaN of several; of first passes, of others."""
        axis = _class_axis(look, numbers)
        if axis is not None:
            self._axes = {axis}
            if look.step == self._looks[0].step and look.number == 0 and look.made_by in _SCALED:
                begun = numbers[f"loss {axis}"], math.log(look.shape[axis]), numbers["size"]
                found = self._chosen.judge("begins_large", *begun)
                yield None if found is None else replace(found, advice=_SCALES, quantity="output")
            low, high = numbers[f"low {axis}"], numbers[f"high {axis}"]
            self._labels[look.number == 0].append((numbers["reached"], low if low == high else math.nan))
        elif "zeros" in numbers:
            same = 0.0 if numbers["zeros"] else 1.0 if numbers["ones"] else math.nan
            yield from self._of_kinds(look, same)
            self._labels[look.number == 0].append((numbers["reached"], same))
        else:
            return
        firsts, others = self._labels[True], self._labels[False]
        classes = {each for _, each in firsts}
        if any(math.isnan(each) for each in classes) or not firsts:
            return
        is_sorted = len(classes) > 1 and axis is not None and all(count >= DEAD_SAMPLES for count, _ in firsts)
        if is_sorted or (len(classes) == 1 and classes >= {each for _, each in others}):
            counts = sum(count for count, _ in (*firsts, *others))
            yield self._chosen.judge("labels_alike", counts, float(len(firsts)), float(len(classes)))

    def _of_distances(self, look: _Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that outputs are alike, from the first pass on, or have come to be."""
        if "apart" not in numbers or not math.isfinite(numbers["size"]):
            return
        self._apart.append((numbers["apart"], numbers["size"]))
        if len(self._apart) >= _KEPT:
            judged = [self._chosen.judge("outputs_alike", *each, self._apart[0][0]) for each in self._apart[-_LAST:]]
            yield replace(judged[-1], first_step=look.step) if judged[-1] is not None and all(judged) else None
            is_one = numbers.get("differ", 0.0) > 0 and numbers["size"] > 0
            if is_one and all(apart <= _ALIKE * size for apart, size in self._apart):
                yield self._chosen.judge("input_unread", numbers["apart"], numbers["size"])

    def _of_range(self, look: _Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that targets are beyond what outputs can be, are made of these, or weigh too much."""
        judge = self._chosen.judge
        for at, name in enumerate(look.outputs):
            what = look.made_by.lower() if at == 0 else "activation"
            site = f"{self._part}:output{name if at else ''}"
            found = judge(
                "target_beyond", *(numbers.get(f"{each} {at}", math.nan) for each in ("beyond", "least", "largest")), what=what
            )
            yield found if found is None else replace(found, site=site)
            sides = self._sides.setdefault((at, look.number), [])
            sides.append(numbers.get(f"side {at}", 0.0))
            if len(sides) > _EACH and abs(sum(sides)) == len(sides):
                found = judge("target_beyond", 1.0, math.nan, math.nan, what=what, side=-sides[0])
                yield found if found is None else replace(found, site=site)
        yield judge("target_beyond", numbers.get("target share", 0.0), 0.0, numbers.get("target", 0.0), what="binary cross-entropy")
        yield judge("weight_of_ones", numbers.get("times", 0.0), numbers.get("together", 0.0))
        yield from self._of_columns(numbers)
        for at in range(1, len(look.outputs)):
            fades = self._fades.setdefault(at, [])
            if f"size {at}" in numbers:
                fades.append((numbers[f"size {at}"], numbers[f"across {at}"]))
            if len(fades) > _EACH:
                own = statistics.median(each for _, each in fades[_LAST:])
                judged = [
                    judge("penalty_alone", size / fades[0][0], own, what=look.outputs[at])
                    for size, _ in fades[-_LAST:]
                    if fades[0][0]
                ]
                yield judged[-1] if judged and all(judged) else None
        yield judge("all_linear", float(look.is_linear))
        if "across" in numbers:
            is_own = numbers["across"] <= _OWN and look.made_by not in _DIFFERENCES
            self._own.append(is_own and numbers.get("apart", math.inf) > _VARIED * numbers.get("size", 0.0))
            yield judge("target_own", float(len(self._own))) if all(self._own) else None
        parts = [numbers.get(f"part {at}", 0.0) for at in range(len(look.outputs))]
        largest, least = (each(range(len(parts)), key=parts.__getitem__) for each in (max, min))
        if look.number == 0 and parts[least] > 0 and math.isfinite(parts[largest]):
            self._parts.append((largest, least, parts[largest] / parts[least]))
            first = self._parts[0]
            if len(self._parts) >= _KEPT and all(each[:2] == first[:2] for each in self._parts[:_EACH]):
                times = min(each for *_, each in self._parts[:_EACH])
                yield judge("terms_uneven", times, one=look.outputs[largest], other=look.outputs[least])

    def _of_columns(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that a column of the input tells the label."""
        for at in itertools.takewhile(lambda at: f"within {at}" in numbers, itertools.count()):
            is_told = numbers[f"within {at}"] <= _NOTHING and numbers[f"spare {at}"] >= _SPARE
            self._columns.setdefault(at, []).append(numbers[f"column {at}"] if is_told else math.nan)
            columns = self._columns[at]
            if len(columns) >= _KEPT and len({*columns}) == 1:
                yield self._chosen.judge("label_seen", numbers[f"within {at}"], columns[0])

    def _of_kinds(self, look: _Look, label: float) -> Iterator[Finding | None]:
        """Yield that samples which a generator makes are given one label when it is trained, and when they are told apart."""
        if look.taken is None or math.isnan(label):
            return
        storage, is_made = look.taken
        same = [each for held, was_made, each in self._kinds if held == storage and was_made != is_made]
        self._kinds.append((storage, is_made, label))
        if same:
            self._misled.append(same[-1] == label)
            yield self._chosen.judge("generator_misled", float(len(self._misled)), label) if all(self._misled) else None

    def _of_indices(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that an embedding is asked for few of its rows."""
        for name, table in self._tables.items():
            if f"most {name}" in numbers:
                table.looks += 1
                found = self._chosen.judge(
                    "few_indices",
                    numbers[f"most {name}"],
                    numbers[f"rows {name}"],
                    float(len(table.counts)),
                    numbers[f"count {name}"],
                    is_sequence=table.is_sequence,
                )
                if found is not None and table.looks >= _OFTEN:
                    yield replace(found, message=f"{name}: {found.message}", site=f"{name}:param")

    def _of_norms(self, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that running statistics are not those of the batches, or that eps is more than what goes in varies."""
        for key in numbers:
            what, _, name = key.partition(" ")
            if what not in ("mean", "varies"):
                continue
            judged = self._norms.setdefault(key, [])
            read = (numbers[f"mean {name}"], numbers[f"variance {name}"]) if what == "mean" else (numbers[key],)
            judged.append(self._chosen.judge("running_off" if what == "mean" else "norm_starved", *read))
            found = judged[-1]
            if found is not None and len(judged) >= _LAST and all(judged[-_LAST:]):
                yield replace(found, message=f"{name}: {found.message}", site=f"{name}:output")

    def _of_dependence(self, look: _Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what outputs depend on that they should not."""
        axis = _class_axis(look, numbers)
        is_sequence = (
            axis is not None and look.tokens and any(_ahead(numbers, axis, each, 0) is not None for each in range(look.tokens))
        )
        if look.viewed is not None:
            self._viewed += 1
            found = self._chosen.judge("samples_mixed", math.inf, 0.0) if self._viewed > 1 else None
            message, site = (
                "what goes in is a view of a tensor {1} as {2}: its elements stand at other places",
                self._part + ":input{0}",
            )
            told = [each.format(*look.viewed) for each in (message, site)]
            yield None if found is None else replace(found, message=told[0], advice=_TRANSPOSED, site=told[1])
        padded = numbers.get(f"padded {axis}", 0.0)
        yield self._chosen.judge("padding_counted", padded) if is_sequence or padded >= _DIFFERS else None
        for place in range(look.tokens):
            real, padding = (numbers.get(f"{name} {place}", math.nan) for name in ("real", "padding"))
            is_apart = numbers.get(f"others {place}", 0.0) <= _NOTHING * padding  # where samples are mixed, that is what is wrong
            self._padded += is_apart and real <= 0 < padding
            if self._padded > 1 and is_apart:
                yield self._chosen.judge("padding_alone", real, padding)
            if axis is None:
                continue
            ways = {way: _ahead(numbers, axis, place, way) for way in (_ALONG, _ACROSS, _TURNED)}
            for way, ahead in ways.items():
                if ahead is not None and way != _TURNED:
                    yield from self._of_sequence(numbers, axis, place, way, ahead, look.depends)
                elif ahead is not None and ways[_ALONG] is None:
                    turned = self._chosen.judge("samples_mixed", math.inf, 0.0)
                    yield None if turned is None else replace(turned, message=_OTHER_ORDER, advice=_SAME_ORDER)
        if look.depends is not None:
            yield from self._of_samples(look, look.depends, numbers)

    def _of_samples(self, look: _Look, depends: _Depends, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that samples are mixed, or that no input is read."""
        are_all = numbers.get("reached", 0.0) == look.samples  # as labels for each sample do
        for place, (shape, is_argument) in enumerate(depends.inputs):
            own, near = numbers[f"own {place}"], numbers.get(f"near {place}", math.nan)
            is_one = len(look.shape) < 3 and shape[0] != shape[1]  # output for each sample, and its axis is no other's
            is_one &= len(shape) > 2 or not near < _UNLIKE  # and it is no sequence without a batch
            if is_one and are_all and (is_argument or (own > 0 and shape[0] == look.shape[0])):
                yield self._told_mixed(place, depends, numbers)
        parts = [numbers[f"{name} {place}"] for place in range(len(depends.inputs)) for name in ("own", "others")]
        is_blank = not any(parts) and numbers.get("differ", 0.0) > 0
        self._unread += depends.sought and is_blank
        if self._unread > 1 and is_blank and (depends.is_cut or numbers["apart"] <= _ALIKE * numbers["size"]):
            yield self._chosen.judge("input_unread", numbers["apart"], numbers["size"], is_cut=depends.is_cut)

    def _of_sequence(
        self, numbers: Mapping[str, float], axis: int, place: int, way: int, ahead: int, depends: _Depends | None
    ) -> Iterator[Finding | None]:
        """Yield what is wrong where labels are tokens of the input at *place*, so many places *ahead*, along the axis *way*."""
        at = f"{place} {way}"
        before, here, following, later, others = (
            numbers.get(f"{name} {at}", 0.0) for name in ("before", "here", "next", "later", "beside")
        )
        whole = before + here + following + later
        is_counted = bool(numbers.get(f"is counted {axis}"))
        if whole > 0 and ahead == 1 and is_counted:
            yield self._chosen.judge("future_seen", following / whole, before)
        if whole > 0 and others > _NOTHING * whole and way == _ALONG and depends is not None:
            yield self._told_mixed(place, depends, numbers)
        if ahead > 1 or (ahead != 1 and whole > 0):
            is_causal = ahead != 0 or following + later <= _NOTHING * whole
            is_picked = numbers.get(f"pieces {axis}", 0.0) > 1  # some places here and there, as of masked tokens
            yield self._chosen.judge("target_shifted", float(ahead), is_causal=is_causal, is_picked=is_picked)

    def _told_mixed(self, place: int, depends: _Depends, numbers: Mapping[str, float]) -> Finding | None:
        """Return that samples are mixed, by which operation and where, if two looks have found it so."""
        own, others = numbers[f"own {place}"], numbers[f"others {place}"]
        mixing = [each for at, each in enumerate(depends.operations) if numbers[f"mixed {at}"]]
        is_meant = bool(mixing) and all(is_graph_operation(name) for name, *_ in mixing)
        are_less = all(is_statistic(name) for name, *_ in mixing) and numbers[f"most {place}"] < _DIFFERS * own
        if depends.is_graph or is_meant or others <= _NOTHING * own or (depends.sought and bool(mixing) and are_less):
            return None
        self._mixed += 1
        found = self._chosen.judge("samples_mixed", others / (own + others), _NOTHING)
        if found is None or self._mixed < 2 or not depends.sought:
            return None
        message = f"samples of a batch are mixed: {percent(found.value)} of the gradient of one sample's outputs goes to others"
        if not mixing:
            return replace(found, message=message)
        name, before, behind = mixing[-1]
        site = _common(before, behind)
        where = f"in {site}" if site else "between " + " and ".join(each or "the outputs" for each in (before, behind))
        return replace(found, message=f"{message}, by its {name.lower()} {where}", site=site and f"{site}:output")


def _is_of_samples(tensor: Tensor) -> bool:
    """Return whether *tensor* holds outputs of several samples, with a graph."""
    return (
        type(tensor) is Tensor
        and tensor.grad_fn is not None
        and tensor.dim() > 0
        and len(tensor) > 1
        and tensor.is_floating_point()
    )


def _are_tokens(given: Tensor, samples: int, known: Sequence[Tensor]) -> bool:
    """Return whether an argument holds indices, ``(samples, places)``, that are not known yet."""
    is_new = all(given is not each and given.data_ptr() != each.data_ptr() for each in known)
    return given.dim() == 2 and len(given) == samples and given.dtype in (torch.int64, torch.int32) and is_new


def _behind(node: Any, moves: Sequence[str]) -> Any:
    """Return the operation that has made the elements, behind *moves*, which scale them or change their shape."""
    while graph_nodes.operation_of(node) in moves and len(before := graph_nodes.sources_of(node)) == 1:
        (node,) = before
    return node


def _viewed(given: Iterable[tuple[str, Tensor]]) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    """Return which tensor is a view of one whose axes it has in another order, though its elements are in the same; both shapes."""
    for name, each in given:
        base = each._base
        if base is not None and base.numel() == each.numel() and base.is_contiguous() and each.is_contiguous():
            held, made = ([size for size in one.shape if size > 1] for one in (base, each))
            if held != made and sorted(held) == sorted(made):
                return name, tuple(base.shape), tuple(each.shape)
    return None


def _common(one: str, other: str) -> str:
    """Return the name of the innermost module that holds both; ``""`` for the root."""
    parts = zip(one.split("."), other.split("."), strict=False)
    return ".".join(first for first, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))


def _distances(output: Tensor, given: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return how far the outputs of samples are apart, their size, and whether any two samples of what was *given* differ."""
    rows = output.detach()[:_ROWS].reshape(min(len(output), _ROWS), -1)[:, :_COLUMNS].double()
    numbers = {"apart": (rows - rows.mean(0)).square().mean().sqrt(), "size": rows.square().mean().sqrt()}
    held = [each for each in given if each.dim() > 0 and type(each) is Tensor and each.layout == torch.strided and len(each) > 1]
    held = [each for each in held if len(each) == len(output)] or held  # of graphs, those of their nodes
    differ = [(each[1:_ROWS] != each[:1]).any() for each in held]
    return numbers | ({"differ": torch.stack(differ).any()} if differ else {})


def _norm_numbers(nodes: Sequence[Any], names: Mapping[int, str], slow: Collection[str]) -> dict[str, Tensor]:
    """Return of each batch normalisation the variance that goes in, of its eps, and of *slow* ones how far they are off."""
    found: dict[str, Tensor] = {}
    for node in nodes:
        held = graph_nodes.batch_statistics(node)
        leaf = next((one for each in graph_nodes.sources_of(node) if (one := graph_nodes.leaf_of(each)) is not None), None)
        name = names.get(id(leaf), "").rpartition(".")[0]
        if held is None or not name or held.elements < _ELEMENTS:
            continue
        if held.eps:
            var = (held.var - held.eps).clamp(min=0)  # what is the same for all samples is no matter of its scale
            found[f"varies {name}"] = torch.where(
                (var > _NOTHING * held.eps) & (held.mean.square() <= held.eps), var / held.eps, math.inf
            ).median()
        if name in slow:
            off = ((held.running_mean - held.mean).square() / held.var).mean().sqrt()
            found |= {f"mean {name}": off, f"variance {name}": (held.running_var / held.var).log().abs().mean().exp()}
    return found


def _gradient_comes(
    output: Tensor,
    axes: set[int],
    tokens: Sequence[Tensor],
    features: Sequence[Tensor],
    place: tuple[Tensor, Tensor] | None,
    look: _Look,
    gradient: Tensor,
) -> None:
    """Note what the *gradient* at an output shows of the targets; *output* is that of its first samples."""
    try:
        if type(gradient) is Tensor and gradient.shape == look.shape:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                held = gradient.detach()[: len(output)]
                look.add(numbers_of(output, held, _class_axes(look) & axes, tokens, place))
                if len(output) == len(gradient) and output.numel() // len(output) <= _MOST_CLASSES:
                    look.add(
                        {
                            f"{name} {at}": each
                            for at, one in enumerate(features)
                            for name, each in column_numbers(held, one).items()
                        }
                    )
                look.add({"part 0": held.double().square().sum().sqrt()})
                if len(output) == len(gradient):
                    look.add(_of_output(0, range_numbers(output, held, look.made_by)))
    except Exception as error:
        raise_if_foreign(error)


def _are_features(given: Tensor, samples: int) -> bool:
    """Return whether an argument holds features, ``(samples, features)``."""
    return (
        type(given) is Tensor
        and given.dim() == 2
        and len(given) == samples
        and given.is_floating_point()
        and given.shape[1] <= _COLUMNS
    )


def _gradient_of_other(output: Tensor, number: int, made_by: str, look: _Look, gradient: Tensor) -> None:
    """Note the size of the *gradient* at one more *output*, and what it shows of its targets."""
    try:
        if type(gradient) is Tensor and gradient.shape == output.shape:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                held = gradient.detach()
                look.add(_of_output(number, {"part": held.double().square().sum().sqrt()} | scale_numbers(output, held)))
                look.add(_of_output(number, range_numbers(output, held, made_by)))
    except Exception as error:
        raise_if_foreign(error)


def _of_output(number: int, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name} {number}": each for name, each in numbers.items()}


def _made_by(output: Tensor) -> str:
    """Return the operation that has made the elements of *output*."""
    return graph_nodes.operation_of(_behind(output.grad_fn, _SHAPES))


def _class_axes(look: _Look) -> set[int]:
    """Return the axes of an output that may be those of classes."""
    return {axis for axis in (1, len(look.shape) - 1) if 0 < axis < len(look.shape) and look.shape[axis] > 1}


def _class_axis(look: _Look, numbers: Mapping[str, float]) -> int | None:
    """Return the axis of classes, if the gradient at the output is that of a cross-entropy against one label each; else None."""
    for axis in sorted(_class_axes(look), reverse=True):
        counted = numbers.get(f"counted {axis}", 0.0)
        is_one = counted > 0 and numbers[f"single {axis}"] >= _MATCHES * counted
        if is_one and numbers[f"off {axis}"] <= _OFF:
            return axis
    is_square = len(look.shape) == 2 and look.shape[0] == look.shape[1] and look.shape[0] >= _SQUARE
    return 1 if is_square and numbers.get("single 1", 0.0) >= look.shape[0] - 1 else None  # as of pairs, asked for both ways


def _ahead(numbers: Mapping[str, float], axis: int, place: int, way: int) -> int | None:
    """Return how many places ahead of their output the labels stand in the tokens at *place*; None where they are others."""
    shares = {ahead: numbers.get(f"match {place} {way} {ahead} {axis}", -1.0) for ahead in AHEAD}
    best = max(AHEAD, key=lambda ahead: shares[ahead])
    is_clear = shares[best] >= _MATCHES and all(shares[each] < _DIFFERS for each in AHEAD if each != best)
    return best if is_clear and numbers[f"telling {axis}"] >= _LABELS else None
