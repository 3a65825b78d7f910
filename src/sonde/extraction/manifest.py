"""What a store says of how it is made: models, sites, options, code and data. A store is continued under the same alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sonde.engine import class_of, unwrap
from sonde.extraction.crew import Crew
from sonde.extraction.digest import bare, code_of, digest
from sonde.extraction.sharing import is_shared
from sonde.site import Site

KIND = "extract"

_WORDS = {
    "weights": "the weights {}",
    "models": "{} of the model",
    "sites": "the sites",
    "options": "{}=",
    "data": "{} of the data",
    "made_with": "{}",
    "columns": "column {}",
}
"""What a store is compared by, and how each entry is called."""


def manifest(
    models: Mapping[str, nn.Module], sites: Sequence[Site], options: Mapping[str, Any], batches: Any, crew: Crew
) -> dict[str, Any]:
    """Return, as plain data, all that the rows of a store depend on but the weights, which :class:`Weights` tells."""
    of_shares = _OF_SHARES if is_shared(batches, crew) else ()
    return {
        "kind": KIND,
        "made_with": {"torch": torch.__version__, "python": "{}.{}".format(*sys.version_info)},
        "models": {name: _model_facts(model) for name, model in models.items()},
        "sites": [str(site) for site in sites],
        "options": {name: _plain(value) for name, value in options.items()},
        "data": {name: value for name, value in _data_facts(batches).items() if name not in of_shares},
    }


def in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of a manifest, each with what it is called."""
    return {
        words.format(name.replace(".", " ")).strip(): value
        for part, words in _WORDS.items()
        if part in facts
        for name, value in _flat(facts[part])
    }


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two manifests, a text each; parts that one of them lacks in whole are not compared."""
    found = []
    for part, words in _WORDS.items():
        if part in was and part in now:
            before, after = dict(_flat(was[part])), dict(_flat(now[part]))
            for name in {**before, **after}:
                if before.get(name) != after.get(name):
                    what = words.format(name.replace(".", " ")).strip()
                    found.append(f"{what}: was {_shown(before.get(name))}, is {_shown(after.get(name))}")
    return found


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}".strip("."))
    else:
        yield name, value


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _model_facts(model: nn.Module) -> dict[str, Any]:
    held = next(iter((*model.parameters(), *model.buffers())), None)
    device = "cpu" if held is None else held.device.type
    kind = class_of(unwrap(model))
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "code": code_of(model),
        "device": device,
        "autocast": str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "",
        "modules in training mode": sum(module.training for module in bare(model).modules()),
    }


def _plain(value: Any) -> Any:
    """Return *value* as plain data: of functions and tensors the name and the digest."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, torch.dtype | slice):
        return str(value)
    return f"{getattr(value, '__qualname__', type(value).__qualname__)} {digest(value)}"


def _data_facts(batches: Any) -> dict[str, Any]:
    """Return what *batches* says of itself: kinds, lengths, and what decides the order."""
    loader = batches if isinstance(batches, torch.utils.data.DataLoader) else None
    found: dict[str, Any] = {"kind": type(batches).__qualname__, "batches": length(batches)}
    if loader is None:
        return found | _told_by("", batches)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    found |= {
        "items": length(loader.dataset),
        "dataset": type(loader.dataset).__qualname__,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": type(sampler).__qualname__,
    }
    found |= _told_by("dataset", loader.dataset) | _told_by("sampler", sampler)
    if isinstance(sampler, torch.utils.data.RandomSampler):
        generator = next((each for each in (sampler.generator, loader.generator) if each is not None), None)
        found["sampler seed"] = torch.initial_seed() if generator is None else generator.initial_seed()
    return found


_OF_SHARES = ("batches", "sampler rank", "sampler num_replicas")
"""What depends on how many processes share the data, which another number of them may go on with."""

_FACTS = ("_fingerprint", "seed", "epoch", "rank", "num_replicas")
"""Attributes by which ``datasets`` and samplers say what they are."""


def _told_by(name: str, value: Any) -> dict[str, Any]:
    held = {fact: getattr(value, fact, None) for fact in _FACTS}
    return {f"{name} {fact.strip('_')}".strip(): value for fact, value in held.items() if isinstance(value, str | int)}


def length(value: object) -> int | None:
    """Return the length of *value*, if it has one."""
    try:
        return len(value)  # type: ignore[arg-type]  # what has none raises
    except (TypeError, NotImplementedError):
        return None
