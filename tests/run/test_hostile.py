"""Folders of a stranger: what is no regular file, names that are no text, forged documents, files that would fill the memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.run.test_damage import KEYS, answers, log, store_answers

import sonde
from sonde.errors import ArgumentError, ObservationWarning, SondeError, StoreError
from sonde.run import PlainGraph, RunFolder, facts_of_run, open_run, open_runs, prune, write_tensors
from sonde.run.folder import verify
from sonde.run.folder.checksum import file_checksum
from sonde.run.folder.json_file import read_json, write_json
from sonde.run.store.open import join_run, start_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two ranks and attempts, and a store of tensors. No test changes it."""
    top = tmp_path_factory.mktemp("made")
    with start_run(top / "run", about={"model": [{"name": "fc", "type": "Linear"}], "config": {"lr": 0.1}}) as first:
        log(first, range(3))
    prune(top / "run", drop=["exponents"])
    with start_run(top / "run", exists="resume", step=2) as second:
        second.document("graph", PlainGraph("Net", (), (), ()).to_data())
        log(second, range(2, 5))
        with join_run(top / "run", rank=1, attempt=2) as other:
            log(other, range(2, 4))
    (top / "run" / ".lock-r0000").touch()  # as a killed writer leaves it
    tensors = {key: torch.arange(6.0).reshape(3, 2) for key in KEYS}
    write_tensors(top / "store", [({"site": key.split("/")[1], "value": {"tensor": key}}, {key: tensors[key]}) for key in KEYS])
    return top


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "made"))


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Raise where something is waited for that never comes: an open of a pipe ends with a signal."""

    def ring(number: int, frame: Any) -> None:
        raise AssertionError("a reader waits for ever")

    former = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


OUTSIDE = ("is_run", "description", "is_newer", "is_written", "changed", "size", "version")


def own(question: Callable[[], Any]) -> Any:
    """The answer to *question*, or the error, which is one of sonde's."""
    try:
        return question()
    except SondeError as error:
        return error


def everything(folder: Path, chance: random.Random | None = None) -> list[Any]:
    """What all readers of *folder* answer, or two drawn by *chance*. An error is one of sonde's."""
    more: dict[str, Callable[[], Any]] = {
        "answers": lambda: answers(folder / "run")[0],
        "store": lambda: store_answers(folder / "store"),
        "runs": lambda: str(open_runs(folder)),
        "folder": lambda: [getattr(RunFolder(folder / "run"), name) for name in OUTSIDE],
        "facts": lambda: json.dumps(facts_of_run(open_run(folder / "run"))),
        "check": lambda: str(sonde.check(folder / "run")),
        "state": lambda: (open_run(folder / "run").state, open_run(folder / "run").end, open_run(folder / "run").pruned),
        "settings": lambda: open_run(folder / "run").settings,
        "graph": lambda: open_run(folder / "run").graph,
        "join": lambda: join_run(folder / "run", rank=1, attempt=2).close(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObservationWarning)
        return [own(more[name]) for name in (more if chance is None else chance.sample(list(more), 2))]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def socket_(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = pytest.mark.parametrize("kind", [pipe, socket_, device, Path.mkdir], ids=["pipe", "socket", "device", "folder"])


def files_in(folder: Path) -> list[Path]:
    """The files that somebody reads: locks among them, which say whose they are."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {".lock-r0000", "run.json", "index.json", "graph.json", "written-r0001.json"} <= {path.name for path in files}
    return files


@KINDS
def test_only_regular_files_are_opened(kind: Callable[[Path], None], copied: Path) -> None:
    """In the place of all files but run.json, and then of this as well: no reader waits for ever, and each says what is missing."""
    files = files_in(copied)
    with no_waiting():
        for file in files:
            if file.name != "run.json":
                file.unlink()
                kind(file)
        found, warned = answers(copied / "run")
        assert warned
        assert "moments" not in found["families"]
        everything(copied)
        (copied / "run" / "run.json").unlink()
        kind(copied / "run" / "run.json")
        assert isinstance(own(lambda: open_run(copied / "run")), StoreError)
        assert isinstance(own(lambda: start_run(copied / "run", exists="resume")), StoreError)
        everything(copied)


@pytest.mark.slow
@KINDS
def test_only_regular_files_are_opened_one_by_one(kind: Callable[[Path], None], copied: Path) -> None:
    """In the place of each file in turn: an answer differs, or a warning says why not."""
    files = files_in(copied)
    right = list(map(repr, everything(copied)))
    with no_waiting():
        for file in files:
            if not file.exists():  # the lock that a killed writer has left: whoever had it next gave it back
                continue
            file.rename(copied / "aside")
            kind(file)
            found = list(map(repr, everything(copied)))
            assert found != right or file.name.startswith(".lock") or answers(copied / "run")[1]
            file.rmdir() if kind is Path.mkdir else file.unlink()
            (copied / "aside").rename(file)


def test_nothing_is_written_behind_a_link_in_the_place_of_a_lock(copied: Path) -> None:
    precious = copied / "precious"
    precious.write_text("all the work of a year")
    for lock in (copied / "run").glob(".lock-*"):
        lock.unlink()
        lock.symlink_to(precious)
    for question in (lambda: start_run(copied / "run", exists="resume"), lambda: prune(copied / "run", every=2)):
        with pytest.raises(StoreError):
            question()
    assert precious.read_text() == "all the work of a year"


STRANGE = os.fsdecode(b"run-\xff\xfe")


def test_a_name_that_is_no_text_is_refused_at_the_start(copied: Path) -> None:
    """By everything that takes a path, before anything is written or read."""
    strange = copied / STRANGE
    (copied / "run").rename(strange)
    tensors = [({"site": "fc:output"}, {"0/fc:output": torch.ones(2)})]
    model = torch.nn.Linear(2, 2)
    asked: list[Callable[[], Any]] = [
        lambda: start_run(copied / STRANGE / "new"),
        lambda: sonde.watch(model, torch.optim.SGD(model.parameters(), 0.1), to=strange, verbose=False),
        lambda: open_run(strange),
        lambda: open_runs(strange),
        lambda: prune(strange, every=2),
        lambda: sonde.check(strange),
        lambda: sonde.open_tensors(strange),
        lambda: write_tensors(strange, tensors),
        lambda: PlainGraph.load(strange / "graph.json"),
        lambda: sonde.replay(strange, model),
    ]
    for each in asked:
        with pytest.raises(ArgumentError, match="is not UTF-8"):
            each()
    assert not (strange / "new").exists()


def test_a_name_that_is_no_text_does_not_break_the_list(copied: Path) -> None:
    """The others are read, and the table, which can be printed, names it."""
    shutil.copytree(copied / "run", copied / STRANGE)
    (copied / "run" / os.fsdecode(b"notes-\xff")).write_text("of the user")
    runs = open_runs(copied)
    assert list(runs.names) == ["run"]
    assert len(runs.unreadable) == 1
    str(runs).encode()
    json.dumps(facts_of_run(runs["run"]), ensure_ascii=False).encode()


EVIL: list[Any] = [
    *(None, True, -1, 0, 2**63, 10**400, 1e308, -0.5),
    *("", "\0", "x" * 5_000, "\ud800", "nan", "../../etc/passwd"),
    *([], {}, [[]], {"": {}}, [None] * 3, {"tensor": "000000/fc:output"}, {"float": "1e999"}, ["a", 1], {"step": {"step": {}}}),
]


def bent(held: Any, chance: random.Random) -> Any:
    """A copy of a document with one value, deep inside, that is another, gone, doubled, or under another name."""
    if not isinstance(held, dict | list) or not held or chance.random() < 0.2:
        return chance.choice(EVIL)
    copy = dict(held) if isinstance(held, dict) else list(held)
    key = chance.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    kind = chance.random()
    if kind < 0.12:
        del copy[key]
    elif kind < 0.2 and isinstance(copy, dict):
        copy[str(chance.choice(EVIL))[:50]] = copy[key]
    elif kind < 0.25 and isinstance(copy, list):
        copy.append(copy[key])
    else:
        copy[key] = bent(copy[key], chance)
    return copy


def forge(made: Path, folder: Path, variants: int) -> None:
    chance = random.Random(variants)
    documents = sorted(path.relative_to(made) for path in made.rglob("*.json"))
    assert len(documents) > 7
    for number in range(variants):
        path = Path(shutil.copytree(made, folder / "forged"))
        file = path / documents[number % len(documents)]
        data = read_json(file)
        for _ in range(chance.choice((1, 1, 2, 5))):
            data = bent(data, chance)
            data = data if isinstance(data, dict) else {"x": data}
        data.pop("checksum", None)
        with contextlib.suppress(UnicodeEncodeError):
            write_json(file, data, sync=False)
        try:
            with no_waiting():
                answers(path / "run") if file.parent.name == "run" else store_answers(path / "store")
                everything(path, chance)
        except Exception as error:
            raise AssertionError(f"variant {number}: {file.name} as {data!r:.2000} raises {error!r}") from error
        shutil.rmtree(path)


def test_a_forged_document_raises_nothing_foreign(made: Path, tmp_path: Path) -> None:
    forge(made, tmp_path, 4)


@pytest.mark.slow
def test_three_hundred_forged_documents_raise_nothing_foreign(made: Path, tmp_path: Path) -> None:
    """Their checksums fit: somebody has made them so."""
    forge(made, tmp_path, 300)


def test_strange_names_of_files_are_passed_over(copied: Path) -> None:
    """Only the very name that sonde gives to a file is that of a part, of a count, of a record."""
    run = copied / "run"
    right, _ = answers(run)
    part = next((run / "moments").glob("part-r0000*"))
    nines = "9" * 200
    for name in ("written-r0abc", "written-r\u0663", "written-r1", "findings-r\u00b2", "coverage-r99", f"written-r{nines}"):
        shutil.copy(run / "run.json", run / f"{name}.json")
    odd = [part.name.replace("r0000", "r0"), part.name.replace("0000", "000\u0660"), f"part-r{nines}-a1-g1-1-1-00000000.parquet"]
    for name in odd:
        shutil.copy(part, part.with_name(name))
    assert {**answers(run)[0], "repr": ""} == {**right, "repr": ""}


# Files that would fill the memory


def replace_part(folder: Path, table: pyarrow.Table, times: int = 1, **how: Any) -> None:
    """Put *table*, so many times, in the place of the first part in *folder*, under its right name, as a forger does."""
    part = next(folder.glob("part-r0000*"))
    temporary = folder / "x.tmp"
    with pyarrow.parquet.ParquetWriter(temporary, table.schema, write_statistics=False, store_schema=False, **how) as file:
        for _ in range(times):
            file.write_table(table)
    part.unlink()
    temporary.rename(part.with_name(f"{part.name[: -len('00000000.parquet')]}{file_checksum(temporary)}.parquet"))


def rows_of(folder: Path) -> pyarrow.Table:
    return pyarrow.parquet.read_table(next(folder.glob("part-r0000*")))


def long_text(top: Path) -> None:
    """Gigabytes, when they are unpacked, of one letter."""
    table = rows_of(top / "run" / "moments")
    texts = pyarrow.array(["a" * 100_000_000 + ":output"] * len(table))
    replace_part(top / "run" / "moments", table.set_column(table.column_names.index("site"), "site", texts), compression="zstd")


def many_rows(top: Path) -> None:
    """Rows that are all alike."""
    table = rows_of(top / "run" / "moments").slice(0, 1)
    alike = pyarrow.repeat(0, 1_000_000).cast(pyarrow.int32())
    columns = {
        name: pyarrow.DictionaryArray.from_arrays(alike, table[name].combine_chunks()).cast(table.schema.field(name).type)
        for name in table.column_names
    }
    replace_part(top / "run" / "moments", pyarrow.table(columns), times=20, compression="snappy")


def large_header(top: Path) -> None:
    """A file with holes, whose header is said to go on for three gigabytes."""
    shard = top / "store" / "tensors-00001.safetensors"
    with shard.open("wb") as file:
        file.write((3 << 30).to_bytes(8, "little"))
        file.truncate(4 << 30)
    index = read_json(top / "store" / "index.json")
    index["shards"][0]["bytes"] = 4 << 30
    write_json(top / "store" / "index.json", index, sync=False)


def large_document(top: Path) -> None:
    """A file with holes, of terabytes."""
    with (top / "run" / "run.json").open("wb") as file:
        file.truncate(1 << 40)


def many_lists(top: Path) -> None:
    """Three bytes for a list, which takes eighty in memory."""
    (top / "run" / "coverage.json").write_bytes(b'{"x": [' + b"[]," * 80_000_000 + b"[]]}")


def nothing(top: Path) -> None:
    """The folder as it was made."""


BOMBS = [nothing, long_text, many_rows, large_header, large_document, many_lists]

ASK = """
import re, sys, warnings
from pathlib import Path
import sonde
from sonde.errors import SondeError
from sonde.run import open_run
said, errors = [], []
warnings.showwarning = lambda *given, **more: said.append(given)
warnings.simplefilter("always")

def most():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1000  # megabytes

def each(*questions):
    for question in questions:
        try:
            str(question())
        except SondeError as error:
            errors.append(error)

def store():
    return [tensor.sum() for tensor in sonde.open_tensors(sys.argv[1] + "/store").values()]

run = lambda: open_run(sys.argv[1] + "/run")
each(run, lambda: run().scalar("loss"), store)
before = most()
each(lambda: run().table("moments").num_rows, lambda: run().heatmap("rms").values.shape, lambda: run().sites)
each(lambda: run().coverage, store, lambda: sonde.check(run()))
print(["said"] if said or errors else [])
print(most(), most() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process has taken")
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda each: each.__name__)
def test_memory_stays_small_whatever_a_file_says(bomb: Callable[[Path], None], copied: Path) -> None:
    """A process of its own, which reads everything: 300 MB more than it takes for a run of a few rows are never taken."""
    bomb(copied)
    done = subprocess.run([sys.executable, "-c", ASK, copied], capture_output=True, text=True, check=True, timeout=120)
    *_, last = done.stdout.splitlines()
    assert int(last.split()[0]) < 1_000
    assert int(last.split()[1]) < 300
    assert done.stdout.splitlines()[-2] == str([] if bomb is nothing else ["said"])


def test_a_part_in_another_codec_is_left_out_with_a_warning(copied: Path) -> None:
    """Only what sonde writes is unpacked: others make gigabytes of a few bytes."""
    replace_part(copied / "run" / "moments", rows_of(copied / "run" / "moments"), compression="zstd")
    found, warned = answers(copied / "run")
    assert warned
    assert {row["rank"] for row in found["moments"]} == {1}


def test_a_part_of_more_rows_than_bytes_can_hold_is_left_out_with_a_warning(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_FREE", 0)
    monkeypatch.setattr(verify, "_PER_BYTE", 1 / 4_000)
    found, warned = answers(copied / "run")
    assert warned
    assert not found["families"]
