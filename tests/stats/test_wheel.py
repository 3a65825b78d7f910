"""The package is built with a compiler and without one, and what is installed gives the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT = {"no compiler": {"CC": "/bin/false", "CXX": "/bin/false"}, "asked for": {"SONDE_NO_NATIVE": "1"}}
TESTS = [
    "stats/test_kernels.py",
    "stats/test_native.py",
    "stats/test_add_each.py",
    "stats/test_activation_kernel.py",
    "stats/test_table.py",
    "stats/test_laws.py",
    "cli/test_doctor.py",
]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The standard output of a command that must succeed."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(command, cwd=cwd, env=settings, timeout=600, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def build(folder: Path, **environment: str) -> Path:
    """A wheel of this source tree, built as pip builds it for anybody."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """The interpreter of a new environment with *wheel*, and with this environment's torch and other packages but not its sonde."""
    home = folder / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    Path(packages, "outer.pth").write_text(sysconfig.get_path("purelib"))  # a path added so runs no .pth file of its own
    where = run(python, "-c", "import sonde; print(sonde.__file__)", cwd=folder)
    assert where.startswith(packages)
    return python


def contents(wheel: Path) -> tuple[list[str], str]:
    """The files of a wheel, and its WHEEL file."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        return names, archive.read(next(name for name in names if name.endswith(".dist-info/WHEEL"))).decode()


def audit(wheel: Path) -> None:
    """Raise where a symbol of *wheel* is not of the stable ABI, or a library that it needs is not one of every Linux."""
    run(sys.executable, "-m", "abi3audit", "--strict", wheel, cwd=wheel.parent)
    assert "manylinux" in run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=wheel.parent)


def test_with_a_compiler(tmp_path: Path) -> None:
    """One wheel for every Python from 3.11 on, with the kernels and without their source; its tests pass."""
    wheel = build(tmp_path)
    names, about = contents(wheel)
    assert "-cp311-abi3-" in wheel.name
    assert "Root-Is-Purelib: false" in about
    modules = [name for name in names if "_native" in name]
    assert modules in (["sonde/stats/kernels/_native.abi3.so"], ["sonde/stats/kernels/_native.pyd"])
    assert not [name for name in names if name.endswith((".cpp", ".hpp"))]
    if sys.platform == "linux":
        audit(wheel)
    python = installed(wheel, tmp_path)
    assert "dead_units.png" in run(python, "-m", "sonde", "demo", "-o", tmp_path / "demo", cwd=tmp_path)
    level = run(python, "-c", "from sonde.stats.kernels import native; print(native.kernel_status().level)", cwd=tmp_path)
    assert level.strip()
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *(f"tests/{test}" for test in TESTS), cwd=ROOT)


@pytest.mark.parametrize("environment", WITHOUT.values(), ids=WITHOUT)
def test_without_a_compiler(environment: dict[str, str], tmp_path: Path) -> None:
    """A wheel for every system with no compiled file in it; its tests pass, and it says why it is slow."""
    wheel = build(tmp_path, **environment)
    names, about = contents(wheel)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "Root-Is-Purelib: true" in about
    assert not [name for name in names if name.endswith((".so", ".pyd", ".cpp", ".hpp"))]
    python = installed(wheel, tmp_path)
    reason = run(python, "-c", "from sonde.stats.kernels import native; print(native.kernel_status().reason)", cwd=tmp_path)
    assert reason.startswith("sonde was installed without compiled kernels")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *(f"tests/{test}" for test in TESTS), cwd=ROOT)
