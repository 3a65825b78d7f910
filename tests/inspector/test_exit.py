"""A script that ends without ``detach()`` keeps all that it recorded, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sonde.run.run import open_run

SCRIPT = """
import os, sys, threading
import torch, sonde

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inspector = sonde.watch(model, optimizer, every=1, to=sys.argv[1])

def train(steps):
    for _ in range(steps):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        inspector.push_metric("one", 1.0)

"""


def ended(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run the script with *code* at its end, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT + code, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("", 0, ""),
        pytest.param("sys.exit(3)", 3, "", marks=pytest.mark.slow),
        pytest.param("raise KeyError('the training failed')", 1, "the training failed", marks=pytest.mark.slow),
        pytest.param("import atexit; atexit.register(train, 0)", 0, "", marks=pytest.mark.slow),
        pytest.param("thread = threading.Thread(target=train, args=(5,)); thread.start()", 0, "", marks=pytest.mark.slow),
    ],
    ids=["end of the script", "sys.exit", "exception", "another exit function", "a thread that trains on"],
)
def test_a_script_that_does_not_detach_keeps_every_step(tmp_path: Path, end: str, code: int, error: str) -> None:
    """127 logged steps, the last ones not written yet: rows, norms, metrics, coverage, and the closing lines."""
    done = ended(tmp_path, f"train(127)\n{end}")
    steps = list(range(132 if "thread" in end else 127))
    assert done.returncode == code
    assert error in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("Error") == (1 if error else 0)
    run = open_run(tmp_path / "run")
    assert run.series("0", "rms")[0].tolist() == steps
    assert run.series("0.weight:grad", "norm")[0].tolist() == steps
    assert run.scalar("grad_norm")[0].tolist() == steps
    assert run.scalar("one")[0].tolist() == steps
    assert run.coverage["observed"] > 0
    assert run.state == ("failed" if error else "ended")
    assert (run.end.step, run.end.message) == (127, "'the training failed'") if error else run.end is None
    assert f"{len(steps)} of {len(steps)} steps logged" in done.stdout


@pytest.mark.slow
def test_a_visualizer_is_shown_the_whole_run_at_exit(tmp_path: Path) -> None:
    """As at the end of a ``with`` block."""
    done = ended(
        tmp_path, "inspector._training.destinations.visualizers.append(lambda run: print('shown', run.last_step))\ntrain(7)"
    )
    assert "shown 6\n" in done.stdout
    assert not done.stderr


@pytest.mark.slow
def test_a_forked_child_that_exits_ends_nothing(tmp_path: Path) -> None:
    """Its exit functions leave the parent's run alone."""
    done = ended(
        tmp_path,
        """
train(3)
import warnings
warnings.simplefilter("ignore")  # Python 3.12 on: of threads and fork
if (child := os.fork()) == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
train(3)
""",
    )
    assert not done.stderr
    assert open_run(tmp_path / "run").series("0", "rms")[0].tolist() == list(range(6))
    assert done.stdout.count("steps logged") == 1


@pytest.mark.slow
def test_an_end_that_is_interrupted_goes_on_until_the_run_is_whole(tmp_path: Path) -> None:
    """A second Ctrl-C ends the waiting for the thread that writes, not the writing: the end of the program waits for it."""
    done = ended(
        tmp_path,
        """
import signal, time
train(30)
training = inspector._training
write = training._write_ends

def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    write()

training._write_ends = interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
inspector.detach(KeyboardInterrupt())
""",
    )
    assert "KeyboardInterrupt" in done.stderr
    assert not any(word in done.stderr for word in ("Exception ignored", "terminate", "Warning"))
    run = open_run(tmp_path / "run")
    assert run.series("0", "rms")[0].tolist() == list(range(30))
    assert run.coverage["observed"] > 0
    assert run.state == "interrupted"
