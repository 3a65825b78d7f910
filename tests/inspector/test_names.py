"""Modules may have any name: the columns of a run hold that name, and every lookup takes it as it takes the text of the site."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import SiteError
from sonde.site import Site

NAMES = [
    "with space",
    "a:output",
    "x/y",
    "%d",
    "[0]",
    "weight:grad",
    "(root)",
    "\n",
    "\0",
    "it's",
    '"q"',
    "\u03b1",
    "a:grad_output[0]",
]
KEYS = ["a b", 0, "0", "c.d", "e:f", "n\nl", "it's", '"', "]", None, 1.5, "", ("t", 1)]


class Odd(nn.Module):
    """Calls a linear layer under each of ``NAMES``, and ends with a dictionary of ``KEYS``."""

    def __init__(self) -> None:
        super().__init__()
        self.d = nn.ModuleDict({name: nn.Linear(2, 2) for name in NAMES})

    def forward(self, x: Tensor) -> dict[object, Tensor]:
        for module in self.d.values():
            x = module(x)
        return {key: x * factor for factor, key in enumerate(KEYS, 1)}


def sizes(model: nn.Module, x: Tensor) -> dict[str, float]:
    """The root mean square of the output of each module but the root, by plain torch."""
    found: dict[str, float] = {}
    for name, module in model.d.named_children():  # type: ignore[union-attr]  # a ModuleDict
        x = module(x)
        found[f"d.{name}"] = x.detach().double().square().mean().sqrt().item()
    return found


def loss(out: dict[object, Tensor]) -> Tensor:
    return torch.stack([each.sum() for each in out.values()]).sum()


@pytest.fixture(params=["memory", "disk"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[nn.Module, Tensor, sonde.Run]:
    torch.manual_seed(0)
    model, x = Odd(), torch.randn(3, 2)
    to = "memory" if request.param == "memory" else tmp_path / "run"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with sonde.watch(model, optimizer, every=1, to=to, verbose=False) as inspector:
        loss(model(x)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert inspector.run is not None
    return model, x, inspector.run


def test_the_columns_of_a_run_hold_the_names_of_the_model_and_series_takes_them(run: tuple[nn.Module, Tensor, sonde.Run]) -> None:
    """``layer`` is the name in ``named_modules()``, of a parameter that of its module; nothing finds another's rows."""
    model, x, kept = run
    rows = "SELECT layer, avg(rms) FROM moments WHERE port = 'output' AND layer <> '' GROUP BY layer"
    assert dict(kept.sql(rows).fetchall()) == pytest.approx(sizes(model, x))
    assert {layer for (layer,) in kept.sql("SELECT layer FROM moments").fetchall()} == {*sizes(model, x), ""}
    for name, size in sizes(model, x).items():
        for asked in (name, f"{name}:output", str(Site(name)), Site(name)):
            assert kept.series(asked, "rms", family="moments")[1].tolist() == pytest.approx([size])
        assert len(kept.series(f"{name}.weight:grad", "rms", family="moments")[1]) == 1
    parts = [kept.series(Site("", "output", leaf), "rms", family="moments")[1][0] for leaf in leaves()]
    assert np.array(parts) / parts[0] == pytest.approx(np.arange(1, len(KEYS) + 1))


def leaves() -> list[str]:
    return [f"[{key!r}]" for key in KEYS]


def test_a_tracker_a_recorder_and_a_store_take_the_names_of_the_model(tmp_path: Path) -> None:
    """A name, with a port or without one, and the site's text find the module's own tensors."""
    torch.manual_seed(0)
    model, x = Odd(), torch.randn(3, 2)
    recorder = sonde.recorders.ForwardOutput().modules(model)
    with sonde.track(model) as tracker:
        loss(model(x)).backward()  # type: ignore[no-untyped-call]
    recorder.detach()
    tracker.save(tmp_path / "kept")
    store = sonde.open_tensors(tmp_path / "kept")
    for name, module in model.d.named_children():
        path = f"d.{name}"
        x = module(x)
        for asked in (path, f"{path}:output", str(Site(path)), Site(path)):
            assert tracker[asked][0].name == path
            for value in (tracker[asked][0].value, recorder[asked][0], store.at(asked)[0]):
                assert torch.equal(value, x)
            assert asked in recorder
        assert [(stash.name, stash.grad) for stash in tracker[f"{path}:grad_output"]] == [(path, True)]
    for factor, leaf in enumerate(leaves(), 1):
        assert torch.equal(recorder[f"(root):output{leaf}"][0], x * factor)
        assert len(tracker[f"(root):output{leaf}"]) == 1


def test_a_name_that_is_also_the_site_of_another_module_raises_and_a_site_finds_each() -> None:
    """``a:output`` is a module, and the output of the module ``a``."""
    model = nn.Sequential()
    for name in ("a", "a:output"):
        model.add_module(name, nn.Linear(2, 2))
    recorder, optimizer = sonde.recorders.ForwardOutput().modules(model), torch.optim.SGD(model.parameters(), lr=0.0)
    with sonde.track(model, grad=False) as tracker, sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    recorder.detach()
    kept = inspector.run
    assert kept is not None
    lookups: list[Callable[[str | Site], Any]] = [tracker.__getitem__, recorder.__getitem__, partial(kept.series, number="norm")]
    for look in lookups:
        with pytest.raises(SiteError, match=r"can mean a.*:output and a.*:output, .*Site\('a', 'output'\)"):
            look("a:output")
        for name in ("a", "a:output"):
            look(Site(name))
    assert [stash.name for stash in tracker[Site("a:output")]] == ["a:output"]
