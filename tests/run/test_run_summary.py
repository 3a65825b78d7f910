"""What a list shows of a run is kept beside it, equals what its files say, and is not used once they say something else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sonde.rows import Layout
from sonde.run.checking import check
from sonde.run.folder.files import SUMMARY
from sonde.run.folder.json_file import read_json, write_json
from sonde.run.folder.source import DiskSource
from sonde.run.pruning import prune
from sonde.run.run import open_run
from sonde.run.run_summary import RunSummary, kept_summary, of_source
from sonde.run.runs import open_runs
from sonde.run.store.disk_writer import DiskWriter
from sonde.run.store.open import start_run

PLACES = Layout(["fc:output", "head:output"])
LOSSES = [3.0, math.nan, 1.0, math.inf, -math.inf, 2.0]


def record(folder: Path, *, steps: int = 60) -> None:
    with start_run(folder, about={"config": {"depth": {"of": 2}}, "model": [{"type": "Net"}, {"type": "Linear"}]}) as writer:
        for step in range(steps):
            writer.append("moments", PLACES, {"rms": [1.0, 1.0 + step]}, step=step)
            writer.scalar("loss", LOSSES[step % 6], step=step)
            writer.scalar("lr", 0.1 / (step + 1), step=step)


def equal(one: RunSummary | None, other: RunSummary) -> bool:
    """Return whether all is the same, NaN too."""
    return one is not None and repr(one) == repr(other)


def made(folder: Path) -> RunSummary:
    return of_source(DiskSource(folder))


def test_a_summary_says_what_plain_python_finds_in_the_scalars(tmp_path: Path) -> None:
    record(tmp_path / "a")
    found = open_run(tmp_path / "a").summary
    assert (found.first, found.last, found.loss) == (0, 59, 2.0)
    assert found.scalars["lr"] == (0.1 / 60, 0.1 / 60, 0.1)
    assert found.scalars["loss"] == (2.0, 1.0, 3.0)
    assert found.settings == {"depth.of": 2, "lr": 0.1}
    assert (found.model, found.layers, found.attempts, found.ended, found.end) == ("Net", 2, 1, True, None)
    parts: dict[int, list[float]] = {}
    for step in range(60):
        parts.setdefault(step * 40 // 60, []).extend([LOSSES[step % 6]] if math.isfinite(LOSSES[step % 6]) else [])
    expected = [sum(held) / len(held) if held else math.nan for _, held in sorted(parts.items())]
    assert found.course == pytest.approx(expected, nan_ok=True)


def test_what_is_kept_equals_what_the_files_say(tmp_path: Path) -> None:
    record(tmp_path / "a")
    with start_run(tmp_path / "a", exists="resume", step=20) as writer:
        writer.scalar("loss", math.nan, step=20)
        writer.alert("fc is dead", step=20, rule="dead", site="fc:output")
        writer.note_end(ValueError("broken"))
    start_run(tmp_path / "empty").close()
    for name in ("a", "empty"):
        assert equal(kept_summary(tmp_path / name), made(tmp_path / name))
    kept = kept_summary(tmp_path / "a")
    assert kept is not None
    assert (kept.last, kept.attempts, kept.root, kept.findings) == (20, 2, "dead", 1)
    assert kept.end is not None
    assert "ValueError: broken" in kept.end.words


def test_a_list_of_runs_reads_no_rows_where_summaries_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a")
    monkeypatch.setattr(DiskSource, "files", lambda *_: pytest.fail("rows were read"))
    runs = open_runs(tmp_path)
    assert runs.summaries()["a"].loss == 2.0
    assert "a    ended  60" in repr(runs)


def resumed(folder: Path) -> None:
    start_run(folder, exists="resume", step=30).close()


def written_on(folder: Path) -> None:
    with start_run(folder, exists="resume") as writer:
        writer.scalar("loss", 7.0, step=100)


def described(folder: Path) -> None:
    with start_run(folder, exists="resume", about={"config": {"lr": 3}}):
        pass


def judged(folder: Path) -> None:
    check(folder)


def pruned(folder: Path) -> None:
    prune(folder, every=10)


def thinned(folder: Path) -> None:
    prune(folder, every=10, families=["scalars"])


def without_scalars(folder: Path) -> None:
    for part in (folder / "scalars").iterdir():
        part.unlink()


def cut(folder: Path) -> None:
    (part,) = (folder / "scalars").iterdir()
    part.write_bytes(part.read_bytes()[:-50])


def without_record(folder: Path) -> None:
    (folder / "findings.json").unlink()


CHANGES = [resumed, written_on, described, judged, pruned, thinned, without_scalars, cut, without_record]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.filterwarnings("ignore::sonde.errors.ObservationWarning")
def test_a_summary_of_other_files_is_not_used(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Where the change keeps a new one, the old one is put back in its place, as a killed process would have left it."""
    folder = tmp_path / "a"
    record(folder)
    old = (folder / SUMMARY).read_bytes()
    change(folder)
    if (folder / SUMMARY).read_bytes() != old:
        assert equal(kept_summary(folder), made(folder))
        (folder / SUMMARY).write_bytes(old)
    assert kept_summary(folder) is None
    assert equal(open_run(folder).summary, made(folder))


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda file: file.write_bytes(file.read_bytes()[:100]),
        lambda file: file.write_text(file.read_text().replace('"last": 59', '"last": 99')),
        lambda file: file.write_text(json.dumps(read_json(file) | {"last": 99})),
        lambda file: write_json(file, read_json(file) | {"form": 99}, sync=False),
        lambda file: write_json(file, read_json(file) | {"last": "99"}, sync=False),
        lambda file: write_json(file, read_json(file) | {"end": {"rank": 0, "state": "of a later sonde"}}, sync=False),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["half", "changed", "without checksum", "other form", "other type", "unknown end", "folder"],
)
def test_a_summary_that_is_not_whole_is_not_used(tmp_path: Path, spoilt: Callable[[Path], object]) -> None:
    record(tmp_path / "a")
    spoilt(tmp_path / "a" / SUMMARY)
    assert kept_summary(tmp_path / "a") is None
    assert open_run(tmp_path / "a").summary.last == 59


def test_a_run_that_is_copied_keeps_its_summary(tmp_path: Path) -> None:
    record(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    for file in (tmp_path / "b").rglob("*.*"):
        held = file.read_bytes()
        file.unlink()
        file.write_bytes(held)  # of another time, as a copy has it
    assert equal(kept_summary(tmp_path / "b"), made(tmp_path / "b"))


def test_a_summary_is_kept_while_the_run_is_written_and_is_of_that_moment(tmp_path: Path) -> None:
    with start_run(tmp_path / "a") as writer:
        assert isinstance(writer, DiskWriter)
        writer.scalar("loss", 3.0, step=0)
        writer.flush()
        assert not (tmp_path / "a" / SUMMARY).exists()  # a short training has no time for it
        writer._next_summary = 0.0
        writer.scalar("loss", 2.0, step=1)
        writer.flush()
        kept = kept_summary(tmp_path / "a")
        assert equal(kept, made(tmp_path / "a"))
        assert kept is not None
        assert (kept.loss, kept.ended) == (2.0, False)
        writer.scalar("loss", 1.0, step=2)
        writer.flush()
        assert kept_summary(tmp_path / "a") is None
        assert open_run(tmp_path / "a").summary.loss == 1.0


def test_a_run_that_is_replaced_loses_its_summary_at_once(tmp_path: Path) -> None:
    record(tmp_path / "a")
    with start_run(tmp_path / "a", exists="replace"):
        assert not (tmp_path / "a" / SUMMARY).exists()


def test_of_several_ranks_the_last_to_end_keeps_it(tmp_path: Path) -> None:
    from sonde.run.store.open import join_run

    first = start_run(tmp_path / "a")
    second = join_run(tmp_path / "a", rank=1, attempt=1)
    for writer, loss in ((first, 1.0), (second, 5.0)):
        writer.scalar("loss", loss, step=0)
    first.close()
    second.scalar("own", 5.0, step=1)
    second.close()
    kept = kept_summary(tmp_path / "a")
    assert equal(kept, made(tmp_path / "a"))
    assert kept is not None
    assert kept.scalars["own"] == (5.0, 5.0, 5.0)


def test_damage_makes_no_summary(tmp_path: Path) -> None:
    """A list says that a part cannot be read, which a summary would hide."""
    record(tmp_path / "a")
    cut(tmp_path / "a")
    (tmp_path / "a" / SUMMARY).unlink()
    with start_run(tmp_path / "a", exists="resume", step=70) as writer:
        writer.scalar("other", 1.0, step=70)
    assert not (tmp_path / "a" / SUMMARY).exists()


def test_a_summary_has_doubts_and_a_health() -> None:
    calm = RunSummary(verdict="ok")
    assert (calm.health(calm.doubts(0)), calm.health(calm.doubts(2)), calm.doubts(2)) == (
        "ok",
        "unknown",
        ["2 parts of the run cannot be read"],
    )
    assert replace(calm, verdict="bad").health(["x"]) == "bad"
