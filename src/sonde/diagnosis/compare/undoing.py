"""State a cause only where undoing it makes the sides equal: run a copy with the change, and compare the place again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sonde.diagnosis.compare.aligned import ANOTHER_LAYOUT, Judge, Place, place_of
from sonde.diagnosis.compare.scene import Scene
from sonde.diagnosis.compare.sides import Kept, Key
from sonde.diagnosis.compare.suspects import Suspect, Undo
from sonde.diagnosis.distance import distance
from sonde.engine import raise_if_foreign
from sonde.rules import Finding

_MOST_RUNS = 90
"""Runs in which changes are tried at one place."""
_LEAST = 1e-6
"""Relative distance that counts as equal where a formula was computed anew, in float64 of tensors of float32."""
_NEARER = 0.98
"""A change is kept on the way to others if the sides are nearer by at least this factor."""


@dataclass
class Explained:
    """What explains a place.

    Attributes:
        causes: the findings whose changes together make the sides equal there; none can be left out.
        refuted: findings that are true but explain nothing, as notes with numbers.
    """

    causes: list[Finding] = field(default_factory=list)
    refuted: list[Finding] = field(default_factory=list)


def explained(scene: Scene, looks: Iterable[Iterable[Callable[[Scene], Iterator[Suspect]]]]) -> Explained:
    """Return what explains the place of *scene*.

    Args:
        scene: the place.
        looks: functions from a scene to suspects, in groups: the first group in which something explains the place counts. Those
            that are undone in runs explain it alone or together; those that are undone in the tensors of the place each alone.
    """
    refuted = list[Finding]()
    proof = Proof(scene, refuted)
    for group in looks:
        suspects, held = list[Suspect](), list[Finding]()
        for look in group:
            with left_out(getattr(look, "__name__", str(look)), refuted):
                suspects.extend(look(scene))
        found = _of_runs(proof, [suspect for suspect in suspects if suspect.undo.made is None])
        refuted += found.refuted
        for suspect in (each for each in suspects if each.undo.made is not None):
            with left_out("a change of tensors", refuted):
                held += [suspect.finding] if proof.holds(suspect.undo) else []
        if found.causes or held:
            return Explained(found.causes or held, refuted)
    return Explained(refuted=refuted)


@contextmanager
def left_out(name: str, failed: list[Finding], what: str = "one way to find a cause") -> Iterator[None]:
    """Leave out what raises inside, one of several ways, and note it in *failed*; what was found before stays."""
    try:
        yield
    except Exception as error:
        raise_if_foreign(error)
        words = f"{what} failed, and is left out ({name}: {type(error).__name__}: {error})"
        failed += [Finding("not_looked", words, severity="note")] if all(each.message != words for each in failed) else []


def _of_runs(proof: Proof, suspects: Sequence[Suspect]) -> Explained:
    """Return the smallest set of *suspects* that explains the place: one alone, else as few as possible."""
    alone: dict[int, float] = {}
    for number, suspect in enumerate(suspects):
        alone[number] = proof.apart(suspect.undo)
        if alone[number] <= 1:
            refuted = _refuted(proof, suspects[:number], alone, [suspect])
            hints = [*refuted, replace(suspect.finding, severity="note")]
            return Explained(refuted=hints) if suspect.is_whole else Explained([suspect.finding], refuted)
    chosen = _together(proof, suspects, alone)
    refuted = [] if chosen else _refuted(proof, suspects, alone, [])
    return Explained([each.finding for each in chosen], refuted)


def _together(proof: Proof, suspects: Sequence[Suspect], alone: dict[int, float]) -> list[Suspect]:
    """Return suspects that explain the place together, and none can be left out; nothing where none do."""
    by_distance = sorted(range(len(suspects)), key=lambda number: (alone[number], number))
    compatible: list[Suspect] = []
    for number in by_distance:
        if not any(each.instead and each.instead == suspects[number].instead for each in compatible):
            compatible.append(suspects[number])
    if len(compatible) < 2:
        return []
    if proof.apart(_sum(each.undo for each in compatible)) <= 1:
        return _needed(proof, compatible, suspects)
    chosen: list[Suspect] = []
    left, best = list(compatible), proof.before
    while left:
        tried = [(proof.apart(_sum(each.undo for each in (*chosen, one))), place, one) for place, one in enumerate(left)]
        apart, place, nearest = min(tried, key=lambda each: each[:2])
        if not apart < _NEARER * best:
            return []
        chosen.append(nearest)
        if apart <= 1:
            return _needed(proof, chosen, suspects)
        best = apart
        del left[place]
    return []


def _needed(proof: Proof, chosen: list[Suspect], order: Sequence[Suspect]) -> list[Suspect]:
    """Return *chosen*, in the order in which they were found, without those that can be left out."""
    kept = sorted(chosen, key=order.index)
    for suspect in kept[::-1]:
        rest = [each for each in kept if each is not suspect]
        if rest and proof.apart(_sum(each.undo for each in rest)) <= 1:
            kept = rest
    return kept


def _sum(undone: Iterable[Undo]) -> Undo:
    total = Undo()
    for each in undone:
        total = total + each
    return total


def _refuted(proof: Proof, suspects: Sequence[Suspect], alone: dict[int, float], chosen: Sequence[Suspect]) -> list[Finding]:
    """Return that the sides part with each of *suspects* undone, too: once for each difference, where that could be tried."""
    told = {each.instead for each in chosen if each.instead}
    found = []
    for number, suspect in enumerate(suspects):
        is_tried = math.isfinite(alone[number])
        if suspect.is_guess or suspect.instead in told or not (is_tried or suspect.finding.rule in _OF_SETTINGS):
            continue
        told |= {suspect.instead} - {""}
        far = alone[number] * proof.floor
        why = f"this does not explain the place: with it undone the sides are {far:.2g} apart there"
        message = f"{suspect.finding.message}; {why if is_tried else 'with it alone undone, it cannot run'}"
        found.append(replace(suspect.finding, message=message, severity="note", advice=""))
    return found


_OF_SETTINGS = ("setting", "eps")


class Proof:
    """Tries changes on copies, and says how far the sides are apart at the place then.

    Args:
        scene: the place.
        failed: takes notes of changes with which the comparison itself fails.

    Attributes:
        before: how far they are apart without a change, as :meth:`apart`.
        floor: the relative distance that rounding explains at the place.
    """

    def __init__(self, scene: Scene, failed: list[Finding]) -> None:
        self._scene, self._failed = scene, failed
        self.floor = max(scene.place.floor, 1e-12)
        self.before = scene.place.relative / self.floor
        self._places = {place.other_key: (number, place) for number, place in enumerate(scene.places) if place.stage != "update"}
        self._places |= {
            place.other_key: (number, place) for number, place in enumerate(scene.places) if place.other_key not in self._places
        }
        self._target = next(number for number, place in enumerate(scene.places) if place is scene.place)
        self._runs = 0

    def holds(self, undo: Undo) -> bool:
        """Return whether the sides are equal at the place with the tensors of the place changed."""
        tensors = self._scene.tensors
        if tensors is None or undo.made is None:
            return False
        made = undo.made(tensors[1])
        if made.shape != tensors[0].shape:
            return False
        limit = max(4 * self.floor, _LEAST)
        if distance(tensors[0], made).relative <= limit:
            return True
        return bool(tensors[1].isfinite().all()) and float((tensors[0] - made).norm()) <= limit * float(tensors[1].norm())

    def apart(self, undo: Undo) -> float:
        """Return how far the sides are apart at the place with *undo*, in units of what rounding explains: up to 1 for equal.

        Infinite where a run is not possible or raises, the place is not reached, or a place before it parts then.
        """
        found = list[float]()
        with left_out("a run with a change", self._failed):
            found.append(self._apart(undo))
        return found[0] if found else math.inf

    def _apart(self, undo: Undo) -> float:
        scene = self._scene
        needs = [side for side, change in ((scene.a, undo.a), (scene.b, undo.b)) if change]
        if not needs or any(side.again is None for side in needs) or self._runs >= _MOST_RUNS:
            return math.inf
        self._runs += 1
        backward = scene.place.stage != "forward"
        known = {kept.key: kept for kept in scene.a.kept}
        if undo.a:
            known = {}

            def keep(kept: Kept) -> None:
                known[kept.key] = replace(kept, leaves={leaf: held.clone() for leaf, held in kept.leaves.items()})

            assert scene.a.again is not None
            if not scene.a.again(undo.a, backward, keep):
                return math.inf
        if not undo.b:
            events: Iterable[Kept] = scene.b.kept
            found = _Found(self, known)
            for kept in events:
                found(kept)
            return found.apart
        found = _Found(self, known)
        assert scene.b.again is not None
        return found.apart if scene.b.again(undo.b, backward, found) else math.inf


class _Found:
    """Compares the events of a run of ``b`` with those of ``a``, down to the place."""

    def __init__(self, proof: Proof, known: dict[Key, Kept]) -> None:
        scene = proof._scene
        self._places, self._target, self._known = proof._places, proof._target, known
        self._judge = Judge(scene.a, scene.b, scene.noise)
        self._floor = proof.floor
        self._free = scene.a.portions.keys() | {name for name, other in scene.names.pairs() if other in scene.b.portions}
        before = scene.places[: proof._target]
        self._has_layouts = any(each.stage == "forward" and each.remark.startswith(ANOTHER_LAYOUT) for each in before)
        self._is_apart_before = False
        self._place: Place | None = None

    def __call__(self, kept: Kept) -> None:
        number, place = self._places.get(kept.key, (self._target + 1, None))
        one = self._known.get(place.key) if place is not None else None
        if number > self._target or place is None or one is None:
            return
        now = place_of(place.stage, one, kept, self._judge)
        if number == self._target:
            if (
                self._has_layouts and now is not None and now.parts and place.stage == "forward"
            ):  # axes of one length do not tell it
                turned = place_of(place.stage, one, kept, self._judge, turned=True)
                now = turned if turned is not None and not turned.parts else now
            self._place = now if one.leaves or kept.leaves else replace(place, parts=False)  # neither has a gradient
        elif now is not None and now.parts and place.site.port != "input" and place.site.path not in self._free:
            self._is_apart_before |= place.relative <= place.floor and not place.remark.startswith(ANOTHER_LAYOUT)

    @property
    def apart(self) -> float:
        """How far the sides are apart at the place; infinite where a place before it parts."""
        if self._place is None or self._is_apart_before:
            return math.inf
        return max(self._place.relative / self._floor, 1.01) if self._place.parts else 0.0
