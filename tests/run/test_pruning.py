"""Pruning takes rows out of a run that has ended; what is left is as it was, the run says what went, and a kill loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import ArgumentError, StoreError, UnknownSiteError
from sonde.rules import RULES, rule
from sonde.run import Flushing, Layout, Run, check, join_run, open_run, prune, start_run
from sonde.run.comparison.two_runs import compare_rows
from sonde.run.folder.json_file import read_json
from sonde.run.folder.parts import parts_in
from sonde.run.pruning import steps_left

EARLY = Flushing(seconds=1e6, first=1e6)  # a part at each flush alone
SITES = Layout(["0:output", "1:output"])


def write(folder: Path, steps: int = 100, *, first: int = 0, **how: Any) -> Path:
    """A run with ``moments`` of two sites at every step, ``rare`` at each fifth from 3 on, a loss, and a spike at step 41."""
    with start_run(folder, flushing=EARLY, **how) as writer:
        for step in range(first, first + steps):
            size = 1000.0 if step == 41 else 1.0
            writer.append("moments", SITES, {"rms": [size, 2.0], "count": 7}, step=step)
            if step % 5 == 3:
                writer.append("rare", SITES, {"value": [step, -step]}, step=step)
            writer.scalar("loss", 1.0 / (1 + step), step=step)
            if step % 30 == 0:
                writer.flush()
        writer.alert("large", step=41, rule="own", site="0:output")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pruning") / "run")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def rows(run: Run, family: str) -> list[dict[str, Any]]:
    return run.table(family).to_pylist() if family in run.families else []


def steps(folder: Path, family: str) -> list[int]:
    return sorted({row["step"] for row in rows(open_run(folder), family)})


def test_one_step_of_many_is_left_with_the_rows_that_it_had(folder: Path, made: Path) -> None:
    """The same step in all families as far as they have it; the first, the last and those that an alert names stay, and scalars."""
    found = prune(folder, every=10)
    assert steps(folder, "moments") == sorted({0, 41, 98, 99, *range(3, 100, 10)})
    assert steps(folder, "rare") == sorted({3, 98, *range(3, 100, 10)})
    assert steps(folder, "scalars") == list(range(100))
    for family in ("moments", "rare", "scalars"):
        kept = set(steps(folder, family))
        assert rows(open_run(folder), family) == [row for row in rows(open_run(made), family) if row["step"] in kept]
    (moments, rare) = found.families
    assert (moments.family, moments.steps, moments.rows) == ("moments", (100, 14), (200, 28))
    assert (rare.family, rare.steps, rare.rows) == ("rare", (20, 11), (40, 22))
    on_disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert found.size[0] == sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
    assert abs(found.size[1] - on_disk) < 200  # run.json is written once more
    assert moments.size[0] > moments.size[1] == sum(file.stat().st_size for file in (folder / "moments").iterdir())
    assert open_run(folder).lost == {}
    assert len(parts_in(folder / "moments")) == 1


@pytest.mark.slow
def test_pruning_again_changes_nothing(folder: Path) -> None:
    prune(folder, every=10)
    before = {file.name: file.read_bytes() for file in (folder / "moments").iterdir()}
    assert prune(folder, every=10).families == ()
    assert {file.name: file.read_bytes() for file in (folder / "moments").iterdir()} == before


def test_a_family_can_go_whole_and_its_name_is_explained(folder: Path) -> None:
    prune(folder, drop=["rare"])
    run = open_run(folder)
    assert run.families == ("moments", "scalars")
    assert steps(folder, "moments") == list(range(100))
    with pytest.raises(UnknownSiteError, match=r"pruned on \d+-\d+-\d+: rare is gone"):
        run.table("rare")
    assert "rare is gone" in repr(run)
    assert not (folder / "rare").exists()


def test_some_families_and_the_last_steps_alone(folder: Path) -> None:
    prune(folder, every=50, families=["moments"], keep_last=5)
    assert steps(folder, "moments") == [0, 41, 50, 95, 96, 97, 98, 99]
    assert len(steps(folder, "rare")) == 20
    prune(folder, every=50, families=["scalars"])
    assert steps(folder, "scalars") == [0, 41, 50, 99]
    assert open_run(folder).last_step == 99


def test_a_dry_run_changes_nothing_and_tells_the_same_rows(folder: Path) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    told = prune(folder, every=10, drop=["rare"], dry_run=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    done = prune(folder, every=10, drop=["rare"])
    assert [(each.family, each.steps, each.rows) for each in told.families] == [
        (each.family, each.steps, each.rows) for each in done.families
    ]
    assert "would go" in repr(told)
    assert "176 of 200 rows went, 12 of 100 steps stay" in repr(done)


def test_the_run_says_what_was_taken_out(folder: Path) -> None:
    (folder / "coverage.json").unlink(missing_ok=True)
    prune(folder, every=10)
    run = open_run(folder)
    assert "of moments, rare one step in 10 is left (14 of 100 logged steps)" in run.pruned
    assert run.pruned in repr(run)
    (noted,) = read_json_of(folder)["pruned"]
    assert (noted["every"], noted["last"], noted["steps"]["moments"], noted["finished"]) == (10, 99, [100, 14], True)
    assert abs(noted["size"][1] - sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())) < 200


def read_json_of(folder: Path) -> dict[str, Any]:
    return read_json(folder / "run.json")


@pytest.mark.slow
def test_coverage_says_it(tmp_path: Path) -> None:
    write(tmp_path / "run", 20)
    with start_run(tmp_path / "run", exists="resume") as writer:
        writer.document("coverage", {"sites": 2, "observed": 2, "missing": [], "notes": []})
    prune(tmp_path / "run", every=10)
    assert open_run(tmp_path / "run").coverage["pruned"] == open_run(tmp_path / "run").pruned


def test_findings_stay_what_they_were(folder: Path, made: Path) -> None:
    """Also that of a spike whose neighbours are gone; rules that are asked for now judge what is left, and the check says so."""
    full = check(open_run(made)).findings
    assert full
    prune(folder, every=25)
    assert [(each.rule, each.site, each.first_step, each.evidence) for each in open_run(folder).findings] == [
        (each.rule, each.site, each.first_step, each.evidence) for each in full
    ]
    checked = check(folder)
    assert [each.rule for each in checked.findings] == [each.rule for each in check(made).findings]
    assert checked.not_judged == check(made).not_judged
    assert "judge the rows that are left" in repr(check(folder, rules={}))
    prune(folder, drop=["moments"])
    assert [each.rule for each in open_run(folder).findings] == [each.rule for each in full]


def test_what_a_training_finds_after_it_was_resumed_is_added(folder: Path) -> None:
    before = [each.rule for each in check(folder).findings]
    prune(folder, every=25)
    with start_run(folder, exists="resume") as writer:
        for step in range(100, 110):
            writer.append("moments", SITES, {"rms": [1.0, 2.0], "nan": [0, 3], "count": 7}, step=step)
    found = check(folder).findings
    assert ("nonfinite", 100) in {(each.rule, each.first_step) for each in found}
    assert set(before) <= {each.rule for each in found}
    assert steps(folder, "moments")[-10:] == list(range(100, 110))
    assert open_run(folder).pruned


def test_a_rule_of_the_users_own_that_is_new_judges_what_comes_after_the_pruning(folder: Path) -> None:
    """Up to there the record stays as it was; asked for by name, the rule judges what is left."""
    prune(folder, every=10)
    rule("is above 1", at="output")(above)
    try:
        assert "above" not in {each.rule for each in check(folder).findings}
        assert "above" in {each.rule for each in check(folder, rules={}).findings}
    finally:
        del RULES["above"]


def above(rms: float) -> bool:
    return rms > 1


@pytest.mark.slow
def test_a_comparison_with_the_whole_run_says_it_and_finds_no_difference(folder: Path, made: Path) -> None:
    """Also where some families alone were thinned, one after another, with different steps."""
    for how in ({}, {"families": ["scalars"]}):
        prune(folder, every=10 if how == {} else 15, **how)
        parts = compare_rows(open_run(folder), open_run(made))
        assert parts.identical
        assert any(note.startswith("a: pruned on ") for note in parts.notes)


@pytest.mark.slow
def test_superseded_rows_and_other_ranks(tmp_path: Path) -> None:
    """Rows that a resumed training has written again do not come back; each rank keeps its own rows."""
    folder = tmp_path / "run"
    write(folder, 60)
    writer = start_run(folder, exists="resume", step=40, flushing=EARLY)
    other = join_run(folder, rank=1, attempt=writer.attempt, flushing=EARLY)
    for each in (other, writer):
        for step in range(40, 60):
            each.append("moments", SITES, {"rms": [step, 5.0], "count": 7}, step=step)
        each.close()
    prune(folder, every=20)
    kept = [(row["step"], row["rank"], row["rms"]) for row in rows(open_run(folder), "moments") if row["site"] == "0:output"]
    resumed = [(step, rank, float(step)) for step in (40, 59) for rank in (0, 1)]
    assert kept == [*((step, 0, 1.0) for step in (0, 3, 23, 38)), *resumed]


@pytest.mark.slow
def test_a_damaged_part_stays_where_it_is(folder: Path, tmp_path: Path) -> None:
    with start_run(folder, exists="resume", flushing=EARLY) as writer:
        writer.append("moments", SITES, {"rms": [1.0, 2.0], "count": 7}, step=100)
        writer.flush()
        (part,) = (part for part in parts_in(folder / "moments") if part.generation == 0)
        path = folder / "moments" / part.name
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match="is damaged"):
        prune(folder, every=10)
    assert path.exists()
    with pytest.warns(UserWarning, match="is damaged"):
        assert steps(folder, "moments") == sorted({0, 41, 98, 99, *range(3, 100, 10)})


REFUSED = {
    "every=1 leaves all": {"every": 1},
    "say what is to be taken out": {},
    "give a list of names": {"drop": "rare"},
    "scalars stay": {"drop": ["scalars"]},
    "keep_last counts from 0": {"every": 2, "keep_last": -1},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_asked(words: str, folder: Path) -> None:
    with pytest.raises(ArgumentError, match=words):
        prune(folder, **REFUSED[words])


def test_an_unknown_family_names_the_nearest(folder: Path) -> None:
    with pytest.raises(UnknownSiteError, match=r"'moment' is no family of .*run\. Nearest: moments"):
        prune(folder, every=2, families=["moment"])


def test_a_family_that_alone_has_the_last_step_does_not_go(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.append("moments", SITES, {"rms": 1.0}, step=9)
    with pytest.raises(ArgumentError, match="moments alone has rows of the last step, 9"):
        prune(tmp_path / "run", drop=["moments"])


def test_a_run_that_is_being_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this process, or by another; or where nobody can know."""
    writer = start_run(tmp_path / "run")
    writer.append("moments", SITES, {"rms": 1.0}, step=0)
    writer.flush()
    for dry_run in (True, False):
        with pytest.raises(StoreError, match="is being written"):
            prune(tmp_path / "run", every=2, dry_run=dry_run)
    writer._lock.release()
    monkeypatch.setattr("sonde.run.folder.alone.is_locked", lambda folder: None)
    with pytest.raises(StoreError, match="no locks that say whether it is being written"):
        prune(tmp_path / "run", every=2)
    writer.close()
    prune(tmp_path / "run", every=2)


def test_nobody_writes_to_a_run_that_is_being_pruned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resumed(*_: Any, **__: Any) -> None:
        with pytest.raises(StoreError, match="is being written by this very process"):
            start_run(folder, exists="resume")

    monkeypatch.setattr("sonde.run.pruning.Merger.thin", resumed)
    prune(folder, every=10)


def test_steps_are_chosen_where_most_families_have_rows() -> None:
    left = steps_left({"a": range(0, 100, 10), "b": [5, 30, 70], "scalars": range(100)}, 50, 0, [])
    assert sorted(left["a"]) == [0, 30, 70, 90]
    assert sorted(left["b"]) == [5, 30, 70]
    assert sorted(left["scalars"]) == [0, 5, 30, 70, 90, 99]


class Killed(BaseException):
    """The end of the process, as far as its files know."""


class Mortal:
    """Refuses every change of a file from the *last* one on, as if the process had been killed before it."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int) -> None:
        self.left = last
        for name in ("replace", "unlink", "rmdir", "write_text"):
            patch.setattr(Path, name, self.mortal(getattr(Path, name)))

    def mortal(self, change: Any) -> Any:
        def changed(path: Path, *args: Any, **more: Any) -> Any:
            self.left -= not path.name.startswith(".lock-")  # one that is given back changes nothing of the run
            if self.left < 0:
                raise Killed
            return change(path, *args, **more)

        return changed


def snapshots(folder: Path, changes: Iterable[int]) -> Iterator[int]:
    """Prune copies of the run in *folder*, each killed after so many *changes* of files; yield the number, until one survives."""
    for last in changes:
        copied = folder.with_name(f"killed-{last}")
        shutil.copytree(folder, copied)
        with pytest.MonkeyPatch.context() as patch:
            mortal = Mortal(patch, last)
            try:
                prune(copied, every=20, drop=["rare"])
            except Killed:
                pass
            else:
                assert mortal.left >= 0
                return
        yield last


@pytest.fixture
def several_parts(folder: Path) -> Path:
    """A run whose last attempt was killed, so that each family has several parts."""
    writer = start_run(folder, exists="resume", flushing=EARLY)
    for step in range(100, 130):
        writer.append("moments", SITES, {"rms": [1.0, 2.0], "count": 7}, step=step)
        writer.append("rare", SITES, {"value": [step, -step]}, step=step)
        writer.scalar("loss", 0.5, step=step)
        if step % 10 == 9:
            writer.flush()
    killed = folder.with_name("source")
    shutil.copytree(folder, killed)
    writer.close()
    return killed


@pytest.mark.parametrize("changes", [(5,), pytest.param(range(60), marks=pytest.mark.slow)], ids=["some", "all"])
def test_after_a_kill_at_any_moment_the_run_can_be_read_and_pruning_ends_the_work(
    several_parts: Path, changes: Iterable[int]
) -> None:
    """Without a warning: each family is whole or as it is to be, findings are the same, and the second time all is done."""
    whole = {family: rows(open_run(several_parts), family) for family in ("moments", "rare", "scalars")}
    findings = [(each.rule, each.site, each.first_step) for each in check(several_parts).findings]
    target = several_parts.with_name("target")
    shutil.copytree(several_parts, target)
    prune(target, every=20, drop=["rare"])
    wanted = {family: rows(open_run(target), family) for family in whole}
    assert wanted["rare"] == []
    kills = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kills in snapshots(several_parts, changes):
            killed = several_parts.with_name(f"killed-{kills}")
            run = open_run(killed)
            for family, before in whole.items():
                there = rows(run, family)
                assert there in (before, wanted[family]) or (family == "rare" and all(row in before for row in there))
            assert [(each.rule, each.site, each.first_step) for each in run.findings] == findings
            if run.description.pruned and run.description.pruned[-1].finished:  # but for the summary of lists
                assert {family: rows(run, family) for family in whole} == wanted
                continue
            if run.description.pruned:
                assert run.pruned.endswith("prune it again")
            prune(killed, every=20, drop=["rare"])
            assert {family: rows(open_run(killed), family) for family in whole} == wanted
            noted = open_run(killed).description.pruned[-1]
            assert (noted.finished, noted.dropped) == (True, ("rare",))
            assert noted.steps == open_run(target).description.pruned[-1].steps
            assert [*killed.rglob(".*.tmp")] == []
    assert kills >= 5


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_process_that_is_killed_leaves_a_run(several_parts: Path) -> None:
    """By kill -9, at moments that the machine chooses."""
    program = "import sys; from sonde.run import prune; print('begun', flush=True); prune(sys.argv[1], every=20, drop=['rare'])"
    whole = rows(open_run(several_parts), "moments")
    for attempt in range(8):
        folder = several_parts.with_name(f"process-{attempt}")
        shutil.copytree(several_parts, folder)
        with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(0.15 * attempt)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        there = rows(open_run(folder), "moments")
        assert there == whole or len({row["step"] for row in there}) < 20
        prune(folder, every=20, drop=["rare"])
        assert len(steps(folder, "moments")) < 20


def test_a_hostile_run_json_is_refused_or_read(folder: Path) -> None:
    """What it says of pruning is text from a stranger."""
    import json

    prune(folder, every=10)
    file = folder / "run.json"
    data = json.loads(file.read_text())
    data["pruned"][0]["later"] = "what a later version has added"
    file.write_text(json.dumps(data))
    with pytest.warns(UserWarning, match="was changed or damaged"):
        run = open_run(folder)
    assert "one step in 10 is left" in run.pruned
    data["pruned"] = [{"when": "x"}]
    file.write_text(json.dumps(data))
    with pytest.raises(StoreError, match="does not say what was pruned"):
        open_run(folder)
