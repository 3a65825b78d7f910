"""Show a run as its difference from another one: at the steps and sites that both have."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sonde.errors import ArgumentError
from sonde.number import Number
from sonde.view.app.answers.opened_run import RATIO, OpenedRun, StepGrid
from sonde.view.app.answers.reduction import VALUE, ZERO, Values, marks_of
from sonde.view.scales import DIVERGING, Scale, scale_for

_REACH = 3.0  # the ends of the colours of logarithms: an eighth of the other run, and eight times; the same for every number


class Against(OpenedRun):
    """A run whose numbers are each a difference from that of another run: of sizes the logarithm of the ratio, to base 2.

    Questions about numbers and scalars get differences; what else is known is that of the run itself.

    Args:
        own: the run that is looked at.
        other: the run that it is compared with.
    """

    def __init__(self, own: OpenedRun, other: OpenedRun) -> None:
        super().__init__(own.run, own.name, f"{own.version}-{other.version}", own.numbers)
        self.own = own
        self.other = other

    @cached_property
    def drawable(self) -> dict[str, tuple[str, str, str, Number]]:
        """The numbers that both runs have, as differences."""
        return {
            name: (family, column, port, described_difference(number, self.other.name))
            for name, (family, column, port, number) in self.own.drawable.items()
            if name in self.other.drawable
        }

    @property
    def matched(self) -> dict[str, int] | None:
        """How many logged steps of the main number both runs have, and each of them."""
        name = next(iter(self.drawable), None)
        if name is None:
            return None
        own, other = (run.grid(name, exact=True).matrix.steps for run in (self.own, self.other))
        return {"both": len(np.intersect1d(own, other)), "own": len(own), "other": len(other)}

    def _read(self, name: str, exact: bool) -> StepGrid:
        return difference(self.own.grid(name, exact=exact), self.other.grid(name, exact=exact), self.other.name)

    def grid(self, asked: str, *, exact: bool = True) -> StepGrid:
        """Return the difference of a number, in which digits show that two runs share.

        Raises:
            UnknownSiteError: one of the runs has no such number.
            ArgumentError: no step, or no site, is in both.
        """
        name = RATIO if asked == RATIO else self.number(asked)
        key = f"{self.name} against {self.other.name}", name, self.version, ()
        return self.numbers.get(key, lambda: self._read(name, exact), lambda grid: grid.nbytes)

    def scalar(self, name: str) -> tuple[npt.NDArray[np.int64], Values, str]:
        """Return the steps that both runs have of a scalar, the differences there, and their unit."""
        steps, values, unit = self.own.scalar(name)
        others, theirs, _ = self.other.scalar(name) if name in self.other.scalars else (steps[:0], values[:0], "")
        common, here, there = np.intersect1d(steps, others, return_indices=True)
        found = [values[here], theirs[there]]
        if all((each[np.isfinite(each)] > 0).all() for each in found):
            return common, _logarithm(*found), f"log₂ of the ratio to {self.other.name}"
        return common, _apart(*found), f"minus that of {self.other.name}{f', {unit}' if unit else ''}"


class DifferenceGrid(StepGrid):
    """The difference of one number of two runs."""

    @cached_property
    def scale(self) -> Scale:
        """Colours about 0: of sizes from an eighth of the other run to eight times."""
        found = scale_for(self.whole[1].middle, "signed")
        return Scale(DIVERGING, -_REACH, _REACH, False, found.extend) if self.matrix.described.unit == _LOGARITHM else found


_LOGARITHM = "powers of two"


def described_difference(number: Number, other: str) -> Number:
    """Return the description of the difference of a *number* from that of the run named *other*."""
    if number.kind == "size":
        return replace(
            number, label=f"log₂ of {number.short} / that of {other}", title=number.whole, kind="signed", unit=_LOGARITHM
        )
    return replace(number, label=f"{number.short} − that of {other}", title=number.whole, kind="signed")


def difference(own: StepGrid, other: StepGrid, name: str) -> DifferenceGrid:
    """Return a number of one run against the same of the run called *name*: of sizes log2 of the ratio, else the plain difference.

    A cell has the mark of the run in which elements were NaN or infinite. Where both are 0, the difference is 0.

    Raises:
        ArgumentError: no step, or no site, is in both.
    """
    known = set(other.matrix.names)
    rows = [row for row, each in enumerate(own.matrix.names) if each in known]
    common = np.isin(own.matrix.steps, other.matrix.steps)
    if not rows or not common.any():
        lacking = "site" if not rows else "logged step"
        raise ArgumentError(
            f"no {lacking} of {own.id} is in both runs: compare them beside each other, where each has its own axis"
        )
    of_rows = own.matrix.rows(rows)
    mine = replace(of_rows, values=of_rows.values[:, common], defects=of_rows.defects[:, common], steps=own.matrix.steps[common])
    theirs = other.matrix.like(mine)
    is_size = mine.described.kind == "size"
    values = (_logarithm if is_size else _apart)(mine.values, theirs.values)
    defects = np.maximum(mine.defects, theirs.defects)
    found = replace(mine, values=values, defects=defects, described=described_difference(mine.described, name))
    marks = marks_of(values, defects)  # of which a 0 is one value among others; there may be one code for all, not to be written to
    marks = np.where(marks == ZERO, np.uint8(VALUE), marks) if any(marks.strides) else marks
    return DifferenceGrid(own.id, found, marks, tuple(own.kinds[row] for row in rows))


def _logarithm(own: Values, other: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(own == other, 0.0, np.log2(own / other))


def _apart(own: Values, other: Values) -> Values:
    with np.errstate(invalid="ignore"):
        return own - other
