"""The lines about a run name each root with what follows from it, and the learning rate of updates that are too large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sonde
from sonde.rules import Finding
from sonde.run import Layout, lines_of, memory_run, open_run, start_run


def found(rule: str, step: int, follows: str = "") -> Finding:
    return Finding(rule, f"words of {rule}", step=step, first_step=step, follows=follows)


def test_a_line_names_a_root_and_three_that_follow_with_the_nan_that_ended_it() -> None:
    behind = [found(rule, step, "a") for step, rule in enumerate(["b", "c", "d", "e", "nonfinite"])]
    assert lines_of([found("a", 0), *behind, found("z", 7)]) == [
        "words of a; from it follow b (step 0), c (step 1), nonfinite (step 4), 2 more",
        "words of z",
    ]
    assert lines_of([found("a", 0), behind[0]]) == ["words of a; from it follows b (step 0)"]
    assert lines_of([]) == []


def test_a_line_names_the_other_root_of_what_two_can_explain() -> None:
    other = replace(found("c", 3), follows="a or b")
    assert lines_of([found("a", 1), other, found("b", 0)])[0] == "words of a; from it follows c (step 3, or from b)"


@pytest.mark.parametrize(
    ("names", "words"), [(("lr",), ", at lr 0.5"), (("lr", "lr_1"), "of its size"), (("lr/0", "lr/1"), "of its size")]
)
def test_updates_that_are_too_large_name_the_learning_rate_where_there_is_one(names: tuple[str, ...], words: str) -> None:
    layout = Layout(["0.weight:param", "0.weight:grad", "0.weight:update"])
    with memory_run() as writer:
        for step in range(6):
            writer.append("moments", layout, {"rms": np.array([1.0, 1.0, 0.9])}, step=step)
            for name in names:
                writer.scalar(name, 0.5, step=step)
    (root, *_) = sonde.check(writer.run()).findings
    assert root.message.endswith(words)
    assert ("lr" in root.evidence) == (names == ("lr",))


def test_what_explains_what_is_told_by_the_reader_and_not_written(tmp_path: Path) -> None:
    layout = Layout(["0.weight:param", "0.weight:grad", "0.weight:update"])
    with start_run(tmp_path / "run") as writer:
        for step in range(6):
            writer.append("moments", layout, {"rms": np.array([1.0, 1.0, 0.9])}, step=step)
    sonde.check(tmp_path / "run")
    assert '"follows"' not in (tmp_path / "run" / "findings.json").read_text()
    assert {each.rule: each.follows for each in open_run(tmp_path / "run").findings} == {
        "update_large": "",
        "update_huge": "update_large",
    }
