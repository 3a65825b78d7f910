"""The questions of a page about a run: their names, their arguments read from a query, and their answers as JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.errors import ArgumentError
from sonde.suggest import unknown_name
from sonde.view.app.answers.covered import coverage
from sonde.view.app.answers.distribution import distribution
from sonde.view.app.answers.found import findings
from sonde.view.app.answers.layer_pictures import flow, heatmap, lines, ratio
from sonde.view.app.answers.number_list import numbers
from sonde.view.app.answers.one_layer import layer
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.overview import overview
from sonde.view.app.answers.stored_sample import sample

QUESTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "overview": overview,
    "numbers": numbers,
    "heatmap": heatmap,
    "lines": lines,
    "flow": flow,
    "ratio": ratio,
    "layer": layer,
    "distribution": distribution,
    "findings": findings,
    "coverage": coverage,
    "sample": sample,
}
"""By name the function that answers. A query gives its arguments but the run; ``first`` and ``last`` are ``from`` and ``to``."""

_WRITTEN = {"first": "from", "last": "to"}


def answer_text(name: str, opened: OpenedRun, query: Sequence[tuple[str, str]]) -> bytes:
    """Return the answer to one question as JSON, led by the version of the run.

    Raises:
        UnknownSiteError: there is no such question; or see the question.
        ArgumentError: an argument is missing, unknown, or of another kind.
    """
    if name not in QUESTIONS:
        raise unknown_name("question", name, QUESTIONS, "this page")
    answer = QUESTIONS[name](opened, **arguments_of(QUESTIONS[name], query))
    return json_of({"version": opened.version, **answer})


def json_of(data: Any) -> bytes:
    """Return *data* as JSON in ASCII. A NaN in it is a defect of the answer, and raises."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()


def arguments_of(function: Callable[..., Any], query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the arguments of *function* that a query holds.

    Raises:
        ArgumentError: one is missing, unknown, or of another kind.
    """
    wanted = {_WRITTEN.get(each.name, each.name): each for each in list(inspect.signature(function).parameters.values())[1:]}
    found: dict[str, Any] = {}
    for key, text in query:
        if key not in wanted:
            raise ArgumentError(str(unknown_name("argument", key, wanted, "this question")))
        parameter = wanted[key]
        if "tuple" in str(parameter.annotation):
            found[parameter.name] = (*found.get(parameter.name, ()), text)
        else:
            kind = str(parameter.annotation)
            found[parameter.name] = _whole(key, text) if "int" in kind else text not in ("", "0") if "bool" in kind else text
    missing = [key for key, each in wanted.items() if each.default is each.empty and each.name not in found]
    if missing:
        raise ArgumentError(f"the question lacks {' and '.join(map(repr, missing))}: write ?{missing[0]}=...")
    return found


def _whole(key: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ArgumentError(f"{key}={text!r}: give a whole number") from None
    if abs(number) >= 2**62:
        raise ArgumentError(f"{key}={text!r} is out of range")
    return number
