"""Rows written shard by shard: what is whole stays, what is continued is the same byte for byte, and nobody else writes."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

import sonde
from sonde.errors import ArgumentError, ObservationWarning, StoreError
from sonde.run import RowWriter, remove_tensors, write_tensors

ABOUT = {"kind": "test", "seed": 3}


def columns(number: int, rows: int = 4) -> dict[str, Tensor]:
    """The columns of the shard of this *number*, in three types."""
    values = torch.arange(rows * 3.0).reshape(rows, 3) + 100 * number
    return {"fc:output": values, "fc:input": values.to(torch.bfloat16), "item": torch.arange(rows) + rows * number}


def write(writer: RowWriter, numbers: Sequence[int]) -> None:
    for number in numbers:
        writer.write(columns(number), items=(4 * number, 4 * number + 3), about={"batches": [number, number]})


def store_of(folder: Path, shards: int, **how: Any) -> Path:
    writer = RowWriter(folder, ABOUT, **how)
    write(writer, range(shards))
    writer.close()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a store, without the locks."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".lock")}


def test_lines_are_in_the_journal_until_the_store_is_closed(tmp_path: Path) -> None:
    """The index has what is about the whole before the first shard, a line comes with its shard, and close() joins them."""
    writer = RowWriter(tmp_path / "deep" / "t", ABOUT)
    folder = tmp_path / "deep" / "t"
    assert json.loads((folder / "index.json").read_text())["about"] == ABOUT
    write(writer, range(3))
    assert sorted(contents(folder)) == ["index.json", "shards.jsonl", *(f"tensors-0000{n}.safetensors" for n in (1, 2, 3))]
    lines = [json.loads(line) for line in (folder / "shards.jsonl").read_text().splitlines()]
    assert [(line["rows"], line["items"], line["about"]) for line in lines] == [
        (4, [4 * n, 4 * n + 3], {"batches": [n, n]}) for n in range(3)
    ]
    assert lines[0]["tensors"]["fc:input"][1:] == ["bfloat16", [4, 3]]
    assert json.loads((folder / "index.json").read_text())["shards"] == []
    writer.close(about=ABOUT | {"error": 0.5})
    writer.close()
    index = json.loads((folder / "index.json").read_text())
    assert (index["complete"], index["about"]["error"]) == (True, 0.5)
    assert index["shards"] == [{name: held for name, held in line.items() if name != "checksum"} for line in lines]
    assert not (folder / "shards.jsonl").exists()
    with pytest.raises(StoreError, match="this writer was closed"):
        write(writer, [3])


@pytest.mark.parametrize("sync", [False, True])
def test_what_is_continued_is_the_same_byte_for_byte(tmp_path: Path, sync: bool) -> None:
    """After a close, and after a writer that never closed, with what it left half-way: a shard without a line, a torn line."""
    whole = contents(store_of(tmp_path / "whole", 4))
    folder = tmp_path / "t"
    first = RowWriter(folder, ABOUT, sync=sync)
    write(first, range(2))
    first.close(complete=False)
    second = RowWriter(folder, ABOUT, resume=True, sync=sync)
    assert [line["items"] for line in second.shards] == [(0, 3), (4, 7)]
    write(second, [2])
    second._lock.release()  # killed
    (folder / "tensors-00004.safetensors").write_bytes(b"half")
    (folder / ".tensors-00004.safetensors.1-2.tmp").write_bytes(b"half")
    (folder / ".tensors-r0001-00001.safetensors.1-2.tmp").write_bytes(b"of another, who still writes")
    with (folder / "shards.jsonl").open("ab") as file:
        file.write(b'{"checksum":"00000000","shard":"tensors-00004')
    third = RowWriter(folder, ABOUT, resume=True)
    assert len(third.shards) == 3
    write(third, [3])
    third.close()
    assert contents(folder).pop(".tensors-r0001-00001.safetensors.1-2.tmp")
    assert {name: held for name, held in contents(folder).items() if not name.startswith(".")} == whole


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_moment_loses_one_shard_at_most(tmp_path: Path) -> None:
    """A process of its own is killed forty times; at every moment a reader sees whole shards only."""
    whole = contents(store_of(tmp_path / "whole", 40))
    folder, chance, kills = tmp_path / "t", random.Random(0), 0
    RowWriter(folder, ABOUT).close(complete=False)
    for _ in range(400):
        told, tells = os.pipe()
        if (child := os.fork()) == 0:
            writer = RowWriter(folder, ABOUT, resume=True)
            os.write(tells, b"." * len(writer.shards) or b" ")
            for number in range(len(writer.shards), 40):
                write(writer, [number])
                os.write(tells, b".")
            writer.close()
            os._exit(0)
        os.close(tells)
        os.read(told, 1)
        time.sleep(chance.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        before = 1
        while more := os.read(told, 1000):
            before += len(more)
        os.close(told)
        kills += status != 0
        if status == 0:
            break
        index = json.loads((folder / "index.json").read_text())
        if index["shards"] or (folder / "shards.jsonl").exists():
            assert len(sonde.open_tensors(folder)["item"]) >= 4 * (before - 1)
    RowWriter(folder, ABOUT, resume=True).close()
    assert contents(folder) == whole
    assert kills > 5


@pytest.mark.parametrize("fails", ["shard", "line"])
def test_a_full_disk_leaves_the_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Neither a shard nor a line is left half-way, and the same shard can be written when there is space."""
    import safetensors.torch

    whole = contents(store_of(tmp_path / "whole", 2))
    writer = RowWriter(tmp_path / "t", ABOUT)
    write(writer, [0])
    before = contents(tmp_path / "t")
    with monkeypatch.context() as patch:
        if fails == "shard":

            def full(tensors: Any, file: Path, **how: Any) -> None:
                file.write_bytes(b"half")
                raise SafetensorError("No space left on device")

            patch.setattr(safetensors.torch, "save_file", full)
        else:

            def torn(descriptor: int) -> None:
                raise OSError(28, "No space left on device")

            writer._sync = True
            real = os.fsync
            calls: list[int] = []

            def third(descriptor: int) -> None:  # of the shard, of its folder, of the journal
                calls.append(descriptor)
                (torn if len(calls) == 3 else real)(descriptor)

            patch.setattr(os, "fsync", third)
        with pytest.raises(StoreError, match=r"cannot be written: .*No space left.*The shards that are whole stay"):
            write(writer, [1])
    assert contents(tmp_path / "t") == before
    writer._sync = False
    write(writer, [1])
    writer.close()
    assert contents(tmp_path / "t") == whole


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second one is refused, in this process and in another, and so are those who would replace or delete the store."""
    writer = RowWriter(tmp_path / "t", ABOUT)
    write(writer, [0])
    with pytest.raises(StoreError, match="being written"):
        RowWriter(tmp_path / "t", ABOUT, resume=True)
    with pytest.raises(StoreError, match="being written"):
        remove_tensors(tmp_path / "t")
    with pytest.raises(StoreError, match="being written"):
        write_tensors(tmp_path / "t", [], overwrite=True)
    if (child := os.fork()) == 0:
        try:
            RowWriter(tmp_path / "t", ABOUT, resume=True)
        except StoreError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    write(writer, [1])
    writer.close()
    RowWriter(tmp_path / "t", ABOUT, resume=True).close()


def test_what_is_not_begun_and_not_continued(tmp_path: Path) -> None:
    """A store without resume, another's folder, records, no store, a damaged journal, a shard that is gone."""
    held = store_of(tmp_path / "held", 2)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    records = write_tensors(tmp_path / "records", [({}, {"0/a:output": torch.ones(2)})])
    asked: list[tuple[Path, bool, str]] = [
        (held, False, "resume=True"),
        (other, False, "holds something else"),
        (records, True, "holds records"),
        (tmp_path / "nothing", True, "not a folder of tensors"),
    ]
    for folder, resume, said in asked:
        with pytest.raises(StoreError, match=said):
            RowWriter(folder, ABOUT, resume=resume)
    assert (other / "mine.txt").read_text() == "mine"
    (held / "tensors-00001.safetensors").unlink()
    with pytest.raises(StoreError, match=r"tensors-00001.*cannot be read"):
        RowWriter(held, ABOUT, resume=True)
    writer = RowWriter(tmp_path / "t", ABOUT)
    write(writer, range(3))
    writer._lock.release()
    journal = tmp_path / "t" / "shards.jsonl"
    journal.write_text(journal.read_text().replace('"rows":4', '"rows":5', 1))
    with pytest.raises(StoreError, match=r"line 1 of .*shards.jsonl is damaged"):
        RowWriter(tmp_path / "t", ABOUT, resume=True)
    with pytest.warns(ObservationWarning, match=r"line 1 of .*is damaged.*the others are read"):
        assert len(sonde.open_tensors(tmp_path / "t")["item"]) == 8


@pytest.mark.parametrize(
    "given", [{}, {"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.ones(())}], ids=["none", "lengths", "scalar"]
)
def test_columns_have_one_length(tmp_path: Path, given: dict[str, Tensor]) -> None:
    writer = RowWriter(tmp_path, {})
    with pytest.raises(ArgumentError, match="one number of rows"):
        writer.write(given, items=(0, 1), about={})
    writer.close()


def test_a_shard_without_rows(tmp_path: Path) -> None:
    """A mask may have chosen none; the others are read."""
    writer = RowWriter(tmp_path, ABOUT)
    writer.write(columns(0, rows=0), items=(0, 3), about={})
    write(writer, [1])
    writer.close()
    assert sonde.open_tensors(tmp_path)["item"][:].tolist() == [4, 5, 6, 7]


def test_a_store_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    folder = store_of(tmp_path / "t", 2)
    remove_tensors(folder)
    assert contents(folder) == {}
    store_of(folder, 1)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="something else"):
        remove_tensors(folder)
    assert len(contents(folder)) == 3
    remove_tensors(tmp_path / "nothing")


def test_ranks_write_parts_of_one_store(tmp_path: Path) -> None:
    """Each has its own shards and journal; the first joins those that have closed, and a later one those that come after."""
    first, second, third = (RowWriter(tmp_path, ABOUT, rank=rank) for rank in range(3))
    for number, writer in enumerate((first, second, third, second)):
        write(writer, [number])
    assert sorted(sonde.open_tensors(tmp_path)["item"][:].tolist()) == list(range(16))
    second.close()
    assert (tmp_path / "shards-r0001.jsonl").exists()
    first.close(complete=False)
    assert sorted(name for name in contents(tmp_path) if "shards" in name) == ["shards-r0002.jsonl"]
    write(third, [4])
    third.close()
    with pytest.raises(StoreError, match="holds shards of rank 2 already"):
        RowWriter(tmp_path, ABOUT, rank=2)
    again = RowWriter(tmp_path, ABOUT, rank=2, resume=True)
    assert [line["items"] for line in again.shards] == [(8, 11), (16, 19)]
    again.close()
    last = RowWriter(tmp_path, ABOUT, resume=True)  # one process finishes what three began
    assert last.shards == []
    write(last, [5])
    last.close()
    store = sonde.open_tensors(tmp_path)
    assert (store.complete, sorted(store["item"][:].tolist())) == (True, list(range(24)))
    assert not [name for name in contents(tmp_path) if "shards" in name]
