"""The page on the command line names every command, and what each prints as JSON."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from sonde.cli import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def test_the_page_has_every_command_and_every_object_of_json() -> None:
    objects = PAGE[PAGE.index("## JSON") : PAGE.index("## Pictures")]
    for command in COMMANDS:
        assert f"| `sonde {command}` |" in PAGE, command
        parser = argparse.ArgumentParser()
        import_module(f"sonde.cli.{command}").arguments(parser)
        has_json = any("--json" in action.option_strings for action in parser._actions)
        assert (f"`{command}`" in objects) == has_json, command
