"""The site is built without a warning, and its reference has every public name."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import sonde

DOCS = Path(__file__).parents[1] / "docs"


def described() -> tuple[str, ...]:
    """Return the modules of the reference: the list in the directive's file, which needs Sphinx to be imported."""
    for node in ast.parse((DOCS / "_ext" / "public.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MODULES":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("no list of modules")


def test_every_public_module_has_a_page_of_the_reference() -> None:
    public = {f"sonde.{name}" for name in sonde.__all__ if isinstance(getattr(sonde, name), ModuleType)}
    assert public <= set(described())
    for module in described():
        page = (DOCS / "api" / f"{module}.rst").read_text(encoding="utf-8")
        assert f".. public:: {module}\n" in page or f".. names:: {module}\n" in page  # its names are on the pages below it
        assert f"   {module}\n" in (DOCS / "api" / "index.rst").read_text(encoding="utf-8")


def test_a_page_of_the_reference_has_so_many_names_that_it_can_be_read() -> None:
    """Each name of a module whose page lists others is on one of these."""
    for module in described():
        public = {
            name
            for name in importlib.import_module(module).__all__
            if not isinstance(getattr(importlib.import_module(module), name), ModuleType)
        }
        below = [path.read_text(encoding="utf-8") for path in (DOCS / "api").glob(f"{module}-*.rst")]
        held = [name for text in below for name in text.partition(f".. public:: {module} ")[2].split()]
        assert sorted(held) == (sorted(public) if below else [])
        assert len(public) <= 40 or below


def test_every_public_class_function_and_method_is_shown_by_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the quick tests run, as doctests; the few that cannot run everywhere are listed, each with the reason."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    public = importlib.import_module("public")
    assert public.without_example() == []
    bare = public.without_example(())
    for beginning in public.WITHOUT:
        assert any(name.startswith(beginning) for name in bare), f"{beginning} has an example now: take it from the list"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_names_everything_public(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    inventory = pytest.importorskip("sphinx.util.inventory")
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        tmp_path / "trees",
        DOCS,
        tmp_path / "site",
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    listed = (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8")
    for page in (*DOCS.glob("*.md"), *(DOCS / "recipes").glob("*.md")):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert name == "index.html" or f"({name}): " in listed, "llms.txt has a line of each page"
    shown = (tmp_path / "site" / "watch-numbers.html").read_text(encoding="utf-8")
    for word, says in (("site", "The name of a place"), ("lens", "What a training is looked at"), ("call", "One run of a module")):
        (title,) = re.findall(rf'<a class="term[^>]*title="{word}: ([^"]*)"', shown)
        assert title.startswith(says), "a word of the glossary is explained where it first stands, once"
    content = (tmp_path / "site" / "objects.inv").read_bytes()
    found = {
        name for kind, held in inventory.InventoryFile.loads(content, uri="").data.items() if kind[:3] == "py:" for name in held
    }
    public = {
        f"{module}.{name}"
        for module in described()
        for name in importlib.import_module(module).__all__
        if not isinstance(getattr(importlib.import_module(module), name), ModuleType)
    }
    assert len(public) > 200
    assert public - found == set()
