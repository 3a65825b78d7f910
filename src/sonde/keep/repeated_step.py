"""Run a tracked step again, disturbed by rounding: how far rounding alone moves each tensor of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sonde.engine import Named, RandomState, RoundingMode, buffers_of, gradients_put_aside, members, parameters_of
from sonde.errors import ArgumentError
from sonde.keep.stash import Stash, leaves_of
from sonde.site import OTHER_CALLS, Site
from sonde.stats import Piece

Key = tuple[Site, int]
"""A site, as a whole, and the call."""

_OTHER = 0.05
"""A repeat that moves an output by more than this part of its norm has run something else."""
_REPEATS = 2


def key_of(stash: Stash) -> Key:
    """Return the place of *stash*."""
    assert stash.site is not None
    return stash.site.at(""), stash.call


def parameters_of_all(models: Iterable[nn.Module]) -> Iterator[tuple[Named, str, nn.Parameter]]:
    """Yield each parameter of *models* with the module that holds it and its name: one that several hold once for each."""
    for model in models:
        for item in members(model):
            for own, parameter in parameters_of(item.module).items():
                if parameter is not None:
                    yield item, f"{item.name}.{own}" if item.name else own, parameter


def moved_by_rounding(first: Mapping[Key, Stash], run: Callable[[], list[Any]], models: list[nn.Module]) -> dict[Key, float]:
    """Return how far rounding moves each tensor of a step, relative to its norm: the larger of two repeats.

    Args:
        first: the stashes of the step.
        run: runs the step again, and returns its stashes.
        models: the models that run.

    Raises:
        ArgumentError: the step without a disturbance makes other tensors than *first*.
    """
    found: dict[Key, float] = {}
    undisturbed: dict[Key, Tensor] = {}
    parameters = [parameter for model in models for parameter in model.parameters()]
    buffers = [(held, held.detach().clone()) for model in models for item in members(model) for held in _held_buffers(item)]
    before = RandomState.now(parameters)
    for seed in (None, *range(_REPEATS)):
        with gradients_put_aside(parameters), nullcontext() if seed is None else RoundingMode(seed):
            again = {key_of(stash): stash for stash in reversed(run()) if isinstance(stash, Stash)}
            gradients = {(Site(path, "grad"), OTHER_CALLS): held.grad for _, path, held in parameters_of_all(models)}
        before.restore()
        for buffer, kept in buffers:
            buffer.detach().copy_(kept)
        for key, stash in reversed(again.items()):
            if key in first:
                moved = max((_moved(x, y) for x, y in _pairs(first[key], stash)), default=0.0)
                if seed is None and moved > _OTHER and not stash.grad:
                    raise ArgumentError(
                        f"measure_rounding: the step made another tensor at {key[0]} than the tracked one, {moved:.2g} of its norm "
                        "apart: let it run the same batch and weights, without an optimizer's step, and set the seed first where "
                        "it draws random numbers"
                    )
                found[key] = max(found.get(key, 0.0), moved)
        for place, gradient in gradients.items():
            if gradient is None:
                continue
            held = Piece.held(gradient)[0]
            if seed is None:
                undisturbed[place] = held
            elif place in undisturbed:
                found[place] = max(found.get(place, 0.0), _moved(undisturbed[place], held))
    return found


def _held_buffers(item: Named) -> list[Tensor]:
    return [held for held in buffers_of(item.module).values() if held is not None]


def _pairs(one: Stash, other: Stash) -> Iterator[tuple[Tensor, Tensor]]:
    there = leaves_of(other)
    for leaf, held in leaves_of(one).items():
        beside = there.get(leaf)
        if isinstance(held, Tensor) and isinstance(beside, Tensor) and held.shape == beside.shape and not held.is_nested:
            yield held, beside


def _moved(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to the larger norm; elements that are not finite are left out."""
    if one.is_meta or one.is_quantized or one.layout is not torch.strided:
        return 0.0
    x, y = (
        torch.nan_to_num(held.detach().to("cpu", torch.complex128 if held.is_complex() else torch.float64), 0, 0, 0)
        for held in (one, other)
    )
    largest = max(float(x.norm()), float(y.norm()))
    return float((x - y).norm()) / largest if largest else 0.0
