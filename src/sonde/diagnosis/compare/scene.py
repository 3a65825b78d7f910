"""Gather all that is known about the place where two sides part, for the search for the cause."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from torch import Tensor, nn

from sonde.diagnosis.compare.aligned import Frame, Place, frame_of
from sonde.diagnosis.compare.names import Names
from sonde.diagnosis.compare.sides import Kept, Key, Side, mains, partners
from sonde.diagnosis.compare.suspects import Suspect, Undo
from sonde.diagnosis.distance import as_numbers, distance, laid_out_alike
from sonde.engine import is_floating
from sonde.rules import Finding, Severity
from sonde.site import Site


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that both sides agree on, from which the tensor that parts was made.

    Attributes:
        name: the site in ``a``, as text.
        a, b: the tensor of each side in float64, in the layout of ``a``.
    """

    name: str
    a: Tensor
    b: Tensor


@dataclass
class Scene:
    """The place where the sides part.

    Attributes:
        a, b: the sides.
        names: which names belong together.
        place: the place.
        places: all places that were compared, in order.
        noise: the relative distance that counts as equal; None where it was measured.
    """

    a: Side
    b: Side
    names: Names
    place: Place
    places: list[Place]
    noise: float | None = None

    @cached_property
    def frame(self) -> Frame:
        """The module whose code made the tensor, in ``a``: the nearest that ``b`` has, too, whose code is that of all inside."""
        if self.place.stage == "forward":
            return frame_of(self.place.key, [kept for kept in self.a.forward if kept.site.path not in self.a.alone])
        return Frame(self.place.site.owner.path, self.place.call, False, ())

    @cached_property
    def made_of(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors that the tensor at the place can have been made of in each side, whether the other has them or not.

        They are those within the call of the module whose code made it, in the layout of the tensor at the place, by site; those of
        ``b`` by the site in ``a`` of the same place, or of an equal tensor.
        """
        if self.place.stage != "forward" or self.tensors is None:
            return {}, {}
        known = {place.other_key: place.key for place in self.places}
        here = {self._said(key): held for key, held in self._within(self.a, self.place.key, self.tensors[0])}
        there = {}
        for key, held in self._within(self.b, self.place.other_key, self.tensors[1]):
            equal = next((name for name, other in here.items() if self.equal(other, held, 1.0)), self._said(key))
            same = self._said((*known[key[:2]], key[2])) if key[:2] in known else ""
            there[same if same in here else equal] = held
        return here, there

    @staticmethod
    def _said(key: tuple[Site, int, str]) -> str:
        return f"{unquote(str(key[0]))}{key[2]}"

    @staticmethod
    def _within(side: Side, wanted: Key, like: Tensor) -> Iterator[tuple[tuple[Site, int, str], Tensor]]:
        """Yield the tensors before *wanted*, in the layout of *like*, by site, call, and the leaf path where a site has several."""
        events = {kept.key: kept for kept in side.forward}
        for key in frame_of(wanted, side.forward).before:
            held = [
                (leaf, each)
                for leaf, each in events[key].leaves.items()
                if not each.is_meta and not each.is_nested and is_floating(each)
            ]
            for leaf, tensor in held:
                numbers, named = as_numbers(tensor), (*key, leaf if len(held) > 1 else "")
                laid = laid_out_alike(like, numbers)
                if laid is not None:
                    yield named, laid[0]
                elif 1 < numbers.numel() < like.numel() and numbers.dim() <= like.dim():
                    with contextlib.suppress(RuntimeError):
                        yield named, numbers.expand_as(like)

    @property
    def owner_b(self) -> str | None:
        """The name in ``b`` of the module whose code made the tensor."""
        return self.names.of_b(self.frame.owner)

    @cached_property
    def modules(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The module whose code made the tensor, in each side; None without a live model."""
        other = self.owner_b
        return self.a.modules().get(self.frame.owner), None if other is None else self.b.modules().get(other)

    @cached_property
    def kept(self) -> tuple[Kept | None, Kept | None]:
        """The events at the place."""
        here = next((kept for kept in self.a.kept if kept.key == self.place.key), None)
        return here, next((kept for kept in self.b.kept if kept.key == self.place.other_key), None)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """The tensor that parts, in float64, that of ``b`` in the layout of ``a``; None where the shapes do not fit."""
        return _laid(*self.kept, self.place.leaf)

    @cached_property
    def sources(self) -> list[Source]:
        """The tensors that the tensor at the place can have been made of, nearest first, where both sides agree on them."""
        agreed = {place.key: place for place in self.places if not place.parts and place.relative <= place.floor}
        one = {kept.key: kept for kept in self.a.forward}
        other = {kept.key: kept for kept in self.b.forward}
        found = []
        for key in self.frame.before:
            if key in agreed:
                laid = _laid(one.get(key), other.get(agreed[key].other_key))
                if laid is not None:
                    found.append(Source(unquote(str(key[0])), *laid))
        return found[::-1]

    @property
    def tolerance(self) -> float:
        """The relative distance below which two tensors at the place count as equal."""
        return max(self.place.floor, 1e-12)

    def equal(self, x: Tensor, y: Tensor, times: float = 4.0) -> bool:
        """Return whether two tensors of one shape are equal up to *times* the tolerance."""
        return x.shape == y.shape and distance(x, y).relative <= times * self.tolerance

    def suspect(
        self,
        rule: str,
        message: str,
        undo: Undo,
        advice: str = "",
        evidence: Mapping[str, float] | None = None,
        severity: Severity = "bad",
        *,
        instead: str = "",
    ) -> Suspect:
        """Return the cause *rule* as a suspect at the place, which *undo* has to prove."""
        return Suspect(self.finding(rule, message, advice, evidence, severity), undo, instead)

    def finding(
        self, rule: str, message: str, advice: str = "", evidence: Mapping[str, float] | None = None, severity: Severity = "bad"
    ) -> Finding:
        """Return the cause *rule* as a finding at the place."""
        site, value = str(self.place.site), self.place.relative
        return Finding(
            rule, message, site, value=value, severity=severity, call=self.place.call, evidence=evidence or {}, advice=advice
        )


def _laid(one: Kept | None, other: Kept | None, leaf: str = "") -> tuple[Tensor, Tensor] | None:
    if one is None or other is None:
        return None
    main = mains(one, other)
    pair = (one.leaves[leaf], other.leaves[partners(one, other)[leaf]]) if leaf else main and (main[0][1], main[1][1])
    if pair is None or pair[0].is_meta or pair[1].is_meta:
        return None
    here = as_numbers(pair[0])
    laid = laid_out_alike(here, as_numbers(pair[1]))
    return None if laid is None else (here, laid[0])
