"""The page of the rooms lists what stands on their faces."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def maker() -> ModuleType:
    """Return the module that makes the lists of the page."""
    spec = importlib.util.spec_from_file_location("rooms_of_the_page", ROOT / "docs" / "_ext" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_has_the_names_on_every_face() -> None:
    """``python docs/_ext/rooms.py`` writes them anew."""
    page = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    assert maker().written(page) == page


def test_every_room_is_on_the_page() -> None:
    page = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "src" / "sonde").glob("*/__init__.py")}
    assert {room for room in rooms if f"### `sonde.{room}`\n" not in page} == set()


def test_names_that_a_face_binds_are_found_under_their_comment() -> None:
    found = maker().names("run")
    assert "RunWriter" in found["Write a run"]
    assert "annotations" not in {name for held in found.values() for name in held}
