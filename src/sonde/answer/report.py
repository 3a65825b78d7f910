"""A report: a verdict in one line, the facts behind it, tables, charts and code; a page of its own, or a part of a notebook."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from sonde.answer.chart import Chart
from sonde.answer.page import asset, html_page
from sonde.answer.table import Grid, Tone
from sonde.escape import escape_html, printable_line

if TYPE_CHECKING:
    from sonde.rules import Finding

Verdict = Literal["ok", "note", "warn", "bad", "unknown"]
"""How well it is: the severity of the worst finding; ``ok`` without a finding; ``unknown`` where nothing was judged."""

VERDICTS: tuple[Verdict, ...] = ("unknown", "ok", "note", "warn", "bad")
"""From the best to the worst."""

TONES: Mapping[Verdict, Tone] = {"unknown": "quiet", "ok": "good", "note": "plain", "warn": "warn", "bad": "bad"}
"""How the verdict of a line stands out among others."""

_SIGNS: Mapping[Verdict, tuple[str, Tone]] = {
    "unknown": ("?", "plain"),
    "ok": ("✓", "good"),
    "note": ("✓", "good"),
    "warn": ("▲", "warn"),
    "bad": ("✕", "bad"),
}
"""Of the verdict of a whole page a sign that needs no colour, and its colour: a page with notes alone is green."""

_MOST_FACTS = 8


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a list of facts.

    Attributes:
        label: what it says something about; ``""`` continues the fact above.
        text: the fact.
        tone: how it stands out.
        is_code: the text is code, which the page can copy.
    """

    label: str
    text: str
    tone: Tone = "plain"
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of a file.

    Attributes:
        lines: the lines.
        first: the number of the first one.
        marked: the number of the line that is meant.
        place: the file.
    """

    lines: Sequence[str]
    first: int
    marked: int
    place: str

    @classmethod
    def around(cls, file: str, line: int, text: str, context: int = 4) -> Code | None:
        """Return the lines around one of a file; None where it cannot be read, or holds another *text* by now."""
        if not text or linecache.getline(file, line).strip() != text.strip():
            return None
        first = max(1, line - context)
        lines = [linecache.getline(file, number) for number in range(first, line + context + 1)]
        while lines and not lines[-1].strip():
            lines.pop()
        return cls(lines, first, line, f"{file}:{line}")


Content: TypeAlias = Grid | Chart | Code | Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a report.

    Attributes:
        title: its heading; ``""`` for none.
        content: facts, a table (shown without its title), a chart, or code.
        remark: a sentence below the heading: how to read the part.
        folded: the part is closed until the reader opens it.
    """

    title: str
    content: Content
    remark: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        source: the call that made it: ``sonde.why_nan``.
        subject: what was looked at: the model's class.
        verdict: its sign and colour.
        headline: the verdict in one sentence.
        parts: in the order of their weight.
        remarks: further lines at the end.
    """

    source: str
    subject: str
    verdict: Verdict
    headline: str
    parts: Sequence[Part]
    remarks: Sequence[str] = field(default=())

    def to_html(self) -> str:
        """Return the report as a page: one file that loads nothing, light or dark as the system is."""
        return html_page(
            f"{self.subject} · {self.source}",
            "report.html",
            texts={"source": self.source},
            parts={"article": self._article()},
            styles=("table.css", "report.css"),
            scripts=("report.js",),
        )

    def to_fragment(self) -> str:
        """Return the report as a part of another page, a notebook's for instance; it has its style and no script."""
        style = asset("table.css") + asset("report.css")
        return f"<style>{style}</style>{self._article()}"

    def _article(self) -> str:
        sign, tone = _SIGNS[self.verdict]
        remarks = "".join(f"<p>{escape_html(line)}</p>" for line in self.remarks)
        footer = f"<footer>{remarks}</footer>" if remarks else ""
        return (
            f'<article class="sonde-report"><div class="verdict {tone}"><span class="sign" role="img" aria-label="{self.verdict}">'
            f'{sign}</span><div><p class="subject">{escape_html(printable_line(self.subject))}</p>'
            f"<h1>{escape_html(printable_line(self.headline))}</h1></div></div>"
            f"{''.join(map(_part, self.parts))}{footer}</article>"
        )


def facts_of_findings(findings: Sequence[Finding]) -> list[Fact]:
    """Return the facts of a report on *findings*, in their order: what is wrong, and after each rule what to do.

    What follows from another finding stands behind it in a line.
    """
    from sonde.rules import chapters

    behind = {id(root): follow for root, follow in chapters(findings)}
    worst = [each for each in findings if each.severity in ("warn", "bad") and id(each) in behind]
    facts = []
    for place, each in enumerate(worst[:_MOST_FACTS]):
        before, next_to = ([other.rule for other in worst[at : at + 1]] for at in (max(place - 1, 0), place + 1))
        facts.append(Fact("" if place and before == [each.rule] else each.rule, said_of(each), TONES[each.severity]))
        facts += [Fact("", each.advice, "quiet")] if each.advice and next_to != [each.rule] else []
        facts += [Fact("", f"{other.rule} follows from {other.follows}: {other.message}", "quiet") for other in behind[id(each)]]
    return facts + ([Fact("", f"and {len(worst) - _MOST_FACTS} more", "quiet")] if len(worst) > _MOST_FACTS else [])


def said_of(finding: Finding) -> str:
    """Return the message of *finding* behind its place, if it has one."""
    return f"{finding.site}: {finding.message}" if finding.site else finding.message


def _part(part: Part) -> str:
    remark = f'<p class="remark">{escape_html(part.remark)}</p>' if part.remark else ""
    title = escape_html(printable_line(part.title))
    held = f"{remark}{_content(part.content)}"
    if part.folded:
        return f"<details><summary><h2>{title}</h2></summary>{held}</details>"
    return f"<section>{f'<h2>{title}</h2>' if title else ''}{held}</section>"


def _content(content: Content) -> str:
    if isinstance(content, Grid):
        return f'<div class="wide" tabindex="0" role="region" aria-label="table">{content.to_element()}</div>'
    if isinstance(content, Chart):
        return f"<figure>{content.to_svg()}</figure>"
    if isinstance(content, Code):
        return _code(content)
    return f'<dl class="facts">{"".join(map(_fact, content))}</dl>'


def _fact(fact: Fact) -> str:
    text = f'<code class="copied">{escape_html(fact.text)}</code>' if fact.is_code else escape_html(fact.text)
    marked = f' class="{fact.tone}"' if fact.tone != "plain" else ""
    return f"<dt>{escape_html(printable_line(fact.label))}</dt><dd{marked}>{text}</dd>"


def _code(code: Code) -> str:
    lines = []
    for number, text in enumerate(code.lines, code.first):
        marked = ' class="meant"' if number == code.marked else ""
        lines.append(f"<span{marked}><i>{number}</i>{escape_html(printable_line(text.rstrip()))}</span>")
    return f'<p class="remark">{escape_html(code.place)}</p><pre class="code" tabindex="0">{"".join(lines)}</pre>'
