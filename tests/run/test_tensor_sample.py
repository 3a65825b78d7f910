"""A sample of a stored tensor: its values are those of the tensor, little of the file is read, and damage is said."""

from __future__ import annotations

import math
import subprocess
import sys
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.run.test_tensors import DTYPES

import sonde
from sonde.errors import StoreError, UnknownSiteError
from sonde.run.store.open import start_run
from sonde.run.tensors import sample as module
from sonde.run.tensors.store import TensorStore
from sonde.run.tensors.writers import RowWriter, write_tensors

SPECIAL = [0.0, -1.5, 2.0, float("nan"), float("inf"), float("-inf")]


def store_of(folder: Path, tensor: torch.Tensor, record: dict[str, object] | None = None) -> TensorStore:
    """A store with one record, of one tensor at ``fc:output``."""
    write_tensors(folder, [({"site": "fc:output", **(record or {})}, {"000000/fc:output": tensor})])
    return sonde.open_tensors(folder)


@pytest.mark.parametrize("dtype", [each for each in DTYPES if each != torch.float8_e4m3fn], ids=str)
def test_values_of_every_type_are_those_that_torch_has(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = torch.arange(5 * 7).reshape(5, 7)
    special = torch.tensor(SPECIAL, dtype=torch.float64) if dtype.is_floating_point or dtype.is_complex else torch.zeros(0)
    tensor = torch.cat([whole.flatten().double(), special]).to(dtype)
    found = store_of(tmp_path / "store", tensor).sample("fc:output")
    plain = (tensor.to(torch.complex128).abs() if dtype.is_complex else tensor).double().numpy()
    assert np.array_equal(found["values"], plain[None], equal_nan=True)
    finite = plain[np.isfinite(plain)]
    assert (found["low"], found["high"]) == (finite.min(), finite.max())
    assert (found["nan"], found["inf"]) == (int(np.isnan(plain).sum()), int(np.isinf(plain).sum()))
    assert (found["dtype"], found["shape"]) == (str(dtype).removeprefix("torch."), [len(tensor)])


def test_a_type_that_only_torch_reads_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"float8_e4m3fn.*open_tensors"):
        store_of(tmp_path / "store", torch.ones(3).to(torch.float8_e4m3fn)).sample("fc")


@pytest.mark.parametrize("shape", [(), (1,), (3, 200, 130), (2, 3, 4, 5), (100_000,), (65, 3)], ids=str)
def test_the_last_two_axes_are_picked_evenly_with_both_ends(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = torch.arange(float(math.prod(shape))).reshape(shape)
    found = store_of(tmp_path / "store", tensor).sample("fc:output")
    plane = tensor.reshape(-1, *(1, 1, *shape)[-2:])[0]
    for places, length in ((found["rows"], plane.shape[0]), (found["columns"], plane.shape[1])):
        assert len(places) == min(length, 64)
        assert (places[0], places[-1]) == (0, length - 1)
        gaps = np.diff(places)
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
    assert np.array_equal(found["values"], plane[found["rows"]][:, found["columns"]].numpy())
    assert (found["low"], found["high"]) == (0, math.prod(shape) - 1)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 5)], ids=str)
def test_a_tensor_without_elements_has_no_values_and_no_ends(shape: tuple[int, ...], tmp_path: Path) -> None:
    found = store_of(tmp_path / "store", torch.empty(shape)).sample("fc:output")
    assert (found["values"].size, found["low"], found["high"], found["nan"]) == (0, None, None, 0)


def test_of_a_large_tensor_only_what_is_shown_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "store", torch.arange(1e6).reshape(1000, 1000))
    read: list[int] = []
    plain = module._read

    def noted(opened: FileIO, at: int, size: int) -> bytes:
        read.append(size)
        return plain(opened, at, size)

    monkeypatch.setattr(module, "_WHOLE", 1 << 20)
    monkeypatch.setattr(module, "_read", noted)
    found = store.sample("fc:output")
    assert sum(read[1:]) == 64 * 64 * 4
    assert found["values"][-1, -1] == 999_999
    assert [found[name] for name in ("low", "high", "nan", "inf")] == [None] * 4


def test_every_changed_byte_of_a_shard_is_found(tmp_path: Path) -> None:
    store_of(tmp_path / "store", torch.arange(12.0).reshape(3, 4))
    (shard,) = (tmp_path / "store").glob("*.safetensors")
    whole = shard.read_bytes()
    for place in range(len(whole)):
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError):
            sonde.open_tensors(tmp_path / "store").sample("fc:output")
    shard.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match="not whole"):
        sonde.open_tensors(tmp_path / "store").sample("fc:output")


def test_steps_are_those_of_the_records_or_are_not_known(tmp_path: Path) -> None:
    for place, (tick, step) in enumerate([({"step": 7}, 7), ({"step": "7"}, None), (None, None), ([], None)]):
        store = store_of(tmp_path / str(place), torch.ones(2), {"tick": tick})
        assert store.kept == {"fc:output": [(step, "000000/fc:output")]}


def test_rows_have_a_sample_of_their_first_shard_and_no_step(tmp_path: Path) -> None:
    rows = RowWriter(tmp_path / "rows", None)
    for item in range(3):
        rows.write({"fc:output": torch.full((2, 3), float(item)), "item": torch.full((2,), item)}, items=(item, item), about={})
    rows.close()
    store = sonde.open_tensors(tmp_path / "rows")
    assert store.kept == {"fc:output": [(None, "fc:output")]}
    assert store.sample("fc:output")["values"].tolist() == [[0.0] * 3] * 2
    with pytest.raises(UnknownSiteError, match="fc:output"):
        store.sample("fd:output")


def test_a_run_gives_the_tensors_of_its_folder_and_no_others(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, step=0)
    run = sonde.open_run(tmp_path / "run")
    before = run.version
    assert not run.tensors
    store_of(tmp_path / "elsewhere", torch.ones(2))
    (tmp_path / "run" / "tensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="link out of this folder"):
        _ = run.tensors
    (tmp_path / "run" / "tensors").unlink()
    store_of(tmp_path / "run" / "tensors", torch.ones(2))
    assert list(run.tensors or ()) == ["000000/fc:output"]
    assert run.version != before


def test_no_torch_is_needed(tmp_path: Path) -> None:
    store_of(tmp_path / "store", torch.ones(2, 3))
    lines = (
        "import sys",
        "from sonde.run import open_tensors",
        "open_tensors(sys.argv[1]).sample('fc:output')",
        "assert 'torch' not in sys.modules",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines), str(tmp_path / "store")], check=True)
