"""Write the page of results that a person with an accelerator sends back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.accelerator.costs import Cost

__all__ = ["Outcome", "outcomes", "page"]


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Attributes:
        test: its file and name.
        outcome: ``"passed"``, ``"failed"`` or ``"skipped"``.
        seconds: how long it took.
        why: the first line of the reason.
        text: the whole report of a failure.
    """

    test: str
    outcome: str
    seconds: float
    why: str = ""
    text: str = ""


def outcomes(report: Path) -> list[Outcome]:
    """Return what became of each test, from the file that pytest writes with ``--junitxml``."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):  # our own file
        name, seconds = f"{case.get('classname')}::{case.get('name')}", float(case.get("time", 0))
        held = [(kind, case.find(kind)) for kind in ("failure", "error", "skipped")]
        said = next(((kind, node) for kind, node in held if node is not None), None)
        if said is None:
            found.append(Outcome(name, "passed", seconds))
            continue
        kind, node = said
        why = (node.get("message") or "").strip().splitlines()
        found.append(
            Outcome(name, "skipped" if kind == "skipped" else "failed", seconds, why[0] if why else "", (node.text or "").strip())
        )
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(map(_cell, row))} |" for row in (head, ["---"] * len(head), *rows)]


def page(machine: Mapping[str, str], found: Sequence[Cost], tests: Sequence[Outcome], note: str = "") -> str:
    """Return the page: the machine, each cost with its goal, each test with its outcome, and the failures in full.

    Args:
        machine: what it ran on, by what each thing is.
        found: the costs.
        tests: the tests.
        note: why something was not run.
    """
    by_outcome = Counter(test.outcome for test in tests)
    goals = [cost for cost in found if cost.goal is not None]
    met = sum(cost.is_met for cost in goals)
    lines = [
        "# sonde on an accelerator",
        "",
        f"{by_outcome['passed']} tests passed, {by_outcome['failed']} failed, {by_outcome['skipped']} were skipped; "
        f"{met} of {len(goals)} costs meet their goals.",
        *(["", note] if note else []),
        "",
        "Made by `make gpu`. Please send this page as it is: as an issue of the project, whatever it says.",
        "",
        "## The machine",
        "",
        *_table(("what", ""), list(machine.items())),
        "",
        "## Costs",
        "",
        *_table(
            ("what", "measured", "goal", ""),
            [
                (
                    cost.what,
                    f"{cost.value:.4g} {cost.unit}",
                    "" if cost.goal is None else f"<= {cost.goal:g}",
                    "" if cost.goal is None else "met" if cost.is_met else "missed",
                )
                for cost in found
            ],
        ),
        "",
        "## Tests",
        "",
        *_table(("outcome", "test", "seconds", "why"), [(t.outcome, f"`{t.test}`", f"{t.seconds:.1f}", t.why) for t in tests]),
    ]
    for test in tests:
        if test.outcome == "failed":
            lines += ["", f"### {test.test}", "", "````text", test.text or test.why, "````"]
    return "\n".join(lines) + "\n"
