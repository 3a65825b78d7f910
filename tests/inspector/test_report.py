"""The closing lines say where the run is, what was lost, what was found, what failed, and what it cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.engine import ProbeError
from sonde.inspector.report import closing_lines

ERRORS = [ProbeError.of("Kept", None, OSError("no room")), ProbeError.of("moments", None, ValueError("odd"))]


@pytest.mark.parametrize(
    ("steps", "lost", "errors", "overhead", "expected"),
    [
        ((5, 10), (0, 0), [], 0.012, ["5 of 10 steps logged", "no findings", "overhead 1.2%"]),
        (
            (5, 10),
            (2, 1300),
            ERRORS,
            0.5,
            ["logged · 2 of these lost · 1,300 rows lost", "no findings · 2 errors, in .errors: Kept: OSError", "50.0%"],
        ),
        ((9, 9), (0, 0), ERRORS[:1], None, ["9 of 9", "no findings · 1 error, in .errors: Kept: OSError", "every step is logged"]),
        ((0, 0), (0, 0), [], None, ["0 of 0", "no findings", "too few steps"]),
    ],
)
def test_three_lines(
    steps: tuple[int, int], lost: tuple[int, int], errors: list[ProbeError], overhead: float | None, expected: list[str]
) -> None:
    """Nothing that was lost or failed is left out."""
    lines = closing_lines(Path("runs/x"), steps, lost, [], errors, overhead)
    assert len(lines) == 3
    for line, part in zip(lines, expected, strict=True):
        assert part in line
