"""Look at some training passes as they return, and at the gradient that comes back; no host sync."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.engine import (
    autograd_state,
    backward_calls,
    communicates,
    graph_nodes,
    hooks,
    padded,
    raise_if_foreign,
    repeated_layers,
    roughness_by_order,
    walk,
)
from sonde.inspector.batches.dependence import (
    NODES,
    dependence_of,
    is_piecewise_linear,
    is_scrambled,
    runs_over_samples,
    samples_of,
    scrambled_in,
)
from sonde.inspector.batches.findings import SHUT_LOOKS, BatchFindings
from sonde.inspector.batches.layer_reading import (
    BEHIND,
    added_by,
    apart_numbers,
    attention_numbers,
    attentions_in_a_row,
    dead_numbers,
    direction_numbers,
    dropped_numbers,
    input_numbers,
    last_numbers,
    lost_by_step,
    narrow_layer,
    norm_numbers,
    of_one,
    repeated_norm,
    shut_numbers,
    sum_numbers,
)
from sonde.inspector.batches.look import EACH, PASSES, Depends, Look, Table, class_axes, without_recomputing
from sonde.inspector.batches.regression_targets import (
    Range,
    beyond_numbers,
    chance_numbers,
    errors_of,
    other_numbers,
    range_of,
    regression_numbers,
    sentinels_of,
    series_numbers,
    target_column_numbers,
)
from sonde.inspector.batches.target_reading import (
    as_logits,
    binary_numbers,
    binary_targets_in,
    column_gradients,
    column_numbers,
    compared_in,
    nodes_of_loss,
    numbers_of,
    one_label,
    places_read,
    scale_numbers,
    sent_loss,
    terms_of_loss,
    terms_with,
    way_numbers,
)
from sonde.rules import Chosen, Finding
from sonde.words import shape_text

_RULES = (
    "labels_alike", "label_seen", "padding_counted", "padding_alone", "future_seen", "target_shifted", "target_beyond",
    "target_own", "samples_mixed", "outputs_alike", "input_unused", "all_linear", "terms_uneven", "penalty_alone",
    "generator_misled", "begins_large", "target_of_another", "views_same", "pushed_one_way", "errors_cancel", "attention_large",
    "input_same", "input_large", "target_large", "sentinel", "class_regressed", "loss_stuck", "weight_of_ones",
    "weight_of_many", "few_indices", "running_off", "norm_starved", "dropped", "rank_collapse", "held_twice", "unreached",
    "gradient_vanishing", "norm_setting", "residual_missing",
)  # fmt: skip
_TARGETS = re.compile("label|target", re.IGNORECASE)  # arguments from which a model makes its loss, and no outputs
_GROWN = 1.5
_DEPENDS = (0, 3, 10, 24)  # of the looks, those that walk the graph: a branch may begin at zero
_ROWS, _COLUMNS = 64, 1024  # of outputs, whose distances are measured
_FEWEST, _TOLD = 8, 1 << 14  # samples of which some may be alike; elements of each, in even distances, that are compared
_SAME = 1e-13  # of the sum of elements in float64, rounding
_NOTHING = 1e-6  # of a gradient, rounding
_PAIRS, _APART = 3, 1e-3  # samples; of the size of outputs that tell samples apart
_LINEAR = 3  # layers in a row
_MOST_CLASSES = 256
_COLUMNS_OF_TARGETS = 16  # that are looked for in what is given
_TERMS, _TERM = 16, (*graph_nodes.KEEPS, "Neg")  # of a loss, and what its terms go through
_OUTPUTS = 6  # of one pass
_SHORT = 8  # operations that make an output of a parameter
_SLOW = 0.005  # momentum of running statistics: a tenth of them is new after 20 passes
_SETTLED = 50  # logged steps after which running statistics have settled
_NONE, _CHANCE = 0.1, 4.0  # a cosine that is as good as none, and its deviations by chance
_FEATURES, _TELLING = 1 << 22, 8  # elements of an input that are compared with targets; of one sample, that tell it from others
_ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU)
_GIVEN, _DERIVATIVES = 3, 8  # inputs whose derivatives are looked at, and how many come to them in one pass
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)  # which are judged by what they return


class BatchChecks:
    """Looks at some of a model's training passes as they return, and at the gradient that comes back. No host sync.

    Args:
        chosen: the rules that are applied.
        model: the model.
        name: its name in the sites; ``""`` where there is one model.
        part: the module of it whose passes these are; ``"(root)"`` for the model.
    """

    _made: ClassVar[deque[tuple[StorageWeakRef, Range | None]]] = deque(maxlen=4 * PASSES)  # what models returned last, for others

    def __init__(self, chosen: Chosen, model: nn.Module, name: str, part: str = "(root)") -> None:
        self._chosen, self._model, self._name, self._part = chosen, model, f"{name}/" if name else "", part
        self._is_on = any(map(chosen.is_on, _RULES))
        self._steps = self._next = 0  # logged steps, and the one that is looked at next
        self._depended = 0  # first passes of a step that were looked at
        self._may_walk = not communicates(model)  # what ranks share may not run twice
        self._looks: list[Look] = []
        self._generated: tuple[torch.Size, Range | None] | None = None  # the shape and range of what another model has made for it
        self._before: tuple[int, Tensor] | None = None  # the step of the pass before, and what it returned
        self._read = self._complete = 0  # looks that were judged, and those whose gradients have come
        self._listens: list[hooks.Handle] = []  # to the derivatives by what the passes were given whose backward pass has not ended
        self._has_ended = False
        self._found: dict[str, Finding] = {}
        self._tables: dict[str, Table] = {}  # embeddings by the name of the parameter
        self._findings = BatchFindings(chosen, part, self._tables)

    @property
    def looks(self) -> bool:
        """Whether the passes of the step that comes are looked at."""
        return self._is_on and self._steps >= self._next

    @property
    def looks_soon(self) -> bool:
        """Whether the passes of the step that comes are looked at, or of that behind it."""
        return self._is_on and self._steps + 1 >= self._next

    def end_step(self) -> None:
        """Count a logged step."""
        if self._steps >= self._next:
            self._next = self._steps + 1 if self._steps < EACH else int(_GROWN * self._steps)
        self._steps += 1
        for look in self._looks[self._complete :]:
            look.results.clear()
            look.arrived = None
        self._before, self._complete = None, len(self._looks)
        self._listen_no_more()

    def before_backward(self, sent: list[Tensor]) -> None:
        """Note of a loss that is *sent* backward what multiplies its terms, and its errors, for the passes that it may be of."""
        loss, looks = sent[0], self._looks[self._complete :]
        if not looks or loss.numel() != 1 or loss.grad_fn is None:
            return
        with torch.inference_mode(False), torch.no_grad(), without_recomputing():
            for look in looks:
                _read_errors(look, loss)
            terms = terms_of_loss(loss.grad_fn) if self._may_walk else []
            known = [graph_nodes.scaled_by(each, loss.device, _TERM)[1] for each in terms[:_TERMS]]
            for look in looks if known else ():
                look.add({f"weight {id(loss)} {place}": each for place, each in enumerate(known)})

    def look_at_loss(self) -> None:
        """Look what the loss adds up whose backward pass has ended, where derivatives without a graph were taken before it."""
        looks = [look for look in self._looks[self._complete :] if look.is_ungraphed]
        loss = sent_loss() if looks else None
        lacks_term = loss is not None and graph_nodes.lacks_term(loss.grad_fn)
        for look in looks:
            look.lacks_term |= lacks_term
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        """Take the hooks off what passes were given: derivatives are taken before the backward pass of their loss has ended."""
        for each in self._listens:
            each.remove()
        self._listens.clear()

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, moment: tuple[int, int], number: int) -> None:
        """Look at what a training pass has returned, which is the one with this *number* of its step."""
        try:
            returned = dict(sorted([two for two in walk(output) if _is_of_samples(two[1])], key=lambda two: _is_parameter(two[1])))
            given = [*walk(list(args)), *walk(dict(kwargs))]
            rebuilt: set[StorageWeakRef] = set()
            if not returned:
                returned, rebuilt = _compared(output, [each for _, each in given])
            if returned and not autograd_state.is_transformed():
                held, *others = returned.values()
                device = held.device.type
                with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False), without_recomputing():
                    arranged = _arranged(held, [each for _, each in given])
                    is_turned = _are_places_first(arranged, [each for _, each in given])
                    shape = (arranged[1], arranged[0], *arranged[2:]) if is_turned else arranged
                    nodes = [graph_nodes.behind(each.grad_fn, graph_nodes.KEEPS) for each in (held, *others)][:_OUTPUTS]
                    look = Look(*moment, shape, number, samples_of(shape), list(returned)[:_OUTPUTS], rebuilt=rebuilt)
                    look.makers = [autograd_state.sequence_of_node(each) for each in nodes]
                    look.made = [
                        graph_nodes.normalised_by(each) or (graph_nodes.operation_of(each), graph_nodes.axis_of(each))
                        for each in nodes
                    ]
                    look.plain = [not graph_nodes.takes_leaf(each) for each in nodes]
                    look.add({"cosines": held.detach().abs().max()} if graph_nodes.is_of_cosines(nodes[0]) else {})
                    look.is_turned, look.arranged = is_turned, arranged
                    look.volumes = [
                        each.numel() == len(held) and graph_nodes.is_log_determinant(node, held.grad_fn, NODES)
                        for each, node in zip((held, *others), nodes, strict=False)
                    ]
                    look.ranges = ranges = [range_of(each) for each in (held, *others)][:_OUTPUTS]
                    for at, reaches in enumerate(ranges):
                        if reaches is not None:
                            ends = [torch.as_tensor(each, device=held.device) for each in (reaches.low, reaches.high)]
                            look.add({f"floor {at}": ends[0], f"ceiling {at}": ends[1]})
                    first = next((each for _, each in given if type(each) is Tensor and each.layout == torch.strided), None)
                    if first is not None:
                        storage = StorageWeakRef(first.untyped_storage())  # type: ignore[no-untyped-call]
                        made = [each for of, each in BatchChecks._made if of == storage]
                        look.taken = storage, first.requires_grad, bool(made)
                        self._generated = (first.shape, made[-1]) if made else self._generated
                        reaches = None if made or self._generated is None else self._generated[1]
                        if reaches is not None and self._generated is not None and first.shape == self._generated[0]:
                            look.generated = reaches.activation.lower()
                            beyond = beyond_numbers(first.detach(), reaches.low, reaches.high)
                            look.add({f"given {name}": number for name, number in beyond.items()})
                        look.add({"taken": first.detach().double().square().mean().sqrt()} if first.is_floating_point() else {})
                    BatchChecks._made.append((StorageWeakRef(held.untyped_storage()), ranges[0]))  # type: ignore[no-untyped-call]
                    look.results = {at: each.detach() for at, each in enumerate(others, start=1)}
                    self._look(given, held, others, ranges[0], look)
                    if any(look.volumes):
                        hooks.on_result(held, hooks.Bound(_gradient_is_heard, look))
                    for _, each in given[:_GIVEN]:
                        if each.requires_grad:
                            self._listens.append(hooks.on_tensor(each, hooks.Bound(_derivative_comes, look)))
                    for at, each in enumerate(others[: _OUTPUTS - 1], start=1):
                        hooks.on_result(each, hooks.Bound(_gradient_of_other, each.detach(), at, ranges[at], look))
        except Exception as error:
            raise_if_foreign(error)
            self._may_walk = False

    def _look(
        self, named: Sequence[tuple[str, Tensor]], output: Tensor, others: Sequence[Tensor], reaches: Range | None, look: Look
    ) -> None:
        given = [each for _, each in named]
        shown = output.detach().reshape(look.arranged)
        shown = shown.transpose(0, 1) if look.is_turned else shown
        depends, walks = None, False
        if look.number == 0:
            self._depended += 1
            walks = self._depended - 1 in _DEPENDS
            nodes = list(graph_nodes.nodes_before(output.grad_fn, NODES))
            names = {id(each): name for name, each in self._model.named_parameters()}
            if walks and self._may_walk:
                look.viewed = _viewed(named) or scrambled_in(nodes, given, names)
                look.recurrent, look.lost = (
                    runs_over_samples(nodes, shown.shape, names),
                    lost_by_step([output, *others], names, NODES),
                )
                sought = self._depended > 1
                depends = dependence_of(
                    self._model, output, others, given, seeks=sought, shape=look.arranged, is_turned=look.is_turned
                )
                if depends is not None:
                    inputs = [(tuple(each.given.shape), each.is_argument) for each in (*depends.tokens, *depends.inputs)]
                    by = depends.mixed_by, depends.spread_by
                    look.depends = Depends(inputs, sought, list(by[0]), list(by[1]), depends.is_graph, depends.is_cut)
                    names_of = zip(("mixed", "spread"), by, strict=True)
                    mixes = {f"{what} {at}": each for what, found in names_of for at, each in enumerate(found.values())}
                    look.add(dict(depends.numbers()) | mixes)
            most = self._chosen.limit("dropped", "most")
            if walks and not any(isinstance(each, _DROPOUTS) and each.p > most for each in self._model.modules()):
                look.add(dropped_numbers(nodes, names))
            look.add(
                direction_numbers(nodes[::-1], names) | apart_numbers(nodes[::-1], names, len(output))
                if walks and self._may_walk
                else {}
            )
            if self._depended == 1:
                look.narrow, look.bare, look.repeated, look.single, look.twice = (
                    narrow_layer(nodes, names),
                    attentions_in_a_row(nodes),
                    repeated_norm(nodes, names),
                    of_one(nodes, names),
                    repeated_layers(self._model),
                )
                look.add(attention_numbers(nodes, names, [each for each in given if _is_sequence(each, len(shown))]))
                look.add(sum_numbers(nodes[::-1], dict(added_by(self._model))) | last_numbers(nodes, names, given))
            look.is_linear, look.is_difference = (
                _is_linear(nodes, given, self._model),
                graph_nodes.is_own_difference(output.grad_fn),
            )
            ends = [each.grad_fn for each in given if each.requires_grad]
            inside = graph_nodes.nodes_before(output.grad_fn, NODES, ends) if ends else ()
            look.is_piecewise = is_piecewise_linear([each for each in inside if each not in ends])
            look.add(self._count_indices(shown, nodes, names) | input_numbers(nodes[::-1], names))
            look.add(norm_numbers(nodes, names, self._slow_norms() if self._steps >= _SETTLED else ()))
            last = graph_nodes.behind(output.grad_fn, graph_nodes.KEEPS)
            look.add(shut_numbers(nodes[::-1], names, last) if self._depended <= SHUT_LOOKS else {})
            look.add(
                dead_numbers(nodes[::-1], self._names_without_activation(names), last)
                | _distances(shown, [each for name, each in named if not _TARGETS.search(name)])
                | {f"outputs {name}".rstrip(): share for name, share in dropped_numbers([last], {}).items()}
            )
        look.add(self._repeats(shown, look.step))
        self._looks.append(look)
        tokens = [] if depends is None else [each.given for each in depends.tokens]
        # of an embedding that is frozen, the arguments tell
        tokens += [each for each in given if walks and _are_tokens(each, len(shown), tokens)]
        look.tokens = len(tokens)
        if graph_nodes.operation_of(graph_nodes.behind(output.grad_fn, BEHIND)) in ("Cat", "Stack"):
            return  # the labels of a positive in front of others, or of pairs, are alike
        kept = shown if look.samples == len(shown) else shown[: look.samples].clone()  # which lets go of the others
        look.results |= {0: kept} if kept is shown else {}
        features = [one for each in given if (one := _features_of(each, len(shown))) is not None and not _is_in(look.rebuilt, each)]
        _read_inputs(look, features if look.number == 0 else (), walks=walks)
        place = None if depends is None else (depends.sample, depends.place)
        hooks.on_result(output, hooks.Bound(_gradient_comes, kept, self._findings.axes, tokens, features, place, reaches, look))

    def _count_indices(self, output: Tensor, nodes: Sequence[Any], names: Mapping[int, str]) -> dict[str, Tensor]:
        """Count which rows of embeddings a pass has asked for; return of each: the largest share, rows that were, and how often.

        *row* is the one of the largest share, *next* the share of the one behind it, and *last* the last row that was asked for.
        """
        found: dict[str, Tensor] = {}
        for node in (each for each in nodes if graph_nodes.operation_of(each) == "Embedding"):
            leaf = next((graph_nodes.leaf_of(each) for each in graph_nodes.sources_of(node)), None)
            name, indices = names.get(id(leaf), ""), next(graph_nodes.taken_by(node), None)
            if not name or leaf is None or indices is None:
                continue
            is_sequence = indices.dim() == 2 and indices.shape[0] == len(output)
            if name not in self._tables:
                self._tables[name] = Table(torch.zeros(len(leaf), dtype=torch.float64, device=leaf.device), is_sequence)
            counts = self._tables[name].counts
            counted = (1 - padded(indices) if is_sequence else torch.ones_like(indices)).double()
            counts.index_add_(0, indices.flatten(), counted.flatten())
            total = counts.sum()
            found |= {f"most {name}": counts.max() / total.clamp(min=1), f"rows {name}": (counts > 0).sum(), f"count {name}": total}
            if len(counts) > 1:
                two = counts.topk(2)
                found |= {f"row {name}": two.indices[0], f"next {name}": two.values[1] / total.clamp(min=1)}
                found[f"last {name}"] = ((counts > 0) * torch.arange(len(counts), device=counts.device)).max()
        return found

    def _names_without_activation(self, names: Mapping[int, str]) -> dict[int, str]:
        """Return those *names* of parameters around whose layers no module holds an activation, which is judged by itself."""
        held = {name.rpartition(".")[0] for name, each in self._model.named_modules() if isinstance(each, _ACTIVATIONS)}
        around = {each: name.split(".")[:-2] for each, name in names.items()}
        return {
            each: names[each]
            for each, parts in around.items()
            if held.isdisjoint(".".join(parts[:length]) for length in range(len(parts) + 1))
        }

    def _repeats(self, output: Tensor, step: int) -> dict[str, Tensor]:
        """Return whether an *output* is that of the pass before in this *step*, or twice what one half of it is.

        *beside*: how far the means of the two are apart.
        """
        before, self._before = self._before, (step, output)
        halves = [(output[: len(output) // 2], output[len(output) // 2 :]), (output[::2], output[1::2])]
        halves = halves if len(output) > _PAIRS and not len(output) % 2 else []
        numbers = {"halves": torch.stack([_are_same(*each) for each in halves]).any()} if halves else {}
        if before is not None and before[0] == step and before[1].shape == output.shape:
            numbers |= {"again": _are_same(before[1], output), "beside": (before[1].mean() - output.mean()).abs()}
        return numbers

    def _slow_norms(self) -> set[str]:
        """Return the names of the batch normalisations whose running statistics hardly move: others are off where inputs move."""
        known = ((name, getattr(module, "momentum", None)) for name, module in self._model.named_modules())
        return {name for name, momentum in known if isinstance(momentum, float) and momentum < _SLOW}

    def end(self) -> None:
        """Judge the last pass, too: no gradient comes any more."""
        self._listen_no_more()
        self._has_ended = True

    # Judging

    def found(self) -> tuple[Finding, ...]:
        """Return the findings so far. Waits for the device."""
        while self._read < (len(self._looks) if self._has_ended else self._complete):
            look = self._looks[self._read]
            self._read += 1
            for each in self._findings.of(look, look.read()):
                self._keep(each, look)
            look.copies.clear()
        for each in self._findings.at_end() if self._has_ended and self._looks else ():
            self._keep(each, self._looks[-1])
        return tuple(self._found.values())

    def _keep(self, found: Finding | None, look: Look) -> None:
        """Keep a finding that a *look* has shown, unless there is one of its rule."""
        if found is not None:
            said = f"{self._name.removesuffix('/')}: {found.message}" if self._name else found.message
            placed = found.at(self._name + (found.site or f"{self._part}:output"), look.epoch, look.step, said)
            since = self._looks[0].step if found.first_step is None else found.first_step
            self._found.setdefault(found.rule, replace(placed, first_step=since))


def _is_linear(nodes: Sequence[Any], given: Sequence[Tensor], model: nn.Module) -> bool:
    """Return whether nothing but layers with weights has made an output: three or more in a row, or two that one could be."""
    rows = graph_nodes.layers_in_a_row(nodes, model)
    return rows >= _LINEAR or (rows > 1 and _is_wide(nodes, given))


def _is_wide(nodes: Sequence[Any], given: Sequence[Tensor]) -> bool:
    """Return whether two layers in a row have no fewer units between them than what goes in or comes out: one could be both."""
    made = [graph_nodes.shape_of(each)[-1] for each in nodes if graph_nodes.operation_of(each) in ("Addmm", "Mm")]
    known = len(given) == 1 and given[0].is_floating_point() and given[0].dim() == 2
    return known and len(made) == _LINEAR - 1 and made[1] >= min(made[0], given[0].shape[-1])


def _is_of_samples(tensor: Tensor) -> bool:
    """Return whether *tensor* holds outputs of several samples, with a graph."""
    return (
        type(tensor) is Tensor
        and tensor.grad_fn is not None
        and tensor.dim() > 0
        and len(tensor) > 1
        and tensor.is_floating_point()
    )


def _is_parameter(tensor: Tensor) -> bool:
    """Return whether *tensor* is made of parameters alone, as a deviation that is the same for all samples."""
    nodes = list(graph_nodes.nodes_before(tensor.grad_fn, _SHORT + 1))
    return len(nodes) <= _SHORT and all(
        graph_nodes.operation_of(each) not in (*graph_nodes.WEIGHTED, "Embedding")
        and next(graph_nodes.taken_by(each), None) is None
        for each in nodes
    )


def _compared(output: Any, given: Sequence[Tensor]) -> tuple[dict[str, Tensor], set[StorageWeakRef]]:
    """Return what the losses compare with targets that a model returns alone, of as many samples as were *given*.

    And the storages of what they compare with in several parts: it is made again, in parts.
    """
    losses = {name: each for name, each in walk(output) if type(each) is Tensor and each.numel() == 1 and each.grad_fn is not None}
    samples = {len(each) for each in given if each.dim() > 1}
    compared: dict[str, Tensor] = {}
    held: list[StorageWeakRef] = []
    with without_recomputing():
        for name, loss in losses.items():
            for at, (each, target) in enumerate(compared_in(loss)):
                is_new = all(each.grad_fn is not one.grad_fn for one in compared.values())
                if is_new and _is_of_samples(each) and _arranged(each, given)[0] in samples:
                    compared[f"{name}{f'.{at}' * bool(at)}"] = each
                if target is not None:
                    held.append(StorageWeakRef(target.untyped_storage()))  # type: ignore[no-untyped-call]
    return compared, {each for each in held if held.count(each) > 1}


def _is_in(held: Collection[StorageWeakRef], tensor: Tensor) -> bool:
    """Return whether a *tensor* is in one of the storages that are *held*."""
    return bool(held) and StorageWeakRef(tensor.untyped_storage()) in held  # type: ignore[no-untyped-call]


def _are_tokens(given: Tensor, samples: int, known: Sequence[Tensor]) -> bool:
    """Return whether an argument holds indices, ``(samples, places)``, that are not known yet."""
    is_new = all(given is not each and given.data_ptr() != each.data_ptr() for each in known)
    return given.dim() == 2 and len(given) == samples and given.dtype in (torch.int64, torch.int32) and is_new


def _is_sequence(given: Tensor, samples: int) -> bool:
    """Return whether an argument holds indices, or features, of the places of each sample."""
    return _are_tokens(given, samples, []) or (given.dim() == 3 and len(given) == samples and given.is_floating_point())


def _arranged(output: Tensor, given: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the shape of *output*, ``(samples, places, classes)`` where it has samples and places of given tokens in a row."""
    rows = [each for each in given if each.dim() == 2 and not each.is_floating_point() and each.numel() == len(output)]
    return (*rows[0].shape, *output.shape[1:]) if output.dim() == 2 and rows and len(rows[0]) > 1 else tuple(output.shape)


def _are_places_first(shape: Sequence[int], given: Iterable[Tensor]) -> bool:
    """Return whether samples are the second axis of an output, ``(places, samples, ...)``, and the first of what was *given*."""
    firsts = {len(each) for each in given if each.dim() > 1}
    return len(shape) > 2 and shape[1] > 1 and shape[0] not in firsts and shape[1] in firsts


def _viewed(given: Iterable[tuple[str, Tensor]]) -> tuple[str, str] | None:
    """Return which of the tensors that were *given* is a view whose axes are those of another in another order, and from what."""
    for name, each in given:
        base = graph_nodes.viewed_of(each)
        is_whole = base is not None and base.numel() == each.numel() and base.is_contiguous() and each.is_contiguous()
        if base is not None and is_whole and is_scrambled(base.shape, each.shape):
            return f"input{name}", f"what goes in is a view of a tensor {tuple(base.shape)} as {tuple(each.shape)}"
    return None


def _distances(output: Tensor, given: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return how far the outputs of samples are apart, their size, and whether any two samples of what was *given* differ.

    *same*: the largest share of the samples whose outputs are one, though what they were given differs from that of one of them.
    """
    rows = _rows_of_samples(output, _COLUMNS)
    numbers = {"apart": (rows - rows.mean(0)).square().mean().sqrt(), "size": rows.square().mean().sqrt()}
    held = [each for each in given if each.dim() > 0 and type(each) is Tensor and each.layout == torch.strided and len(each) > 1]
    own = [each for each in held if len(each) == len(output)]
    differ = [(each[1:_ROWS] != each[:1]).any() for each in own or held]  # of graphs, those of their nodes
    if own and len(output) >= _FEWEST:
        unlike = torch.stack([~_alike_rows(each) for each in own]).any(0)
        numbers["same"] = (_alike_rows(rows) & unlike).double().mean(1).max()
    return numbers | ({"differ": torch.stack(differ).any()} if differ else {})


def _rows_of_samples(tensor: Tensor, most: int) -> Tensor:
    """Return the first samples of *tensor*, ``(samples, elements)``, float64: so many elements of each, in even distances."""
    rows = tensor.detach()[:_ROWS].reshape(min(len(tensor), _ROWS), -1)
    return rows[:, :: max(1, -(-rows.shape[1] // most))].double()


def _alike_rows(tensor: Tensor) -> Tensor:
    """Return which of the first samples of *tensor* are the same as which: ``(samples, samples)``."""
    rows = _rows_of_samples(tensor, _TOLD).nan_to_num()
    sums = (rows * torch.arange(1, rows.shape[1] + 1, device=rows.device).double().cos()).sum(1)
    return (sums[:, None] - sums).abs() <= _SAME * rows.abs().sum(1).max()


def _are_same(one: Tensor, other: Tensor) -> Tensor:
    """Return whether two outputs are the same but for rounding, and tell samples apart."""
    size = one.abs().max()
    return ((one - other).abs().max() <= _NOTHING * size) & ((one[1:] - one[:-1]).abs().max() > _APART * size)


def _read_inputs(look: Look, features: Sequence[Tensor], *, walks: bool) -> None:
    """Note of the *features* that a pass was given which number is a code, and how smooth they were in other orders of axes."""
    for at, each in enumerate(features):
        look.add({f"input {name} {at}": number for name, number in sentinels_of(each).items()})
        ratios = roughness_by_order(each) if walks else {}
        look.add({f"in order {at} {shape_text(each.shape)} {shape_text(shape)}": ratio for shape, ratio in ratios.items()})


def _read_errors(look: Look, loss: Tensor) -> None:
    """Note what a *loss* says of the targets of the outputs that a *look* has seen."""
    for at, output in look.results.items() if type(loss) is Tensor else ():
        read = list(errors_of(loss, look.makers[at])) if at < len(look.makers) and type(output) is Tensor else []
        for errors, is_whole in read if len(read) == 1 else ():
            numbers = {"error": errors.square().mean().sqrt()}
            if is_whole and errors.numel() == output.numel():
                is_turned = not at and look.is_turned
                arranged = errors.reshape(output.shape if at else look.arranged)
                arranged = arranged.transpose(0, 1) if is_turned else arranged
                numbers = regression_numbers(output, arranged, look.ranges[at], is_plain=look.plain[at])
            look.add(_of_output(at, numbers))
        for targets, axis in binary_targets_in(loss, look.makers[0]) if not at and type(output) is Tensor else ():
            look.add(binary_numbers(targets, output, axis, is_chance=look.made_by == "Sigmoid"))


def _gradient_comes(
    output: Tensor,
    axes: set[int],
    tokens: Sequence[Tensor],
    features: Sequence[Tensor],
    place: tuple[Tensor, Tensor] | None,
    reaches: Range | None,
    look: Look,
    gradient: Tensor,
) -> None:
    """Note what the *gradient* at an output shows of the targets; *output* is that of its first samples."""
    try:
        if type(gradient) is not Tensor:
            return
        gradient = gradient.detach().reshape(look.arranged)
        gradient = gradient.transpose(0, 1) if look.is_turned else gradient
        if tuple(gradient.shape) == look.shape:
            gradient = gradient if look.arrived is None else look.arrived + gradient  # of several losses of one pass
            look.arrived = gradient
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                held, nodes = gradient[: len(output)], nodes_of_loss()
                look.loss = next(map(id, backward_calls.sent_backward()), None)
                look.terms[0] = terms_with(look.makers[0])
                scores, slopes = as_logits(output, held, *look.made[0])
                look.add(numbers_of(scores, slopes, class_axes(look) & axes, tokens, place, nodes))
                look.add(
                    {"part 0": held.double().square().sum().sqrt()}
                    | _of_output(0, way_numbers(output, held, look.makers[0], nodes))
                )
                look.add(column_gradients(scores, slopes, nodes))
                look.add(places_read(gradient, nodes))
                if len(output) == len(gradient):
                    chances = {} if reaches is None else chance_numbers(output, held, reaches, look.makers[0], nodes)
                    look.add(_of_output(0, chances))
                    for at, each in enumerate(features):
                        look.add(_of_output(at, _feature_numbers(scores, slopes, each)))
    except Exception as error:
        raise_if_foreign(error)


def _features_of(given: Tensor, samples: int) -> Tensor | None:
    """Return an argument that holds features, as ``(samples, ...)``; None for another one."""
    if type(given) is not Tensor or given.dim() < 2 or not given.is_floating_point() or given.numel() > _FEATURES:
        return None
    if len(given) == samples:
        return given
    return given.transpose(0, 1) if given.dim() > 2 and given.shape[1] == samples else None


def _feature_numbers(output: Tensor, gradient: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Return what a *gradient* at an *output* says of targets that are *features*, of its own sample or of another.

    *given*: the size of features of its shape; *unseen*: the gradient has nothing of these, and so neither have the targets, as
    long as outputs are as good as zero.
    """
    each, known = output.numel() // len(output), features.numel() // len(features)
    numbers: dict[str, Tensor] = {}
    if features.dim() == 2 and each <= _MOST_CLASSES and known <= _COLUMNS:
        numbers |= column_numbers(gradient, features)
    most = _COLUMNS_OF_TARGETS if features.dim() > 2 else 1  # several columns of a table may well be asked for
    if each <= most and known >= 2 * each:  # an autoencoder returns all that it is given
        numbers |= target_column_numbers(output, gradient, features)
    if features.dim() == 3 and output.dim() in (2, 3) and features.shape[-1] <= _COLUMNS:
        numbers |= series_numbers(output, gradient, features)
    if output.shape == features.shape and known >= _TELLING and len(output) <= _MOST_CLASSES:
        numbers |= other_numbers(output, gradient, features)
    if output.shape == features.shape:
        given, held = features.detach().double(), gradient.double()
        numbers["given"] = given.square().mean().sqrt()
        given = given - given.mean(0)
        along = (held * given).sum().abs() / (held.norm() * given.norm()).clamp(min=1e-300)
        numbers["unseen"] = along <= max(_NONE, _CHANCE * given.numel() ** -0.5)
    return numbers


def _derivative_comes(look: Look, gradient: Tensor) -> None:
    """Note that a *gradient* comes to what a pass was given: whether it has a graph, and if it has, the largest of it."""
    try:
        if not torch.is_grad_enabled():
            look.is_ungraphed |= not backward_calls.sent_backward()
        elif type(gradient) is Tensor and look.derivatives < _DERIVATIVES:
            with torch.no_grad():
                look.add({f"derivative {look.derivatives}": gradient.detach().abs().max()})
            look.derivatives += 1
    except Exception as error:
        raise_if_foreign(error)


def _gradient_of_other(output: Tensor, number: int, reaches: Range | None, look: Look, gradient: Tensor) -> None:
    """Note the size of the *gradient* at one more *output*, and what it shows of its targets."""
    try:
        if type(gradient) is Tensor and gradient.shape == output.shape:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                held, nodes = gradient.detach(), nodes_of_loss()
                look.terms[number] = terms_with(look.makers[number])
                look.add(
                    {} if reaches is None else _of_output(number, chance_numbers(output, held, reaches, look.makers[number], nodes))
                )
                look.add(_of_output(number, {"part": held.double().square().sum().sqrt()} | scale_numbers(output, held)))
                look.add(
                    _of_output(
                        number,
                        way_numbers(output, held, look.makers[number], nodes)
                        | one_label(*as_logits(output, held, *look.made[number])),
                    )
                )
    except Exception as error:
        raise_if_foreign(error)


def _gradient_is_heard(look: Look, _: Tensor) -> None:
    """Note that a gradient comes."""
    look.is_heard = True


def _of_output(number: int, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name} {number}": each for name, each in numbers.items()}
