"""Say what observing does to a model: whether anything changes, which paths torch takes, what is read, and what it costs.

Without a model: which kernels are in use and why, whether the compiler works, and which packages are installed.
"""

from __future__ import annotations

import argparse
import platform
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from sonde.answer import Answer, Cell, Grid, Part, Report, Tone, standard_output, worst_first
from sonde.cli.given import FUNCTION, VERDICT, attempt, expect_model, load, show
from sonde.cli.versions import installed_version
from sonde.errors import TorchVersionError

if TYPE_CHECKING:
    import torch

    from sonde.rules import Finding, Severity

EXAMPLES = f"""
sonde doctor                       what is installed, and whether it works
sonde doctor train.py:setup        the function setup in the file train.py
sonde doctor train:setup --json    the same function in the module train
{FUNCTION}"""
EXIT = VERDICT

_LEVELS = {"avx512": "AVX-512", "avx2": "AVX2", "baseline": "the processor's basic vectors"}
_EXTRA = re.compile(r"""^([\w.-]+)(?:[^\w.\[-][^;]*)?;\s*extra\s*==\s*["']([\w-]+)["']""")  # not "sonde[frame,plots]; ..."


_Line = tuple[str, str, str, Tone]  # what, its state, why; and how the state stands out


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_model(parser, optional=True)
    parser.add_argument("--every", type=int, default=10, help="a training would log every n-th step (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="the time that timing may take (default: %(default)s)")
    parser.add_argument("--compile", action="store_true", default=None, help="compile copies of a model that is not compiled")
    parser.add_argument(
        "--no-compile",
        dest="compile",
        action="store_false",
        help="run a compiled model as plain Python; without a model: do not try torch.compile, which takes seconds",
    )
    parser.add_argument("--private", action="store_true", help="without a model: list every private part of torch that sonde uses")


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    return _environment(options) if options.model is None else _model(options)


def _model(options: argparse.Namespace) -> int:
    from sonde.checkup import doctor

    made = load(options.model)
    asked = {"every": options.every, "compile": options.compile, "seconds": options.seconds, "verbose": not options.json}
    found = attempt("the model", lambda: doctor(*made, **asked))
    show(found, options)
    return 0 if found.ok else 1


def _environment(options: argparse.Namespace) -> int:
    rows = [*_versions(), *_private_names(everything=options.private), *_kernels(), *_accelerator()]
    if options.compile is not False:
        with standard_output().status("trying torch.compile") if not options.json else nullcontext():
            rows.append(_compiler())
    rows += _extras()
    found = _Environment(rows)
    show(found, options)
    return 0 if found.ok else 1


class _Environment(Answer):
    """What is installed, and whether it works. What is slower than it could be is a note, what is wrong is bad."""

    def __init__(self, rows: list[_Line]) -> None:
        self.notes: list[str] = _advice(rows)
        self._lines = rows

    @property
    def findings(self) -> tuple[Finding, ...]:
        from sonde.rules import Finding

        severities: dict[Tone, Severity] = {"bad": "bad", "warn": "note"}
        return worst_first(
            Finding(part, ": ".join(filter(None, [state, why])), severity=severities[tone])
            for part, state, why, tone in self._lines
            if tone in severities
        )

    def _content(self) -> dict[str, Any]:
        return {"parts": [{"part": part, "state": state, "detail": why} for part, state, why, _ in self._lines]}

    def _grid(self) -> Grid:
        return Grid("sonde doctor", ["part", "state", "detail"], [_row(*row) for row in self._lines], [*self.notes])

    def _report(self) -> Report:
        worst = next(iter(self.findings), None)
        headline = "everything works" if worst is None else f"{worst.rule}: {worst.message}"
        parts = [Part("", replace(self._grid(), footer=[]))]
        return Report("sonde doctor", "what is installed, and whether it works", self.verdict, headline, parts, self.notes)


def _row(what: str, state: str, why: str, tone: Tone) -> list[Cell]:
    return [Cell(what, "strong"), Cell(state, tone), Cell(why, "quiet")]


def _versions() -> list[_Line]:
    import torch

    return [
        ("sonde", metadata.version("sonde"), "", "plain"),
        ("python", platform.python_version(), f"{platform.system()} {platform.machine()}", "plain"),
        ("torch", torch.__version__, f"{torch.get_num_threads()} threads", "plain"),
    ]


def _private_names(*, everything: bool) -> list[_Line]:
    """Return which private parts of torch are missing, or with *everything* all of them; and how many there are."""
    try:
        from sonde.engine import private_parts
    except TorchVersionError as error:
        return [(name, "missing", "models cannot be observed with this torch", "bad") for name in error.names]
    present = private_parts()
    count = sum(present.values())
    tone: Tone = "good" if count == len(present) else "bad"
    rows: list[_Line] = [("private parts of torch", f"{count} of {len(present)} there", "", tone)]
    for private, is_there in present.items():
        if not is_there:
            rows.append((private.name, "missing", private.without, "bad"))
        elif everything:
            rows.append((private.name, "there", private.used_for, "plain"))
    return rows


def _kernels() -> list[_Line]:
    from sonde.stats import kernel_status

    status = kernel_status()
    rows: list[_Line] = []
    for dtype in sorted(status.precisions, key=lambda kind: (-kind.itemsize, str(kind))):
        state, why, tone = "reference", f"plain torch: {status.reason}", "warn"
        if status.level:
            agrees = _agrees(dtype)
            state = f"compiled, {_LEVELS.get(status.level, status.level)}" if agrees else "compiled, wrong"
            why = status.reason or f"{status.threads} {'thread' if status.threads == 1 else 'threads'} of torch's own"
            why += "" if status.exchange else "; small tensors take longer, as this torch has no exchange in C"
            why = why if agrees else f"differs from the reference; set {status.switch}=reference and report it"
            tone = "good" if agrees and not status.reason else "warn" if agrees else "bad"
        rows.append((f"{str(dtype).removeprefix('torch.')} on the CPU", state, why, tone))  # type: ignore[arg-type]  # a Tone
    rows.append(("other tensors", "reference", "plain torch, slower: integers, complex, sparse", "plain"))
    return rows


def _agrees(dtype: torch.dtype) -> bool:
    """Whether all kernels equal the reference on a small tensor that holds zeros, NaN, infinities and tiny numbers."""
    import numpy as np
    import torch

    from sonde.stats import Activation, ExponentHistogram, Moments, Norm

    x = torch.arange(-5000.0, 5000.0).div(7).to(dtype)
    x[::1000] = torch.tensor([0.0, float("nan"), float("inf"), -float("inf"), 1e-7] * 2).to(dtype)
    x = x.view(100, 100)
    for statistic in (Moments(), ExponentHistogram(), Norm(), Activation()):
        row = statistic.empty(1)[0]
        assert statistic.kernel is not None
        if not statistic.kernel.add(row, x):
            return False
        rows = torch.stack([row, statistic.measure(x)])  # which may differ where their numbers do not: in the pivot of a variance
        for column in statistic.finish(statistic.columns(rows)).values():
            here, there = column
            if not np.allclose(here, there, rtol=1e-9, atol=1e-9, equal_nan=True):
                return False
    return True


def _accelerator() -> list[_Line]:
    import torch

    from sonde.stats import Accumulator, Moments, kernel_status

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return [("accelerator", "none", "", "plain")]
    Accumulator(Moments()).update(torch.ones(1000, device=device))  # which compiles
    failure = kernel_status().failures.get(device.type)
    if failure:
        return [("accelerator", f"{device.type}, reference", f"plain torch: {failure}", "warn")]
    return [("accelerator", f"{device.type}, fused", "the reference compiled by torch.compile", "good")]


def _compiler() -> _Line:
    import torch

    try:
        from sonde.engine import compiler_state
    except TorchVersionError:
        return ("torch.compile", "not tried", "models cannot be observed with this torch", "warn")
    from sonde.stats import Moments

    x = torch.arange(100.0)
    start = time.perf_counter()
    try:
        right = torch.allclose(torch.compile(Moments().measure)(x), Moments().measure(x))
    except Exception as error:  # anything at all may be missing
        return ("torch.compile", "does not work", f"{type(error).__name__}: {error}".splitlines()[0], "warn")
    took = time.perf_counter() - start
    if not right:
        return ("torch.compile", "gives wrong numbers", "statistics inside compiled models cannot be trusted here", "bad")
    limits = ", ".join(f"{name} {former} → {now}" for name, (former, now) in compiler_state.limits_raised().items())
    said = f"; while a model is observed, code may be compiled for each state of the probes: {limits}" if limits else ""
    return ("torch.compile", "works", f"{took:.0f} s for a small graph on the CPU{said}", "good")


def _extras() -> list[_Line]:
    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("sonde") or []:
        found = _EXTRA.match(requirement)
        if found is not None:
            extras.setdefault(found[2], []).append(found[1])
    rows: list[_Line] = []
    for extra, packages in extras.items():
        versions = {package: installed_version(package) for package in packages}
        missing = [package for package, version in versions.items() if version is None]
        held = ", ".join(f"{package} {version}" for package, version in versions.items() if version is not None)
        if missing:
            rows.append((f"sonde[{extra}]", "not installed", f"missing: {', '.join(missing)}", "quiet"))
        else:
            rows.append((f"sonde[{extra}]", "installed", held, "plain"))
    return rows


def _advice(rows: list[_Line]) -> list[str]:
    from sonde.stats import kernel_status

    advice = []
    if not kernel_status().levels:
        advice.append("The compiled kernels are built where sonde is installed with a C++ compiler at hand; all works without.")
    if any(state == "not installed" for _, state, _, _ in rows):
        advice.append("pip install 'sonde[NAME]' installs an extra, 'sonde[all]' all of them.")
    return advice
