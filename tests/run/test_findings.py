"""The rules find in a run that is read what they found while it was written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.inspector.pipeline import trainings
from torch import nn

from sonde.errors import ArgumentError
from sonde.inspector import Inspector, watch
from sonde.rules import Finding
from sonde.run import Layout, findings_in, memory_run, open_run, start_run
from sonde.run.folder.checksum import checksum
from sonde.run.folder.parts import Part
from sonde.run.folder.verify import fault
from sonde.run.schema import LATER


def told(found: list[Finding] | tuple[Finding, ...]) -> list[tuple[str, str, int, str, int | None, str]]:
    return sorted((each.rule, each.site, each.step, each.severity, each.first_step, each.message) for each in found)


@pytest.mark.parametrize(
    "kind", [trainings.gpt_too_fast, trainings.burst, trainings.strange_batch, trainings.exploding_rnn, trainings.dying]
)
def test_a_run_that_is_read_has_the_findings_of_its_training(kind: Callable[[], Inspector]) -> None:
    torch.manual_seed(0)
    inspector = kind()
    assert inspector.findings
    assert told(findings_in(inspector.run)) == told(inspector.findings)


def test_a_healthy_run_has_none() -> None:
    torch.manual_seed(0)
    assert findings_in(trainings.HEALTHY["resnet, momentum"]().run) == []


def test_a_run_that_was_never_closed_has_findings(tmp_path: Path) -> None:
    """No alert was written; the rows tell."""
    with start_run(tmp_path / "run") as writer:
        layout = Layout(["0:output", "1:output", "2:output"])
        for step in range(3):
            writer.append("moments", layout, {"rms": [1.0, 1.0 if step < 2 else 500.0, 1.0], "nan": 0, "inf": 0}, step=step)
        writer.scalar("loss", math.inf, step=2)
    found = findings_in(open_run(tmp_path / "run"))
    assert [(each.rule, each.site, each.first_step) for each in found] == [("nonfinite", "", 2), ("output_growth", "1:output", 2)]


def test_a_run_without_numbers_of_the_rules() -> None:
    with memory_run() as writer:
        writer.append("other", Layout(["0:output"]), {"size": [math.nan]}, step=0)
    assert findings_in(writer.run()) == []


def test_what_only_the_training_knew_is_kept() -> None:
    """The parameters were NaN when a logged step began; and a forgotten model.train()."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with (
        pytest.warns(UserWarning, match="is the model in eval"),
        watch(model, every=5, to="memory", bad_steps=None, verbose=False) as inspector,
    ):
        for step in range(12):
            if step == 7:
                nn.init.constant_(model[0].weight, math.nan)
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    assert {each.rule for each in inspector.findings} >= {"nonfinite", "no_training_forward"}
    read = [(each.rule, each.site, each.step, each.severity, each.message) for each in findings_in(inspector.run)]
    assert sorted(read) == sorted((each.rule, each.site, each.step, each.severity, each.message) for each in inspector.findings)


def test_an_alert_has_the_numbers_and_the_advice_of_its_finding(tmp_path: Path) -> None:
    """On disk and in memory; a number that JSON cannot hold is NaN; the text of SQL is JSON."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, -50.0)  # type: ignore[arg-type]  # a parameter
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, every=1, to=tmp_path / "run", verbose=False, bad_steps=None) as inspector:
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        inspector.push_loss(math.nan, train=True)
    run = open_run(tmp_path / "run")
    alerts = {alert["rule"]: alert for alert in run.alerts}
    for found in inspector.findings:
        alert = alerts[found.rule]
        numbers = {name: math.nan if math.isinf(value) else float(value) for name, value in found.evidence.items()}
        assert alert["evidence"] == pytest.approx(numbers, nan_ok=True)
        assert (alert["advice"], alert["first_step"], alert["call"]) == (found.advice, found.first_step, found.call)
    [(share,)] = run.sql("SELECT CAST(evidence::JSON ->> 'dead' AS DOUBLE) FROM alerts WHERE rule = 'dead'").fetchall()
    assert share == 1.0


def test_alerts_of_a_run_of_an_older_version_are_read(tmp_path: Path) -> None:
    """Parts without the later columns, alone and beside parts that have them."""
    import pyarrow
    import pyarrow.parquet

    with start_run(tmp_path / "run") as writer:
        writer.alert("a new one", step=3, evidence={"size": 2.0, "before": math.inf}, advice="do this")
        with pytest.raises(ArgumentError, match="the number 'size' is a number"):
            writer.alert("wrong", step=3, evidence={"size": "large"})  # type: ignore[dict-item]  # refused
    [part] = (tmp_path / "run" / "alerts").glob("*.parquet")
    whole = pyarrow.parquet.read_table(part)
    pyarrow.parquet.write_table(whole.drop_columns(sorted(LATER)), part)
    kept = part.with_name(f"{part.stem.rpartition('-')[0]}-{checksum(part.read_bytes())}.parquet")
    part.rename(kept)
    run = open_run(tmp_path / "run")
    [old] = run.alerts
    assert (old["message"], old["evidence"], old["advice"], old["call"]) == ("a new one", {}, "", None)
    part_of_old = Part.parse(kept.name)
    assert part_of_old is not None
    assert fault(kept.parent, part_of_old, {}) == ""
