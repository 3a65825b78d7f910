"""What another number format would lose: equal to a cast by torch, of the tensor as it is and scaled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde import lens
from sonde.cli import main
from sonde.errors import ArgumentError
from sonde.run.what_if import FORMATS, format_of
from sonde.stats.exponents import HIGHEST, LOWEST, OVERFLOW, UNDERFLOW


def recorded(to: str | Path, sizes: list[float], lenses: lens.Lens) -> tuple[sonde.Run, list[Tensor]]:
    """Record a layer whose outputs span many magnitudes; return the run and the outputs step by step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    outputs = []
    with sonde.watch(model, optimizer, every=1, to=to, verbose=False, bad_steps=None, lenses=lenses) as inspector:
        for size in sizes:
            x = size * torch.randn(64, 8) * 2.0 ** torch.randint(-20, 1, (64, 8))
            x[0, 0] = 0.0
            outputs.append(x)
            model(x).mean().backward()
            optimizer.step()
    return inspector.run, outputs


def lost(x: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Return the shares of values beyond the format, by the halfway to the next number it would have, and of those cast to 0."""
    largest = torch.finfo(dtype).max
    step = largest - float(torch.nextafter(torch.tensor(largest), torch.tensor(0.0))) if dtype.itemsize > 2 else _last_step(dtype)
    over = x.abs() >= largest + step / 2 if dtype != torch.float8_e4m3fn else x.abs() > largest + step / 2  # a tie goes to even
    zero = (x != 0) & (x.to(dtype).float() == 0)
    return over.double().mean().item(), zero.double().mean().item()


def _last_step(dtype: torch.dtype) -> float:
    """Return the distance between the two largest numbers of the format."""
    info = torch.finfo(dtype)
    return 2.0 ** torch.tensor(info.max).double().log2().floor().item() * info.eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_shares_are_those_of_a_cast(dtype: torch.dtype) -> None:
    run, outputs = recorded("memory", [1.0, 300.0, 1e4], lens.exponents("output"))
    found = sonde.check(run, what_if=dtype, rules=False)
    worst = max(outputs, key=lambda x: sum(lost(x, dtype)))
    [each] = [each for each in found.would_lose if each.site == "0:output"]
    assert (each.overflow, each.underflow) == pytest.approx(lost(worst, dtype))
    assert torch.equal(outputs[each.step], worst)
    power = torch.tensor(torch.finfo(dtype).max).double().log2().floor() - worst.abs().max().double().log2().ceil()
    fits = worst.double() * 2.0**power
    assert fits.abs().max() <= torch.finfo(dtype).max
    assert each.underflow_scaled == pytest.approx(lost(fits.float(), dtype)[1])


def test_the_limits_are_those_of_the_statistic() -> None:
    from sonde.run import what_if

    assert {each.short: each.zero for each in FORMATS} == UNDERFLOW
    assert {each.short for each in FORMATS} == set(OVERFLOW)
    assert (what_if._FIRST_POWER, HIGHEST - LOWEST + 1) == (LOWEST, 278)


def test_a_format_that_loses_is_a_finding_with_the_worst_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = recorded(tmp_path / "run", [1.0, 1e4], lens.exponents("output"))
    checked = sonde.check(run, what_if="e4m3")
    found, worst = {each.rule: each for each in checked.findings}, max(checked.would_lose, key=lambda each: each.overflow)
    assert (found["would_overflow"].site, found["would_overflow"].step) == (worst.site, worst.step) == (worst.site, 1)
    assert "would overflow in float8_e4m3fn" in found["would_overflow"].message
    assert "would_overflow" not in {
        each.rule for each in sonde.check(run, what_if="e4m3", rules={"would_overflow": {"most": 1.0}}).findings
    }
    assert main(["check", str(tmp_path / "run"), "--what-if", "float8_e4m3fn"]) == 1
    assert "in float8_e4m3fn, of 2 places:" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "run"), "--what-if", "bf16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would_lose"][0]["underflow"] == 0


def test_a_run_without_the_lens_and_a_format_that_there_is_not() -> None:
    run, _ = recorded("memory", [1.0], lens.moments())
    found = sonde.check(run, what_if="float16")
    assert found.would_lose == ()
    assert "what_if=float16: needs underflow_fp16 of output (the lens exponents())" in repr(found)
    with pytest.raises(ArgumentError, match="Nearest: float8_e4m3fn"):
        format_of("float8_e4m3")


def test_a_step_without_finite_values_is_not_the_worst() -> None:
    run, _ = recorded("memory", [1.0, float("inf")], lens.exponents("output"))
    assert {each.step for each in sonde.check(run, what_if="float16").would_lose} == {0}
