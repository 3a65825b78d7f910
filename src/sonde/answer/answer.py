"""The base of every result that judges: the verdict is the worst of the findings, or unknown where nothing was judged."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sonde.answer.report import VERDICTS, Report, Verdict
from sonde.answer.table import ShownAsTable, frame
from sonde.errors import ArgumentError
from sonde.escape import readable_json, with_null

if TYPE_CHECKING:
    import pandas

    from sonde.rules import Finding


SCHEMA = 1
"""The version of what :meth:`Answer.to_dict` returns: it rises where a field goes or changes its meaning, not where one comes."""


class Answer(ShownAsTable):
    """What a question returns: a table in a console, a report in a notebook and as a page, JSON for a program.

    >>> import sonde, tempfile, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> found = sonde.why_nan(net, torch.ones(1, 2), torch.sum)
    >>> found.verdict, found.findings, found.to_dict()["answer"], found.to_json()[0]
    ('ok', (), 'NonFinite', '{')
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/report.html").read_text(encoding="utf-8") == found.to_html()
    True

    The question is :func:`sonde.check` of a run, :func:`sonde.preflight` of a model, :func:`sonde.doctor` of what observing does,
    :func:`sonde.why_nan` or :func:`sonde.compare`. Each class has attributes of its own beside those below.

    Attributes:
        notes: what else the reader must know, as how the model ran.
    """

    notes: Sequence[str]

    @property
    @abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """What was found, the worst first."""

    @property
    def unjudged(self) -> Mapping[str, str]:
        """By question, why it could not be judged."""
        return {}

    @property
    def verdict(self) -> Verdict:
        """``bad``, ``warn``, ``note`` or ``ok``: the worst of the findings; ``unknown`` where nothing was judged."""
        worst = verdict_of(self.findings)
        return worst if worst in ("warn", "bad") or self._has_judged else "unknown"

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``ok`` or ``note``: something was judged, and no finding is ``warn`` or ``bad``."""
        return self.verdict in ("ok", "note")

    @property
    def _has_judged(self) -> bool:
        """Whether anything was judged."""
        return True

    @abstractmethod
    def _report(self) -> Report:
        """Return the report."""

    def _content(self) -> dict[str, Any]:
        """Return what the answer holds beside verdict, findings, unjudged and notes: plain data, mappings and iterables by name."""
        return {}

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of :meth:`to_frame`."""
        return [asdict(each) for each in self.findings]

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data, of the form that the page on schemas describes; a number that is not finite is None.

        >>> import sonde, torch
        >>> found = sonde.why_nan(torch.nn.Linear(2, 2), torch.ones(1, 2), lambda y: (y - y).log().sum())
        >>> found.to_dict()["verdict"], found.to_dict()["findings"][0]["rule"]
        ('bad', 'nonfinite')
        """
        return {
            "answer": type(self).__name__.strip("_"),
            "schema": SCHEMA,
            "verdict": self.verdict,
            "ok": self.ok,
            **with_null(self._content()),
            "findings": [with_null(asdict(each)) for each in self.findings],
            "unjudged": dict(self.unjudged),
            "notes": [*self.notes],
        }

    def to_json(self) -> str:
        """The content of :meth:`to_dict` as JSON."""
        return readable_json(self.to_dict())

    def to_frame(self) -> pandas.DataFrame:
        """The answer as a pandas table: a row for each finding, or for each thing that was judged.

        >>> import sonde, torch
        >>> sonde.summary(torch.nn.Linear(2, 1), torch.ones(1, 2)).to_frame()[["type", "params"]].values.tolist()
        [['Linear', 3]]

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame(self._rows())

    def to_html(self) -> str:
        """The report as a page: one file that loads nothing and opens offline, light or dark as the system is."""
        return self._report().to_html()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the answer to a file: the page for ``.html``, the table as text for ``.txt``. Return its path.

        Raises:
            ArgumentError: the file has another ending.
        """
        file = Path(path)
        ending = file.suffix.lower()
        if ending not in (".html", ".htm", ".txt"):
            raise ArgumentError(f"{file.name!r} cannot be written: give a file that ends in .html (the page) or .txt (the table)")
        file.write_text(f"{self.to_text()}\n" if ending == ".txt" else self.to_html(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        return self._report().to_fragment()

    def __bool__(self) -> NoReturn:
        """An answer is neither true nor false.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(f"a {type(self).__name__} is neither true nor false: ask .ok (nothing is wrong), .verdict or .findings")


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Return the worst severity of *findings*; ``ok`` without any."""
    return max((each.severity for each in findings), key=VERDICTS.index, default="ok")


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return *findings*, the worst first."""
    return tuple(sorted(findings, key=lambda each: -VERDICTS.index(each.severity)))
