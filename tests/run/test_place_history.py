"""Medians of the recent steps, which a writer thread computes beside the user's threads."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from sonde.run.place_history import History


def test_medians_leave_the_filters_of_warnings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the filters belong to all threads")

    history = History("rms")
    assert history.medians().shape == (0,)
    history.sites = [None, None, None]  # type: ignore[list-item]  # only their number counts
    history.recent = np.array([[1.0, np.nan, np.inf], [2.0, np.nan, -np.inf], [6.0, np.nan, np.nan]])
    with monkeypatch.context() as patched:  # pytest itself uses it between tests
        patched.setattr(warnings, "catch_warnings", refused)
        found = history.medians()
    np.testing.assert_array_equal(found, [2.0, np.nan, np.nan])
