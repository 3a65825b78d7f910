"""Every example runs as a script, and the FLOP counter counts all operations."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = Path(__file__).parent.parent / "examples"
FOUND = {
    "first_day_lightning.py": "dead (features.4:output)",
    "first_day_loop.py": "gradient_cleared (0.weight:param)",
    "first_day_trainer.py": "frozen (model.layers.1.",
}
"""The planted mistakes of the first days: what the first training of each prints, and the second does not."""


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    """In an empty folder, without arguments, within two minutes, and it prints something."""
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if mistake := FOUND.get(path.name):
        (first,) = re.findall(r"^first: (?:warn|bad) .*", done.stdout, re.MULTILINE)
        (mended,) = re.findall(r"^mended: (?:ok|note).*", done.stdout, re.MULTILINE)
        assert mistake in first
        assert mistake not in mended


# examples/flops.py


@pytest.fixture(scope="module")
def counter() -> Any:
    """Return the class of the example."""
    spec = importlib.util.spec_from_file_location("flops", EXAMPLES / "flops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FlopCounter


def counts(counter: Any, model: nn.Module, *args: Tensor) -> dict[str, dict[str, int]]:
    """Return the example's counts of one step."""
    with counter() as found:
        model(*args).sum().backward()
    return {name: dict(held) for name, held in found.counts.items()}


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.a(x) + self.b(x)


def test_branches_from_an_input_without_gradient(counter: Any) -> None:
    """Torch's counter is wrong here. Each layer has 2 x 4 x 8 x 8 operations forward, and as many backward, for its weight."""
    model, x = Branches(), torch.randn(4, 8)
    each = {"forward": 512, "backward": 512}
    both = {"forward": 1024, "backward": 1024}
    assert counts(counter, model, x) == {"Global": both, "Branches": both, "Branches.a": each, "Branches.b": each}
    with FlopCounterMode(display=False) as theirs:
        model(x).sum().backward()
    assert {name: sum(held.values()) for name, held in theirs.get_flop_counts().items()} == {
        "Global": 2048,
        "Branches": 2048,
        "Branches.a": 1024,
        "Branches.b": 1536,  # wrong: the reason for the example
    }


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 4), nn.Tanh())), (4, 8)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 2)), (2, 3, 8, 8)),
    ],
    ids=["mlp", "convolutions"],
)
def test_every_module_equals_torchs_counter_where_that_is_right(counter: Any, model: nn.Module, shape: tuple[int, ...]) -> None:
    """A chain from an input that needs a gradient: the same number for every module."""
    x = torch.randn(shape, requires_grad=True)
    with FlopCounterMode(display=False) as theirs:
        model(x).sum().backward()
    ours = {name: sum(held.values()) for name, held in counts(counter, model, x).items()}
    assert ours == {name: sum(held.values()) for name, held in theirs.get_flop_counts().items()}
    assert len(ours) > 3


def test_attention_on_a_cpu_is_counted(counter: Any) -> None:
    """Two products of (heads, time, width) with (heads, width, time) and back: 2 x 2 x 3 x 5 x 5 x 7, 0 for torch 2.13."""

    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 3, 5, 7, requires_grad=True)
    found = counts(counter, Attention(), x)["Attention"]
    assert found["forward"] == 2 * 2 * 3 * 5 * 5 * 7
    assert found["backward"] == found["forward"] // 2 * 5  # the scores again, and two products for each of the two
    with FlopCounterMode(display=False) as theirs:
        Attention()(x).sum().backward()
    assert theirs.get_total_flops() in (0, found["forward"] + found["backward"])  # a later torch counts them, too


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_repeats_has_a_column_of_its_own(counter: Any, reentrant: bool) -> None:
    """Forward, the same again, and twice that backward."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh())

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.part, x, use_reentrant=reentrant)

    found = counts(counter, Checkpointed(), torch.randn(4, 8, requires_grad=True))
    assert found["Checkpointed.part.0"] == {"forward": 512, "recompute": 512, "backward": 1024}


def test_the_table_of_the_example(counter: Any) -> None:
    """One line for each module that computes, children below their parents."""
    with counter() as found:
        Branches()(torch.randn(4, 8)).sum().backward()
    assert str(found).splitlines() == [
        "                                     forward   recompute    backward   share",
        "Global                                 1,024           0       1,024  100.0%",
        "Branches                               1,024           0       1,024  100.0%",
        "  a                                      512           0         512   50.0%",
        "  b                                      512           0         512   50.0%",
    ]
