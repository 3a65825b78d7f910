"""What is said where another project's package is missing, or is another than expected."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from sonde.errors import MissingExtraError
from sonde.integrations.foreign import base_class


def package(monkeypatch: pytest.MonkeyPatch, **names: object) -> None:
    """Let a package ``trainerlib`` be installed that holds *names*."""
    made = ModuleType("trainerlib")
    for name, value in names.items():
        setattr(made, name, value)
    monkeypatch.setitem(sys.modules, "trainerlib", made)


class Base:
    def on_start(self) -> None:
        """Called at the start."""


def test_the_class_of_the_first_package_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is imported then."""
    package(monkeypatch, Base=Base)
    assert base_class("Ours", ["no_such_package.part", "trainerlib"], "Base", ["on_start"], extra="lib") is Base


def test_a_package_that_is_missing_is_named_with_the_extra() -> None:
    """As for every extra of sonde."""
    with pytest.raises(MissingExtraError, match=r"Ours needs the package 'no_such_package', .* pip install 'sonde\[lib\]'"):
        base_class("Ours", ["no_such_package.part"], "Base", ["on_start"], extra="lib")


def test_an_unknown_version_is_named_with_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is gone, and a method that is gone; with the version, and what can be done."""
    package(monkeypatch, Base=Base, __version__="99.1")
    with pytest.raises(MissingExtraError, match=r"trainerlib.Other, which the installed trainerlib 99.1 has not.*sonde.watch"):
        base_class("Ours", ["trainerlib"], "Other", ["on_start"], extra="lib")
    with pytest.raises(MissingExtraError, match=r"called by trainerlib.Base.on_end, which the installed trainerlib 99.1 has not"):
        base_class("Ours", ["trainerlib"], "Base", ["on_start", "on_end"], extra="lib")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "extra"),
    [("LightningCallback", "lightning"), ("TransformersCallback", "transformers"), ("AccelerateTracker", "accelerate")],
)
def test_each_integration_names_its_extra(name: str, extra: str) -> None:
    """In an interpreter that finds none of the packages."""
    code = f"""
import importlib.util, sys
missing = ("lightning", "pytorch_lightning", "transformers", "accelerate")
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in missing else find(name, package)
import sonde
try:
    sonde.integrations.{name}
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"MissingExtraError {name} needs the package")
    assert f"pip install 'sonde[{extra}]'" in done.stdout
