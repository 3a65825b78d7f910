"""Checks of the forward: its mode, its repeatability, its inputs, and whether samples stay apart."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from sonde import rules
from sonde.answer import Check
from sonde.diagnosis.preflight.subject import Subject, UnjudgedError, distance_of, rounding_of
from sonde.engine import (
    BatchNorm,
    Event,
    RandomState,
    Trial,
    as_arguments,
    graph_nodes,
    holds_graph,
    is_floating,
    members,
    observe,
    padded,
    remap,
    roughness_by_order,
    unwrap,
    walk,
)
from sonde.graph import named_inputs
from sonde.rules import Finding, Severity
from sonde.words import names_text, percent, shape_text

_NO_INPUT = re.compile(r"label|target|mask|position|length|(^|_)lens($|_)|(^|_)y($|_)|return_|cache", re.IGNORECASE)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d, nn.Unfold)
_NODES = 5_000  # of a graph, that are walked in Python
_TIME_FIRST = (nn.RNNBase, nn.MultiheadAttention)


def mode(subject: Subject) -> Check:
    """Judge whether the modules are in training mode, and whether a dropout drops in evaluation mode, too."""
    modules = [item.module for item in members(subject.model)]
    evaluated = sum(not each.training for each in modules)
    drops = sum(isinstance(each, DROPOUTS) and each.p > 0 for each in modules)
    said = f"{len(modules) - evaluated:,} of {len(modules):,} modules in training mode; dropout layers: {drops:,}"
    found = [rules.judge("eval_mode", evaluated, len(modules)), _told_dropout(subject), _told_left_out(subject)]
    return Check("mode", said, tuple(each for each in found if each is not None))


def _told_dropout(subject: Subject) -> Finding | None:
    """Return the finding that evaluation mode leaves a dropout on, as ``functional.dropout`` does without ``training=``."""
    with subject.trial() as trial:
        trial.model.eval()
        names = {id(parameter): name for name, parameter in trial.model.named_parameters()}
        made = [tensor.grad_fn for _, tensor in walk(trial.output()) if tensor.grad_fn is not None]
        nodes = dict.fromkeys(node for each in made for node in graph_nodes.nodes_before(each, _NODES))
        known = [(node, float(share)) for node in nodes if (share := graph_nodes.dropped_by(node)) is not None]
        rate, name = max(((rate, graph_nodes.layer_near(node, names)) for node, rate in known), default=(0.0, ""))
    if rate == 0:
        return None
    words = f"a dropout behind {name or 'the input'} leaves out {percent(rate)} in evaluation mode, too"
    advice = "give it training=self.training, or take nn.Dropout; leave it where it is meant, as for Monte Carlo dropout"
    return Finding("dropped", words, f"{name}:output" if name else "", value=rate, severity="warn", advice=advice)


def _told_left_out(subject: Subject) -> Finding | None:
    """Return the finding that evaluation mode leaves out modules at some calls, by chance, as a stochastic depth in training."""
    calls: list[set[str]] = []
    with subject.trial() as trial, torch.no_grad():
        trial.model.eval()
        state = RandomState.now(trial.model.parameters())
        with observe(trial.model, lambda event: calls[-1].add(event.name), ports=("output",)):
            while len(calls) < _CALLS:
                calls.append(set())
                trial.output()
                if not (state.has_drawn_from_python() or not torch.equal(state.cpu, torch.get_rng_state())):
                    return None
    missing = {name for ran in calls for name in ran if any(name not in other for other in calls)}
    outer = sorted(name for name in missing if not any(name.startswith(f"{each}.") for each in missing))
    if not outer:
        return None
    words = f"{names_text(outer)}: left out at some calls, by chance, in evaluation mode, too"
    advice = "leave modules out where self.training is True alone"
    share = sum(outer[0] not in each for each in calls) / len(calls)
    return Finding("dropped", words, f"{outer[0]}:output", value=share, severity="warn", advice=advice)


_CALLS = 12  # of a model in evaluation mode, in which a module that is left out at random is, and is not


def deterministic(subject: Subject) -> Check:
    """Judge whether two forwards from one random state give the same output."""
    _ = subject.ran
    found = rules.judge("random_output", *subject.apart)
    if found is None and (far := _next_apart(subject))[0] > far[1]:
        found = rules.judge("random_output", *far)
        advice = "reset what the model keeps of the call before (a hidden state, a cache); leave it where batches go on in turn"
        words = f"a second call differs by {far[0]:.1e}: the model keeps something of the first one that is no buffer"
        found = found and replace(found, message=words, advice=advice)
    said = [] if found is not None else ["two forwards are equal to the last bit"]
    said += [f"the loss function: {subject.drawn}"] if subject.drawn else []
    return Check("deterministic", "; ".join(said), () if found is None else (found,))


def _next_apart(subject: Subject) -> tuple[float, float]:
    """Return how far the outputs of two calls of one copy are apart, and what rounding explains; 0 where buffers have changed."""
    with subject.trial() as trial, torch.no_grad():
        state, before = RandomState.now(trial.model.parameters()), [each.clone() for each in trial.model.buffers()]
        one = [tensor.clone() for _, tensor in walk(trial.output()) if is_floating(tensor)]
        state.restore()
        is_kept = all(torch.equal(held, each) for held, each in zip(before, trial.model.buffers(), strict=True))
        other = [tensor for _, tensor in walk(trial.output()) if is_floating(tensor)] if is_kept else []
    pairs = zip(one, other, strict=False)
    return max(((distance_of(a, b), rounding_of(a)) for a, b in pairs if a.shape == b.shape), default=(0.0, 0.0))


def inputs_of(subject: Subject) -> dict[str, Tensor]:
    """Return the tensors of the batch that are inputs by their names: no targets, masks or positions."""
    args, kwargs = as_arguments(subject.batch)
    return {
        name: tensor
        for name, _, tensor in named_inputs(unwrap(subject.model), args, kwargs)
        if not _NO_INPUT.search(name) and tensor.dtype != torch.bool and tensor.numel()
    }


def zero_inputs(subject: Subject, names: set[str]) -> Callable[[Trial], None]:
    """Return a function that puts zeros in the place of the inputs of these *names* in a trial.

    The tensors themselves stay: one may be the target as well, as the tokens of a language model are.
    """

    def change(trial: Trial) -> None:
        found = named_inputs(unwrap(subject.model), trial.args, trial.kwargs)
        zeroed = {id(tensor) for name, _, tensor in found if name in names}
        kept = {key: value for key, value in trial.kwargs.items() if _NO_INPUT.search(key)}

        def zero(tensor: Tensor) -> Tensor:
            return torch.zeros_like(tensor).requires_grad_(tensor.requires_grad) if id(tensor) in zeroed else tensor

        trial.args = remap(trial.args, zero)
        trial.kwargs = remap(trial.kwargs, zero) | kept

    return change


def input_used(subject: Subject) -> Check:
    """Judge whether the output changes where an input is zeroed."""
    _ = subject.ran
    found = inputs_of(subject)
    samples = [tensor for tensor in found.values() if tensor.dim() > 1 and len(tensor) >= _SEVERAL]
    if samples and len(samples) == len(found) and all(bool((tensor == tensor[:1]).all()) for tensor in samples):
        what = (
            "zero throughout" if not any(bool(tensor.any()) for tensor in samples) else f"equal for all {len(samples[0]):,} samples"
        )
        alike = Finding("inputs_alike", f"{names_text(found)}: {what}", severity="bad", advice="look at how the batch is loaded")
        return Check("input_used", "", (alike,))
    inputs = {name: tensor for name, tensor in found.items() if bool((tensor != 0).any())}
    if not inputs:
        raise UnjudgedError("the batch holds no tensor that could be zeroed")
    before = subject.outputs()
    if not all(bool(tensor.isfinite().all()) for tensor in before):
        raise UnjudgedError("the output is not finite")
    if not any(bool((tensor != 0).any()) for tensor in before):
        raise UnjudgedError("the output is zero throughout, as where the last layer begins at zero")
    unused = [name for name in inputs if _is_unused(subject, name, _leave, before)]
    if unused and not all(bool(each.any()) for each in subject.model.parameters()):
        begun = subject.outputs(_begin)
        unused = [name for name in unused if _is_unused(subject, name, _begin, begun)]
    idle = subject.first.gradients.values()
    has_layers = any(size is None or size == 0 for size in idle)
    unneeded = rules.judge("input_unused", len(inputs), len(unused), name=", ".join(unused), has_layers=has_layers)
    columns = (
        [] if unused else [each for name, tensor in inputs.items() if (each := _columns_unused(subject, name, tensor)) is not None]
    )
    turned: list[Finding | None] = [each for name, tensor in inputs.items() if (each := _told_order(name, tensor)) is not None]
    known = [
        unneeded,
        *columns,
        *([] if unused else _told_padding(subject)),
        *(turned or [_told_inside(subject, inputs)]),
        _told_even(subject, inputs),
    ]
    said = f"the output depends on {', '.join(name for name in inputs if name not in unused) or 'no input'}"
    return Check("input_used", said, tuple(each for each in known if each is not None))


def paddings_of(subject: Subject) -> dict[str, Tensor]:
    """Return of each input that is padded which of its places are padding, ``(samples, places)``: one token, or zeros."""
    found = {}
    for name, tensor in inputs_of(subject).items():
        if tensor.dim() == 2 and not is_floating(tensor) and tensor.shape[1] >= _SEVERAL:
            found[name] = torch.isin(tensor, tensor[padded(tensor).bool()].unique())  # also where there is one alone
        elif tensor.dim() == 3 and is_floating(tensor) and tensor.shape[1] >= _SEVERAL:
            ends = padded(tensor), padded(tensor.flip(1)).flip(1)
            found[name] = max(ends, key=lambda each: int(each.sum())).bool()
    return {name: mask for name, mask in found.items() if int(mask.sum()) >= _SEVERAL}


def _told_padding(subject: Subject) -> list[Finding]:
    """Return the findings of inputs whose padding alone is read: no output of padded samples changes where all else does."""
    found = []
    way = _leave if all(bool(each.any()) for each in subject.model.parameters()) else _begin
    for name, mask in paddings_of(subject).items():

        def exchange(trial: Trial, name: str = name, mask: Tensor = mask) -> None:
            way(trial)
            for own, _, held in named_inputs(unwrap(subject.model), trial.args, trial.kwargs):
                if own == name and is_floating(held):
                    held.detach()[~mask] = held.detach()[~mask].roll(1, 0) * -1.5 + 0.1
                elif own == name:
                    tokens, place = held.detach()[~mask].unique(return_inverse=True)
                    held.detach()[~mask] = tokens[(place + 1) % len(tokens)]

        tensor = inputs_of(subject)[name]
        if len(tensor[~mask].unique()) < _SEVERAL or int(mask.any(1).sum()) < _SEVERAL:
            continue
        pairs = [
            [each[mask.any(1)] for each in subject.outputs(change) if each.dim() and len(each) == len(mask)]
            for change in (way, exchange)
        ]
        if len(pairs[0]) and all(distance_of(a, b) <= _NOTHING for a, b in zip(*pairs, strict=True)):
            told = rules.judge("padding_alone", 0.0, float(mask.double().mean()))
            found += [] if told is None else [replace(told, message=f"{name}: {told.message}")]
        elif _says_padding(subject, mask) and (moved := _moved_by_padding(subject, name, mask)) >= _READ:
            words = f"{name}: outputs change by {percent(min(moved, 1.0))} with what stands at padding, whatever mask is given"
            found.append(Finding("padding_alone", words, value=moved, severity="warn", advice=_LEAVE_OUT))
    return found


_READ = 0.05  # of its size, by which padding moves an output
_LEAVE_OUT = (
    "look at which way round the mask is (src_key_padding_mask has True at padding, attention_mask 0), at which step is read, and "
    "at means over all places"
)


def _says_padding(subject: Subject, padding: Tensor) -> bool:
    """Return whether the model is given a mask of what is *padding*, or how long each sample is."""
    args, kwargs = as_arguments(subject.batch)
    given = [each for *_, each in named_inputs(unwrap(subject.model), args, kwargs) if not is_floating(each)]
    masks = [each.bool() for each in given if each.shape == padding.shape]
    return any(torch.equal(each, ~padding) or torch.equal(each, padding) for each in masks) or any(
        torch.equal(each.long().to(padding.device), (~padding).sum(1)) for each in given if each.shape == padding.shape[:1]
    )


def _moved_by_padding(subject: Subject, name: str, padding: Tensor) -> float:
    """Return how far other numbers at *padding*, of features or in the embeddings of its tokens, move outputs of samples."""
    tensor = inputs_of(subject)[name]
    tokens = None if is_floating(tensor) else tensor[padding].unique()

    def change(trial: Trial) -> None:
        trial.model.eval()
        for own, _, held in named_inputs(unwrap(subject.model), trial.args, trial.kwargs):
            if own == name and tokens is None:
                held.detach()[padding] = held.detach()[~padding].mean(0) + held.detach().std()
        for item in members(trial.model) if tokens is not None else ():
            if isinstance(item.module, nn.Embedding) and item.module.num_embeddings > int(tensor.max()):
                weight = item.module.weight.detach()
                weight[tokens] = weight[tokens] + weight.std() * torch.arange(1, weight.shape[1] + 1, device=weight.device).cos()

    def rest(trial: Trial) -> None:
        trial.model.eval()

    pairs = zip(subject.outputs(rest), subject.outputs(change), strict=True)
    return max((distance_of(a, b) for a, b in pairs if a.dim() and padding.shape[1] not in a.shape[1:]), default=0.0)


_NOTHING = 1e-6  # by which rounding moves outputs


def _told_order(name: str, tensor: Tensor) -> Finding | None:
    """Return the finding that a view has exchanged the axes of the input *name*, which is smooth in another order."""
    ratios = roughness_by_order(tensor) if tensor.is_floating_point() and type(tensor) is Tensor else {}
    ratio, shape = min(((float(ratio), shape) for shape, ratio in ratios.items() if ratio >= 0), default=(math.inf, ()))
    found = rules.judge("samples_mixed", ratio, 0.0, order=f"{shape_text(tensor.shape)} {shape_text(shape)}")
    return found and replace(found, message=f"{name}: {found.message}", advice="use permute or transpose in the place of that view")


def _told_inside(subject: Subject, inputs: Mapping[str, Tensor]) -> Finding | None:
    """Return the finding that the model itself exchanges axes by a view, in front of its first convolution."""
    sizes = {tensor.numel() for tensor in inputs.values() if tensor.is_floating_point()}
    given: dict[str, Tensor] = {}

    def note(event: Event) -> None:
        held = next((tensor for _, tensor in walk(event.value) if is_floating(tensor)), None)
        is_first = isinstance(event.module, _OF_IMAGES) and held is not None and not given and held.numel() in sizes
        given.update({event.name: held.detach().clone()} if is_first and held is not None else {})

    with subject.trial() as trial, torch.no_grad(), observe(trial.model, note, ports=("input",)):
        trial.output()
    found = next((_told_order(f"what {name} is given", tensor) for name, tensor in given.items()), None)
    return found and replace(found, site=f"{next(iter(given))}:input")


_OF_IMAGES = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _told_even(subject: Subject, inputs: Mapping[str, Tensor]) -> Finding | None:
    """Return the finding that a model with attention does not tell places apart: no output changes with the order of tokens.

    Nor with that of parts of an image, or of the steps of a series; a note, where steps next to each other are not alike: of a set.
    """
    if not any("Attention" in type(item.module).__name__ for item in members(subject.model)):
        return None
    given = [each for each in inputs.values() if each.dim() in (2, 3, 4)]
    for tensor in (each for each in given if each.is_floating_point() == (each.dim() > 2)):
        what = ("tokens", "steps", "patches")[tensor.dim() - 2]
        for move in _moves(tensor):
            if not torch.equal(tensor, move(tensor)) and _is_even(subject, tensor, move):
                found = rules.judge("input_unused", 2, 1, name=f"the order of its {what}", has_layers=True)
                advice = "add what tells places apart (an embedding of positions, sines), if their order matters"
                is_set = what == "steps" and bool(tensor.diff(dim=1).square().mean() > tensor.var(1).mean())
                return found and replace(found, advice=advice, severity="note" if is_set else found.severity)
    return None


def _moves(tensor: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Return ways to move places of an input: of tokens and steps those between the first and the last, patches in a circle."""

    def turn(given: Tensor) -> Tensor:
        ends = int(given.shape[1] > _ENDS)  # which may be read alone
        return torch.cat([given[:, :ends], given[:, ends : given.shape[1] - ends].flip(1), given[:, given.shape[1] - ends :]], 1)

    def roll(given: Tensor, part: int) -> Tensor:
        return given.roll((high // part, wide // part), (2, 3))

    if tensor.dim() < 4:
        return [turn]
    high, wide = tensor.shape[2:]
    parts = [each for each in (2, 3, 5, 7) if high % each == 0 == wide % each]  # one divides the number of patches of a row
    return [functools.partial(roll, part=part) for part in parts]


_ENDS = 3  # places of which none would be left to move between the first and the last


def _is_even(subject: Subject, tensor: Tensor, move: Callable[[Tensor], Tensor]) -> bool:
    """Return whether outputs are the same, or moved in the same way, where the places of an input of this shape are moved."""

    def rest(trial: Trial) -> None:
        trial.model.eval()  # dropout has places, too
        _begin(trial)  # as positions that are zero at first

    def turn(trial: Trial) -> None:
        rest(trial)
        trial.args, trial.kwargs = remap(
            (trial.args, trial.kwargs), lambda each: move(each) if each.shape == tensor.shape else each
        )

    least = 4 if tensor.dim() == 4 else 2  # axes of an output of places
    try:
        before, after = subject.outputs(rest), subject.outputs(turn)
    except UnjudgedError:
        return False  # as of parameters that are shards
    return len(before) == len(after) and all(
        min(distance_of(each, two) for each in ([one, move(one)] if one.dim() >= least else [one])) <= rounding_of(one)
        for one, two in zip(before, after, strict=True)
    )


def _leave(trial: Trial) -> None:
    """Leave the parameters as they are."""


def _begin(trial: Trial) -> None:
    """Give parameters that are zero throughout other values, as their first step does: what they multiply is used then."""
    for each in trial.model.parameters():
        if not bool(each.any()):
            each.copy_(torch.arange(1, each.numel() + 1, device=each.device).cos().reshape(each.shape))


def _is_unused(subject: Subject, name: str, way: Callable[[Trial], None], before: list[Tensor]) -> bool:
    """Return whether no output is other than *before* where the input *name* is zeroed, the parameters changed in this *way*.

    Where the model raises then, it reads that input.
    """

    def change(trial: Trial) -> None:
        way(trial)
        zero_inputs(subject, {name})(trial)

    try:
        after = subject.outputs(change)
    except (RuntimeError, ValueError, IndexError):
        return False  # as lengths, of which none may be 0
    return len(after) == len(before) and all(distance_of(a, b) == 0 for a, b in zip(before, after, strict=True))


_LITTLE = 0.05  # of outputs, that exchanged samples may move by a scale
_SEVERAL = 4  # samples whose inputs are not equal by chance


def _columns_unused(subject: Subject, name: str, tensor: Tensor) -> Finding | None:
    """Return the finding of columns (features, channels) of the input *name* on which no output depends; None without any.

    Their gradient is 0 throughout, and no output changes where their elements are exchanged among the samples and reversed in
    sign: neither with the weights of the model nor with others, since a unit may be dead by chance.
    """
    sizes = tensor.shape[1:]
    if not is_floating(tensor) or tensor.dim() < 2 or tensor.shape[0] < 2 or sorted(sizes)[:2].count(min(sizes)) > 1:
        return None
    axis = 1 + list(sizes).index(min(sizes))  # features and channels are fewer than positions
    if sizes[axis - 1] < 2 or (tensor.dim() == 2 and any(isinstance(each, _CONVOLUTIONS) for each in subject.model.modules())):
        return None
    idle = _idle_columns(subject, name, axis)
    if idle is None or not bool(idle.any()):
        return None
    places = idle.nonzero()[:, 0]

    def outputs(*, other_weights: bool, exchanged: bool) -> list[Tensor]:
        def change(trial: Trial) -> None:
            normalise_apart(trial)
            for parameter in trial.model.parameters() if other_weights else ():
                parameter.mul_(-1.5).add_(0.1)
            found = named_inputs(unwrap(subject.model), trial.args, trial.kwargs) if exchanged else []
            for own, _, held in found:
                if own == name:
                    held.detach().index_copy_(axis, places, -3 * held.detach().index_select(axis, places).roll(1, 0))

        return subject.outputs(change)

    for other_weights in (False, True):
        before, after = (outputs(other_weights=other_weights, exchanged=exchanged) for exchanged in (False, True))
        if len(before) != len(after) or any(distance_of(a, b) != 0 for a, b in zip(before, after, strict=True)):
            return None
    share = f"{len(places):,} of {len(idle):,} columns" + (f" (axis {axis})" if tensor.dim() > 2 else "")
    words = f"no output depends on {share} of {name}: {names_text([str(place) for place in places.tolist()])}"
    severity: Severity = "warn" if 2 * len(places) >= len(idle) else "note"
    return Finding(
        "input_unused",
        words,
        value=float(len(places)),
        severity=severity,
        advice="look at the index or slice that takes the columns",
    )


def _idle_columns(subject: Subject, name: str, axis: int) -> Tensor | None:
    """Return which columns of the input *name*, along *axis*, have a gradient of 0 throughout; None where there is no gradient."""
    with subject.trial() as trial, contextlib.suppress(RuntimeError):
        normalise_apart(trial)
        found = named_inputs(unwrap(subject.model), trial.args, trial.kwargs)
        held = {id(tensor): tensor.detach().clone().requires_grad_() for own, _, tensor in found if own == name}
        trial.args, trial.kwargs = remap((trial.args, trial.kwargs), lambda tensor: held.get(id(tensor), tensor))
        outputs = [tensor for _, tensor in walk(trial.output()) if is_floating(tensor) and tensor.requires_grad]
        weights = [
            torch.arange(1, each.numel() + 1, device=each.device, dtype=each.dtype).cos().reshape(each.shape) for each in outputs
        ]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(outputs, list(held.values()), weights, allow_unused=True)
        gradient = gradients[0]
        return None if gradient is None else (gradient == 0).movedim(axis, 0).flatten(1).all(1)
    return None


def _apart(tensor: Tensor) -> Tensor:
    """Return a tensor whose elements have places of their own."""
    return tensor.contiguous() if tensor.layout is torch.strided and not tensor.is_contiguous() else tensor


def samples_apart(subject: Subject) -> Check:
    """Judge whether the outputs of a sample change where all other samples of the batch are exchanged for it."""
    _ = subject.ran
    modules = [item.module for item in members(subject.model)]
    args, kwargs = as_arguments(subject.batch)
    tensors = [tensor for _, tensor in walk((args, kwargs)) if tensor.dim()]
    sizes = Counter(tensor.shape[0] for tensor in tensors)
    samples = sizes.most_common(1)[0][0] if sizes else 0
    before = subject.outputs(normalise_apart)
    judged = [place for place, tensor in enumerate(before) if tensor.dim() and tensor.shape[0] == samples]
    if samples < 2 or not judged:
        raise UnjudgedError("needs a batch of two samples or more, along the first axis of inputs and outputs")
    if holds_graph(subject.model, tensors, samples):
        raise UnjudgedError(f"a matrix of {samples:,} x {samples:,}, or a list of edges, says which samples belong together")
    subject.expect_repeats()
    far = []
    for kept in (samples - 1, 0):

        def exchange(trial: Trial, kept: int = kept) -> None:
            normalise_apart(trial)
            trial.args, trial.kwargs = remap((trial.args, trial.kwargs), _apart)  # windows of one series lie over each other
            for _, tensor in walk((trial.args, trial.kwargs)):
                if tensor.dim() and tensor.shape[0] == samples:
                    held = tensor.detach()
                    held.copy_(held[kept].clone().expand_as(held))

        after = subject.outputs(exchange)
        far += [
            (
                distance_of(_of_sample(before[place], kept, samples), _of_sample(after[place], kept, samples)),
                rounding_of(before[place]),
            )
            for place in judged
            if place < len(after)
        ]
    worst = max(far, key=lambda pair: pair[0] / pair[1], default=(0.0, 1.0))
    is_sure = _is_of_samples(subject, samples) or not any(
        isinstance(each, _TIME_FIRST) and not each.batch_first for each in modules
    )
    found = rules.judge("samples_mixed", *worst, is_sure=is_sure)
    if found is not None and (worst[0] < _LITTLE or not _is_differentiated(subject, samples)):
        found = replace(
            found, severity="note", advice=f"a scale that a batch sets, as of a fake quantisation, does so; else {found.advice}"
        )
    if found is not None and not is_sure:
        words = f"{found.message}; a layer has batch_first=False, so that the first axis may be time"
        found = type(found)(found.rule, words, value=found.value, severity="note", evidence=found.evidence, advice=found.advice)
    with_norms = any(isinstance(each, BatchNorm) and each.training for each in modules)
    apart = ", apart from its batch normalisation, which mixes them on purpose" if with_norms else ""
    said = f"exchanging all but one of {samples:,} samples" + (apart if found else f" does not change that one{apart}")
    return Check("samples_apart", said, () if found is None else (found,))


def _is_differentiated(subject: Subject, samples: int) -> bool:
    """Return whether a gradient of the last sample's output comes to inputs of others, or it is not known.

    None does through a scale that was detached, as that of a fake quantisation.
    """
    with subject.trial() as trial, contextlib.suppress(RuntimeError):
        normalise_apart(trial)
        held: dict[int, Tensor] = {}

        def free(tensor: Tensor) -> Tensor:
            is_given = is_floating(tensor) and tensor.dim() and tensor.shape[0] == samples
            return held.setdefault(id(tensor), tensor.detach().clone().requires_grad_()) if is_given else tensor

        given = [tensor for _, tensor in walk((trial.args, trial.kwargs)) if tensor.dim() and tensor.shape[0] == samples]
        if not given or not all(map(is_floating, given)):
            return True
        trial.args, trial.kwargs = remap((trial.args, trial.kwargs), free)
        outputs = [tensor for _, tensor in walk(trial.output()) if is_floating(tensor) and tensor.requires_grad and tensor.dim()]
        own = [_of_sample(tensor, samples - 1, samples).abs().sum() for tensor in outputs if tensor.shape[0] == samples]
        found: tuple[Tensor | None, ...] = torch.autograd.grad(torch.stack(own).sum(), list(held.values()), allow_unused=True)
        known = [each for each in found if each is not None]
        return not any(bool(each[-1].any()) for each in known) or any(bool(each[:-1].any()) for each in known)
    return True


def _is_of_samples(subject: Subject, samples: int) -> bool:
    """Return whether the loss shows that the first axis of the inputs is that of *samples*, and not of time.

    It compares as many outputs with as many targets, and neither has the second axis of the inputs, which would be the samples.
    """
    found = [tensor for tensor in inputs_of(subject).values() if tensor.dim() > (2 if is_floating(tensor) else 1)]
    others = {tensor.shape[1] for tensor in found if tensor.shape[0] == samples}
    calls = [call for call in subject.first.calls if call.target.dim() and call.input.dim()]
    if not others or not calls or not others.isdisjoint({1, samples}):
        return False
    return all(
        each.shape[0] == samples and others.isdisjoint(each.shape[1:]) for call in calls for each in (call.input, call.target)
    )


def normalise_apart(trial: Trial) -> None:
    """Let the batch normalisations of a trial take their running statistics, so that they mix no samples."""
    for module in trial.model.modules():
        if isinstance(module, BatchNorm) and module.track_running_stats:
            module.eval()


def _of_sample(output: Tensor, kept: int, samples: int) -> Tensor:
    """Return *output* of the sample *kept*, along each axis of so many *samples*: in a matrix of pairs there are two."""
    return output[tuple(slice(kept, kept + 1) if size == samples else slice(None) for size in output.shape)]
