"""``sonde doctor`` says what is so, and is useful where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest
import torch

from sonde import stats
from sonde.cli import doctor, main
from sonde.stats import Moments
from sonde.stats.kernels import fused, native


def printed(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> list[str]:
    """The lines of a report, without the folding of a narrow terminal."""
    assert main(["doctor", *options]) == code
    return capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def line_of(part: str, lines: list[str]) -> str:
    return next(line for line in lines if line.startswith(part))


def test_it_names_versions_kernels_and_extras(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each precision that a kernel reads."""
    lines = printed(capsys, "--no-compile")
    assert lines[0] == "sonde doctor"
    assert torch.__version__ in line_of("torch", lines)
    assert metadata.version("sonde") in line_of("sonde  ", lines)
    expected = "compiled" if native.kernel_status().level else "reference"
    for dtype in native.KINDS:
        assert "wrong" not in line_of(str(dtype).removeprefix("torch.") + " on the CPU", lines)
        assert expected in line_of(str(dtype).removeprefix("torch.") + " on the CPU", lines)
    assert "reference" in line_of("other tensors", lines)
    assert line_of("sonde[frame]", lines)
    assert not any(line.startswith(("sonde[all]", "torch.compile")) for line in lines)


def test_it_says_why_the_reference_is_used(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status = replace(native.kernel_status(), level="", reason="SONDE_KERNEL=reference")
    monkeypatch.setattr(stats, "kernel_status", lambda: status)
    line = line_of("float32", printed(capsys, "--no-compile"))
    assert "plain torch: SONDE_KERNEL=reference" in line


@pytest.mark.slow
def test_the_environment_may_ask_for_the_reference() -> None:
    """In a process of its own, which says so."""
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "doctor", "--no-compile"],
        env=os.environ | {"SONDE_KERNEL": "reference", "COLUMNS": "200"},
        timeout=120,
        check=True,
        capture_output=True,
        text=True,
    )
    reason = "SONDE_KERNEL=reference" if native.kernel_status().levels else "installed without compiled kernels"
    assert f"plain torch: {reason}" in done.stdout or f"plain torch: sonde was {reason}" in done.stdout


@pytest.mark.skipif(not native.kernel_status().levels, reason="this installation has no compiled kernels")
def test_a_kernel_that_gives_wrong_numbers_is_found_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed as in use has just been compared with the reference."""
    from sonde.stats.kernels import reference

    monkeypatch.setattr(reference, "moments", lambda values: torch.zeros(len(Moments().empty(1)[0]), dtype=torch.float64))
    line = line_of("float32", printed(capsys, "--no-compile", code=1))
    assert "wrong" in line
    assert "SONDE_KERNEL=reference" in line


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package that is not there, and how to get it."""
    version = metadata.version

    def without_pandas(package: str) -> str:
        if package == "pandas":
            raise metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(metadata, "version", without_pandas)
    lines = printed(capsys, "--no-compile")
    assert "missing: pandas" in line_of("sonde[frame]", lines)
    assert "pip install 'sonde[NAME]'" in lines[-1]


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of what it said."""

    def broken(measure: object) -> object:
        raise RuntimeError("no C++ here\nand a long story")

    monkeypatch.setattr(torch, "compile", broken)
    assert doctor._compiler()[1:3] == ("does not work", "RuntimeError: no C++ here")


@pytest.mark.slow
def test_the_compiler_is_tried(capsys: pytest.CaptureFixture[str], fresh_compiler: None) -> None:
    """By compiling what sonde compiles."""
    line = line_of("torch.compile", printed(capsys))
    assert "works" in line


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU")
def test_the_accelerator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """And whether its statistics are fused."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    line = line_of("accelerator", printed(capsys, "--no-compile"))
    state = "reference" if device.type in fused.failures() else "fused"  # known once the statistics have been tried
    assert f"{device.type}, {state}" in line


def test_it_says_which_private_parts_of_torch_are_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a torch that has them all one line; with ``--private`` a line for each, and what sonde uses it for."""
    from sonde.engine.torch_api import private_names

    count = len(private_names.PRIVATE_NAMES)
    lines = printed(capsys, "--no-compile")
    assert f"{count} of {count} there" in line_of("private parts of torch", lines)
    assert not any("torch._C" in line for line in lines)
    assert "to find the backward pass" in line_of("torch._C._current_graph_task_id", printed(capsys, "--no-compile", "--private"))
    gone = private_names.PrivateName("torch._C._gone", "nothing", "nothing works")
    monkeypatch.setattr(private_names, "PRIVATE_NAMES", (*private_names.PRIVATE_NAMES, gone))
    lines = printed(capsys, "--no-compile", code=1)
    assert f"{count} of {count + 1} there" in line_of("private parts of torch", lines)
    assert "nothing works" in line_of("torch._C._gone", lines)


@pytest.mark.slow
def test_without_a_part_that_is_needed_it_still_says_which() -> None:
    """And the rest of its lines; the engine says in one error what is missing and what works."""
    code = (
        "import sys, torch, sonde\ndel torch._C._storage_id\n"
        "try: sonde.track\nexcept sonde.errors.TorchVersionError as error: print(error.names)\n"
        "import sonde.cli\nsys.exit(sonde.cli.main(['doctor', '--no-compile']))"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    first, *lines = done.stdout.splitlines()
    assert first == "('torch._C._storage_id',)"
    assert "models cannot be observed" in line_of("torch._C._storage_id", lines)
    assert "compiled" in line_of("float32 on the CPU", lines)
