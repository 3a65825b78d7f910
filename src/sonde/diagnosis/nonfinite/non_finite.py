"""The answer of ``why_nan``: the first bad operation as data, and as a text that says what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sonde.answer import Answer, Cell, Code, Fact, Grid, Part, Report, Tone
from sonde.diagnosis.nonfinite.operation_observer import Largest
from sonde.diagnosis.nonfinite.origins import Cause, Kind, Operand, Origin
from sonde.diagnosis.nonfinite.source_lines import SourceLine, line_of
from sonde.rules import RULES, Finding
from sonde.site import Phase, Site
from sonde.words import names_text, number_text, shape_text

_MOST_OPERANDS = 6
_MOST_INDICES = 8


@dataclass(eq=False, repr=False)
class NonFinite(Answer):
    """The first operation that made a NaN or an infinity, or the news that none did.

    >>> import sonde, torch
    >>> found = sonde.why_nan(torch.nn.Linear(2, 1), torch.tensor([[1.0, float("nan")]]), torch.sum)
    >>> found.verdict, found.origin is not None
    ('bad', True)

    Attributes:
        model: class of the model.
        origin: where the first bad value came about, with its operands, result and lines; None if nothing bad has reached the
            output, the loss, a gradient, a parameter or a buffer.
        reached: what the bad values have reached, in words: ``the loss``, ``48 of 52 gradients``.
        later: operations behind it that made new bad values out of the first ones, as a NaN out of an infinity.
        others: what else has made bad values that have reached something, and not out of the first ones.
        gradients: how many gradients of parameters were looked at; None where there was no gradient at all.
        harmless: operations that made bad values which have reached nothing.
        intended: infinities that the code wrote on purpose, as masks.
        largest: of each floating-point dtype the largest finite value, with its place.
        operations: how many were looked at.
        notes: what else the reader must know, as that compiled code ran as plain Python.
        error: raised by the model, the loss function, the backward pass or the optimizer.
        reproduction: one line of Python that makes such a value again, behind ``import torch``; ``""`` if no short line does.
        failure: what failed in sonde itself, after which no operation was seen; ``""`` if nothing did.
    """

    model: str
    origin: Origin | None
    reached: list[str] = field(default_factory=list)
    later: list[Origin] = field(default_factory=list)
    others: list[Origin] = field(default_factory=list)
    gradients: int | None = None
    harmless: list[Origin] = field(default_factory=list)
    intended: list[Origin] = field(default_factory=list)
    largest: list[Largest] = field(default_factory=list)
    operations: int = 0
    notes: list[str] = field(default_factory=list)
    error: Exception | None = None
    reproduction: str = ""
    failure: str = ""

    @property
    def kind(self) -> Kind | None:
        """``NaN`` or ``inf``: the first bad value; None if there is none."""
        return None if self.origin is None else self.origin.kind

    @property
    def phase(self) -> Phase | None:
        """``forward``, ``backward``, ``recompute`` (of a checkpoint) or ``step`` (of the optimizer)."""
        return None if self.origin is None else self.origin.place.phase

    @property
    def layer(self) -> str | None:
        """The module's name, ``""`` for the model itself; None outside of modules, as in a loss function."""
        return None if self.origin is None else self.origin.place.path

    @property
    def operation(self) -> str | None:
        """The operation as the code calls it: ``softmax``; in a backward pass the one whose derivative it is."""
        return None if self.origin is None else self.origin.name

    @property
    def line(self) -> SourceLine | None:
        """The innermost line outside of torch that led to the operation."""
        return None if self.origin is None else line_of(self.origin.lines)

    @property
    def cause(self) -> Cause | None:
        """Why: a name, a sentence and an advice."""
        return None if self.origin is None else self.origin.cause

    @property
    def site(self) -> Site | None:
        """The site where the first bad value shows; None outside of modules."""
        if self.origin is None:
            return None
        if self.origin.source == "parameter":
            return Site(self.origin.name, "param")
        if self.origin.parameter:
            return Site(self.origin.parameter, "update")
        if self.origin.source == "input":
            return Site("", "input")
        return self.origin.place.site

    @property
    def near_limit(self) -> list[Largest]:
        """The largest values that are near the limit of their dtype: the next overflow, named before it happens."""
        return [each for each in self.largest if each.is_near]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The first bad value, by the rule ``nonfinite``; then the values that are near the limit of their dtype."""
        near = (
            Finding("overflow_near", str(each), str(each.place.site or ""), value=each.value, advice=RULES["overflow_near"].advice)
            for each in self.near_limit
        )
        return (*(() if self.origin is None else (self._nonfinite(self.origin),)), *near)

    def _nonfinite(self, origin: Origin) -> Finding:
        facts, cause = origin.result, origin.cause
        evidence = {}
        if facts is not None:
            inf = facts.positive_infinities + facts.negative_infinities
            evidence = {"nan": float(facts.nan), "inf": float(inf), "count": float(facts.count)}
        return Finding(
            "nonfinite",
            f"{self._headline()}: {cause.sentence}" if cause is not None else self._headline(),
            site="" if self.site is None else str(self.site),
            value=evidence.get("nan", 0.0) + evidence.get("inf", 0.0),
            severity="bad",
            call=-1 if origin.place.call is None else origin.place.call,
            evidence=evidence,
            advice="" if cause is None else cause.advice,
        )

    @property
    def unjudged(self) -> Mapping[str, str]:
        """That later operations were not seen, where sonde itself has failed."""
        return {"later operations": self.failure} if self.failure else {}

    @property
    def _has_judged(self) -> bool:
        return not self.failure

    def _content(self) -> dict[str, Any]:
        held = {name: getattr(self, name) for name in ("model", "kind", "phase", "layer", "operation", "reached", "operations")}
        cause = None if self.cause is None else self.cause._asdict()
        line = None if self.line is None else str(self.line)
        return {**held, "cause": cause, "line": line, "reproduction": self.reproduction, "largest": [*map(str, self.largest)]}

    # As a table

    def _headline(self) -> str:
        origin = self.origin
        if origin is None:
            return f"{self.model}: nothing that is not finite"
        if origin.source == "constant":
            return f"{self.model}: the first {origin.kind} is written {_how(origin)}"
        if origin.source == "rank":
            return f"{self.model}: the first {origin.kind} has come from another rank"
        if origin.source != "operation":
            word = {"outside": "tensor", "uninitialised": "uninitialised memory", "state": "optimizer's state"}.get(
                origin.source, origin.source
            )
            return f"{self.model}: the first {origin.kind} is in the {word} {origin.name}".rstrip()
        return f"{self.model}: the first {origin.kind} is made {_how(origin)}"

    def _grid(self) -> Grid:
        facts = [*self._facts_of_origin(), *self._other_facts()]
        rows = [[Cell(fact.label, "quiet"), Cell(fact.text, fact.tone)] for fact in facts]
        return Grid(self._headline(), ["", self._looked_at()], rows)

    def _report(self) -> Report:
        headline = self._headline().removeprefix(f"{self.model}: ")
        if self.origin is None:
            near = ", ".join(dict.fromkeys(each.dtype for each in self.near_limit))
            headline = f"every value is finite; {near} comes near its limit" if near else "every value is finite"
        facts = self._facts_of_origin(with_operands=False)
        parts = [Part("", facts)] if facts else []
        if self.line is not None and (code := Code.around(self.line.file, self.line.line, self.line.text)) is not None:
            parts.append(Part("The line", code))
        if self.origin is not None and (self.origin.operands or self.origin.result is not None):
            parts.append(Part("What went in, and what came out", _grid_of_operands(self.origin)))
        if self.origin is not None and len(self.origin.lines) > 1:
            calls = [Fact(line.name, line.text or f"in {line.function}") for line in self.origin.lines]
            parts.append(Part("The calls that led there, the innermost first", calls, folded=True))
        others = self._other_facts()
        parts += [Part("Other values" if facts else "", others)] if others else []
        if self.failure and self.origin is None:
            headline = "nothing that is not finite was seen before sonde failed"
        return Report("sonde.why_nan", self.model, self.verdict, headline, parts, [self._looked_at()])

    def _looked_at(self) -> str:
        return f"{self.operations:,} operations looked at"

    def _other_facts(self) -> list[Fact]:
        """The values that are not to blame: the largest ones, infinities on purpose, harmless ones; and notes."""
        facts = []
        for each in self.largest:
            if self.origin is None or each.is_near:
                tone: Tone = "warn" if each.is_near else "plain"
                label = "near the limit" if each.is_near else "largest"
                facts.append(Fact(label, f"{each}{_where(each.place.path, each.place.call)}", tone))
                if each.line is not None and each.is_near:
                    facts.append(Fact("", str(each.line), "quiet"))
        if self.intended:
            names = list(dict.fromkeys(_line_of_origin(origin) for origin in self.intended))
            facts.append(Fact("intended", f"infinities that the code writes on purpose: {names_text(names)}", "quiet"))
        if self.harmless:
            named = {_made_by(origin) for origin in (self.origin, *self.later, *self.others) if origin is not None}
            names = list(dict.fromkeys(name for origin in self.harmless if (name := _made_by(origin)) not in named))
            facts += [Fact("harmless", f"reached nothing: {names_text(names)}", "quiet")] if names else []
        if self.error is not None:
            facts.append(Fact("raised", f"{type(self.error).__name__}: {self.error}".splitlines()[0], "warn"))
        facts += [Fact("not seen", f"{what}: {why}", "warn") for what, why in self.unjudged.items()]
        return [*facts, *(Fact("note", note, "quiet") for note in self.notes)]

    def _facts_of_origin(self, *, with_operands: bool = True) -> list[Fact]:
        origin = self.origin
        if origin is None:
            return []
        rows: list[Fact] = []
        if origin.cause is not None:
            rows.append(Fact("why", origin.cause.sentence, "bad"))
        if origin.parameter:
            rows.append(Fact("parameter", origin.parameter, "strong"))
        if origin.place.path is not None and origin.source != "input":
            kind = f" ({origin.place.kind})" if origin.place.kind else ""
            rows.append(Fact("layer", f"{origin.place.path or '(root)'}{kind}{_call(origin)}", "strong"))
        line = self.line
        if line is not None:
            rows.append(Fact("line", str(line), "strong"))
            users = next((each for each in origin.lines if each.owner == "user"), None)
            if users is not None and users is not line:
                rows.append(Fact("called at", str(users)))
        if origin.derivative:
            rows.append(Fact("operator", f"{origin.operator}, a part of {origin.derivative}"))
        if origin.source == "operation" and with_operands:
            rows += [Fact("in" if not place else "", _operand(each)) for place, each in enumerate(origin.operands[:_MOST_OPERANDS])]
            if origin.result is not None:
                at = f", the first at {list(origin.index[:_MOST_INDICES])}" if origin.index else ""
                rows.append(Fact("out", f"{origin.result}{at}"))
        rows += [Fact("then", text) for text in _grouped(self.later)[:3]]
        rows += [Fact("also", text) for text in _grouped(self.others)[:3]]
        reached = ", ".join(self.reached)
        if self.gradients is None:
            reached += "; the gradients were not looked at, since there are none"
        elif self.gradients and " gradients" not in reached:
            reached += f", none of {self.gradients} gradients"
        if reached:
            rows.append(Fact("reached", reached.lstrip(",; ")))
        if origin.cause is not None and origin.cause.advice:
            rows.append(Fact("do", origin.cause.advice, "good"))
        if self.reproduction:
            rows.append(Fact("reproduce", self.reproduction, is_code=True))
        return rows


def _grid_of_operands(origin: Origin) -> Grid:
    names = [*(each.name for each in origin.operands), *(["result"] if origin.result is not None else [])]
    facts = [*(each.facts for each in origin.operands), *([origin.result] if origin.result is not None else [])]
    made = "-inf" if origin.kind == "inf" and origin.result is not None and not origin.result.positive_infinities else origin.kind
    there = [*(None if each.value is None else number_text(each.value) for each in origin.operands), made]
    rows = []
    for name, held, value in zip(names, facts, there, strict=False):
        lost = {"NaN": held.nan, "inf": held.positive_infinities, "-inf": held.negative_infinities}
        rows.append(
            [
                Cell(name, "strong"),
                Cell(shape_text(held.shape)),
                Cell(held.dtype, "quiet"),
                *(Cell("" if math.isnan(end) else number_text(end), align="right") for end in (held.low, held.high)),
                Cell(f"{held.zeros:,}" if held.zeros else "", align="right"),
                *(Cell(f"{count:,}" if count else "", "bad", "right") for count in lost.values()),
                Cell(value or ""),
            ]
        )
    where = f" {list(origin.index[:_MOST_INDICES])}" if origin.index else ""
    columns = [
        "tensor",
        "shape",
        "dtype",
        "smallest",
        "largest",
        "zeros",
        "NaN",
        "inf",
        "-inf",
        f"at the first bad place{where}",
    ]
    return Grid("", columns, rows)


def _how(origin: Origin) -> str:
    """Return by what, where and when the value was made: ``by softmax in blocks.0.attn, forward``."""
    what = f"by {_operation(origin)}"
    place = _where(origin.place.path, None)
    when = {"forward": "forward", "backward": "backward", "recompute": "in a checkpoint's recomputation"}.get(origin.place.phase)
    if origin.place.phase == "step":
        return f"{what} in the step of {origin.place.kind}"
    if origin.place.path is None and origin.place.kind:
        place = f" in {origin.place.kind}"
    return f"{what}{place or ' outside of the model'}, {when}"


def _at(origin: Origin) -> str:
    line = line_of(origin.lines)
    return f"{_operation(origin)}{_where(origin.place.path, None)}{f' ({line.name})' if line is not None else ''}"


def _operation(origin: Origin) -> str:
    return f"the derivative of {origin.name}" if origin.derivative else origin.name


def _made_by(origin: Origin) -> str:
    return f"{origin.kind} by {_line_of_origin(origin)}"


def _grouped(origins: Sequence[Origin]) -> list[str]:
    """Return one text for all origins that have the same line, operation and kind, as those of equal layers."""
    first: dict[tuple[Kind, str], Origin] = {}
    counts: dict[tuple[Kind, str], int] = {}
    for origin in origins:
        key = (origin.kind, _line_of_origin(origin))
        first.setdefault(key, origin)
        counts[key] = counts.get(key, 0) + 1
    texts = []
    for key, origin in first.items():
        more = f", and {counts[key] - 1} more" if counts[key] > 1 else ""
        sentence = "" if origin.cause is None else re.sub(r"^in the derivative of \S+: ", "", origin.cause.sentence)
        sentence = "" if origin.cause is not None and origin.cause.name == "unknown" else sentence
        made = f"{origin.kind} by {_at(origin)}{more}"
        texts.append(sentence if origin.source not in ("operation", "constant") else f"{made}: {sentence}" if sentence else made)
    return texts


def _line_of_origin(origin: Origin) -> str:
    line = line_of(origin.lines)
    return f"{_operation(origin)}{_where(origin.place.path, None)}" if line is None else f"{_operation(origin)} ({line.name})"


def _where(path: str | None, call: int | None) -> str:
    return "" if path is None else f" in {path or '(root)'}{f' (call {call})' if call else ''}"


def _call(origin: Origin) -> str:
    return f", call {origin.place.call}" if origin.place.call is not None else ""


def _operand(operand: Operand) -> str:
    value = f"; there {number_text(operand.value)}" if operand.value is not None and operand.facts.count > 1 else ""
    return f"{operand.name}: {operand.facts}{value}"
