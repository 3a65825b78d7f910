"""Every ``sonde`` command of the documentation runs with the extras that its page names, and with no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from unittest import mock

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch import nn

import sonde

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INSTALLED = re.compile(r"pip install ['\"]?sonde\[([\w,]+)\]")

_ONLY = """
import re
import sys
from importlib.machinery import PathFinder


class Installed:
    # Finds what is installed, but for the modules and distributions of other extras.

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {modules!r} else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*args, **kwargs):
        found = PathFinder.find_distributions(*args, **kwargs)
        return [each for each in found if re.sub("[-_.]+", "-", each.name).lower() not in {distributions!r}]


sys.meta_path[:] = [each for each in sys.meta_path if each is not PathFinder] + [Installed]
from sonde.cli import main

sys.exit(main())
"""

_TRAIN = """
import torch
from torch import nn

def setup():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
"""


def pages() -> dict[str, str]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in found if "_build" not in page.parts}


def commands_of(text: str) -> list[str]:
    """The lines of shell blocks that call ``sonde``, in their order."""
    lines = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
    return [line for line in lines if re.match(r"(eval \"\$\()?sonde ", line)]


COMMANDS = [(page, command) for page, text in sorted(pages().items()) for command in commands_of(text)]


def installed_with(extras: Iterable[str]) -> set[str]:
    """The distributions that come with ``sonde[extras]``, by their canonical names, and what the tests need of Python itself."""
    found: set[str] = set()
    waiting = [("sonde", frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        try:
            needed = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:
            continue
        found.add(canonicalize_name(name))
        for each in needed:
            here = any(each.marker is None or each.marker.evaluate({"extra": extra}) for extra in (*wanted, ""))
            key = canonicalize_name(each.name)
            if here and (key not in found or each.extras):
                waiting.append((key, frozenset(each.extras)))
                found.add(key)
    return found


def others_than(extras: Iterable[str]) -> tuple[set[str], set[str]]:
    """The modules, and the distributions, of this environment that ``sonde[extras]`` does not bring."""
    there = installed_with(extras)
    with mock.patch.object(sys, "path", [each for each in sys.path if "_vendor" not in each]):  # setuptools adds what it brings
        found = packages_distributions()
    held = {name: {canonicalize_name(each) for each in each_of} for name, each_of in found.items()}
    modules = {name for name, of in held.items() if name.isidentifier() and not of & there}
    return modules, set().union(*held.values()) - there


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and a program that has a model."""
    folder = tmp_path_factory.mktemp("workplace")
    model = nn.Sequential()
    model.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sonde.watch(model, optimizer, every=1, to=folder / "runs" / "quiet-otter", verbose=False):
        for _ in range(120):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
    (folder / "train.py").write_text(_TRAIN)
    return folder


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 8
    modules, distributions = others_than(["frame"])
    assert {"sklearn", "matplotlib"} <= modules
    assert "scikit-learn" in distributions
    assert modules.isdisjoint({"torch", "numpy", "pandas"})
    assert "sklearn" not in others_than(["demo"])[0]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}: {command}" for page, command in COMMANDS])
def test_every_command_of_a_page_runs_with_the_extras_that_the_page_names(
    workplace: Path, tmp_path: Path, page: str, command: str
) -> None:
    extras = {extra for line in _INSTALLED.findall(pages()[page]) for extra in line.split(",")}
    modules, distributions = others_than(extras)
    (tmp_path / "only.py").write_text(_ONLY.format(modules=modules, distributions=distributions))
    script = tmp_path / "sonde"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "only.py"}" "$@"\n')
    script.chmod(0o755)
    (tmp_path / "mail").write_text("#!/bin/sh\ncat > /dev/null\n")
    (tmp_path / "mail").chmod(0o755)
    settings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    serves = command.startswith("sonde ui")
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=workplace,
            env=settings,
            timeout=20 if serves else 300,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as still:
        said = ((still.stdout or b"") + (still.stderr or b"")).decode()
        assert serves, said
        assert "http://" in said
        return
    said = done.stdout + done.stderr
    assert "No module named" not in said
    assert "pip install" not in said or "without a model" in command  # that one lists what is not there
    assert done.returncode in (0, 1) if "sonde check" in command else done.returncode == 0, said
