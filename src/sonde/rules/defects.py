"""Find the first NaN or infinity of a run, and what is known of where it began."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.rows import RowBlock
from sonde.rules.finding import Finding
from sonde.rules.health import nonfinite
from sonde.rules.place_history import defects_in
from sonde.site import PORTS, Site

_PHASES = {"forward": 0, "backward": 1, "step": 2}
_NAMED = 2
_BY_LOSS = "and it comes with the gradient of the loss"
_IN_LOSS = (
    "look at the loss first: targets that are not finite, a log or a root of what is negative or 0, a division by 0, a mean over "
    "nothing, an exp of what is large"
)
_LATEST = 4096  # steps that are remembered


@dataclass(frozen=True)
class _Place:
    """A row at one moment: its site, call, phase and place in the order of that phase, and how many elements are not finite."""

    site: Site
    call: int
    phase: int
    order: int
    nan: float
    inf: float
    count: float

    @property
    def defects(self) -> float:
        return self.nan + self.inf

    @property
    def rank(self) -> tuple[Any, ...]:
        """Less for what happens first; of one layer the weights come before the biases."""
        port = list(PORTS).index(self.site.port)
        return self.phase, self.order, port, self.site.path.endswith("bias"), str(self.site), self.call


@dataclass(frozen=True)
class _Found:
    """The first step with a defect.

    Attributes:
        epoch, step: when.
        scalar: the name and value of a scalar that is not finite, where no place is known.
        model: of the places.
        places: all rows of the step that the block had.
    """

    epoch: int
    step: int
    scalar: tuple[str, float] | None = None
    model: str = ""
    places: tuple[_Place, ...] = ()

    @property
    def first(self) -> _Place:
        """The first place with a defect: forward, then backward from the last layer, then the parameters."""
        first = min((place for place in self.places if place.defects), key=lambda place: place.rank)
        return self._before_call(first) if first.phase == 0 and first.call > 0 else first

    def _before_call(self, later: _Place) -> _Place:
        """Return the place where the defect of a second call began, if not there: the order of a module is that of its first call.

        It is the first place whose layer is called once, and before which every call of the layer next to it is finite.
        """
        forward = [place for place in self.places if place.phase == 0]
        for place in sorted((each for each in forward if each.defects and each.call <= 0), key=lambda each: each.rank):
            near = max((each.order for each in forward if each.order < place.order), default=-1)
            if near > later.order and not any(each.defects for each in forward if each.order == near):
                return place
        return later

    @property
    def is_masked(self) -> bool:
        """Whether outputs are infinite, and nothing is NaN, nor any gradient infinite: a mask has put infinities there."""
        are_outputs = all(place.site.port == "output" and not place.nan for place in self.places if place.defects)
        return are_outputs and any(place.site.port == "grad" for place in self.places)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Less for what comes first: by step, then a place before a scalar, by phase and order."""
        return (self.step, math.inf) if self.scalar is not None else (self.step, *self.first.rank)


class FirstDefect:
    """The first step with a NaN or an infinity, and the first place in it.

    >>> from sonde.rules import FirstDefect
    >>> first = FirstDefect()
    >>> first.look_at_scalar("loss", 1.5, epoch=0, step=0)
    >>> first.finding() is None
    True
    >>> first.look_at_scalar("loss", float("nan"), epoch=0, step=1)
    >>> first.finding().step
    1
    """

    def __init__(self) -> None:
        self._found: _Found | None = None
        self._logged: dict[str, npt.NDArray[np.int64]] = {}  # by model: the last logged steps
        self._has_outputs: set[str] = set()  # models whose outputs are among the rows
        self._aside: dict[tuple[str, str, int], tuple[_Place, ...]] = {}  # by role, model and step: places that were not finite

    def look(self, block: RowBlock) -> None:
        """Look at finished rows of one model.

        >>> from sonde.inspector import Sink
        >>> from sonde.rules import FirstDefect
        >>> class Judge(Sink):
        ...     def write(self, rows):
        ...         first = FirstDefect()
        ...         first.look(rows.block())
        ...         print(first.finding())
        >>> from sonde.run import Layout, memory_run
        >>> writer = memory_run()
        >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
        >>> writer.run().send_to(Judge())
        None
        """
        if not len(block):
            return
        model = next(iter(block.layout.model), "")
        steps = block.moments[:, 1]
        if "output" in block.layout.port and "nan" in block.numbers:
            self._has_outputs.add(model)
        if self._found is None or steps[0] <= self._found.step:
            lines = np.repeat(np.arange(len(block)), np.diff(block.edges))
            for line in np.unique(lines[defects_in(block) > 0]).tolist():
                epoch, step = block.moments[line, :2].tolist()
                found = _Found(epoch, step, None, model, (*_places(block.between(line, line + 1)),))
                if not found.is_masked:
                    self._keep(found)
                    break
            logged = self._logged.get(model, steps[:0])
            self._logged[model] = np.union1d(logged, steps)[-_LATEST:]

    def look_aside(self, role: str, block: RowBlock) -> None:
        """Look at rows that are not written, of one moment: parameters when the step began, or gradients before clipping."""
        if self._found is not None:
            return
        key = role, next(iter(block.layout.model), ""), int(block.moments[0, 1])
        places = [place for place in _places(block) if place.defects] if defects_in(block).any() else ()
        self._aside[key] = (*places, *self._aside.get(key, ()))
        while len(self._aside) > _LATEST:
            self._aside.pop(next(iter(self._aside)))

    def look_at_scalar(self, name: str, value: float, epoch: int, step: int) -> None:
        """Look at a pushed value or a norm."""
        if not math.isfinite(value):
            self._keep(_Found(epoch, step, (name, value)))

    def _keep(self, found: _Found) -> None:
        if self._found is None or found.rank < self._found.rank:
            self._found = found

    @property
    def knows_more(self) -> bool:
        """Whether the finding says more than the rows that are written: parameters or raw gradients of its step were looked at."""
        found = self._found
        return found is not None and any((role, found.model, found.step) in self._aside for role in ("start", "raw"))

    def finding(self) -> Finding | None:
        """The finding, or None where all numbers are finite."""
        found = self._found
        if found is None:
            return None
        if found.scalar is not None:
            name, value = found.scalar
            judged = nonfinite(math.isnan(value), math.isinf(value), 1)
            message, site, call = f"{name} is {value} from step {found.step:,} on", "", -1
            if name.rpartition("/")[2] == "loss" and any(found.step in self._logged[model] for model in self._has_outputs):
                message += ": all outputs that were recorded at this step are finite, so it arose behind them, in the loss"
                judged = judged and replace(judged, advice=_IN_LOSS)
        else:
            place = found.first
            raw = self._aside.get(("raw", found.model, found.step))
            if place.site.port == "grad" and raw:  # clipping spreads a NaN over all gradients
                place = min(raw, key=lambda each: each.rank)
            is_later = place.site.port == "grad" and raw == ()
            judged = nonfinite(place.nan, place.inf, place.count)
            started = self._aside.get(("start", found.model, found.step))
            earlier = self._logged[found.model]
            earlier = earlier[earlier < found.step]
            message = _in_words(found, place, started, int(earlier[-1]) if len(earlier) else None, is_later=is_later)
            if judged is not None and message.endswith(_BY_LOSS):
                judged = replace(judged, advice=_IN_LOSS)
            if started:
                place = min(started, key=lambda each: each.rank)
            site, call = str(place.site), place.call
        assert judged is not None
        value = judged.value if found.scalar is None else found.scalar[1]
        return _placed(judged, message, site, call, found, value)


def _placed(judged: Finding, message: str, site: str, call: int, found: _Found, value: float) -> Finding:
    return replace(judged.at(site, found.epoch, found.step, message), value=value, call=call, first_step=found.step)


def _in_words(found: _Found, place: _Place, started: tuple[_Place, ...] | None, before: int | None, *, is_later: bool) -> str:
    """Say where it began: before the step, or at *place* in it.

    Args:
        found: the first step with a defect.
        place: the first place in it.
        started: the parameters that were not finite when the step began; None if nobody looked.
        before: the logged step before; None if there was none.
        is_later: all gradients were finite when the backward pass ended.
    """
    step = found.step
    if started:
        names = [each.site.name for each in sorted(started, key=lambda each: each.rank)]
        rest = f" and {len(names) - _NAMED:,} more parameters" if len(names) > _NAMED else ""
        verb = "was" if len(names) == 1 else "were"
        began = f"between steps {before:,} and {step:,}" if before is not None else "before the first logged step"
        return (
            f"{', '.join(names[:_NAMED])}{rest} {verb} not finite when step {step:,} began: it arose {began}, in steps not logged"
        )
    amount = f"{place.site} has {place.defects:,.0f} NaN or infinite elements at step {step:,}, the first logged step with any"
    known = started is not None or (before == step - 1 and any(each.site.port == "param" for each in found.places))
    sound = "the parameters were finite when it began" if known else ""
    if place.phase == _PHASES["forward"]:
        others = [each for each in found.places if each.phase == place.phase and each.order < place.order]
        if others:
            sound += (" and " if sound else "") + "the outputs of the layers before it are finite"
        return amount + (f": {sound}, so it arose here" if others and sound else f": {sound}" if sound else "")
    if place.phase == _PHASES["backward"]:
        later = "and so were the gradients when the backward pass ended: clipping, or another change after it, made it"
        arose = later if is_later else _in_backward(found, place)
        return (
            f"{amount}: all outputs are finite, {arose}" if any(each.phase == 0 for each in found.places) else f"{amount}: {arose}"
        )
    gradient = [each for each in found.places if each.site == place.site.port_of("grad")]
    if gradient and before is not None:
        return f"{amount}: its gradient is finite, so the optimizer's step made it"
    return amount


def _in_backward(found: _Found, place: _Place) -> str:
    """Say which gradient is the last finite one before *place*, in the order of the backward pass."""
    if place.site.port in ("grad", "update"):
        return "and it is the first in the backward pass"
    others = [each for each in found.places if each.site.port == place.site.port and each.order < place.order and not each.defects]
    if not others:
        return _BY_LOSS
    nearest = max(others, key=lambda each: each.order)
    finite = f"and the gradient at {nearest.site.name}, next in the backward pass before it, is finite"
    is_part = all(each.site.path for each in found.places)  # the loss may take what the parts of a model return, side by side
    return f"{finite}: it arose between the two{', or in the loss' if is_part else ''}"


def _places(block: RowBlock) -> Iterable[_Place]:
    """Each row of a block of one moment."""
    order = np.asarray(block.layout.order)[block.rows].tolist()
    calls = np.asarray(block.layout.columns["call"])[block.rows].tolist()
    nan, inf = (_counts(block, *names) for names in (("nan",), ("inf", "nonfinite")))
    counts = block.numbers.get("count", np.full(block.lines, np.nan))
    for place, row in enumerate(block.rows.tolist()):
        site = Site.parse(block.layout.site[row])
        phase = _PHASES[PORTS[site.port].phase]
        at = -order[place] if phase == _PHASES["backward"] else order[place]
        yield _Place(site, calls[place], phase, at, float(nan[place]), float(inf[place]), float(counts[place]))


def _counts(block: RowBlock, *names: str) -> npt.NDArray[np.float64]:
    return sum((block.numbers[name] for name in names if name in block.numbers), np.zeros(block.lines))
