"""``make gpu`` counts right, writes a page that says everything, and says what to do where there is no accelerator."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import trace
from benchmarks.accelerator.costs import Cost
from benchmarks.accelerator.page import Outcome, outcomes, page

ROOT = Path(__file__).parents[2]
FAKE = "tests.accelerator.fake"


def event(name: str, category: str, thread: int, start: float = 0, length: float = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "tid": thread, "ts": start, "dur": length}


def test_launches_and_waits_of_all_threads_but_the_writing_one_are_counted() -> None:
    """Gradients are looked at in a thread of torch's; memory that is copied without waiting is no wait."""
    runtime = [
        event("cudaLaunchKernel", "cuda_runtime", 1),
        event("cuLaunchKernelEx", "cuda_driver", 2),
        event("cudaGraphLaunch", "cuda_runtime", 1),
        event("cudaMemcpyAsync", "cuda_runtime", 1),
        event("cudaStreamSynchronize", "cuda_runtime", 1),
        event("cudaStreamWaitEvent", "cuda_runtime", 1),
        event("cudaEventSynchronize", "cuda_runtime", 3),
        event("cudaFuncGetAttributes", "cuda_runtime", 1),
        event("a kernel", "kernel", 7),
        event("aten::add", "cpu_op", 1),
        {"ph": "f", "name": "cudaLaunchKernel", "cat": "ac2g", "tid": 1},
    ]
    assert trace.counts(runtime, others={3}) == trace.Counts(3, 1, "kernels")
    assert trace.counts(runtime).waits == 2


def test_of_a_device_whose_calls_the_profiler_does_not_see_innermost_operators_are_counted() -> None:
    operators = [
        event("aten::linear", "cpu_op", 1, 0, 10),
        event("aten::t", "cpu_op", 1, 1, 2),
        event("aten::addmm", "cpu_op", 1, 4, 5),
        event("aten::item", "cpu_op", 1, 20, 5),
        event("aten::_local_scalar_dense", "cpu_op", 1, 21, 2),
        event("aten::add", "cpu_op", 2, 4, 1),
        event("aten::item", "cpu_op", 3, 4, 1),
    ]
    assert trace.counts(operators, others={3}) == trace.Counts(4, 1, "operators")


def test_what_a_step_on_the_cpu_does_is_found_in_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of an event is that which Python names, so that the writing one can be left out."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    x = torch.ones(3)
    events = trace.profiled(lambda: (x + x).sum().item())
    found = trace.counts(events)
    assert found.launches >= 3
    assert (found.waits, found.unit) == (1, "operators")
    assert trace.counts(events, others={threading.get_native_id()}) == trace.Counts(0, 0, "operators")


def test_the_page_has_the_machine_each_cost_with_its_goal_and_each_test(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(
        """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one[x|y]" time="0.5"/>
<testcase classname="tests.a" name="test_two" time="1"><failure message="it broke&#10;here">the whole story</failure></testcase>
<testcase classname="tests.b" name="test_three" time="0"><skipped message="two accelerators of one kind">x</skipped></testcase>
</testsuite></testsuites>"""
    )
    found = outcomes(tmp_path / "tests.xml")
    assert [(each.outcome, each.why) for each in found] == [
        ("passed", ""),
        ("failed", "it broke"),
        ("skipped", "two accelerators of one kind"),
    ]
    text = page(
        {"device": "1 x a GPU", "torch": "2"},
        [Cost("waits", 0, 0, "waits"), Cost("host time", 31.25, 25, "us"), Cost("a bare step", 2, None, "ms")],
        found,
    )
    assert "1 tests passed, 1 failed, 1 were skipped; 1 of 2 costs meet their goals." in text
    for line in (
        "| device | 1 x a GPU |",
        "| waits | 0 waits | <= 0 | met |",
        "| host time | 31.25 us | <= 25 | missed |",
        "| a bare step | 2 ms |  |  |",
        "| passed | `tests.a::test_one[x\\|y]` | 0.5 |  |",
        "| skipped | `tests.b::test_three` | 0.0 | two accelerators of one kind |",
        "### tests.a::test_two",
        "the whole story",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize("built", [None, "13.0"])
def test_without_an_accelerator_it_says_what_it_found_and_what_to_do(
    built: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the exit code 2, so that no script takes it for a success, and no page."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    assert command.main(["--to", str(tmp_path / "page.md")]) == 2
    said = capsys.readouterr().err
    assert "torch finds no accelerator" in said
    assert torch.__version__ in said
    assert ("built for the CPU alone" if built is None else "built for 13.0") in said
    assert not (tmp_path / "page.md").exists()


def test_costs_that_cannot_be_measured_are_said_and_lose_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device, rounds: int) -> list[Cost]:
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(command, "costs", broken)
    found, note = command.measure(torch.device("cpu"), 1)
    assert found == []
    assert "RuntimeError: no profiler here" in note
    assert note in page({}, found, [Outcome("tests.a::test_one", "passed", 1.0)], note)


@pytest.mark.slow
def test_on_a_device_the_command_runs_its_tests_and_writes_the_page(tmp_path: Path) -> None:
    """On one that torch's accelerator names and that is none of those that torch knows."""
    asked = ["--backend", FAKE, "--rounds", "0", "--to", str(tmp_path / "page.md")]
    where = [
        "tests/accelerator",
        "tests/inspector/sentinel/test_later.py",
        "tests/cli/test_doctor.py",
        "tests/stats/test_native.py",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.accelerator", *asked, *where], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert " 0 failed" in text
    assert "| device | 1 x a fake device over the memory of the CPU (fake) |" in text
    for name in ("eager", "by_default", "scaled", "aot_eager", "side_stream", "two_streams", "host_and_device"):
        assert re.search(rf"^\| passed \| `tests.accelerator.test_matrix::\w+\[{name}-accelerator\]`", text, re.MULTILINE)
    assert "CUDA graphs need a device of CUDA" in text
    assert "Costs were not asked for." in text


PROGRAM = f"""
import {FAKE}, torch
from torch import nn
from benchmarks.accelerator import costs
costs.WARM_UP, costs.STEPS = 3, 2
small = lambda: (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4))
for cost in costs.costs(torch.device("fake"), 1, {{"small": small}}):
    print(cost.what, cost.value, cost.unit, sep="|")
"""


@pytest.mark.slow
def test_on_a_device_nothing_waits_for_it_and_each_cost_is_measured() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    found = {
        what: (float(value), unit) for what, value, unit in (line.split("|") for line in ran.stdout.splitlines() if "|" in line)
    }
    assert found["small: tensors that a logged step observes"] == (
        10.0,
        "tensors",
    )  # two layers and their gradients, weight and bias
    assert found["small: waits for the device in a logged step"] == (0.0, "waits")
    assert found["small: the same where no step is logged"] == (0.0, "waits")
    assert found["small: launches for each tensor"][0] > 0
    assert len(found) == 10
