"""Make printed answers the same on every machine: keep words and forms, mask what a processor, a clock or a folder decides.

Of a number that is no whole one, two significant digits stay; further digits, and all digits of numbers below 1e-4, which may be
rounding alone, are ``#``. Sizes in bytes, times, dates, versions and folders are masked, and so are numbers of lines in files.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]

_FLOAT = re.compile(r"(?<![\w.#])\d[\d,]*(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w#])")
_SIZE = re.compile(r"\b\d[\d,.]*(?= ?(?:[kMGT]?B|ns|µs|us|ms|s|min|h)\b)")
_WORDS = (
    (re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d)?)?"), "DATE"),
    (re.compile(r"(\.py:|\bline )\d+"), r"\1##"),
    (re.compile(r"(overhead(?: of)? )<?[\d.]+( ?%)?"), r"\1#"),
    (re.compile(r"\b\d+ of \d+ private parts"), "# of # private parts"),
    (re.compile(r"\bthe \d+ operators"), "the # operators"),
    (re.compile(r"\b\d+ values in a step"), "# values in a step"),  # a thread reads, too
    (re.compile(r"\b\d+ operations looked at"), "# operations looked at"),
    (re.compile(r"<i>\d+</i>"), "<i>#</i>"),
    (re.compile(r"\b(environment\.\w+ +)\S.*"), r"\1MACHINE"),
)
_SHELL = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)
_SVG = re.compile(r"(<svg\b[^>]*>)(.*?)</svg>", re.DOTALL)
_LABEL = re.compile(r"<text\b[^>]*>[^<]*[A-Za-z]{2}[^<]*</text>")
_BLOCKS = "tr section h1 h2 h3 p dl dt table thead tbody tfoot details footer article div figure svg caption li ul nav header main"
_LINES = re.compile(rf"(?=<(?:{_BLOCKS.replace(' ', '|')})\b)")
_GEOMETRY = re.compile(r' (?:x|y|width|height|transform|viewBox)="[^"]*"')
_WIDTH = 130
_MACHINE = {
    *("id", "version", "path", "started", "updated", "began", "ended", "seconds", "overhead", "torch"),
    *("bytes", "bytes_per_row", "size_bytes", "memory", "files", "operators_bare", "operators_plain", "operators_logged"),
    *("reads_plain", "reads_logged"),
}
"""Names of values in JSON that a clock, a processor or a version of torch decides."""


def text(raw: str) -> str:
    """Return a printed text, masked."""
    for folder in (str(ROOT), str(Path.cwd())):
        raw = raw.replace(folder, "FOLDER")
    raw = raw.replace(torch.__version__, "TORCH")
    for pattern, word in _WORDS:
        raw = pattern.sub(word, raw)
    raw = _SIZE.sub("#", raw)
    return "\n".join(line.rstrip() for line in _FLOAT.sub(_masked, raw).splitlines())


def _masked(found: re.Match[str]) -> str:
    number = found[0]
    mantissa, _, exponent = number.partition("e")
    if 0 < float(number.replace(",", "")) < 1e-4:
        return re.sub(r"\d", "#", number)
    kept, held = 0, []
    for sign in mantissa:
        started = kept or sign in "123456789"
        kept += bool(started) and sign.isdigit()
        held.append("#" if sign.isdigit() and kept > 2 else sign)
    return "".join(held) + (f"e{exponent}" if exponent else "")


_SIZES = re.compile(r"(?:^\S+  #+ k?B$\n?){2,}", re.MULTILINE)


def columns(masked: str) -> str:
    """Return a masked table whose columns are as wide as sizes and times make them: with two spaces between columns.

    Files that are sorted by their size, which depends on rounding, are sorted by name.
    """
    even = re.sub(r"─{5,}", "─────", re.sub(r"(?<=\S) {2,}", "  ", masked))
    return _SIZES.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True))), even)


def html(raw: str) -> str:
    """Return the elements of a page's body or of a fragment, a row of a table on each line; no style and no script.

    Of a chart its description and its labels are left: marks and lines depend on rounding.
    """
    body = re.search(r"<body.*</body>", raw, re.DOTALL)
    held = _SHELL.sub("", body[0] if body else raw)
    held = _SVG.sub(lambda chart: f"{_GEOMETRY.sub('', chart[1])}{''.join(map(_label, _LABEL.findall(chart[2])))}</svg>", held)
    held = re.sub(r' style="[^"]*"', "", held)
    return text("\n".join(line.strip() for line in _LINES.sub("\n", held).splitlines() if line.strip()))


def _label(element: str) -> str:
    return _GEOMETRY.sub("", element)


def data(raw: str) -> str:
    """Return JSON, what fits on a line on one, the numbers that are no whole ones with two digits.

    Raises:
        ValueError: NaN or an infinity, which JSON does not have.
    """
    return "\n".join(_lines(_plain(json.loads(raw, parse_constant=_refused)), ""))


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _lines(value: Any, indent: str, name: str = "") -> list[str]:
    whole = f"{indent}{name}{json.dumps(value, ensure_ascii=False)}"
    if len(whole) <= _WIDTH or not value or not isinstance(value, dict | list):
        return [whole]
    named = (
        [(f"{json.dumps(key)}: ", each) for key, each in value.items()]
        if isinstance(value, dict)
        else [("", each) for each in value]
    )
    held = [_lines(each, f"{indent} ", key) for key, each in named]
    for lines in held[:-1]:
        lines[-1] += ","
    first, last = "{}" if isinstance(value, dict) else "[]"
    return [f"{indent}{name}{first}", *(line for lines in held for line in lines), f"{indent}{last}"]


def _plain(value: Any, name: str = "") -> Any:
    if name in _MACHINE and value is not None:
        return "#"
    if isinstance(value, dict):
        return {key: _plain(each, key) for key, each in value.items() if not key.startswith("environment.")}
    if isinstance(value, list):
        return [_plain(each, name) for each in value]
    if isinstance(value, str):
        return text(value)
    return rounded(value) if isinstance(value, float) else value


def rounded(value: float) -> float | str:
    """Return a number with two digits. Bounds lie beside the middles of decimal numbers, where exact results may lie."""
    if value == 0 or not math.isfinite(value):
        return value
    return "tiny" if abs(value) < 1e-4 else float(f"{value * 1.0003:.1e}")
