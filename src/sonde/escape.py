"""Escape or shorten text from a model or a run, so that it can stand in HTML, in a script element, or in a terminal."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

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


def shortened(text: str, longest: int) -> str:
    """Return *text*, or its beginning and ``…``: *longest* characters at most."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def escape_html(text: object) -> str:
    """Return *text* as HTML that shows it, in an element or in a quoted attribute. Every page and notebook table uses this."""
    return html.escape(printable(text))


def encodable(text: str) -> str:
    r"""Return *text* with ``\udc80`` for a lone surrogate: no file can hold one, and the rows beside it would be lost too."""
    return text.encode("utf-8", "backslashreplace").decode()


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


def readable_json(data: Any) -> str:
    """Return *data* as indented JSON for a program: NaN and infinities, for which JSON has no numbers, become null."""
    return json.dumps(with_null(data), indent=2, allow_nan=False)


def with_null(data: Any) -> Any:
    """Return *data*, plain data or of other mappings and iterables, as plain data with None for each NaN and infinity."""
    if isinstance(data, Mapping):
        return {str(key): with_null(held) for key, held in data.items()}
    if isinstance(data, Iterable) and not isinstance(data, str):
        return [with_null(held) for held in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
