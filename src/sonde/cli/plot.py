"""Draw pictures of a run: all that its numbers allow, or those that are named, as PNG, SVG or PDF."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.cli.run_options import between, expect_json, expect_layers, expect_number, expect_run, expect_steps, find_run
from sonde.errors import ArgumentError

if TYPE_CHECKING:
    from sonde.run import Run
    from sonde.view import plots

EXAMPLES = """
sonde plot                                        all, in quiet-otter-pictures
sonde plot quiet-otter --picture scalars -o loss.svg
sonde plot quiet-otter --picture lines --number rms --layers 'layers|head'
"""

_FORMS = ("png", "svg", "pdf")
_KINDS = ("heatmap", "lines", "gradient_flow", "activation", "exponents", "shares", "update_ratio", "scalars", "sheet")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    kinds = ", ".join(_KINDS)
    parser.add_argument("--picture", metavar="NAME,...", help=f"these pictures alone: names of --list, or {kinds} (all on one)")
    parser.add_argument("--list", action="store_true", help="print the names of the pictures that the run has, and draw none")
    expect_number(parser, "the number that is drawn (default: the main one)")
    expect_layers(parser)
    expect_steps(parser)
    parser.add_argument("--dark", action="store_true", help="on a dark ground")
    parser.add_argument("--format", choices=_FORMS, help="of files in a folder (default: png)")
    parser.add_argument("-o", "--output", metavar="PATH", help="the file of one picture (its ending chooses the form), or a folder")
    expect_json(parser, "files, by the name of each picture; with --list, pictures")


def run(options: argparse.Namespace) -> int:
    """Draw, and say where the files are."""
    from sonde.paths import short_path
    from sonde.run import open_run
    from sonde.view import plots, progress

    opened = open_run(find_run(options.run))
    planned = plots.plan(opened)
    if options.list:
        print(json.dumps({"pictures": list(planned)}) if options.json else "\n".join(planned) or "nothing was recorded yet")
        return 0
    drawings = _chosen(opened, planned, options)
    files = _files(opened, drawings, options)
    with progress("drawing", verbose=not options.json) as show:
        for name, draw in drawings.items():
            show(name)
            picture = draw(theme="dark" if options.dark else "light")
            files[name].parent.mkdir(parents=True, exist_ok=True)
            picture.savefig(files[name])
            if not options.json:
                print(short_path(files[name]), flush=True)
    if options.json:
        print(json.dumps({"files": {name: str(file) for name, file in files.items()}}, indent=2))
    return 0


def _chosen(opened: Run, planned: Mapping[str, plots.Drawing], options: argparse.Namespace) -> dict[str, plots.Drawing]:
    """Return the drawings that were asked for, by name."""
    from sonde.suggest import unknown_name
    from sonde.view import plots

    asked = [name.strip() for name in (options.picture or "").split(",") if name.strip()]
    if not asked and options.number is None and options.port is None:
        if not planned:
            raise ArgumentError("there is no picture of this run: nothing was recorded yet")
        return {name: _with_options(name, draw, options, exact=False) for name, draw in planned.items()}
    found: dict[str, plots.Drawing] = {}
    for name in asked or ["heatmap"]:
        if name not in planned and name not in _KINDS:
            raise unknown_name("picture", name, [*planned, *_KINDS], opened.path.name if opened.path else "this run")
        draw: plots.Drawing = planned[name] if name in planned else partial(getattr(plots, name), opened)
        found[name] = _with_options(name, draw, options, exact=True)
    return found


def _with_options(name: str, draw: plots.Drawing, options: argparse.Namespace, *, exact: bool) -> plots.Drawing:
    """Return *draw* with the options that were given; one that the picture does not have is an error if *exact*, else left out."""
    given: dict[str, Any] = {"number": options.number, "port": options.port, "include": options.layers, "where": between(options)}
    given = {key: value for key, value in given.items() if value is not None}
    options_of = {"number": "--number", "port": "--port", "include": "--layers", "where": "--from and --to"}
    known = inspect.signature(draw).parameters  # without those that the plan has chosen
    unknown = [options_of[key] for key in given if key not in known]
    if exact and unknown:
        raise ArgumentError(f"{unknown[0]} says nothing to the picture {name}")
    return partial(draw, **{key: value for key, value in given.items() if key in known})


def _files(opened: Run, drawings: Mapping[str, plots.Drawing], options: argparse.Namespace) -> dict[str, Path]:
    """Return the file of each picture."""
    from sonde.paths import absolute_path

    name = "run" if opened.path is None else opened.path.name
    form = options.format or "png"
    if options.output is None and len(drawings) == 1:
        return {each: absolute_path(f"{name}-{each}.{form}") for each in drawings}
    into = absolute_path(options.output or f"{name}-pictures")
    ending = into.suffix.lower().removeprefix(".")
    if into.is_dir() or not ending:
        return {each: into / f"{each}.{form}" for each in drawings}
    if ending not in _FORMS:
        raise ArgumentError(f"{into.name!r}: pictures are written as {', '.join(f'.{each}' for each in _FORMS)}, or to a folder")
    if len(drawings) > 1:
        raise ArgumentError(f"{into.name!r} is one file, and there are {len(drawings)} pictures: give a folder, or --picture sheet")
    return dict.fromkeys(drawings, into)
