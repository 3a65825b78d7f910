"""A leak hunter that looks at all objects sees tuples that are not finished, which makes ``tuple(generator)`` raise."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from tests.inspector.training import small, train

import sonde
from sonde.run.store.writer_thread import WriteQueue

SOURCE = Path(sonde.__file__).parent


@pytest.fixture
def retried(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors after which something is written once more."""
    found: list[Exception] = []
    failed = WriteQueue._failed

    def noting(self: WriteQueue[Any], items: Any, error: Exception, *more: Any) -> float:
        found.append(error)
        return failed(self, items, error, *more)

    monkeypatch.setattr(WriteQueue, "_failed", noting)
    return found


def test_the_writing_thread_is_looked_at_whenever_a_generator_of_sonde_begins(tmp_path: Path, retried: list[Exception]) -> None:
    held: list[Any] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if event == "call" and is_generator and frame.f_code.co_filename.startswith(str(SOURCE)):
            held[:] = [gc.get_objects(generation=0)]

    model, optimizer = small()
    model[0].bias.data.fill_(-100.0)  # type: ignore[index, union-attr, operator]  # so that there is a finding
    threading.setprofile(look)
    try:
        with sonde.watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False) as inspector:
            for _ in range(4):
                train(model, optimizer, 5)
                assert inspector.run.last_step
    finally:
        threading.setprofile(None)
        held.clear()
    assert (retried, inspector.errors) == ([], ())
    run = sonde.open_run(tmp_path / "run")
    assert (run.scalar("grad_norm")[0].tolist(), bool(run.findings), run.shortfalls) == (list(range(20)), True, [])


def _lazy_tuples(tree: ast.AST) -> Iterator[int]:
    """The lines of calls that make a tuple of a generator as it comes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            is_tuple = isinstance(node.func, ast.Name) and node.func.id == "tuple"
            starred = [each.value for each in node.args if isinstance(each, ast.Starred)]
            given = [*node.args, *starred] if is_tuple else starred
            if any(isinstance(each, ast.GeneratorExp) for each in given):
                yield node.lineno


def test_no_room_whose_code_writes_makes_a_tuple_of_a_generator() -> None:
    """A list is made first: ``tuple([...])``, or ``(*generator,)``."""
    files = [file for room in ("stats", "rules", "run", "inspector", "engine/probes") for file in (SOURCE / room).rglob("*.py")]
    found = [f"{file.relative_to(SOURCE)}:{line}" for file in files for line in _lazy_tuples(ast.parse(file.read_text()))]
    assert files
    assert found == []


def _train_a_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train one step, anew where torch itself makes a tuple of a generator and loses it: only what sonde raises counts."""
    while True:
        try:
            return train(model, optimizer, 1)
        except SystemError as error:
            if traceback.extract_tb(error.__traceback__)[-1].filename.startswith(str(SOURCE)):
                raise


def test_a_step_that_torch_lost_is_trained_anew_and_one_that_sonde_lost_is_raised() -> None:
    model, optimizer = small()
    lost = [True]

    def lose(*_: object) -> None:
        if lost:
            lost.pop()
            raise SystemError

    model.register_forward_hook(lose)
    _train_a_step(model, optimizer)
    assert lost == []
    raising = compile("def hook(*_): raise SystemError", str(SOURCE / "hook.py"), "exec")
    namespace: dict[str, Any] = {}
    exec(raising, namespace)
    model.register_forward_hook(namespace["hook"])
    with pytest.raises(SystemError):
        _train_a_step(model, optimizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the rules raised SystemError")  # a step that is not judged, which is said, costs no row
@pytest.mark.filterwarnings("ignore:the run .* could not be written. SystemError")  # nor does what is tried again
@pytest.mark.parametrize("seed", range(3))
def test_a_leak_hunter_costs_a_watched_training_no_row(tmp_path: Path, seed: int) -> None:
    """It touches all objects, in a thread of its own and in that of the training, as often as it can."""
    torch.manual_seed(seed)
    done, looked = threading.Event(), []

    def look() -> None:
        objects = gc.get_objects()
        looked.append(sum(sys.getrefcount(each) + len(each) for each in objects if type(each) is tuple))

    def hunt() -> None:
        while not done.is_set():
            look()

    hunter = threading.Thread(target=hunt)
    model, optimizer = small()
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # what was there before is not looked at: a look is quick
    sys.setswitchinterval(1e-5)
    try:
        with sonde.watch(model, optimizer, every=1, to=tmp_path / "run", verbose=False) as inspector:
            hunter.start()  # only now: torch and Python lose tuples while a model is made and a run begins, too
            for _ in range(150):
                _train_a_step(model, optimizer)
                look()
            done.set()
            hunter.join()
    finally:
        done.set()
        sys.setswitchinterval(interval)
        gc.unfreeze()
    run = sonde.open_run(tmp_path / "run")
    assert len(looked) > 150
    assert {each.observer for each in inspector.errors} <= {"rules="}
    assert run.description.attempts[0].lost == 0
    assert len(run.shortfalls) == len(inspector.errors)  # that some rows were not judged
    assert run.scalar("grad_norm")[0].tolist() == list(range(150))
    counts = run.sql("SELECT count(*) FROM moments GROUP BY step").fetchall()
    assert len(counts) == 150
    assert len(set(counts)) == 1
