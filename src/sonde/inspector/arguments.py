"""Read the arguments of an inspector: models, optimizers, lenses, and the configuration that is kept in the run."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from sonde.engine import check_model, held_by, parameters_in
from sonde.errors import ArgumentError
from sonde.lens import AnyLens, Lens, LossMetrics, lens_of
from sonde.preprocessor import AbstractPreprocessor


def models_of(module: Any) -> dict[str, nn.Module]:
    """Return the models that *module* is or holds, by name.

    Raises:
        ModelError: one is no ``nn.Module``.
        ArgumentError: one has no name.
    """
    if not isinstance(module, Mapping) or isinstance(module, nn.Module):
        return {"": check_model(module)}
    if not module or not all(isinstance(name, str) and name for name in module):
        raise ArgumentError(f'several models are given by name, as {{"G": generator, "D": discriminator}}, not {module!r}')
    return {name: check_model(model) for name, model in module.items()}


def optimizers_of(given: Any) -> tuple[Optimizer, ...]:
    """Return the optimizers that *given* is or holds.

    Raises:
        ArgumentError: one is not of ``torch.optim``.
    """
    listed = () if given is None else tuple(given) if isinstance(given, Iterable) else (given,)
    for optimizer in listed:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"optimizer={type(optimizer).__name__}: a torch.optim optimizer is seen to step by itself; for any other call "
                "inspector.step() after each of its steps, and leave optimizer= out"
            )
    return listed


def check_optimizer(optimizer: Optimizer, models: Mapping[str, nn.Module]) -> None:
    """Check that *optimizer* steps a parameter of one of *models*.

    Raises:
        ArgumentError: it does not.
    """
    held = held_by(optimizer)
    if not any(id(parameter) in held for model in models.values() for parameter in parameters_in(model)):
        raise ArgumentError(
            f"this {type(optimizer).__name__} holds no parameter of the model, so that no step of it would ever be seen: was it "
            "made for another model, or before the model was moved or wrapped?"
        )


def flat(lenses: Iterable[AnyLens]) -> Iterator[Lens | LossMetrics]:
    """Yield each lens, and after it those that belong to it.

    Raises:
        ArgumentError: one is no lens.
    """
    for lens in lenses:
        if isinstance(lens, AbstractPreprocessor):
            lens = lens_of(lens)  # noqa: PLW2901
        if not isinstance(lens, Lens | LossMetrics):
            raise ArgumentError(
                f"{lens!r} is no lens: sonde.lens holds lenses, as sonde.lens.moments(); "
                "sonde.lens.Lens(name, statistic, ports) makes one of a statistic"
            )
        yield lens
        if isinstance(lens, Lens):
            yield from flat(lens.also)


def in_words(given: Any) -> str:
    """Return *given*, an argument such as ``every=`` or ``include=``, as a text that is equal in all processes of a training."""
    if isinstance(given, re.Pattern):
        return f"the pattern {given.pattern!r}"
    if isinstance(given, type):
        return given.__qualname__
    if isinstance(given, list | tuple | set | frozenset):
        return f"[{', '.join(sorted(map(in_words, given)))}]"
    if is_dataclass(given) and not isinstance(given, type):
        parts = (f"{each.name}={in_words(getattr(given, each.name))}" for each in dataclasses.fields(given))
        return f"{type(given).__name__}({', '.join(parts)})"
    if given is None or isinstance(given, bool | int | float | str | range):
        return repr(given)
    return f"a {type(given).__name__} {getattr(given, '__qualname__', '')}".rstrip()


def plain_config(config: Any) -> dict[str, Any]:
    """Return *config* as plain data: numbers, texts and None as they are, anything else as its text.

    Args:
        config: a mapping, a dataclass, an ``argparse.Namespace``, or another object with attributes; also nested.

    Raises:
        ArgumentError: it has no names.
    """
    found = _plain(config)
    if not isinstance(found, dict):
        raise ArgumentError(f"config={config!r}: give names and values, as {{'lr': 1e-3, 'batch_size': 64}}")
    return found


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "tolist"):  # an array, a tensor, or one number of them
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, argparse.Namespace | SimpleNamespace):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, int) else str(value)
