"""Turn the slots of a recorder into plain data, and fill them from it."""

from __future__ import annotations

from typing import Any

from sonde.errors import ArgumentError
from sonde.recorders.keeper import Keeper
from sonde.recorders.reductions.base import Accumulated, Running, own
from sonde.recorders.slots import Subrecorder
from sonde.schedule import Tick


def of_slot(slot: Subrecorder) -> dict[str, Any]:
    """A copy of the value and the counts of *slot*."""
    sums = isinstance(slot.held, Accumulated)
    return {
        "site": str(slot.site),
        "type": slot.type,
        "samples": slot.samples,
        "seen": slot.seen,
        "tick": None if slot.tick is None else tuple(slot.tick),
        "sums": slot.held.plain() if sums else None,
        "value": None if sums else own(slot.held),
    }


def load(keeper: Keeper, described: dict[str, Any], state: dict[str, Any]) -> None:
    """Fill the slots of *keeper* from *state*; *described* names the kind and reduction of the recorder.

    Raises:
        ArgumentError: the state does not fit; nothing is changed.
    """
    missing = {"kind", "reduction", "slots"} - state.keys()
    if missing:
        raise ArgumentError(f"this is not the state of a recorder: it has no {' and no '.join(sorted(missing))}")
    for word, own_word in described.items():
        if state[word] != own_word:
            raise ArgumentError(f"this is the state of a recorder with {word}={state[word]}, and this one has {word}={own_word}")
    found = {held["site"]: held for held in state["slots"]}
    here = {str(slot.site) for slot in keeper.slots}
    if found.keys() != here:
        odd = [f"it has {', '.join(sorted(found.keys() - here))}, which is no slot here"] if found.keys() - here else []
        odd += [f"it lacks {', '.join(sorted(here - found.keys()))}"] if here - found.keys() else []
        raise ArgumentError(f"this is the state of a recorder with other slots: {'; '.join(odd)}. Register the same modules first")
    held = [_held(keeper, found[str(slot.site)]) for slot in keeper.slots]
    for slot, value in zip(keeper.slots, held, strict=True):
        plain = found[str(slot.site)]
        slot.held, slot.samples, slot.seen = value, plain["samples"], plain["seen"]
        slot.tick = None if plain["tick"] is None else Tick(*plain["tick"])


def _held(keeper: Keeper, plain: dict[str, Any]) -> Any:
    if plain["sums"] is None:
        return own(plain["value"])
    if not isinstance(keeper.reduction, Running):
        raise ArgumentError(f"this state holds running sums of {plain['site']}, and this recorder's reduction keeps none")
    return Accumulated.restored(keeper.reduction, plain["sums"])
