"""Look at some training passes: what outputs depend on, which labels their gradient shows, and whether samples stay apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import autograd_state, communicates, graph_nodes, hooks, raise_if_foreign, walk
from sonde.inspector.dependence import NODES, Entry, dependence_of, middle_of, padded, samples_of
from sonde.inspector.target_reading import AHEAD, numbers_of, squared_numbers
from sonde.rules import DEAD_SAMPLES, Chosen, Finding
from sonde.stats import HostCopy
from sonde.words import percent

_RULES = (
    "labels_alike", "padding_counted", "padding_alone", "future_seen", "target_shifted", "samples_mixed", "outputs_alike",
    "target_beyond", "weight_of_ones", "few_indices", "running_off", "norm_starved",
)  # fmt: skip
_EACH = 16  # logged steps that are looked at each; of later ones those whose number has grown by half since the last
_GROWN = 1.5
_DEPENDS = (0, 3, 10, 24)  # of the looks, those that walk the graph: a branch may begin at zero
PASSES = 4
"""Of a step, that are looked at: those of a discriminator on samples of both kinds, and of its generator."""
_ROWS, _COLUMNS = 64, 1024  # of outputs, whose distances are measured
_ALONG, _ACROSS, _TURNED = 0, 1, 2  # tokens as (samples, places), as (places, samples), and labels of outputs in the other order
_OTHER_ORDER = "the loss compares the outputs of one place with the targets of another: one goes by samples, the other by places"
_SAME_ORDER = "look for a transposition before a view that is made of outputs and not of targets, or the other way round"
_MATCHES, _DIFFERS = 0.99, 0.9  # share of the labels that are tokens at one place, and that are not at any other
_LABELS = 16  # of a pass, with fewer no place is known
_OFF = 0.02  # of a gradient in half precision, rounding of its sum
_NOTHING = 1e-6  # of a gradient, rounding
_SLOW = 0.005  # momentum of running statistics: a tenth of them is new after 20 passes
_SETTLED, _ELEMENTS = 50, 32  # logged steps after which running statistics have settled; elements of a channel
_OFTEN = 10  # looks at the rows of an embedding that are needed
_MOST_AXES = 8
_KEPT, _LAST = 6, 3  # looks at distances that are needed; of these the last
_SHAPES = ("View", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone")
_BEHIND = (*_SHAPES, "Div", "Mul")


@dataclass
class _Look:
    """What is known of one training pass, once its numbers have arrived.

    Attributes:
        epoch, step: the moment.
        shape: of the output, samples first.
        number: which pass of the step it is.
        made_by: the operation that has made the output.
        samples: of the output, that are looked at.
        given: the shapes of the inputs whose part in the output was measured, tokens first.
        tokens: how many of these are tokens; further ones are arguments of the model alone.
        is_graph: the batch is a graph, whose samples belong together.
        copies: names and numbers, on their way.
    """

    epoch: int
    step: int
    shape: tuple[int, ...]
    number: int
    made_by: str
    samples: int
    given: list[tuple[int, ...]] = field(default_factory=list)
    tokens: int = 0
    is_graph: bool = False
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
    """

    def __init__(self, chosen: Chosen, model: nn.Module, name: str) -> None:
        self._chosen, self._model, self._name = chosen, model, f"{name}/" if name else ""
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
        self._axes = {*range(1, _MOST_AXES)}  # that may be of classes, as far as is known
        self._padded = self._mixed = 0  # looks that found the padding read alone, and samples mixed

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
            held = next((each for _, each in walk(output) if _is_of_samples(each)), None)
            if held is not None and not autograd_state.is_transformed():
                with torch.inference_mode(False), torch.no_grad(), torch.autocast(held.device.type, enabled=False):
                    made_by = graph_nodes.operation_of(_behind(held.grad_fn, _SHAPES))
                    self._look(args, kwargs, held, _Look(*moment, tuple(held.shape), number, made_by, samples_of(held)))
        except Exception as error:
            raise_if_foreign(error)
            self._may_walk = False

    def _look(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Tensor, look: _Look) -> None:
        depends = None
        if look.number == 0:
            self._depended += 1
            if self._may_walk and self._depended - 1 in _DEPENDS:
                with torch.autograd.graph.disable_saved_tensors_hooks("an activation checkpoint would run again"):
                    depends = dependence_of(self._model, output, args, kwargs)
            nodes = list(graph_nodes.nodes_before(output.grad_fn, NODES))
            names = {id(each): name for name, each in self._model.named_parameters()}
            look.add(self._count_indices(output, nodes, names))
            look.add(_norm_numbers(nodes, names, self._slow_norms() if self._steps >= _SETTLED else ()))
            rows = output.detach()[:_ROWS].reshape(min(len(output), _ROWS), -1)[:, :_COLUMNS].double()
            look.add({"apart": (rows - rows.mean(0)).square().mean().sqrt(), "size": rows.square().mean().sqrt()})
        if depends is not None:
            entries = [*depends.tokens, *depends.inputs]
            look.given, look.is_graph = [tuple(each.given.shape) for each in entries], depends.is_graph
            for place, each in enumerate(entries):
                parts = {"own": each.own, "others": each.others, "real": each.real, "padding": each.padding}
                look.add({f"{name} {place}": part for name, part in parts.items()} | _around(each, middle_of(output), place))
        self._looks.append(look)
        if graph_nodes.operation_of(_behind(output.grad_fn, _BEHIND)) in ("Cat", "Stack"):
            return  # the labels of a positive in front of others, or of pairs, are alike
        tokens = [] if depends is None else [each.given for each in depends.tokens]
        if look.number == 0 and self._depended - 1 in _DEPENDS:  # of an embedding that is frozen, the arguments tell
            tokens += [each for _, each in walk([args, dict(kwargs)]) if _are_tokens(each, len(output), tokens)]
        look.tokens, count = len(tokens), samples_of(output)
        kept = output.detach() if count == len(output) else output.detach()[:count].clone()  # which lets go of the others
        hooks.on_result(output, hooks.Bound(_gradient_comes, kept, self._axes, tokens, look))

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
                placed = each.at(self._name + (each.site or "(root):output"), look.epoch, look.step, said)
                since = self._looks[0].step if each.first_step is None else each.first_step
                self._found.setdefault(each.rule, replace(placed, first_step=since))
            look.copies.clear()
        return tuple(self._found.values())

    def _of_labels(self, look: _Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that labels are alike: how many each pass had, and their one class, NaN of several; of first passes, of others."""
        axis = _class_axis(look, numbers)
        if axis is not None:
            self._axes = {axis}
            low, high = numbers[f"low {axis}"], numbers[f"high {axis}"]
            self._labels[look.number == 0].append((numbers["reached"], low if low == high else math.nan))
        elif "zeros" in numbers:
            same = 0.0 if numbers["zeros"] else 1.0 if numbers["ones"] else math.nan
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
        """Yield that outputs have come to be alike."""
        if "apart" in numbers and math.isfinite(numbers["size"]):
            self._apart.append((numbers["apart"], numbers["size"]))
            if len(self._apart) >= _KEPT:
                judged = [self._chosen.judge("outputs_alike", *each, self._apart[0][0]) for each in self._apart[-_LAST:]]
                yield replace(judged[-1], first_step=look.step) if judged[-1] is not None and all(judged) else None

    def _of_range(self, look: _Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield that targets are beyond what outputs can be, or weigh too much."""
        if "beyond" in numbers:
            range_of = numbers["beyond"], numbers["least"], numbers["largest"]
            yield self._chosen.judge("target_beyond", *range_of, what=look.made_by.lower())
        yield self._chosen.judge("weight_of_ones", numbers.get("times", 0.0), numbers.get("together", 0.0))

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
                    yield from self._of_sequence(numbers, axis, place, way, ahead, is_graph=look.is_graph)
                elif ahead is not None and ways[_ALONG] is None:
                    turned = self._chosen.judge("samples_mixed", math.inf, 0.0)
                    yield None if turned is None else replace(turned, message=_OTHER_ORDER, advice=_SAME_ORDER)
        are_all = numbers.get("reached", 0.0) == look.samples  # as labels for each sample do
        for place, shape in enumerate(look.given):
            own, others = numbers[f"own {place}"], numbers[f"others {place}"]
            is_one = len(look.shape) < 3 and shape[0] != shape[1]  # output for each sample, and its axis is no other's
            if is_one and are_all and not look.is_graph and others > _NOTHING * own:
                yield self._told_mixed(others / (own + others))

    def _of_sequence(
        self, numbers: Mapping[str, float], axis: int, place: int, way: int, ahead: int, *, is_graph: bool
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
        if whole > 0 and others > _NOTHING * whole and way == _ALONG and not is_graph:
            yield self._told_mixed(others / (whole + others))
        if ahead > 1 or (ahead != 1 and whole > 0):
            yield self._chosen.judge("target_shifted", float(ahead), is_causal=ahead != 0 or following + later <= _NOTHING * whole)

    def _told_mixed(self, share: float) -> Finding | None:
        found = self._chosen.judge("samples_mixed", share, _NOTHING)
        self._mixed += 1
        message = f"samples of a batch are mixed: {percent(share)} of the gradient of one sample's outputs comes to other samples"
        return None if found is None or self._mixed < 2 else replace(found, message=message)


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


def _around(entry: Entry, place: tuple[int, int], number: int) -> dict[str, Tensor]:
    """Return how much an output at *place* depends on tokens before, at and behind it, along the second axis (0) or the first."""
    found: dict[str, Tensor] = {}
    sizes = entry.spread
    if sizes is None or place[1] >= sizes.shape[1]:
        return found
    for way, (table, at) in enumerate(((sizes, place), (sizes.T, place[::-1]))):
        row, after = table[at[0]], at[1] + 1
        parts = (row[: at[1]], row[at[1] : after], row[after : after + 1], row[after + 1 :])
        named = zip(("before", "here", "next", "later"), parts, strict=True)
        found |= {f"{name} {number} {way}": part.sum() for name, part in named}
        found[f"beside {number} {way}"] = sizes.sum() - row.sum()
    return found


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
            found[f"varies {name}"] = torch.where((var > 0) & (held.mean.square() <= held.eps), var / held.eps, math.inf).median()
        if name in slow:
            off = ((held.running_mean - held.mean).square() / held.var).mean().sqrt()
            found |= {f"mean {name}": off, f"variance {name}": (held.running_var / held.var).log().abs().mean().exp()}
    return found


def _gradient_comes(output: Tensor, axes: set[int], tokens: Sequence[Tensor], look: _Look, gradient: Tensor) -> None:
    """Note what the *gradient* at an output shows of the targets; *output* is that of its first samples."""
    try:
        if type(gradient) is Tensor and gradient.shape == look.shape:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                held = gradient.detach()[: len(output)]
                look.add(numbers_of(output, held, _class_axes(look) & axes, tokens))
                look.add(squared_numbers(output, held, look.made_by) if len(output) == len(gradient) else {})
    except Exception as error:
        raise_if_foreign(error)


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
    return None


def _ahead(numbers: Mapping[str, float], axis: int, place: int, way: int) -> int | None:
    """Return how many places ahead of their output the labels stand in the tokens at *place*; None where they are others."""
    shares = {ahead: numbers.get(f"match {place} {way} {ahead} {axis}", -1.0) for ahead in AHEAD}
    best = max(AHEAD, key=lambda ahead: shares[ahead])
    is_clear = shares[best] >= _MATCHES and all(shares[each] < _DIFFERS for each in AHEAD if each != best)
    return best if is_clear and numbers[f"telling {axis}"] >= _LABELS else None
