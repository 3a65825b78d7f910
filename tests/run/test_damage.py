"""Damaged runs: whatever happened to the files, an answer is right, or somebody says that it is not."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import ObservationWarning, SondeError
from sonde.rows import Layout
from sonde.run import TensorStore, open_tensors, write_tensors
from sonde.run.run import Run, open_run
from sonde.run.store.open import join_run, start_run
from sonde.run.store.writer import RunWriter

LAYOUT = Layout(["fc:output", "head:output"])

QUESTIONS: dict[str, Callable[[Run], Any]] = {
    "families": lambda run: run.families,
    "info": lambda run: dict(run.info),
    "moments": lambda run: run.table("moments").to_pylist(),
    "exponents": lambda run: run.table("exponents").to_pylist(),
    "loss": lambda run: [part.tolist() for part in run.scalar("loss")],
    "findings": lambda run: [each.message for each in run.findings],
    "sql": lambda run: run.sql("SELECT step, sum(rms) FROM moments GROUP BY step ORDER BY step").fetchall(),
    "graph": lambda run: run.document("graph"),
    "coverage": lambda run: run.coverage,
    "coverage of rank 1": lambda run: run.document("coverage", rank=1),
    "repr": repr,
}


def log(writer: RunWriter, steps: range) -> None:
    for step in steps:
        writer.append("moments", LAYOUT, {"rms": [1.0, float(step)], "count": 8}, step=step)
        writer.append("exponents", LAYOUT, {"powers": [[1.0, 2.0], [3.0, step]]}, step=step)
        writer.scalar("loss", 1 / (1 + step), step=step)
        writer.flush()
    writer.alert("12 % dead", step=steps[-1], site="fc:output")
    writer.document("coverage", {"sites": [writer.rank, 2, 3], "missing": []})


@pytest.fixture(params=["closed", "killed"])
def whole(request: pytest.FixtureRequest, tmp_path: Path, abandon: Callable[[RunWriter], None]) -> Path:
    """A run of two attempts and two ranks, closed, or ended by a kill."""
    path = tmp_path / "whole"
    with start_run(path, about={"model": [{"name": "fc", "type": "Linear"}]}) as first:
        log(first, range(3))
    second = start_run(path, exists="resume", step=2)
    second.document("graph", {"nodes": [1, 2, 3], "model": "Sequential"})
    log(second, range(2, 5))
    other = join_run(path, rank=1, attempt=2)
    log(other, range(2, 4))
    for writer in (other, second):
        abandon(writer) if request.param == "killed" else writer.close()
    return path


def answers(path: Path) -> tuple[dict[str, Any], bool]:
    """The answer to each question, or the class of the error, and whether a warning was given. No foreign error."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = open_run(path)
        except SondeError as error:
            return {"open": type(error).__name__}, True
        for name, question in QUESTIONS.items():
            try:
                found[name] = question(run)
            except SondeError as error:
                found[name] = error
    assert {warning.category for warning in said} <= {ObservationWarning}
    return found, bool(said)


def flip(files: list[Path], chance: random.Random) -> None:
    data = bytearray(files[0].read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    files[0].write_bytes(data)


def cut(files: list[Path], chance: random.Random) -> None:
    data = files[0].read_bytes()
    files[0].write_bytes(data[: chance.randrange(len(data))])


def swap(files: list[Path], chance: random.Random) -> None:
    one, other = files[0].read_bytes(), files[1].read_bytes()
    files[0].write_bytes(other)
    files[1].write_bytes(one)


def delete(files: list[Path], chance: random.Random) -> None:
    files[0].unlink()


def zero(files: list[Path], chance: random.Random) -> None:
    data = bytearray(files[0].read_bytes())
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice((1, 16, 512, 1 << 20)))
    data[start:end] = bytes(end - start)
    files[0].write_bytes(data)


def stretch(files: list[Path], chance: random.Random) -> None:
    data = files[0].read_bytes()
    at = chance.randrange(len(data))
    files[0].write_bytes(data[:at] + chance.choice((b"\0", b" ", b"1", data)) + data[at:])


HARMS = (flip, flip, cut, swap, delete, zero, stretch)


def check(whole: Path, variants: int) -> None:
    chance = random.Random(variants)
    right, warned = answers(whole)
    assert not warned
    assert not [answer for answer in right.values() if isinstance(answer, SondeError)]
    noticed = 0
    for number in range(variants):
        path = whole.with_name(f"harmed{number}") / "whole"
        shutil.copytree(whole, path)
        files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        chance.shuffle(files)
        harm = chance.choice(HARMS)
        harm(files, chance)
        found, warned = answers(path)
        wrong = {name: answer for name, answer in found.items() if answer != right.get(name) and not isinstance(answer, SondeError)}
        wrong.pop("repr", None)  # names the folder
        assert warned or not wrong, f"{harm.__name__} of {files[0]} (variant {number}) changed {list(wrong)} silently"
        noticed += warned or any(isinstance(answer, SondeError) for answer in found.values())
        shutil.rmtree(path.parent)
    assert noticed > 0.8 * variants


def test_damage_is_never_silent(whole: Path) -> None:
    check(whole, 6)


@pytest.mark.slow
def test_two_thousand_damaged_runs(whole: Path) -> None:
    check(whole, 1_000)


def store_answers(path: Path) -> dict[str, Any]:
    """Every tensor and value of a store, or the error; no foreign error."""
    asked: dict[str, Callable[[TensorStore], Any]] = {
        "about": lambda store: store.about,
        "records": lambda store: store.records,
        "sites": lambda store: store.sites,
        "at": lambda store: [tensor.tolist() for tensor in store.at("fc")],
        **{key: lambda store, key=key: (store[key].dtype, store[key].tolist()) for key in KEYS},
        **{f"value {number}": lambda store, number=number: repr(store.value(number)) for number in range(len(KEYS))},
    }
    found: dict[str, Any] = {}
    try:
        store = open_tensors(path)
    except SondeError as error:
        return {"open": error}
    for name, question in asked.items():
        try:
            found[name] = question(store)
        except SondeError as error:
            found[name] = error
    return found


KEYS = [f"{number:06d}/{site}" for number, site in enumerate(("fc:output", "fc:grad_output", "head:output", "head:output[1]"))]


def check_store(folder: Path, variants: int) -> None:
    import torch

    chance = random.Random(variants)
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.complex128)
    tensors = [torch.arange(60, dtype=torch.float32).reshape(3, 20).to(dtype) for dtype in dtypes]
    entries = [
        ({"site": key.split("/")[1], "value": {"tensor": key}}, {key: held}) for key, held in zip(KEYS, tensors, strict=True)
    ]
    whole = write_tensors(folder / "whole", entries, {"kind": "test"}, shard_bytes=400)
    right = store_answers(whole)
    assert not [answer for answer in right.values() if isinstance(answer, SondeError)]
    noticed = partly = 0
    for number in range(variants):
        path = folder / f"harmed{number}"
        shutil.copytree(whole, path)
        files = sorted(path.iterdir())
        chance.shuffle(files)
        harm = chance.choice(HARMS)
        harm(files, chance)
        found = store_answers(path)
        refused = [answer for answer in found.values() if isinstance(answer, SondeError)]
        wrong = [name for name, answer in found.items() if answer != right.get(name) and not isinstance(answer, SondeError)]
        assert not wrong, f"{harm.__name__} of {files[0]} (variant {number}) changed {wrong}"
        noticed += bool(refused)
        partly += 0 < len(refused) < len(found)
        shutil.rmtree(path)
    assert noticed > 0.8 * variants
    assert partly > 0.1 * variants  # what is not damaged is read


def test_a_damaged_tensor_is_never_read(tmp_path: Path) -> None:
    check_store(tmp_path, 60)


@pytest.mark.slow
def test_a_thousand_damaged_stores_of_tensors(tmp_path: Path) -> None:
    check_store(tmp_path, 1_000)
