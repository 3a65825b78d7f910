"""Ask every question that sonde answers about a model, and return the answers as they are printed."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.golden import masking
from tests.golden.models import Case

import sonde
from sonde.cli import main

FILES = Path(__file__).parent / "files"
_STEPS = 12
_LR = 0.125  # of the first training; the second has twice as much
_LOOSE = ("doctor", "info", "list")  # their columns are as wide as times and sizes make them


@dataclass(frozen=True)
class Printed:
    """One answer, as it is printed.

    Attributes:
        model: name of the model.
        question: name of the question.
        forms: ``text``, ``html``, ``page`` (what stands around the report in the page), ``json``, as far as it has them.
    """

    model: str
    question: str
    forms: Mapping[str, str]

    @property
    def file(self) -> Path:
        """The file that keeps it."""
        return FILES / self.model / f"{self.question}.txt"

    def masked(self) -> str:
        """Return what the file must hold."""
        make: Mapping[str, Callable[[str], str]] = {
            "text": masking.text,
            "html": masking.html,
            "page": _around,
            "json": masking.data,
        }
        parts = {form: make[form](raw) for form, raw in self.forms.items()}
        if self.question in _LOOSE:
            parts["text"] = masking.columns(parts["text"])
        return "".join(f"──── {form}\n{part}\n" for form, part in parts.items())


def _around(page: str) -> str:
    """Return what a page shows around its report."""
    before, found, after = masking.html(page).partition("<article")
    return f"{before}<article> ... {after.rpartition('</article>')[2]}" if found else before


def answers(case: Case, folder: Path) -> Iterator[Printed]:
    """Ask all questions about a model in *folder*, which its runs are written to."""
    with contextlib.chdir(folder), _environment():
        for question, forms in _asked(case):
            yield Printed(case.name, question, forms)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Let lines be as long as tables need, warn each time, and draw the same random numbers each time."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "240"
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def _forms(answer: Any, **more: str) -> dict[str, str]:
    """Return all forms that an answer has."""
    methods = {"html": "_repr_html_", "page": "to_html", "json": "to_json"}
    return (
        {"text": repr(answer)} | more | {form: getattr(answer, name)() for form, name in methods.items() if hasattr(answer, name)}
    )


def _asked(case: Case) -> Iterator[tuple[str, dict[str, str]]]:
    args, kwargs = case.batch()
    model = case.build()
    with sonde.track(model) as tracker:
        case.loss(model(*args, **kwargs)).backward()
    yield "track", _forms(tracker)
    yield "coverage", _forms(tracker.coverage())
    yield "summary", _forms(sonde.summary(case.build(), *args, **kwargs))
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    yield "preflight", _forms(sonde.preflight(model, args, case.loss, steps=6, verbose=False))
    yield "doctor", _forms(sonde.doctor(model, args, case.loss, optimizer, seconds=1e-9, verbose=False))  # nothing is timed
    yield "why_nan", _forms(sonde.why_nan(case.build(), args, case.loss))
    yield "compare", _forms(sonde.compare(case.build(), case.twin(), args))
    name, other = f"runs/{case.name}", f"runs/{case.name}-faster"
    run, lines = _trained(case, name, _LR)
    yield "watch", lines
    yield "check", _forms(sonde.check(run))
    if case.runs:
        yield "run", _forms(run)
        yield "check_command", _of_command("check", name)
        yield "show", _of_command("show", name)
        yield "info", _of_command("info", name)
        _trained(case, other, 2 * _LR)
        yield "compare_runs", _forms(sonde.compare(name, other))
        yield "list", _of_command("list")
        yield "open_runs", _forms(sonde.open_runs("runs"))


def _trained(case: Case, path: str, lr: float) -> tuple[Any, dict[str, str]]:
    """Train a model, and return its run, and all that was printed meanwhile: alarms, warnings, closing lines."""
    args, kwargs = case.batch()
    model = case.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        with sonde.watch(model, optimizer, every=2, to=path) as inspector:
            for _ in range(_STEPS):
                optimizer.zero_grad()
                loss = case.loss(model(*args, **kwargs))
                loss.backward()
                optimizer.step()
                inspector.push_loss(loss, train=True)
                inspector.run  # noqa: B018  # all rows are written and judged now, so that each alarm comes after its own step
    lines = [*printed.getvalue().splitlines(), *(f"{each.category.__name__}: {each.message}" for each in warned)]
    return inspector.run, {"text": "\n".join(lines)}


def _of_command(*words: str) -> dict[str, str]:
    """Return what a command prints, with its exit code, and as JSON."""
    held = []
    for more in ((), ("--json",)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = main([*words, *more])
        held.append((printed.getvalue(), code))
    (shown, code), (as_json, same) = held
    assert same == code, "the exit code does not depend on the form"
    return {"text": f"{shown}exit code {code}", "json": as_json}
