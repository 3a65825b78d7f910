"""Test sonde on the accelerator of this machine, measure what it costs there, and write one page to send back: ``make gpu``."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from benchmarks.accelerator.costs import Cost, costs
from benchmarks.accelerator.page import Outcome, outcomes, page

import sonde

ROOT = Path(__file__).parents[2]
NOTHING_TO_TEST = 2
"""The exit code where torch finds no accelerator: nothing was tested, so that no script takes it for a success."""


def machine(device: torch.device) -> dict[str, str]:
    """Return what this runs on: the device, torch and what it was built for, Python, and the state of the project."""
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", lambda: device.type)()
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    state = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": f"{torch.accelerator.device_count()} x {name} ({device.type})",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, HIP {torch.version.hip}",
        "sonde": f"{sonde.__version__} {state}".strip(),
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "processor": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def missing() -> str:
    """Return what was found instead of an accelerator, and what to do."""
    built = torch.version.cuda or torch.version.hip
    nodes = sorted(str(path) for pattern in ("nvidia[0-9]*", "kfd", "accel/*") for path in Path("/dev").glob(pattern))
    if built is None:
        do = (
            f"this torch ({torch.__version__}) is built for the CPU alone. Install a build for the device in "
            f"{sys.prefix}, by the command that https://pytorch.org/get-started/locally names, and run make gpu again"
        )
    elif nodes:
        do = f"this torch ({torch.__version__}) is built for {built}, and cannot use {', '.join(nodes)}: compare the driver"
    else:
        do = f"this torch ({torch.__version__}) is built for {built}, and the system shows no device: run make gpu where one is"
    seen = f"The system shows {', '.join(nodes)}. " if nodes else ""
    return (
        f"torch finds no accelerator: torch.accelerator.is_available() is False. {seen}Nothing was tested: {do}. For a "
        "device whose torch backend is a package of its own: python -m benchmarks.accelerator --backend PACKAGE"
    )


def test(where: list[str], plugins: list[str]) -> list[Outcome]:
    """Run the tests marked ``gpu``, the situations among them; return what became of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        # so that products on several streams have the same bits each time
        settings = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        command = [sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={report}", "-q", "-rfs"]
        subprocess.run([*command, *plugins, *where], cwd=ROOT, env=settings, check=False)
        if not report.exists():
            return [Outcome("pytest", "failed", 0.0, "pytest itself has failed: what it said is above")]
        return outcomes(report)


def measure(device: torch.device, rounds: int) -> tuple[list[Cost], str]:
    """Return the costs, or none and why they could not be measured."""
    if not rounds:
        return [], "Costs were not asked for."
    try:
        return costs(device, rounds), ""
    except Exception:
        return [], f"The costs could not be measured.\n\n````text\n{traceback.format_exc()}````"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all tests passed, 1 if one failed or no cost was measured, 2 if there is nothing to test."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--backend", metavar="MODULE", help="a module that brings the device to torch; imported first")
    parser.add_argument("--to", type=Path, default=ROOT / "gpu-results.md", help="the page (default: gpu-results.md)")
    parser.add_argument(
        "--rounds", type=int, default=15, help="in which each way is timed (default: 15); with 0 no cost is measured"
    )
    parser.add_argument("tests", nargs="*", default=["tests"], help="where tests are looked for (default: tests)")
    options = parser.parse_args(arguments)
    if options.backend:
        importlib.import_module(options.backend)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        print(missing(), file=sys.stderr)
        return NOTHING_TO_TEST
    tests = test(options.tests, ["-p", options.backend] if options.backend else [])
    found, note = measure(device, options.rounds)
    options.to.write_text(page(machine(device), found, tests, note), encoding="utf-8")
    failed = sum(each.outcome == "failed" for each in tests)
    print(f"{len(tests)} tests, {failed} failed; {len(found)} costs. The page to send back: {options.to}")
    return 1 if failed or not tests or (options.rounds and not found) else 0


if __name__ == "__main__":
    sys.exit(main())
