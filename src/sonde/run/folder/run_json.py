"""Read and write ``run.json``: the version of the format, the attempts that wrote the run, and its description."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sonde.errors import ArgumentError, StoreError
from sonde.paths import is_text
from sonde.run import form
from sonde.run.folder.files import FILE
from sonde.run.folder.json_file import parse_json, read_bytes, write_json
from sonde.run.folder.parts import cutoffs
from sonde.run.folder.prunings import Pruning
from sonde.run.form import Absent
from sonde.run.schema import FORMAT, VERSION

_OWN = ("format", "version", "attempts", "checksum", "pruned")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process's share of a run.

    Attributes:
        attempt: the number, from 1.
        first_step: rows of earlier attempts from this step on are superseded.
        started, ended: seconds since 1970; ``ended`` is None while the process writes, and after a kill.
        lost: rows that could not be written.
    """

    attempt: int
    first_step: int
    started: float
    ended: float | None = None
    lost: int = 0

    @classmethod
    def read(cls, given: Any, where: str) -> Attempt:
        """The attempt that *given*, out of a file, describes.

        Raises:
            StoreError: a field is missing, of another type, or below 0.
        """
        return cls(**_ATTEMPT(given, where))


_ATTEMPT = form.members(
    attempt=form.count,
    first_step=form.count,
    started=form.time,
    ended=Absent(form.optional(form.time)),
    lost=Absent(form.count, 0),
)


@dataclass(frozen=True, slots=True)
class Description:
    """The content of ``run.json``.

    Attributes:
        attempts: in order.
        about: plain data that the caller gave: the modules of the model, the environment, how lenses are shown.
        pruned: what was taken out after the end, in order.
        intact: whether the file is as it was written; if not, it was changed or damaged and still can be read.
    """

    attempts: tuple[Attempt, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    intact: bool = True
    pruned: tuple[Pruning, ...] = ()

    @property
    def cutoffs(self) -> Mapping[int, int | None]:
        """By attempt, the step from which its rows are superseded."""
        return cutoffs([(attempt.attempt, attempt.first_step) for attempt in self.attempts])

    @property
    def pruned_words(self) -> str:
        """What was taken out, in words; ``""`` where nothing was."""
        return "; ".join(each.words for each in self.pruned)

    def begun(self, first_step: int) -> Description:
        """Return the same run with one more attempt."""
        number = 1 + max((attempt.attempt for attempt in self.attempts), default=0)
        return replace(self, attempts=(*self.attempts, Attempt(number, first_step, time.time())))

    def ended(self, number: int, lost: int) -> Description:
        """Return the same run after the end of an attempt."""
        attempts = [
            replace(attempt, ended=time.time(), lost=lost) if attempt.attempt == number else attempt for attempt in self.attempts
        ]
        return replace(self, attempts=tuple(attempts))

    def telling(self, about: Mapping[str, Any]) -> Description:
        """Return the same run with a description added.

        Raises:
            ArgumentError: *about* is not plain data, or uses a name that sonde writes itself.
        """
        taken = [name for name in about if name in _OWN]
        if taken:
            raise ArgumentError(f"{taken[0]!r} is what sonde writes to {FILE} itself: use another name")
        try:
            plain = json.loads(json.dumps(dict(about), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{FILE} holds plain data (numbers, text, lists, dicts; no NaN): {error}") from None
        return replace(self, about={**self.about, **plain})

    def write(self, folder: Path, *, sync: bool) -> None:
        """Put this description in place of the one in *folder*, whole or not at all."""
        attempts = [asdict(attempt) for attempt in self.attempts]
        pruned = {"pruned": [each.to_data() for each in self.pruned]} if self.pruned else {}
        write_json(folder / FILE, {"format": FORMAT, "version": VERSION, "attempts": attempts, **pruned, **self.about}, sync=sync)

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Return the description in *folder*.

        Raises:
            StoreError: *folder* is no run, or was written in another version of the format.
        """
        if not is_text(folder):
            raise StoreError(f"{str(folder)!r} is not read: a name in it is not UTF-8, which DuckDB needs; rename it")
        if not folder.exists():
            raise StoreError(f"there is no run at {folder}: the folder does not exist")
        try:
            written, fits = parse_json(read_bytes(folder / FILE), FILE, (FILE,))
        except (FileNotFoundError, StoreError) as error:
            why = "it has no run.json" if isinstance(error, FileNotFoundError) else error
            raise StoreError(f"{folder} is not a run: {why}") from None
        if written.get("format") != FORMAT:
            raise StoreError(f"{folder} is not a run: its {FILE} is of another kind")
        version = written.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise StoreError(f"{folder} is not whole: its {FILE} does not say in which version of the format it was written")
        if version < VERSION:
            raise StoreError(
                f"{folder} was written in version {version} of the run format, before sonde's first release; this sonde reads "
                f"version {VERSION}: record it again, or read the Parquet files with DuckDB or pandas"
            )
        if version > VERSION:
            raise StoreError(
                f"{folder} was written in version {version} of the run format; this sonde reads version {VERSION}: "
                "update sonde, or read the Parquet files with DuckDB or pandas"
            )
        try:
            attempts = form.listed(Attempt.read)(written.get("attempts"), "attempts")
        except StoreError as error:
            raise StoreError(f"{folder} is not whole: its {FILE} has no usable list of attempts ({error})") from None
        try:
            pruned = form.listed(Pruning.read)(written.get("pruned", ()), "pruned")
        except StoreError as error:
            raise StoreError(f"{folder} is not whole: its {FILE} does not say what was pruned ({error})") from None
        about = {name: value for name, value in written.items() if name not in _OWN}
        return cls(attempts, about, fits is True, pruned)


def copied(held: Any) -> Any:
    """Return plain data with lists and mappings of its own."""
    if isinstance(held, Mapping):
        return {name: copied(each) for name, each in held.items()}
    return [copied(each) for each in held] if isinstance(held, list | tuple) else held


def is_run(folder: Path) -> bool:
    """Whether *folder* holds a run that this version reads."""
    try:
        Description.read(folder)
    except StoreError:
        return False
    return True
