"""What two runs that part look like, and what the comparison can be asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sonde.rows import Layout
from sonde.rules import Finding
from sonde.run.run import Run, open_run
from sonde.run.store.memory_writer import memory_run
from sonde.run.store.open import start_run
from sonde.view.run_comparison import RunComparison, compare_runs


def record(folder: Path, seed: int, lr: float, factor: float = 1.0) -> Run:
    random = np.random.default_rng(seed)
    places = Layout(["fc:output", "<b>:output", "fc.weight:update"])
    with start_run(folder, about={"config": {"lr": lr}}) as writer:
        for step in range(30):
            late = factor if step >= 12 else 1.0
            rms = np.array([1.0, 2.0, 1e-3]) * np.exp(random.normal(0, 0.02, 3)) * [1.0, late, 1.0]
            writer.append("moments", places, {"rms": rms, "count": [640.0] * 3}, step=step)
            writer.scalar("loss", float(np.exp(-step / 10) * late), step=step)
    return open_run(folder)


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    folder = tmp_path_factory.mktemp("runs")
    return compare_runs(record(folder / "calm", 0, 1e-3), record(folder / "wild", 1, 3e-2, 8.0))


def test_the_table_names_step_layer_number_and_setting(parted: RunComparison) -> None:
    head, *rest = repr(parted).splitlines()
    assert head == "calm and wild part at step 12 in <b>:output: rms 2.03 → 15.7, 7.73 times larger in wild"
    assert [line.split()[:3] for line in rest[2:4]] == [["step", "12", "loss"], ["step", "12", "<b>"]]
    assert "set otherwise: lr 0.001 → 0.03" in rest
    assert rest[-1] == "compared: 3 numbers at 30 common steps (0 to 29); a: calm, b: wild"


def test_its_attributes_are_numbers_and_names(parted: RunComparison) -> None:
    assert (parted.step, parted.site) == (12, "<b>:output")
    assert (parted.ok, parted.identical) == (False, False)
    assert parted.first == parted.partings[0]
    assert [each.number for each in parted.scalars] == ["loss"]
    assert parted.settings == {"lr": (1e-3, 3e-2)}
    assert parted.steps.tolist() == list(range(30))
    pytest.importorskip("pandas")
    assert parted.to_frame()["number"].tolist() == [each.number for each in (*parted.scalars, *parted.partings)]


def test_it_is_a_finding_as_well(parted: RunComparison) -> None:
    (found,) = parted.findings
    assert isinstance(found, Finding)
    assert (found.site, found.first_step, found.severity) == ("<b>:output", 12, "warn")
    assert found.evidence["b"] / found.evidence["a"] == pytest.approx(8.0, rel=0.1)
    assert found.evidence["gap"] > found.evidence["allowed"]


def test_names_of_a_stranger_are_text_in_html(parted: RunComparison) -> None:
    html = parted._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


def test_runs_of_one_name_are_told_apart_by_the_folder_above(tmp_path: Path) -> None:
    found = compare_runs(record(tmp_path / "x" / "run", 0, 1e-3), record(tmp_path / "y" / "run", 0, 1e-3))
    assert repr(found).splitlines()[0] == "x/run and y/run are identical at 30 common steps"
    assert (found.step, found.site, found.first, found.findings) == (None, None, None, ())


def test_two_seeds_are_said_not_to_part(tmp_path: Path) -> None:
    found = compare_runs(record(tmp_path / "a", 0, 1e-3), record(tmp_path / "b", 1, 1e-3))
    assert found.ok
    assert repr(found).splitlines()[:2] == [
        "a and b do not part: no number differs by more than seeds and noise explain",
        "  nothing parts",
    ]


def test_an_equal_beginning_is_told(tmp_path: Path) -> None:
    found = compare_runs(record(tmp_path / "a", 0, 1e-3), record(tmp_path / "b", 0, 1e-3, 1.01))
    assert found.ok
    assert (found.step, found.site) == (12, "<b>:output")
    line = "equal up to step 11; the first numbers that differ at all: step 12, %3Cb%3E:output"
    assert any(each.startswith(line.replace("%3Cb%3E", "<b>")) for each in repr(found).splitlines())


def test_runs_in_memory_are_compared(tmp_path: Path) -> None:
    with memory_run() as writer:
        writer.scalar("loss", 1.0, step=0)
    assert compare_runs(writer.run(), writer.run()).identical


def test_the_report_draws_the_number_that_parts_over_the_steps_and_says_each_setting_once(parted: RunComparison) -> None:
    page = parted.to_html()
    assert page.count('<circle class="dot one"') >= len(parted.steps)
    assert page.count('<rect class="dot other"') >= len(parted.steps)
    assert ">step 12</text>" in page
    assert page.count("0.001 → 0.03") == 1
    assert [curve.number for curve in parted.parts.curves][-1] == "loss"


def test_the_report_of_runs_that_do_not_part_draws_their_losses(tmp_path: Path) -> None:
    found = compare_runs(record(tmp_path / "a", 0, 1e-3), record(tmp_path / "b", 1, 1e-3))
    assert [curve.number for curve in found.parts.curves] == ["loss"]
    page = found.to_html()
    assert "<svg" in page
    assert "compared: 3 numbers" in page
    assert "nothing parts" not in page
