"""The page shows values of the tensor that was kept at a step, or last before it; a store that cannot be read is said in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import torch
from tests.view.app.made_runs import small_run

from sonde.errors import StoreError, UnknownSiteError
from sonde.run.run import open_run
from sonde.run.tensors.writers import write_tensors
from sonde.view.app.answers.one_layer import layer
from sonde.view.app.answers.opened_run import OpenedRun
from sonde.view.app.answers.reduction import INFINITE, NAN, NEGATIVE, VALUE, ZERO, unpacked
from sonde.view.app.answers.stored_sample import sample
from sonde.view.app.report_file import _SAMPLES, recording

FC = "blocks.1.fc:output"


def keep(folder: Path, *kept: tuple[str, int | None, torch.Tensor]) -> None:
    """Keep tensors beside a run: of each its site, its step and its values."""
    entries = [
        (
            {"site": site, "value": {"tensor": f"{place:06d}/{site}"}, **({} if step is None else {"tick": {"step": step}})},
            {f"{place:06d}/{site}": held},
        )
        for place, (site, step, held) in enumerate(kept)
    ]
    write_tensors(folder / "tensors", entries)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A small run with steps 0 to 18; of one layer a tensor of step 4, two of step 10, and of its parameter one without a step."""
    small_run(tmp_path / "runs" / "small")
    tensors = [torch.full((2, 3), float(value)) for value in (4, 10, 11, 7)]
    sites = [FC, FC, FC, "blocks.1.fc.weight:param"]
    keep(tmp_path / "runs" / "small", *zip(sites, (4, 10, 10, None), tensors, strict=True))
    return tmp_path / "runs" / "small"


@pytest.mark.parametrize(("asked", "step", "of"), [(None, 10, 2), (18, 10, 2), (10, 10, 2), (9, 4, 1), (4, 4, 1), (0, 4, 1)])
def test_the_tensor_at_a_step_is_the_last_that_was_kept_until_then(run: Path, asked: int | None, step: int, of: int) -> None:
    found = sample(OpenedRun(open_run(run)), FC, step=asked)
    assert (found["step"], found["of"], found["steps"]) == (step, of, [4, 10])
    assert unpacked(found["values"], "f4").tolist() == [float(step)] * 6  # of two of one step the first


def test_a_tensor_without_a_step_says_so(run: Path) -> None:
    found = sample(OpenedRun(open_run(run)), "blocks.1.fc.weight:param", step=3)
    assert (found["step"], found["steps"], found["low"]) == (None, [], 7.0)


def test_marks_tell_nan_infinities_and_zeros_and_ends_are_of_finite_values(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    keep(tmp_path / "run", (FC, 0, torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -3.0, 2.0])))
    found = sample(OpenedRun(open_run(tmp_path / "run")), FC)
    assert unpacked(found["marks"], "u1").tolist() == [NAN, INFINITE, NEGATIVE, ZERO, VALUE, VALUE]
    assert [found[name] for name in ("low", "high", "nan", "inf")] == [-3.0, 2.0, 1, 2]
    assert (found["scale"]["low"], found["scale"]["high"], found["scale"]["diverging"]) == (-3.0, 3.0, True)


def test_a_layer_and_a_parameter_have_their_own_tensors(run: Path) -> None:
    opened = OpenedRun(open_run(run))
    found = {name: layer(opened, name)["kept"] for name in ("blocks.1.fc", "blocks.1.fc.weight", "head")}
    param = "blocks.1.fc.weight:param"
    assert found == {"blocks.1.fc": [FC, param], "blocks.1.fc.weight": [param], "head": []}
    with pytest.raises(UnknownSiteError, match=r"head:output.*blocks\.1\.fc:output"):
        sample(opened, "head:output")


def test_a_run_in_memory_or_without_a_store_keeps_none(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    found = layer(OpenedRun(open_run(tmp_path / "run")), "head")
    assert (found["kept"], found["unread"]) == ([], "")


def cut(folder: Path) -> None:
    (shard,) = folder.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-3])


def flip(folder: Path) -> None:
    (shard,) = folder.glob("*.safetensors")
    held = bytearray(shard.read_bytes())
    held[-70] ^= 1
    shard.write_bytes(held)


def lose(folder: Path) -> None:
    (shard,) = folder.glob("*.safetensors")
    shard.unlink()


def break_index(folder: Path) -> None:
    (folder / "index.json").write_text('{"format": "sonde-tensors", "version":')


def unfinished(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [(cut, "not whole"), (flip, "damaged"), (lose, "cannot be read"), (break_index, "index.json"), (unfinished, "index.json")],
)
def test_a_damaged_store_is_said_and_the_rest_of_the_layer_is_there(run: Path, damage: Callable[[Path], None], said: str) -> None:
    pytest.importorskip("uvicorn")
    from sonde.view.app.serving import LivePage

    damage(run / "tensors")
    with LivePage(run.parent) as page:
        (entry,) = json.load(urlopen(f"{page.address}api/runs"))["runs"]
        held = json.load(urlopen(f"{page.address}api/runs/{entry['id']}/layer?layer=blocks.1.fc"))
        assert held["numbers"]
        with pytest.raises(HTTPError) as raised:
            urlopen(f"{page.address}api/runs/{entry['id']}/sample?site={quote(FC)}&step=10")
        raised.value.close()
    assert raised.value.code == 422
    assert said in (held["unread"] or str(sample_error(run)))


def sample_error(run: Path) -> StoreError:
    with pytest.raises(StoreError) as raised:
        sample(OpenedRun(open_run(run)), FC, step=18)
    return raised.value


def test_tensors_that_are_saved_later_are_news(tmp_path: Path) -> None:
    from sonde.view.app.followed_runs import FollowedRuns

    small_run(tmp_path / "runs" / "small")
    followed = FollowedRuns(tmp_path / "runs")
    followed.news()
    keep(tmp_path / "runs" / "small", (FC, 2, torch.ones(2)))
    (changed,) = followed.news()[0]
    assert layer(followed.opened(changed), "blocks.1.fc")["kept"] == [FC]


def test_a_report_has_the_last_values_of_a_few_sites_and_says_so(run: Path) -> None:
    (run / "tensors").rename(run / "former")
    names = [f"blocks.1.fc:output[{place}]" for place in range(_SAMPLES + 1)]
    opened = OpenedRun(open_run(run))
    assert recording(opened, {})["sample"] == {}
    keep(run, *((name, step, torch.full((64, 64), float(step))) for name in names for step in (1, 2)))
    held = recording(OpenedRun(open_run(run)), {})
    assert list(held["sample"]) == names[:-1]
    assert {answer["step"] for answer in held["sample"].values()} == {2}
    assert f"of {_SAMPLES} sites" in held["unread"]
    assert sum(len(json.dumps(answer)) for answer in held["sample"].values()) < 256_000
