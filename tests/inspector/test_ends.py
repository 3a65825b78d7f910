"""However a training ends, its run says how: by itself, by which error at which step, or by an interrupt."""

from __future__ import annotations

import sys
from code import InteractiveInterpreter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import sonde


@pytest.fixture(autouse=True)
def no_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)


class Training:
    """A training of which each ``step`` is logged."""

    def __init__(self, to: Any = "memory", **arguments: Any) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inspector = sonde.watch(self.model, self.optimizer, every=1, to=to, verbose=False, **arguments)

    def step(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()

    @property
    def end(self) -> tuple[str, str | None, int | None]:
        """State, text of the error, and its step."""
        run = self.inspector.run
        return (run.state, None, None) if run.end is None else (run.state, run.end.message, run.end.step)


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.inspector.detach()


def test_an_error_in_the_block_is_that_of_the_run(training: Training) -> None:
    training.step()
    training.step()
    with pytest.raises(ValueError, match="bad"), training.inspector:
        raise ValueError("bad")
    assert training.end == ("failed", "bad", 2)


def test_sys_exit_in_the_block_is_a_good_end(training: Training) -> None:
    training.step()
    with pytest.raises(SystemExit), training.inspector:
        sys.exit()
    assert training.end == ("ended", None, None)


def test_detach_in_finally_knows_the_error(training: Training) -> None:
    def train() -> None:
        try:
            training.step()
            raise ValueError("bad")
        finally:
            training.inspector.detach()

    with pytest.raises(ValueError, match="bad"):
        train()
    assert training.end == ("failed", "bad", 1)


def test_an_error_that_was_handled_before_the_last_step_has_not_ended_the_training(training: Training) -> None:
    """As a batch that was too large, and is tried again."""
    try:
        raise MemoryError("too large")
    except MemoryError:
        training.step()
        training.inspector.detach()
    assert training.end == ("ended", None, None)


def test_a_training_inside_an_except_block_is_not_ended_by_its_error() -> None:
    try:
        raise ImportError("no accelerator")
    except ImportError:
        training = Training()
        training.step()
        training.inspector.detach()
    assert training.end == ("ended", None, None)


def test_an_error_can_be_given(training: Training) -> None:
    training.step()
    training.inspector.detach(KeyboardInterrupt())
    assert training.end == ("interrupted", "", 1)


class Console(InteractiveInterpreter):
    """Python's own console: an error ends what was typed, and is what ``sys.last_value`` holds from then on."""

    def run(self, cell: str) -> None:
        self.runcode(compile(cell, "<python-input-0>", "exec"))

    def write(self, data: str) -> None:
        """Print no traceback."""


LOOP = """
for step in range(4):
    if step == 2:
        raise ValueError("bad")
    training.step()
"""


def test_an_error_of_the_cell_that_trains_is_that_of_the_run(training: Training) -> None:
    console = Console({"training": training})
    console.run(LOOP)
    console.run("training.inspector.detach()")
    assert training.end == ("failed", "bad", 2)


def test_an_error_before_the_first_logged_step_is_that_of_the_run(training: Training) -> None:
    """The model has begun a step."""
    console = Console({"training": training, "torch": torch})
    console.run("training.model(torch.ones(1, 2))\nraise ValueError('shapes')")
    console.run("training.inspector.detach()")
    assert training.end == ("failed", "shapes", 0)


def test_an_error_of_another_cell_is_not(training: Training) -> None:
    console = Console({"training": training})
    console.run("for step in range(3): training.step()")
    console.run("plot(training)")
    console.run("training.inspector.detach()")
    assert training.end == ("ended", None, None)


def test_a_cell_that_goes_on_after_an_error_ends_well(training: Training) -> None:
    console = Console({"training": training})
    console.run(LOOP)
    console.run("for step in range(3): training.step()")
    console.run("training.inspector.detach()")
    assert training.end == ("ended", None, None)


def test_a_training_that_cannot_begin_leaves_no_folder(tmp_path: Any) -> None:
    """The error says why; there is nothing to keep."""
    with pytest.raises(sonde.errors.SelectionError, match="no such layer"):
        Training(tmp_path / "run", include="no such layer")
    assert list(tmp_path.iterdir()) == []
