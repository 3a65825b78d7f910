"""Check a run: apply the rules to its rows, and say what they find and what they could not judge."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol

from sonde.answer import TONES, Answer, Cell, Fact, Grid, Part, Report
from sonde.checked import checked
from sonde.errors import ArgumentError
from sonde.escape import printable
from sonde.rules import RULES, Chosen, Finding, Given, chapters
from sonde.run.record import Record, counted
from sonde.run.recorded_findings import chosen_in, judged_again
from sonde.run.run import Run, open_run
from sonde.run.what_if import WouldLose, findings_of, format_of, would_lose
from sonde.words import many

if TYPE_CHECKING:
    from rich.text import Text

_SHOWN = 8
_SOURCES = {
    **{f"underflow_{name}": "the lens exponents()" for name in ("fp16", "bf16", "e4m3", "e5m2")},
    "queries": "queries and keys that layers of their own return",
    "call_death": "the lens OutputActivation",
    "effective_rank": "the lens EffectiveRank",
    "loss": "push_loss(loss, train=True)",
    "val_loss": "push_loss(loss, train=False)",
    "grad_norm": "the lens moments()",
}


class Proves(Protocol):
    """Tries what findings advise."""

    def of(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return *findings* with what was tried."""
        ...


@checked("run", "rules", "prove")
def check(
    run: Run | str | os.PathLike[str],
    *,
    rules: Given = None,
    rank: int | None = None,
    what_if: Any = None,
    prove: Proves | None = None,
) -> Checked:
    """Check a run: return what the rules find in it, the gravest first, and the rules that lack their numbers.

    >>> import sonde
    >>> from sonde.run import Layout, memory_run
    >>> with memory_run() as writer:
    ...     for step, death in enumerate((1.0, 1.0, 1.0)):
    ...         writer.append("activation", Layout(["1:output"]), {"call_death": [death], "activation": [0.0]}, step=step)
    >>> found = sonde.check(writer.run())
    >>> found.verdict, [(each.rule, each.message) for each in found.findings]
    ('bad', [('dead', '1: 100 % dead')])

    A model is asked before its training by :func:`sonde.preflight`, and the instrument by :func:`sonde.doctor`.

    They are the rules that a training applies to itself, with the same findings: also for a run that was killed, that still goes
    on, or that another program wrote. What only the training knew stays as it was recorded.

    Of a run that has ended, a check without *rules*, *rank* and *what_if* takes the place of what was judged before in the run's
    record of findings, which everything else reads. Any other check leaves the record as it is, and says how it differs.

    Args:
        run: a run, or its folder.
        rules: by name False to leave a rule out, or its thresholds, as ``{"dead": False, "spike": {"deviations": 6}}``; by
            default as the training had them.
        rank: the process whose rows are judged; by default, of each place at each step the first that has rows of it.
        what_if: a number format, as ``"float16"``, ``"bfloat16"``, ``"float8_e4m3fn"``, ``"float8_e5m2"`` or the dtype: also say
            which share of the values of each place the format would lose. It needs rows of the lens ``exponents()``.

        prove: a :class:`sonde.Proof`: model, batch, loss and optimizer as the program makes them. What can be tried in one step of
            the advice is tried there, and each finding that no other explains says in ``proof`` whether it is proved or likely.

    Raises:
        ArgumentError: *rules* names no rule or threshold, *what_if* no format, *prove* is no proof, or *run* is none; the
            message names the nearest.
        StoreError: the folder holds no run.
    """
    opened = run if isinstance(run, Run) else _opened(run)
    if prove is not None and not hasattr(prove, "of"):
        raise ArgumentError(
            f"prove={prove!r}: give what the advice is tried on, as sonde.Proof(model, batch, loss_fn, optimizer=optimizer)"
        )
    chosen = chosen_in(opened) if rules is None else Chosen.of(rules)
    wanted = None if what_if is None else format_of(what_if)
    own = rules is None and rank is None
    stored = opened.records()
    again = judged_again(opened, chosen, rank=rank, own=own)
    record = Record.merged(list(again.values()))
    why = "" if again == stored else "it was asked otherwise"
    if again != stored and own and wanted is None:
        why = opened.keep_records(again)
    notes = [opened.pruned] if opened.pruned else []
    notes += [_differs(Record.merged(list(stored.values())), record, why)] if why and stored else []
    strange = sorted({each.rule for each in record.judged if each.rule not in RULES})
    notes += [f"not judged again, since this process does not have these rules: {', '.join(strange)}"] if strange and own else []
    if opened.pruned and not own:
        notes.append("the rules judge the rows that are left, and see nothing of those between")
    damaged = sum(len(said) for said in opened.lost.values())
    notes += record.shortfalls(record.step, damaged)
    name = "in memory" if opened.path is None else opened.path.name
    lost = [] if wanted is None else would_lose(opened, wanted, rank)
    found, missing, applied = record.findings, dict(record.not_judged), len(record.rules)
    if wanted is not None:
        found = [*found, *findings_of(lost, wanted, chosen)]
        missing |= {} if lost else {f"what_if={wanted.name}": f"underflow_{wanted.short}:output|underflow_{wanted.short}:grad"}
        applied += not lost
    what = "" if wanted is None else wanted.name
    if prove is not None:
        found = prove.of(found)
    return Checked(found, missing, name, applied, record.steps, lost, what, [each for each in notes if each], record.too_early)


def _differs(stored: Record, record: Record, why: str) -> str:
    """Say how the findings of a check differ from those in the run's record, which stays; ``""`` where they are the same."""
    before, now = ({each.identity: each.rule for each in of.findings} for of in (stored, record))
    more = sorted({rule for identity, rule in now.items() if identity not in before})
    fewer = sorted({rule for identity, rule in before.items() if identity not in now})
    said = [f"has {', '.join(rules)} {how}" for rules, how in ((more, "besides"), (fewer, "no more")) if rules]
    behind = f"was judged up to step {stored.step:,}" if stored.step < record.step else ""
    words = " and ".join(
        filter(None, [f"this check {' and '.join(said)}" if said else "", f"the record {behind}" if behind else ""])
    )
    return f"the record of the run stays as it is, since {why}: {words}" if words else ""


def _opened(run: Any) -> Run:
    if not isinstance(run, str | os.PathLike):
        raise ArgumentError(f"run={run!r}: give a run, as inspector.run, or the folder of one, as 'runs/quiet-otter'")
    return open_run(run)


class Checked(Answer):
    """What the rules find in a run, the gravest first; printed as lines.

    >>> import sonde
    >>> from sonde.run import Layout, memory_run
    >>> writer = memory_run()
    >>> writer.append("moments", Layout(["0:output", "1:output"]), {"rms": [1.0, 0.5]}, step=0)
    >>> checked = sonde.check(writer.run())
    >>> checked.verdict, checked.findings, checked.to_text().splitlines() != []
    ('ok', (), True)

    Attributes:
        not_judged: by rule, what it needs and the run does not have.
        name: of the run.
        applied: how many rules were applied.
        steps: how many logged steps have rows that were judged.
        would_lose: of each place the values that the format of ``what_if=`` would lose, the worst first.
        what_if: the name of that format; ``""`` without one.
        too_early: by rule, how many logged steps it needs, where the run has fewer; of a rule of losses, how many values.
        notes: in words, what was taken out of the run or is lost, and how its record differs where that stays as it is.
    """

    def __init__(
        self,
        findings: Sequence[Finding],
        not_judged: Mapping[str, str],
        name: str,
        applied: int,
        steps: int,
        would_lose: Sequence[WouldLose] = (),
        what_if: str = "",
        notes: Sequence[str] = (),
        too_early: Mapping[str, int] | None = None,
    ) -> None:
        self._findings = tuple(findings)
        self.not_judged = dict(not_judged)
        self.name = name
        self.applied = applied
        self.steps = steps
        self.would_lose = tuple(would_lose)
        self.what_if = what_if
        self.notes = tuple(notes)
        self.too_early = dict(too_early or {})

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings as a story: a root, then what follows from it; the gravest first."""
        return self._findings

    @property
    def unjudged(self) -> Mapping[str, str]:
        """By rule, why it could not be judged: what it needs, or how many logged steps."""
        early = {rule: f"needs {least:,} logged steps" for rule, least in self.too_early.items()}
        return {**{rule: f"needs {_in_words(missing)}" for rule, missing in self.not_judged.items()}, **early}

    @property
    def _has_judged(self) -> bool:
        return self.judged > 0 and self.steps > 0

    @property
    def judged(self) -> int:
        """How many rules could find something."""
        return self.applied - len(self.not_judged) - len(self.too_early)

    def _content(self) -> dict[str, Any]:
        held = {"run": self.name, "steps": self.steps, "not_judged": self.not_judged, "too_early": self.too_early}
        return held | ({"what_if": self.what_if, "would_lose": [asdict(each) for each in self.would_lose]} if self.what_if else {})

    def to_text(self, width: int | None = None) -> str:
        """The findings as lines of text, as long as they are."""
        lines = [f"Check of run {self.name}: {self._counted()}", *self.notes]
        for root, behind in chapters(self.findings):
            lines += [f"{root.severity:<4} {root.rule}: {root.message}", f"     {_evidence(root)}", f"     {root.advice}"]
            lines += [f"     {root.proof}"] if root.proof else []
            lines += [f"     {_behind(each)}" for each in behind]
        return printable("\n".join([*lines, *self._losses(), *self._left_out()]))

    def __repr__(self) -> str:
        return self.to_text()

    def _counted(self) -> str:
        """Return how many findings there are, and how much was judged."""
        rules = self.judged
        judged = f"{many(rules, 'rule')} judged {many(self.steps, 'logged step')}"
        nothing = "no findings" if rules or not self.applied else "nothing could be judged"
        return f"{counted(self.findings) if self.findings else nothing}, {judged}"

    def _left_out(self) -> list[str]:
        """Return the rules that could not be judged, a line for each reason."""
        steps: dict[int, list[str]] = {}
        for rule, least in sorted(self.too_early.items(), key=lambda each: each[1]):
            steps.setdefault(least, []).append(rule)
        early = [f"{', '.join(rules)} (from {least:,} on)" for least, rules in steps.items()]
        lines = [f"too few logged steps for: {', '.join(early)}"] if early else []
        needs: dict[str, list[str]] = {}
        for rule, missing in self.not_judged.items():
            needs.setdefault(missing, []).append(rule)
        lines += [f"not judged: {', '.join(rules)}: needs {_in_words(missing)}" for missing, rules in needs.items()]
        return lines

    def _grid(self) -> Grid:
        rows = []
        for root, behind in chapters(self.findings):
            rows.append([Cell(root.rule, "strong"), Cell(root.severity, TONES[root.severity]), Cell(root.message)])
            said = [_evidence(root), root.advice, root.proof, *map(_behind, behind)]
            rows += [[Cell(""), Cell(""), Cell(text, "quiet")] for text in said if text]
        columns = ["rule", "verdict", ""]
        return Grid(f"Check of run {self.name}: {self._counted()}", columns, rows, [*self.notes, *self._left_out()], "no findings")

    def __rich__(self) -> Text:  # type: ignore[override]  # the lines
        from rich.text import Text

        return Text(self.to_text())

    def _report(self) -> Report:
        facts = [Fact("" if place else f"in {self.what_if}", line.strip()) for place, line in enumerate(self._losses())]
        parts = [Part("", replace(self._grid(), footer=[])), *([Part("What another format would lose", facts)] if facts else [])]
        left_out = [Fact("", line) for line in self._left_out()]
        parts += [Part("Rules that could not be judged", left_out, folded=True)] if left_out else []
        return Report("sonde.check", f"run {self.name}", self.verdict, self._counted(), parts, self.notes)

    def _losses(self) -> list[str]:
        """Return the places that the format of ``what_if=`` would harm most, a line each."""
        if not self.would_lose:
            return []
        shown = [each for each in self.would_lose if each.overflow or each.underflow][:_SHOWN]
        width = max((len(each.site) for each in shown), default=0)
        head = f"in {self.what_if}, of {len(self.would_lose):,} places" + (":" if shown else ": no value would be lost")
        return [head] + [
            f"     {each.site:<{width}}  overflow {each.overflow:.2%}, to zero {each.underflow:.2%} "
            f"({each.underflow_scaled:.2%} if scaled to fit), step {each.step:,}"
            for each in shown
        ]


def _evidence(found: Finding) -> str:
    since = f"from step {found.first_step:,} on" if found.first_step is not None else ""
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in found.evidence.items())
    return " · ".join(filter(None, [since, numbers, f"rule: {found.condition}" if found.condition else ""]))


def _behind(found: Finding) -> str:
    """Return a line for a finding that follows from another one."""
    return f"-> {found.severity} {found.rule}, from step {found.begun:,} on, follows from {found.follows}: {found.message}"


def _in_words(missing: str) -> str:
    """Return the numbers that are missing in words, with what records each.

    >>> _in_words("rms:grad, call_death:output|zeros:output")
    'rms of grad (the lens moments()), call_death of output (the lens OutputActivation)'
    """
    words = []
    for need in missing.split(", "):
        number, _, port = need.split("|")[0].partition(":")
        source = _SOURCES.get(number, "the lens moments()" if port else "a pushed value")
        words.append(f"{number}{f' of {port}' if port else ''} ({source})")
    return ", ".join(words)
