"""Choose which cases of a test run with ``make test``; the others are marked slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return *cases* for ``pytest.mark.parametrize``, all but the *chosen* ones marked slow.

    A tuple is the values of several arguments. The chosen cases are those that reach the mechanism in its own way; the others are
    their siblings.
    """
    cases = list(cases)
    missing = [case for case in chosen if case not in cases]
    assert not missing, f"{missing} are no cases"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in chosen else pytest.mark.slow)
        for case in cases
    ]
