"""Measure what the outputs of a training pass depend on: other samples, later places, padding. No module runs for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import graph_nodes, holds_graph, padded

NODES = 5_000
"""Of a graph, that are walked in Python."""
_FIRST = ("Embedding", *graph_nodes.WEIGHTED)  # operations that treat each sample, and each place in it, by itself
_ELEMENTS = 1 << 18  # of outputs, of which the first samples are looked at
_SERIES = 8  # places of a series, which no channels are
_INDICES = (torch.int64, torch.int32)
_COMPARED = 32  # samples, whose tokens are compared with what was made of them
_MARGIN = 64  # places by which a series is longer that was padded
_TOKENS = 3  # beside the padding of a sample, so that it is no other one that is read
_PLACES = 256  # tokens of a sample, any two of which may be equal
_EIGHTH = 8  # of the steps of a sample
_NEAR = 40  # nodes behind an operation, among which a parameter is looked for
_STEPS = 1_000  # nodes of a recurrent layer, among which its weights are looked for
_NOTHING = 1e-6  # of a gradient, rounding
_STATISTICS = ("Mean", "Sum", "Var", "Std", "VarMean", "StdMean", "LinalgVectorNorm", "Norm")  # as of a normalisation by hand
_GRAPHS = ("IndexSelect", "IndexAdd", "Index", "IndexPut", "Gather", "Scatter", "ScatterAdd", "ScatterReduce", "SparseMm")
_PIECES = ("Relu", "LeakyRelu", "Hardtanh", "PreluKernel", "Threshold")  # activations whose second derivative is zero
_TAKEN = ("Slice", "Index", "IndexSelect", "Narrow")
_TURNS = (*graph_nodes.TURNS, "ToCopy")
_PRODUCTS = ("Mm", "Bmm", "Addmm", "Baddbmm")


@dataclass(frozen=True)
class Entry:
    """Where an input enters the graph of an output.

    Attributes:
        given: the input, ``(samples, places, ...)``.
        sizes: how much the output that is looked at depends on each place of each sample, ``(samples, places)``, float64.
        is_argument: it is an argument of the model, and not made of one, nor tokens behind what alone was measured.
        steps: of features, ``(samples, steps, features)``, the sizes of each step of each sample.
    """

    given: Tensor
    sizes: Tensor
    is_argument: bool = True
    steps: Tensor | None = None


@dataclass
class Dependence:
    """What an output of one sample depends on, in one place if outputs have places of tokens.

    Attributes:
        sample, place: which, each an integer on the device: that with the most padding, and the middle before it; else the middle.
        tokens: of each embedding of tokens.
        inputs: of each other input.
        is_graph: the batch is a graph, whose samples belong together.
        is_cut: the output depends on no input, another one does.
        is_recurrent: the model has a recurrent layer.
        mixed_by: by an operation, and the modules it stands behind and before, whether it was one that mixed samples.
        spread_by: the same of those that took places of tokens to others.
    """

    sample: Tensor
    place: Tensor
    tokens: list[Entry] = field(default_factory=list)
    inputs: list[Entry] = field(default_factory=list)
    is_graph: bool = False
    is_cut: bool = False
    is_recurrent: bool = False
    mixed_by: dict[tuple[str, str, str], Tensor] = field(default_factory=dict)
    spread_by: dict[tuple[str, str, str], Tensor] = field(default_factory=dict)

    def numbers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the numbers of each entry, tokens first, by their name and the number of the entry.

        ``own``, ``others``: how much the output depends on its own sample, and on other ones; ``most``: on one of these.
        ``real``, ``padding``: on tokens of its own but for the one that has most, which may be where the output is read, and on
        what is the same token at the end of its row; ``read``: how many times as much on one of these as on another one.
        ``zeros``: how many times as much on a step of zeros at the end of the sample as on one before, if it has some, as padding.
        ``before``, ``here``, ``next``, ``later``, ``beside``: on tokens before, at and behind its place, along the second axis (0)
        or the first (1), and on those of other samples. ``near``: how far samples that stand next to each other are apart, of what
        any two are. ``cross``: on tokens of another row and another column; ``few``: on those of other rows, or other columns,
        whichever are less. ``twins``: how many pairs of its tokens are equal, without padding and its place, and ``uneven`` how
        far it depends more on one of such a pair than on the other, at most, of what it depends on both. ``reach``: of a recurrent
        model, how many times as much on the first steps as on the last.
        """
        for number, entry in enumerate([*self.tokens, *self.inputs]):
            sizes, is_own = entry.sizes, torch.arange(len(entry.sizes), device=self.sample.device) == self.sample
            own = _row(sizes, self.sample)
            whole = sizes.sum(1)
            yield f"own {number}", own.sum()
            yield f"others {number}", whole.sum() - own.sum()
            yield f"most {number}", (whole * ~is_own).max()
            if entry.given.is_floating_point():
                rows = entry.given.detach().reshape(len(sizes), -1)[:, :_ELEMENTS].double()
                yield f"near {number}", (rows[1:] - rows[:-1]).square().mean() / (2 * rows.var(0).mean())
                if entry.steps is not None:
                    at_end, by_step = (_row(each, self.sample) for each in (padded(entry.given), entry.steps))
                    behind, before = ((by_step * each).sum() / each.sum() for each in (at_end, 1 - at_end))
                    yield f"zeros {number}", behind / before
                    if self.is_recurrent:
                        yield f"reach {number}", _first_of_last(by_step, at_end)
                if sizes.shape[1] == 1:
                    continue
            else:
                padding = _row(padded(entry.given), self.sample) * own
                real, is_padding = own - padding, _row(padded(entry.given), self.sample)
                yield f"real {number}", real.sum() - real.max()
                yield f"padding {number}", padding.sum()
                yield f"read {number}", padding.sum() / is_padding.sum() / (real.sum() / (1 - is_padding).sum())
                if self.is_recurrent:
                    yield f"reach {number}", _first_of_last(own, is_padding)
                along, across = own.sum(), _row(sizes.T, at := self.place.clamp(max=sizes.shape[1] - 1)).sum()
                yield f"cross {number}", (sizes.sum() - along - across + _row(own, at)).clamp(min=0)
                yield f"few {number}", torch.minimum(whole.sum() - along, whole.sum() - across)
                yield from zip((f"twins {number}", f"uneven {number}"), self._twins(entry, own, is_padding > 0), strict=True)
            for way, table, row, at in ((0, sizes, self.sample, self.place), (1, sizes.T, self.place, self.sample)):
                line = _row(table, row.clamp(max=len(table) - 1))
                ahead = torch.arange(len(line), device=at.device) - at
                for name, is_there in (("before", ahead < 0), ("here", ahead == 0), ("next", ahead == 1), ("later", ahead > 1)):
                    yield f"{name} {number} {way}", (line * is_there).sum()
                yield f"beside {number} {way}", table.sum() - line.sum()

    def _twins(self, entry: Entry, own: Tensor, is_padding: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of equal tokens of the sample, and how far apart the output depends on the two of any."""
        tokens, at = _row(entry.given, self.sample)[:_PLACES], torch.arange(len(own), device=own.device)
        is_read = (~is_padding & (own > 0) & (at != self.place))[:_PLACES]
        are_twins = ((tokens[:, None] == tokens) & is_read & is_read[:, None]).triu(1)
        sizes = own[:_PLACES]
        return are_twins.sum(), torch.where(are_twins, (sizes[:, None] - sizes).abs() / (sizes[:, None] + sizes), 0.0).max()


def dependence_of(
    model: nn.Module,
    output: Tensor,
    others: Sequence[Tensor],
    given: Sequence[Tensor],
    *,
    seeks: bool,
    shape: Sequence[int],
    is_turned: bool = False,
) -> Dependence | None:
    """Return what *output* of *model* depends on; None where no input is found in its graph, nor in that of *others*.

    The graph is walked backwards once, node by node: no hook runs, and nothing is written or freed. No host sync. A batch
    normalisation counts as if its statistics were fixed.

    Args:
        model: has just returned it.
        output: ``(samples, ...)``, two samples or more.
        others: that were returned with it.
        given: the tensors that the model was given.
        seeks: also which operation mixes samples.
        shape: that the output has, or had before its places were put in a row with its samples.
        is_turned: samples are the second axis of the output, and places the first.

    Raises:
        RuntimeError: its graph can be walked once alone.
    """
    nodes = list(graph_nodes.nodes_before(output.grad_fn, NODES))
    if any(map(graph_nodes.is_in_python, nodes)):
        raise RuntimeError("a backward is written in Python, or compiled")
    order = list(range(len(shape)))
    order[:2] = order[:2][::-1] if is_turned else order[:2]
    samples = shape[order[0]]
    if len(nodes) > NODES or samples < 2 or type(output) is not Tensor:
        return None
    entries = _entries(nodes, given, samples)
    is_cut = not entries and any(_entries(list(graph_nodes.nodes_before(each.grad_fn, NODES)), given, samples) for each in others)
    is_cut &= all(graph_nodes.operation_of(each) != "Embedding" for each in nodes)  # one index of a sample has no places
    entries = entries if entries or is_cut else {node: (held, False) for node in nodes for held in _made_of_data(node, samples)}
    is_made = bool(entries) and not any(is_argument for _, is_argument in entries.values())
    behind = _tokens_in(given, samples) if is_made else None
    tokens = [held for held, _ in entries.values() if not held.is_floating_point()] if behind is None else [behind]
    if len(shape) == 3 and tokens and not _fits(tokens, shape[order[1]]) and _fits(tokens, shape[2]):
        order = [order[0], 2, order[1]]  # classes before places
    series = None if tokens else _series_axes([held for held, _ in entries.values()], shape, order)
    if series is not None and len(shape) == 3:
        order = [order[0], series[0], 3 - order[0] - series[0]]
    ordered = [shape[axis] for axis in order]
    stepped = [] if tokens else [held for held, _ in entries.values() if held.dim() == 3 and held.is_floating_point()]
    sample, place = _looked_at(tokens, ordered, output.device, stepped)
    found = Dependence(sample, place, is_graph=holds_graph(model, given, samples), is_cut=is_cut)
    found.is_recurrent = any("weight_hh" in name for name, _ in model.named_parameters())
    if not entries:
        return found if is_cut else None
    weight = torch.arange(1, output.numel() + 1, device=output.device, dtype=output.dtype).cos().reshape(ordered)
    weight = weight * _one_of(sample, weight, 0)
    if series is not None or (len(shape) > 2 and tokens):
        weight = weight * _one_of(place, weight, 1)
    weight = weight.permute([order.index(axis) for axis in range(len(order))]).reshape(output.shape)
    has_places = len(shape) > 2 and bool(tokens)
    seekers = [_Mixes(model, sample, samples), *([_Mixes(model, place, ordered[1])] if has_places else [])] if seeks else []

    def see(node: Any, passed: graph_nodes.Given) -> None:
        for each in seekers:
            each(node, passed)

    gradients = graph_nodes.gradients_at(output, weight, entries.keys(), see)
    for node, (held, is_argument) in entries.items():
        places = 1 if series is None or held.dim() != 3 else shape[series[0]]
        is_stepped = series is None and any(held is each for each in stepped) and len(held) == samples
        steps = _sizes(gradients.get(node), held, samples, held.shape[1]) if is_stepped else None
        steps = steps if steps is not None and steps.shape == held.shape[:2] else None
        entry = Entry(held, _sizes(gradients.get(node), held, samples, places), is_argument, steps)
        (found.inputs if held.is_floating_point() else found.tokens).append(entry)
    if behind is not None:
        sizes = [_sizes_of_tokens(gradients.get(node), held, behind) for node, (held, _) in entries.items()]
        found.tokens.append(Entry(behind, torch.stack(sizes).sum(0), is_argument=False))
    found.mixed_by, found.spread_by, *_ = (*[each.found for each in seekers], {}, {})
    return found


class _Mixes:
    """Finds, while a graph is walked with the gradient of one sample, the operations behind which it is one of others, too."""

    def __init__(self, model: nn.Module, sample: Tensor, samples: int) -> None:
        self.found: dict[tuple[str, str, str], Tensor] = {}
        self._names = {id(each): name.rpartition(".")[0] for name, each in model.named_parameters()}
        self._sample, self._samples = sample, samples
        self._ahead: dict[Any, str] = {}  # of an operation, the module of the parameter that was met last on the way to it
        self._several: dict[Any, Tensor] = {}  # of an operation, whether what came to it is of several samples

    def __call__(self, node: Any, passed: graph_nodes.Given) -> None:
        """Note whether the gradient that came to an operation is of one sample, and what it *passed* on is not."""
        own = self._module_of(node)
        here = own or self._ahead.get(node, "")
        self._ahead |= dict.fromkeys([each for each, _ in passed], here)
        before, behind = self._several.pop(node, None), None
        for each, gradient in passed:
            of_each = self._is_of_several(gradient)
            if of_each is not None:
                self._several[each] = self._several[each] | of_each if each in self._several else of_each
                behind = of_each if behind is None else behind | of_each
        if behind is not None:
            name = graph_nodes.operation_of(node)
            is_constant = name in _PRODUCTS and any(each is None for each, _ in node.next_functions)  # as by an adjacency matrix
            key = ("" if is_constant else name, own or self._module_near(node, _NEAR), here)
            mixes = behind if before is None else behind & ~before
            self.found[key] = self.found[key] | mixes if key in self.found else mixes

    def _module_of(self, node: Any) -> str:
        """Return the name of the module whose parameter the operation takes; ``""`` for none."""
        leaves = map(graph_nodes.leaf_of, graph_nodes.with_turned(node))
        return next((self._names[id(each)] for each in leaves if id(each) in self._names), "")

    def _module_near(self, node: Any, most: int) -> str:
        """Return the name of the module whose parameter is the nearest behind *node*; ``""`` if none is among so many nodes."""
        leaves = (graph_nodes.leaf_of(each) for each in graph_nodes.nodes_before(node, most))
        return next((self._names[id(each)] for each in leaves if id(each) in self._names), "")

    def _is_of_several(self, gradient: Tensor) -> Tensor | None:
        """Return whether a *gradient* is not of one sample alone, along any axis; None where no axis is of samples."""
        found = []
        for axis, size in enumerate(gradient.shape):
            if size and size % self._samples == 0:
                others = [each for each in range(gradient.dim()) if each != axis]
                sizes = torch.linalg.vector_norm(gradient.detach(), 1, others) if others else gradient.detach().abs()
                for each in (sizes.reshape(self._samples, -1).sum(1), sizes.reshape(-1, self._samples).sum(0)):
                    found.append(each.sum() - _row(each, self._sample) > _NOTHING * each.sum())
        return torch.stack(found).all() if found else None


def is_piecewise_linear(nodes: Sequence[graph_nodes.Node]) -> bool:
    """Return whether *nodes* are of linear operations and of activations that are made of straight pieces, and of some of these."""
    names = {graph_nodes.operation_of(each) for each in nodes}
    return not names.isdisjoint(_PIECES) and names <= graph_nodes.LINEAR.union(_PIECES)


def is_scrambled(source: Sequence[int], made: Sequence[int]) -> bool:
    """Return whether a view of a tensor of the shape *source* as *made* stands where axes were to be exchanged.

    Its axes are those of the source in another order; or places are taken for heads, and back again. Two axes that differ by one
    are no such: a table of distances is turned into one of places so (Transformer-XL).
    """
    before, behind = ([size for size in each if size > 1] for each in (source, made))
    if sorted(before) == sorted(behind) and before != behind:
        apart = [one - other for one, other in zip(before, behind, strict=True) if one != other]
        return len(apart) != 2 or abs(apart[0]) != 1
    few, many = sorted((before, behind), key=len)
    is_split = (len(few), len(many)) == (3, 4) and many[0] == few[0] and many[1] * many[3] == few[2] and many[2] == few[1]
    return is_split and many[1] != many[2]


def scrambled_in(nodes: Iterable[Any], given: Sequence[Tensor], names: Mapping[int, str]) -> tuple[str, str] | None:
    """Return behind which module a view stands where axes were to be exchanged, and what it makes.

    None is one whose axes are exchanged next, as (places, samples, features) becomes (places, samples x heads, features), nor one
    that a view follows behind a slice, as distances become places so (Transformer-XL).

    Args:
        nodes: the operations of a graph.
        given: the arguments of the model.
        names: of its parameters, by their identity.
    """
    nodes = list(nodes)
    turned = {one for each in nodes if graph_nodes.operation_of(each) in _TURNS for one in graph_nodes.sources_of(each)}
    for each in (each for each in nodes if graph_nodes.operation_of(each) in graph_nodes.VIEWS):
        cut = graph_nodes.behind(each, (*graph_nodes.VIEWS, "Clone"))
        if (
            graph_nodes.operation_of(cut) in _TAKEN
            and graph_nodes.operation_of(first := graph_nodes.behind(cut, _TAKEN)) in graph_nodes.VIEWS
        ):
            turned |= {each, first}
    for node in (each for each in nodes if each not in turned):
        name, before = graph_nodes.operation_of(node), graph_nodes.sources_of(node)
        pairs: list[tuple[Sequence[int], Sequence[int]]] = []
        if name in graph_nodes.VIEWS and len(before) == 1:
            pairs = [(graph_nodes.shape_of(before[0]), graph_nodes.shape_of(node))]
        elif name in graph_nodes.WEIGHTED:
            taken = [each for each in graph_nodes.taken_by(node) if each.is_contiguous() and each.dim() > 2]
            same = [(one, each) for each in taken for one in given if one.data_ptr() == each.data_ptr()]
            pairs = [(one.shape, each.shape) for one, each in same if one.is_contiguous() and one.numel() == each.numel()]
        for source, made in pairs:
            if is_scrambled(source, made):
                leaves = map(graph_nodes.leaf_of, graph_nodes.nodes_before(node, _NEAR))
                near = next((names[id(each)] for each in leaves if id(each) in names), "").rpartition(".")[0]
                where = ("" if not near else " before " if name in _FIRST else " behind ") + near
                return near, f"a view{where} makes {tuple(made)} of {tuple(source)}"
    return None


def runs_over_samples(nodes: Iterable[Any], shape: Sequence[int], names: Mapping[int, str]) -> str | None:
    """Return the name of the recurrent layer that takes samples for steps, as an output of this *shape* says; None for none.

    Its steps are as many as there are samples of outputs, and no axis of these is what it takes for samples, two or more.

    Args:
        nodes: the graph of the output.
        shape: of the output, samples first.
        names: those of the parameters, by identity.
    """
    for node in nodes:
        steps, samples = graph_nodes.recurrence_of(node) or (0, 0)
        if steps == shape[0] and samples > 1 and samples not in shape:
            leaves = (graph_nodes.leaf_of(each) for each in graph_nodes.nodes_before(node, _STEPS))
            found = next((name for each in leaves if "weight_hh" in (name := names.get(id(each), ""))), None)
            if found is not None:
                return found.rpartition(".")[0]
    return None


def is_graph_operation(name: str) -> bool:
    """Return whether an operation that mixes samples does so as graphs do: by indices, or by a matrix that is not trained."""
    return name in _GRAPHS or not name


def is_statistic(name: str) -> bool:
    """Return whether an operation that mixes samples may be that of a normalisation: samples then matter less than the own one."""
    return name in _STATISTICS


def samples_of(shape: Sequence[int]) -> int:
    """Return how many samples of an output of this *shape* are looked at."""
    return min(shape[0], max(1, _ELEMENTS // max(1, math.prod(shape[1:]))))


def _fits(tokens: Sequence[Tensor], places: int) -> bool:
    """Return whether *tokens* have so many places, or one more or less."""
    return any(abs(each.shape[1] - places) <= 1 for each in tokens)


def _entries(nodes: Iterable[Any], given: Sequence[Tensor], samples: int) -> dict[Any, tuple[Tensor, bool]]:
    """Return which of *given* enters the graph at which of *nodes*."""
    return {node: (held, True) for node in nodes if (held := _entering(node, given, samples)) is not None}


def _entering(node: Any, given: Sequence[Tensor], samples: int) -> Tensor | None:
    """Return what enters the graph at *node*, ``(samples, places, ...)``: token indices, or an argument of the model as it is.

    Indices that come as ``(places, samples)`` are turned.
    """
    name = graph_nodes.operation_of(node)
    if name not in _FIRST:
        return None
    for held in graph_nodes.taken_by(node):
        if name == "Embedding":
            turned = held.T if held.dim() == 2 and samples not in held.shape[:1] else held
            return turned if turned.dim() == 2 and turned.shape[0] == samples and turned.shape[1] > 1 else None
        for each in given:
            is_same = each.data_ptr() == held.data_ptr() and each.numel() == held.numel() and each.is_contiguous()
            if is_same and held.is_contiguous() and each.dim() > 1 and each.shape[0] == samples and each.is_floating_point():
                return each
    return None


def _made_of_data(node: Any, samples: int) -> list[Tensor]:
    """Return what enters the graph at *node* without a gradient, ``(samples x places, ...)``, made of an argument: one or none."""
    if graph_nodes.operation_of(node) not in graph_nodes.WEIGHTED:
        return []
    held = [each for each in graph_nodes.taken_by(node) if each.dim() > 1 and each.shape[0] % samples == 0]
    return [each for each in held if each.is_floating_point() and not each.requires_grad and samples not in each.shape[1:]][:1]


def _tokens_in(given: Sequence[Tensor], samples: int) -> Tensor | None:
    """Return the tokens, ``(samples, places)``, that were *given*: of arguments of one shape the one with the largest index."""
    indices = [each for each in given if each.dim() == 2 and len(each) == samples and each.shape[1] > 1 and each.dtype in _INDICES]
    if not indices or any(each.shape != indices[0].shape for each in indices):
        return None
    held = torch.stack([each.long() for each in indices])  # others are masks, and types
    return _row(held, held.flatten(1).amax(1).argmax())


def _sizes_of_tokens(gradient: Tensor | None, held: Tensor, tokens: Tensor) -> Tensor:
    """Return how large a *gradient* is at each of the *tokens* that what was *held* is made of, each part of one; else 0.

    Then it is the same wherever a token stands at one place. Samples come first in it, or places.
    """
    samples, places = tokens.shape
    found = torch.zeros(samples, places, dtype=torch.float64, device=held.device)
    own = tokens[:_COMPARED]
    same = (own[:, None] == own) & ~torch.eye(len(own), dtype=torch.bool, device=held.device)[:, :, None]
    if gradient is None or held.shape[:-1].numel() != tokens.numel():
        return found
    for is_turned in (True, False):
        order = (places, samples) if is_turned else (samples, places)
        rows, slopes = (each.detach().reshape(*order, -1).double() for each in (held, gradient))
        rows, slopes = (each.transpose(0, 1) if is_turned else each for each in (rows, slopes))
        rows = rows[:_COMPARED]
        sums = (rows * torch.arange(1, rows.shape[2] + 1, device=rows.device).double().cos()).sum(2)
        differ = (sums[:, None] - sums).abs() > _NOTHING * rows.abs().sum(2).max()
        found = torch.where(same.any() & ~(same & differ).any(), slopes.abs().sum(2), found)
    return found


def _looked_at(
    tokens: Sequence[Tensor], shape: Sequence[int], device: torch.device, stepped: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return which sample of an output is looked at, and which place of it; *stepped* are inputs whose steps may be padding."""
    count = samples_of(shape)
    sample = torch.full((), count // 2, device=device)
    places = shape[1] if len(shape) > 1 else 1
    place = torch.full((), places // 2, device=device)
    if not tokens:
        run = padded(stepped[0])[:count].sum(1) if stepped and len(stepped[0]) >= count else torch.zeros(1, device=device)
        return torch.where(run.max() > 0, run.argmax(), sample), place
    given = next((each for each in tokens if each.shape[1] == places), tokens[0])
    padding = padded(given)[:count]
    run = padding.sum(1)
    run = run * (given.shape[1] - run >= _TOKENS)
    sample = torch.where(run.max() > 0, run.argmax(), sample)
    real = 1 - _row(padding, run.argmax())
    middle = (real * torch.arange(given.shape[1], device=device)).sum() // real.sum().clamp(min=1)
    return sample, torch.where(run.max() > 0, middle, place).clamp(max=places - 1)


def _row(table: Tensor, number: Tensor) -> Tensor:
    """Return the row with this *number*, without a host sync."""
    return table.index_select(0, number.reshape(1))[0]


def _first_of_last(sizes: Tensor, is_padding: Tensor) -> Tensor:
    """Return how many times as large *sizes* of the first eighth of the steps are as those of the last; 1 of few steps."""
    number = (1 - is_padding.long()).cumsum(0)
    count = number[-1]
    few, is_real = count // _EIGHTH, is_padding == 0
    first, last = (sizes * (is_real & which) for which in (number <= few, number > count - few))
    return torch.where(count >= 2 * _EIGHTH, first.sum() / last.sum(), 1.0)


def _one_of(place: Tensor, output: Tensor, axis: int) -> Tensor:
    """Return a tensor of one at *place* along an axis, and zeros, that broadcasts to *output*."""
    shape = [-1 if each == axis else 1 for each in range(output.dim())]
    return (torch.arange(output.shape[axis], device=output.device) == place).to(output.dtype).reshape(shape)


def _series_axes(given: Iterable[Tensor], shape: Sequence[int], order: Sequence[int]) -> tuple[int, int] | None:
    """Return which axis of an output of this *shape*, and of series that were *given*, is of places; None where there is none.

    Args:
        given: what enters the graph.
        shape: ``(samples, places)``, ``(samples, places, ...)`` or ``(samples, channels, places)``.
        order: of its axes, samples first.
    """
    for each in (one for one in given if one.dim() == 3 and one.is_floating_point()):
        for axis in order[1:]:
            same = [place for place in (1, 2) if 0 <= each.shape[place] - shape[axis] <= _MARGIN and shape[axis] >= _SERIES]
            if len(shape) in (2, 3) and len(same) == 1 and order[0] == 0:
                return axis, same[0]
    return None


def _sizes(gradient: Tensor | None, given: Tensor, samples: int, places: int = 1) -> Tensor:
    """Return how large a *gradient* is at each place of each sample of what was *given*: ``(samples, places)``, float64."""
    places = given.shape[1] if not given.is_floating_point() else places
    if gradient is None:
        return torch.zeros(samples, places, dtype=torch.float64, device=given.device)
    if places > 1 and gradient.dim() == 3 and given.is_floating_point() and gradient.shape[2] >= places:  # of a convolution
        return gradient.detach().abs().double().sum(1)[:, :places]
    if not given.is_floating_point() and gradient.shape[0] == given.shape[1] != samples:
        gradient = gradient.transpose(0, 1)
    if gradient.numel() % (samples * places):
        places = 1
    return gradient.detach().abs().double().reshape(samples, places, -1).sum(2)
