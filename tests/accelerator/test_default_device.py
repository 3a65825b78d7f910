"""Torch can be told to make each new tensor on another device than the model's: what sonde makes lies where its values are needed.

Under ``torch.set_default_device("meta")`` a tensor that does not say its device has no values at all.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from torch import Tensor, distributed, nn
from torch.utils._device import _device_constructors

import sonde
from sonde import lens, recorders, stats

SOURCE = Path(sonde.__file__).parent
ON_THE_DEFAULT = {  # models and their inputs are made where the caller wants them; a command has its process to itself
    "testing/zoo.py",
    "testing/networks.py",
    "testing/values.py",
    "cli/demo.py",
    "cli/doctor.py",
}
CONSTRUCTORS = {function.__name__ for function in _device_constructors()}


def test_every_tensor_that_is_made_of_nothing_says_its_device() -> None:
    silent = [
        f"{path.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).as_posix() not in ON_THE_DEFAULT
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in CONSTRUCTORS
        if ast.unparse(call.func.value) == "torch" and not any(keyword.arg == "device" for keyword in call.keywords)
    ]
    assert silent == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.norm(self.first(x)).relu()))
        return out


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def batches(count: int = 4) -> list[Tensor]:
    drawn = torch.Generator("cpu").manual_seed(1)
    return [torch.randn(5, 4, generator=drawn, device="cpu") for _ in range(count)]


def watched(_: Path, model: Net) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    lenses = [*lens.default_lenses(model), lens.exponents("output")]
    with sonde.watch(model, optimizer, every=1, lenses=lenses, to="memory", verbose=False) as inspector:
        for x in batches():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    rows = [
        inspector.run.sql(f"SELECT site, step, {', '.join(names)} FROM {family} ORDER BY site, step").fetchall()
        for family, names in inspector.run.numbers.items()
    ]
    return repr(rows), [finding.rule for finding in sonde.check(inspector.run).findings]


def tracked(_: Path, model: Net) -> Any:
    with sonde.track(model) as tracker:
        model(batches()[0]).sum().backward()
    return str(tracker)


def measured(_: Path, model: Net) -> Any:
    found = []
    for statistic in (stats.Moments(), stats.Activation(), stats.ExponentHistogram(), stats.Norm()):
        numbers = stats.Accumulator(statistic)
        with sonde.observe(model, lambda event, into=numbers: into.update(event.value), ports="output"):
            model(batches()[0])
        found.append(repr(numbers.compute()))
    with sonde.observe(model, stats.Moments(), ports=("output", "grad_output", "grad_input")) as seen:
        model(batches()[0]).sum().backward()
    return found, repr(seen)


def captured(_: Path, model: Net) -> Any:
    graph = sonde.capture(model, batches()[0])
    return [(node.name, node.site, node.flops) for node in graph.nodes], graph.values


def counted(_: Path, model: Net) -> Any:
    return str(sonde.summary(model, batches()[0]))


def extracted(folder: Path, model: Net) -> Any:
    model.eval()
    store = sonde.extract(
        model,
        [{"x": x, "number": [float(row) for row in range(5)]} for x in batches()],
        r"^(first|head)$",
        folder / "store",
        columns=("number",),
        shard=300,
        progress=False,
    )
    return {name: store[name][:].tolist() for name in store}


def streamed(_: Path, model: Net) -> Any:
    model.eval()
    read = sonde.stream(model, batches(), r"^first$", rows=4, seed=3)
    return [{name: value.tolist() for name, value in rows.items()} for rows in read]


def explained(_: Path, model: Net) -> Any:
    with torch.no_grad():
        model.head.weight[1, 2] = float("inf")
    model.eval()
    return str(sonde.why_nan(model, batches()[0], lambda out: (out - out).sum()))


def started(_: Path, model: Net) -> Any:
    return str(sonde.preflight(model, batches()[0], lambda out: out.square().mean(), verbose=False))


def compared(_: Path, model: Net) -> Any:
    with torch.device("cpu"):
        other = made()
    with torch.no_grad():
        other.first.weight.copy_(model.first.weight.flip(0))
        other.first.bias.copy_(model.first.bias.flip(0))
    found = sonde.compare(model.eval(), other.eval(), batches()[0], verbose=False)
    return found.cause and found.cause.message


def kept(_: Path, model: Net) -> Any:
    recorder = recorders.ForwardOutput(recorders.reductions.Concatenate())
    recorder.modules(model)
    model(batches()[0])
    return repr([slot.value for slot in recorder.subrecorders])


VERBS = (watched, tracked, measured, captured, counted, extracted, streamed, explained, started, compared)


def joined(default: str | None) -> Any:
    """Train on each rank, and return the rows that the ranks have joined."""
    model = made()
    torch.set_default_device(default)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for x in batches():
            optimizer.zero_grad()
            model(x * (1 + distributed.get_rank())).square().mean().backward()
            optimizer.step()
    asked = "SELECT site, step, count, mean, rms FROM moments ORDER BY site, step"
    return inspector.run.sql(asked).fetchall() if distributed.get_rank() == 0 else None


@pytest.mark.slow
def test_ranks_join_the_same_rows_where_torch_makes_tensors_elsewhere() -> None:
    here, elsewhere = (values(on_ranks(2, joined, default))[0] for default in (None, "meta"))
    assert here
    assert here == elsewhere


@pytest.fixture
def elsewhere() -> Iterator[None]:
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_verb_says_the_same_where_torch_makes_tensors_elsewhere(verb: Callable[[Path, Net], Any], tmp_path: Path) -> None:
    models = made(), made()
    torch.manual_seed(2)
    expected = verb(tmp_path / "here", models[0])
    torch.manual_seed(2)
    torch.set_default_device("meta")
    assert verb(tmp_path / "elsewhere", models[1]) == expected
