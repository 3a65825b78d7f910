"""Optimizers that alternate: a lens that looks at few of the logged steps looks at those of each optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.quick import quick
from torch import nn

from sonde import lens
from sonde.errors import ObservationWarning
from sonde.inspector import watch
from sonde.schedule import Warmup


class Parts(nn.Module):
    """Parts that are trained apart, in one root."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abc":
            self.add_module(name, nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)))

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.get_submodule(name)(x)  # type: ignore[no-any-return]


def looked_at(
    pattern: str, steps: int, resumed: str | None = None, **how: Any
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return by part its logged steps, and those of them that the lens looked at; the numbers are those of a twin by hand."""
    model = Parts()
    made: list[str] = []
    deaths: dict[int, float] = {}
    optimizers = {name: torch.optim.SGD(model.get_submodule(name).parameters(), lr=0.01) for name in "abc"}
    lenses = [lens.moments(), lens.OutputActivation(one_in=how.pop("one_in"), dropout=False)]
    first = 0 if resumed is None else steps
    run: dict[str, Any] = {"to": "memory"} if resumed is None else {"to": resumed, "exists": "resume"}
    with watch(model, verbose=False, lenses=lenses, **run, **how) as inspector:
        for step, name in enumerate(pattern * (steps // len(pattern)), first):
            x = torch.randn(5, 4)
            with torch.no_grad():
                deaths[step] = (model.get_submodule(name)[0](x) <= 0).double().mean(0).eq(1).double().mean().item()
            optimizers[name].zero_grad()
            model(x, name).square().mean().backward()
            optimizers[name].step()
            made.append(name)
    logged = [step for (step,) in inspector.run.sql("SELECT DISTINCT step FROM moments ORDER BY step").fetchall() if step >= first]
    found: dict[str, list[int]] = {}
    for step, site, death in inspector.run.sql("SELECT step, site, call_death FROM activation ORDER BY step").fetchall():
        if step >= first and death is not None:
            assert site == f"{made[step - first]}.1:output"
            assert death == pytest.approx(deaths[step])
            found.setdefault(made[step - first], []).append(step)
    return {name: [step for step in logged if made[step - first] == name] for name in set(pattern)}, found


QUICK: list[tuple[str, Any, int]] = [
    ("ab", 1, 4),
    ("ab", 1, 10),
    ("aaab", 1, 4),
    ("ab", Warmup(10, then=3), 4),
    ("ab", lambda tick: tick.step % 3 != 1, 2),
    ("a", 3, 4),
]
OTHERS: list[tuple[str, Any, int]] = [("ab", 2, 3), ("abc", 1, 3), ("abaab", 1, 5), ("ab", range(120), 4), ("a", 1, 4)]


@pytest.mark.parametrize(("pattern", "every", "one_in"), quick(QUICK + OTHERS, *QUICK))
def test_one_in_so_many_logged_steps_of_each_optimizer_is_looked_at(pattern: str, every: Any, one_in: int) -> None:
    """From the second or third round on, where the order is known, those whose number among its own n divides."""
    logged, found = looked_at(pattern, 120, every=every, one_in=one_in)
    for name in set(pattern):
        places = [logged[name].index(step) for step in found[name]]
        assert places[0] <= 1
        assert set(range(len(logged[name]))[::one_in]) - {0} <= set(places)
        rounds = 3 * pattern.count(name)
        assert [place for place in places if place >= rounds and place % one_in] == []


@pytest.mark.slow
def test_after_a_resume_each_optimizer_is_looked_at_again(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, every=1, to=path, verbose=False, lenses=[lens.moments()]):
        for _ in range(40):
            model(torch.randn(5, 4), "a").square().mean().backward()
            optimizer.step()
    logged, found = looked_at("ab", 40, resumed=path, every=1, one_in=4)
    for name in "ab":
        assert set(logged[name][4::4]) <= set(found[name])


def test_a_second_decision_about_a_step_counts_no_logged_step() -> None:
    """An epoch that ends between two logged steps leaves one in three of them."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lenses = [lens.moments(), lens.OutputActivation(one_in=3, dropout=False)]
    with watch(model, every=lambda tick: True, to="memory", verbose=False, lenses=lenses) as inspector:
        for step in range(12):
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            if step % 2:
                inspector.tick_epoch()
    assert inspector.run.series("1:output", "call_death")[0].tolist() == [0, 3, 6, 9]


def test_a_model_whose_parts_are_called_by_themselves_is_watched_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Two critics in a list that nobody calls, which rest while an actor steps, at steps that are logged now and then."""
    torch.manual_seed(0)
    actor, critics = nn.Linear(4, 2), nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
    optimizers = [torch.optim.Adam(each.parameters(), 1e-3) for each in (actor, critics)]
    with watch({"actor": actor, "critic": critics}, optimizers, to="memory", verbose=False) as inspector:
        for _ in range(120):
            x = torch.randn(16, 4)
            for optimizer, is_critic in zip(optimizers[::-1], (True, False), strict=True):
                critics.requires_grad_(is_critic)
                optimizer.zero_grad()
                made = torch.stack([each(torch.cat([x, actor(x)], -1)) for each in critics])
                (made.square().mean() if is_critic else -made.mean()).backward()
                optimizer.step()
    assert not inspector.errors
    assert not [each for each in recwarn if issubclass(each.category, ObservationWarning)]
