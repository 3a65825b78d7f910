"""Escape text from a model or a run, so that it can stand in HTML, in a script element, or in a terminal."""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

__all__ = ["embed_json", "escape_html", "printable", "printable_line"]

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_BREAKS = re.compile(r"[\t\n\u2028\u2029]")


def printable(text: object) -> str:
    """Return *text* with ``�`` for control characters (but tab and newline) and lone surrogates; it can be written as UTF-8.

    The characters that turn the direction of the text after them count as control characters.
    """
    return _UNPRINTABLE.sub("\ufffd", str(text))


def printable_line(text: object) -> str:
    """Return :func:`printable` *text* on one line, with ``�`` for tabs and newlines too: for a name, in a cell or a label."""
    return _BREAKS.sub("\ufffd", printable(text))


def escape_html(text: object) -> str:
    """Return *text* as HTML that shows it, in an element or in a quoted attribute. Every page and notebook table uses this."""
    return html.escape(printable(text))


def embed_json(data: Any) -> str:
    """Return *data* as JSON for a script element; no text in it can end the element. The JSON is ASCII.

    NaN and infinities, for which JSON has no numbers, become the texts ``NaN``, ``∞`` and ``−∞``.
    """
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "∞" if data > 0 else "−∞"
    if isinstance(data, dict):
        return {key: _finite(held) for key, held in data.items()}
    return [_finite(held) for held in data] if isinstance(data, list | tuple) else data
