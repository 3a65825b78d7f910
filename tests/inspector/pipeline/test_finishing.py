"""Rows that are finished together are the rows of each moment alone, in the same order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from tests.inspector.pipeline.batches import NORMS, batch_of, moments_of, one_by_one, plain, random_training, rowed

from sonde.inspector.pipeline.batch import Batch
from sonde.inspector.pipeline.finishing import Finishing
from sonde.inspector.sinks.base import LoggedRows
from sonde.rows import Rows, Scalar
from sonde.run.findings import Findings
from sonde.stats import Activation


def cut(
    batches: Sequence[Batch], size: int, findings: Findings | None = None, *, joins: bool = False
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What comes out if so many batches are finished together, and the statistics that failed.

    *joins*: the pieces are joined before they are given on, as where rows are joined with those of other ranks.
    """
    failed: list[str] = []
    finishing = Finishing(lambda of, error, site: failed.append(f"{of.family} {site}"), print)
    found: list[tuple[Any, ...]] = []

    def take(logged: LoggedRows) -> None:
        found.extend(plain(entry) for entry in logged)
        if findings is not None:
            findings.judge(logged.blocks, [(each.name, each.value, each.epoch, each.step) for each in logged.scalars])

    cuts = (batches[start : start + size] for start in range(0, len(batches), size))
    pieces = [finishing.finish([(batch, batch.copy.unpack()) for batch in each])[0] for each in cuts]
    for piece in [LoggedRows.joined(pieces)] if joins else pieces:
        blocks = [(block.family, id(block.layout), tuple(block.numbers)) for block in piece.blocks]
        assert not joins or len(blocks) == len(set(blocks))
        take(piece)
    take(finishing.rest())
    return found, failed


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_many_moments_together_have_the_rows_of_each_alone(seed: int) -> None:
    """Bit for bit, in the same order; the norms, whose squares may be added in another order, to 14 digits."""
    batches = random_training(seed)
    found, failed = cut(batches, len(batches))
    expected = list(one_by_one(batches))
    assert [each if len(each) > 4 else each[:3] for each in found] == [
        each if len(each) > 4 else each[:3] for each in map(plain, expected)
    ]
    values = [float.fromhex(each[3]) for each in found if len(each) == 4]
    assert values == pytest.approx([each.value for each in expected if isinstance(each, Scalar)], rel=1e-14, nan_ok=True)
    assert {each.split()[0] for each in failed} <= {"fussy"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_it_does_not_matter_how_many_are_taken_together(seed: int, size: int) -> None:
    """Rows, scalars, their order, what failed and what is found are the same to the last bit."""
    pieces = Findings()
    assert (cut(random_training(seed), size, pieces), told(pieces)) == whole(seed)


@cache
def whole(seed: int) -> tuple[tuple[list[tuple[Any, ...]], list[str]], list[str]]:
    """Return what comes out if all batches are finished together, and everything that is found in that."""
    batches, findings = random_training(seed), Findings()
    return cut(batches, len(batches), findings), told(findings)


def told(findings: Findings) -> list[str]:
    """Everything that is found, as text, in which a NaN is one."""
    findings.end()
    return list(map(repr, findings.judged()))


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_that_are_joined_are_those_that_were_finished_together(seed: int) -> None:
    """One block of each layout; rows, scalars and their order are the same to the last bit, and so is what is found."""
    joined = Findings()
    assert (cut(random_training(seed), 1, joined, joins=True), told(joined)) == whole(seed)


def test_the_random_trainings_have_everything_in_them() -> None:
    """A statistic that raised for some moments and not for others, defects, micro steps, norms of two models, scales."""
    entries = [entry for seed in SEEDS for entry in one_by_one(random_training(seed))]
    families = {entry.family for entry in entries if isinstance(entry, Rows)}
    assert families == {"moments", "activation", "channels", "fussy", "exponents", "moments_micro"}
    assert any(cut(random_training(seed), 4)[1] for seed in SEEDS)
    names = {entry.name for entry in entries if isinstance(entry, Scalar)}
    assert names == {"loss", "accuracy", *(f"{model}{port}_norm" for model in ("", "G/") for port in NORMS)}
    assert any(not math.isfinite(entry.value) for entry in entries if isinstance(entry, Scalar))
    assert any(part.scales for batch in random_training(0) for part in batch.rows)


# Findings


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_first_defect_is_by_step_and_then_by_execution(size: int) -> None:
    """Both sites are broken at step 2; the output comes before the gradient, though its layer ran later."""
    values = [[1.0, 1.0], [1.0, 1.0], [math.nan, math.inf], [math.nan, 1.0]]
    findings = Findings()
    cut(moments_of(values), size, findings)
    findings.end()
    (found,) = findings.judged()
    assert (found.rule, found.site, found.step, found.value) == ("nonfinite", "a:output", 2, 1.0)


@pytest.mark.parametrize("size", [1, 100])
def test_a_scalar_before_the_rows_is_the_first_defect(size: int) -> None:
    """It came at the end of the step before."""
    batches = moments_of([[1.0, 1.0], [1.0, 1.0], [math.nan, 1.0]])
    batches[1] = Batch(batches[1].copy, batches[1].rows, [Scalar("loss", math.inf, 0, 1)])
    findings = Findings()
    cut(batches, size, findings)
    findings.end()
    assert [found.message for found in findings.judged()] == [
        "loss is inf from step 1 on: all outputs that were recorded at this step are finite, so it arose behind them, in the loss"
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_layer_is_dead_in_three_of_five_counts_and_little_is_remembered(size: int) -> None:
    """One dead count is the chance of a batch; the third of five makes a finding, however the batches are cut."""
    of = rowed("activation", Activation(), ["a:output"])
    death = [0.0] * 30 + [1.0] + [0.0] * 9 + [1.0, 0.0, 1.0, 1.0] + [0.0] * 6
    batches = [batch_of(of, step, [1.0]) for step in range(50)]
    for batch, share in zip(batches, death, strict=True):
        rows = batch.copy.unpack()[0]
        rows[1, 5:8] = 1, 1 - share, share
    for last, expected in ((44, [("dead", 40)]), (43, [])):
        findings = Findings()
        cut(batches[:last], size, findings)
        assert [(found.rule, found.first_step) for found in findings.judged()] == expected
        kept = [len(history.recent) for history in findings._judges._ports._histories.values()]
        assert kept == [20]
