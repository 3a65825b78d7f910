"""A whole training on disk: a hundred damaged files, and 15 kills. What is read is right, or somebody says that it is not.

With ``--hypothesis-profile=search``, which looks for others, a thousand and 45: a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde import lens
from sonde.errors import NonFiniteError, ObservationWarning, SondeError
from sonde.run import RunFolder, open_run

BAD = 6  # the step with a NaN


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def batch(step: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(step))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that a NaN has stopped, with the kept step, the graph and findings; and the store of a tracker. No test changes it."""
    top = tmp_path_factory.mktemp("made")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = sonde.watch(model, optimizer, every=1, to=top / "run", lenses=lens.moments(), bad_steps="stop", verbose=False)
    with contextlib.suppress(NonFiniteError), watched:
        for step in range(BAD + 1):
            optimizer.zero_grad()
            (model(batch(step)).square().mean() * (float("nan") if step == BAD else 1.0)).backward()
            optimizer.step()
    model = network()
    with sonde.track(model) as tracker:
        model(batch(0)).sum().backward()
    tracker.save(top / "store")
    assert len([path for path in top.rglob("*") if path.is_file()]) > 11
    return top


def answers(top: Path) -> tuple[dict[str, Any], bool]:
    """The answer to each question, or the error, and whether a warning was given. No foreign error."""

    def of_store(store: Any) -> list[Any]:
        return [store.records, *((key, store[key].tolist()) for key in store)]

    (step,) = list((top / "run" / "nonfinite").glob("step-*")) or [top / "run" / "nonfinite" / "none"]
    run = top / "run"
    asked: dict[str, Callable[[], Any]] = {
        **{f"rows of {name}": lambda name=name: open_run(run).table(name).to_pylist() for name in ("moments", "scalars")},
        "norms": lambda: list(open_run(run).scalar("grad_norm")[1]),
        "findings": lambda: [each.message for each in open_run(run).findings],
        "coverage": lambda: open_run(run).coverage,
        "info": lambda: dict(open_run(run).info),
        "end": lambda: open_run(run).end,
        "list": lambda: repr(RunFolder(run).kept_summary or open_run(run).summary),
        "check": lambda: [each.message for each in sonde.check(run).findings],
        "step": lambda: _facts(sonde.replay(step, network(), lambda output: output.square().mean() * float("nan"))),
        "store": lambda: of_store(sonde.open_tensors(top / "store")),
    }
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name, question in asked.items():
            try:
                found[name] = question()
            except SondeError as error:
                found[name] = error
    assert {warning.category for warning in said} <= {ObservationWarning}
    return found, bool(said)


def _facts(report: Any) -> Any:
    return report.operation, [(each.site, each.message) for each in report.findings], report.notes


Harm = Callable[[bytearray, bytes, random.Random], bytes]
"""From the bytes of a file, those of another one, and chance, to what a bad disk or copy makes of them."""


def torn(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """A page of the disk that was never written."""
    size = chance.choice((64, 512, 4096))
    at = chance.randrange(0, len(data), size)
    data[at : at + size] = bytes(len(data[at : at + size]))
    return bytes(data)


def crossed(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """A page of another file."""
    size = chance.choice((64, 512, 4096))
    at = chance.randrange(0, len(data), size)
    data[at : at + size] = other[at : at + size] or b"?" * len(data[at : at + size])
    return bytes(data)


def rotated(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """Pages in another order."""
    at = chance.randrange(1, len(data))
    return bytes(data[at:] + data[:at])


def doubled(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """A page written twice, the end pushed off."""
    at = chance.randrange(len(data))
    return bytes((data[:at] + data[max(0, at - 100) : at] + data[at:])[: len(data)])


def flipped(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """A bit, or many side by side."""
    at = chance.randrange(len(data))
    for place in range(at, min(len(data), at + chance.choice((1, 1, 1, 9)))):
        data[place] ^= 1 << chance.randrange(8)
    return bytes(data)


def shortened(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """Cut at a page, or anywhere; or empty."""
    return bytes(data[: chance.choice((0, chance.randrange(len(data)), len(data) // 512 * 512, len(data) - 1))])


def exchanged(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """Another file under this name."""
    return other


def edited(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """A digit typed over."""
    digits = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    place = chance.choice(digits or [0])
    data[place : place + 1] = str(chance.randrange(10)).encode()
    return bytes(data)


HARMS: tuple[Harm, ...] = (torn, crossed, rotated, doubled, flipped, shortened, exchanged, edited)
TEXTS = (".txt", ".py")  # for people: nothing reads them again
SEARCHES = hypothesis.settings.get_current_profile_name() == "search"
UNNEEDED = ("graph.json", "summary.json")  # no question here needs the first, and the second is made anew where it is damaged


def attack(made: Path, folder: Path, variants: int, seed: int) -> None:
    chance = random.Random(seed)
    right, warned = answers(made)
    assert not warned
    assert not [answer for answer in right.values() if isinstance(answer, SondeError)]
    seen = 0
    for number in range(variants):
        top = Path(shutil.copytree(made, folder / "harmed"))
        every = (path for path in top.rglob("*") if path.is_file())
        files = sorted(path for path in every if path.name[0] != "." and path.suffix not in TEXTS)
        file, other = chance.sample(files, 2)
        whole, harm = file.read_bytes(), chance.choice(HARMS)
        damaged = harm(bytearray(whole), other.read_bytes(), chance)
        file.write_bytes(damaged)
        what = f"variant {number}: {file.relative_to(top)}, {harm.__name__}"
        try:
            found, warned = answers(top)
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        wrong = [name for name, answer in found.items() if answer != right[name] and not isinstance(answer, SondeError)]
        assert not wrong or warned, f"{what}: {wrong} changed silently"
        noticed = warned or any(isinstance(answer, SondeError) for answer in found.values())
        assert noticed or damaged == whole or file.name in UNNEEDED, f"{what}: nothing was noticed"
        seen += noticed
        shutil.rmtree(top)
    assert seen > 0.8 * variants


@pytest.mark.slow
def test_damage_to_a_training_is_never_silent(made: Path, tmp_path: Path) -> None:
    attack(made, tmp_path, 8, seed=26)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10 if SEARCHES else 1))  # each on a core of its own, where there are some
def test_hundreds_of_damaged_files_of_trainings(made: Path, tmp_path: Path, hundred: int) -> None:
    attack(made, tmp_path, 100, seed=1_000_003 + hundred)


# Kills

NURSERY = """
import os, random, signal, sys, time
from pathlib import Path
import torch, sonde
from sonde import lens
from sonde.run.store import disk_writer, open as opening
from tests.inspector.test_attacked import batch, network

opening.Flushing = lambda: disk_writer.Flushing(first=0.01, seconds=0.03, fan_in=3)
top, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)

def train(path, steps=100_000):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with sonde.watch(model, optimizer, every=1, to=path, lenses=lens.moments(), verbose=False) as inspector:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            inspector.push_metric("loss", loss.item())

train("memory", 3)  # which imports everything
for number in range(kills):
    wait = 0.02 + 1.2 * chance.random()
    child = os.fork()
    if child == 0:
        train(top / f"run-{seed}-{number}")
        os._exit(1)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def by_hand(steps: int) -> tuple[list[float], list[list[float]]]:
    """The losses of the training in plain torch, and of each layer the root mean square of its outputs."""
    model, losses, sizes = network(), [], [[], [], []]  # type: tuple[nn.Sequential, list[float], list[list[float]]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        x = batch(step)
        for layer, size in zip(model, sizes, strict=True):
            x = layer(x)
            size.append(x.detach().double().square().mean().sqrt().item())
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, sizes


@pytest.mark.slow
def test_trainings_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    """Each folder is read afterwards, each step is there once, without a gap, and each number is that of plain torch."""
    seeds = (11, 12, 13) if SEARCHES else (11,)
    for seed in seeds:
        subprocess.run([sys.executable, "-c", NURSERY, tmp_path, str(seed), "15"], check=True, timeout=170)
    runs = [open_run(path) for path in sorted(tmp_path.iterdir()) if (path / "run.json").exists()]
    assert len(runs) > 6 * len(seeds)  # some are killed before there is one
    told = [
        run for run in runs if "scalars" in run.families and run.sql("SELECT * FROM scalars WHERE name = 'loss' LIMIT 1").fetchall()
    ]
    rows = [(run, *run.scalar("loss")) for run in told]  # others are killed before the first loss, or between the rate and it
    losses, sizes = by_hand(max(len(steps) for _, steps, _ in rows) + 1_000)
    for run, steps, values in rows:
        assert run.state == "lost"
        assert steps.tolist() == list(range(len(steps)))
        assert values.tolist() == losses[: len(steps)]
        for number, layer in enumerate(sizes):
            logged, found = run.series(str(number), "rms")
            assert logged.tolist() == list(range(len(logged)))
            assert found.tolist() == pytest.approx(layer[: len(found)], rel=30 * 2.0**-24)  # at most 30 elements, added in float32
    assert sum(len(steps) for _, steps, _ in rows) > 100
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("run-")]
