"""Write the page of the documentation that holds the measured tables."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarks.health import scoring
from benchmarks.health.outcome import Outcome

HEADING = "## First steps of architectures"
"""What the command for architectures writes begins here, to the end of the page."""

_PAGE = """# Health rules, measured

This page is written by `make health`. {kinds} kinds of faults were planted in {failures} small trainings, and {healthy} healthy
trainings stand beside them, each with {seeds} ({date}, torch {torch}). The truth about a fault (the symptoms that show it, the
layer, the step) was written down as the fault was planted, in `benchmarks/health/failures/`. Thresholds were chosen with the
first seed alone. {hidden} kinds of faults leave no trace in the recorded numbers; they are listed below and count for nothing.

- *recall*: the share of faults of which at least one finding names a symptom that shows the fault;
- *right layer*, *right step*: of the found ones, the share where the first such finding names the planted layer, and a step within
  one interval of logged steps (of ten, where the lens of dead units looks at each tenth logged step). A fault of the whole network
  has no layer, and a slow one no step. A NaN that arises between logged steps is in every layer by the next one: rows cannot show
  its layer (`sonde.why_nan` on the batch can);
- *healthy with an alarm*: healthy trainings with any finding;
- *failures without a false one*: faults beside which no finding speaks of a symptom that neither shows the fault nor follows from
  it.

The thresholds of SageMaker Debugger (`smdebug`) and of TheDeepChecker are applied to the same recorded numbers;
`benchmarks/health/baselines.py` says how, and which of their rules could not be.

{summary}

## Rules

{rules}

A fault can often be seen in several ways: the last column is small for a rule whose faults another rule shows.

## Faults

{cases}

## Not observable

{unseen}
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """Return the page as Markdown."""
    ill = {(each.case, each.kind) for each in outcomes if not each.healthy}
    by_case: dict[tuple[str, str], set[int]] = {}
    for each in outcomes:
        by_case.setdefault((each.case, each.kind), set()).add(each.seed)
    times = Counter(len(seeds) for seeds in by_case.values())
    most, *fewer = sorted(times, reverse=True)
    seeds = "".join([_seeds(most), *(f", {times[few]} of them with {_seeds(few)}" for few in fewer)])
    return _PAGE.format(
        kinds=len({case for case, _ in ill}),
        failures=len(ill),
        healthy=len({(each.case, each.kind) for each in outcomes if each.healthy}),
        seeds=seeds,
        date=datetime.datetime.now(datetime.UTC).date(),
        torch=torch.__version__,
        hidden=len({each.case for each in outcomes if each.hidden}),
        summary=scoring.summary(outcomes),
        rules=scoring.by_rule(outcomes),
        cases=scoring.by_case(outcomes),
        unseen=scoring.hidden_cases(outcomes),
    )


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def write(path: Path, text: str, *, architectures: bool = False) -> None:
    """Write the page, or with *architectures* its last part; the other part of a page that is there is kept."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, heading, after = old.partition(HEADING)
    if architectures:
        path.write_text(f"{before.rstrip()}\n\n{HEADING}\n\n{text.rstrip()}\n".lstrip(), encoding="utf-8")
    else:
        path.write_text(text.rstrip() + "\n" + (f"\n{heading}{after}" if heading else ""), encoding="utf-8")
