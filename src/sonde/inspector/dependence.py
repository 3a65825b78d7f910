"""Measure what the outputs of a training pass depend on: other samples, later tokens, padding. No module runs for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import graph_nodes, holds_graph, walk

NODES = 5_000
"""Of a graph, that are walked in Python."""
_FIRST = ("Embedding", "Addmm", "Mm", "Convolution")  # operations that treat each sample, and each place in it, by itself
_ELEMENTS = 1 << 18  # of outputs, of which the first samples are looked at
_TOKENS = 3  # beside the padding of a sample, so that it is no other one that is read
_NORMS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")  # mix samples, as is meant


@dataclass(frozen=True)
class Entry:
    """Where an input enters the graph of an output.

    Attributes:
        given: the input, ``(samples, places, ...)``.
        spread: how much an output in the middle depends on each place of each sample, ``(samples, places)``; None where the output
            has no places.
        own, others: how much all outputs of one sample depend on itself, and on other samples. Elements of float64.
        real, padding: of that sample, how much they depend on tokens but for the one that has most, which may be where the output
            is read, and on what is the same token at the end of its row.
    """

    given: Tensor
    spread: Tensor | None
    own: Tensor
    others: Tensor
    real: Tensor
    padding: Tensor


@dataclass
class Dependence:
    """What an output depends on.

    Attributes:
        tokens: of each embedding of tokens.
        inputs: of each other input.
        is_graph: the batch is a graph, whose samples belong together.
    """

    tokens: list[Entry] = field(default_factory=list)
    inputs: list[Entry] = field(default_factory=list)
    is_graph: bool = False


def dependence_of(model: nn.Module, output: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dependence | None:
    """Return what *output* of *model* depends on; None where no input is found in its graph, or it normalises over samples.

    The graph is walked backwards twice, node by node: no hook runs, and nothing is written or freed. No host sync.

    Args:
        model: has just returned it.
        output: ``(samples, ...)``, two samples or more.
        args, kwargs: what the model was given.

    Raises:
        RuntimeError: its graph can be walked once alone.
    """
    nodes = list(graph_nodes.nodes_before(output.grad_fn, NODES))
    names = {graph_nodes.operation_of(node) for node in nodes}
    if any(map(graph_nodes.is_in_python, nodes)):
        raise RuntimeError("a backward is written in Python, or compiled")
    if len(nodes) > NODES or not names.isdisjoint(_NORMS):
        return None
    given = [tensor for _, tensor in walk([args, dict(kwargs)])]
    samples = output.shape[0]
    if samples < 2 or type(output) is not Tensor:
        return None
    entries = {node: taken for node in nodes if (taken := _entering(node, given, samples)) is not None}
    if not entries:
        return None
    tokens = [held for held in entries.values() if not held.is_floating_point()]
    sample = _one_sample(tokens[0] if tokens else None, samples, output.device)
    weight = torch.arange(1, output.numel() + 1, device=output.device, dtype=output.dtype).cos().reshape(output.shape)
    chosen = sample.reshape(-1, *[1] * (output.dim() - 1)).to(weight.dtype)
    of_sample = graph_nodes.gradients_at(output, weight * chosen, entries.keys())
    has_places = output.dim() > 2 and bool(tokens)
    of_place: dict[Any, Tensor] = {}
    if has_places:
        point = torch.zeros_like(weight)
        place = middle_of(output)
        point[place] = weight[place]
        of_place = graph_nodes.gradients_at(output, point, entries.keys())
    found = Dependence(is_graph=holds_graph(model, given, samples))
    for node, held in entries.items():
        sizes = _sizes(of_sample.get(node), held)
        own = sample.to(sizes.dtype) @ sizes
        is_token = not held.is_floating_point()
        padding = sample.to(sizes.dtype) @ padded(held).to(sizes.dtype) * own if is_token else torch.zeros_like(own)
        spread = _sizes(of_place.get(node), held) if has_places and is_token else None
        tokens_alone = own - padding
        real = tokens_alone.sum() - tokens_alone.max()
        entry = Entry(held, spread, own.sum(), sizes.sum() - own.sum(), real, padding.sum())
        (found.tokens if is_token else found.inputs).append(entry)
    return found


def samples_of(output: Tensor) -> int:
    """Return how many samples of an *output* are looked at."""
    return min(len(output), max(1, _ELEMENTS // output[0].numel()))


def middle_of(output: Tensor) -> tuple[int, int]:
    """Return a sample and a place in the middle of an *output*, ``(samples, places, ...)``; place 0 where it has none."""
    return samples_of(output) // 2, output.shape[1] // 2 if output.dim() > 1 else 0


def _entering(node: Any, given: Sequence[Tensor], samples: int) -> Tensor | None:
    """Return what enters the graph at *node*, ``(samples, places, ...)``: token indices, or an argument of the model as it is."""
    name = graph_nodes.operation_of(node)
    if name not in _FIRST:
        return None
    for held in graph_nodes.taken_by(node):
        if name == "Embedding":
            return held if held.dim() == 2 and held.shape[0] == samples and held.shape[1] > 1 else None
        for each in given:
            is_same = each.data_ptr() == held.data_ptr() and each.numel() == held.numel() and each.is_contiguous()
            if is_same and held.is_contiguous() and each.dim() > 2 and each.shape[0] == samples and each.is_floating_point():
                return each
    return None


def _one_sample(tokens: Tensor | None, samples: int, device: torch.device) -> Tensor:
    """Return which sample is looked at, as a vector of zeros and a one: that with the most padding, else one in the middle."""
    place = torch.full((), samples // 2, device=device)
    if tokens is not None:
        run = padded(tokens).sum(1)
        run = run * (tokens.shape[1] - run >= _TOKENS)
        place = torch.where(run.max() > 0, run.argmax(), place)
    return (torch.arange(samples, device=device) == place).double()


def padded(tokens: Tensor) -> Tensor:
    """Return which of *tokens* are padding: of two or more at the end of a row those that are what rows end with most often.

    A row of these alone has none.
    """
    last = tokens[:, -1].mode().values
    is_end = (tokens == last).flip(1).long().cumprod(1).flip(1)
    run = is_end.sum(1, keepdim=True)
    return is_end * ((run > 1) & (run < tokens.shape[1]))


def _sizes(gradient: Tensor | None, given: Tensor) -> Tensor:
    """Return how large a *gradient* is at each place of each sample of what was *given*: ``(samples, places)``, float64."""
    samples = given.shape[0]
    places = given.shape[1] if not given.is_floating_point() else 1
    if gradient is None:
        return torch.zeros(samples, places, dtype=torch.float64, device=given.device)
    return gradient.detach().abs().double().reshape(samples, places, -1).sum(2)
