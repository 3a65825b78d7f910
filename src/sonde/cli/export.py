"""Write the rows of a run to CSV, Parquet or TensorBoard: all of them, or some families, numbers, ports, layers and steps.

CSV and Parquet have one file for each family, with the columns of the run: keys (step, site, layer, port, ...), then numbers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sonde.cli.run_options import between, expect_json, expect_layers, expect_number, expect_run, expect_steps, find_run
from sonde.errors import ArgumentError
from sonde.words import size_text

if TYPE_CHECKING:
    from sonde.run import Run

EXAMPLES = """
sonde export quiet-otter -o otter         Parquet files in the folder otter
sonde export quiet-otter --number rms --port output -o rms.csv
sonde export quiet-otter --format tensorboard --from 2 --to 4 -o events
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    expect_run(parser)
    parser.add_argument("--format", choices=("csv", "parquet", "tensorboard"), help="(default: as the file ends, else parquet)")
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="a folder, or one file for one family (default: the name of the run and the format)"
    )
    parser.add_argument("--families", metavar="NAME,...", help="write these families alone")
    expect_number(parser, "write this number alone")
    expect_layers(parser)
    expect_steps(parser)
    expect_json(parser, "files: path and bytes of each family")


def run(options: argparse.Namespace) -> int:
    """Write the files, and say where they are and how large."""
    from sonde.paths import short_path
    from sonde.run import open_run
    from sonde.view import progress

    path = find_run(options.run)
    between(options)  # which says where the first step comes after the last
    opened = open_run(path)
    families = None if options.families is None else [name.strip() for name in options.families.split(",") if name.strip()]
    target = options.output or f"{path.name}-{options.format or 'parquet'}"
    with progress("exporting", verbose=not options.json) as show:
        if options.format == "tensorboard":
            written = {"events": _to_tensorboard(opened, target, options)}
        else:
            some = {"number": options.number, "port": options.port, "layers": options.layers}
            steps = {"first": options.first, "last": options.last}
            written = opened.export(target, options.format, families=families, **some, **steps, progress=show)
    if not written:
        raise ArgumentError(f"{short_path(path)} has nothing to export: it has no rows; see sonde info {path.name}")
    sizes = {family: _size(file) for family, file in written.items()}
    if options.json:
        from sonde.escape import readable_json

        files = {family: {"path": str(file), "bytes": sizes[family]} for family, file in written.items()}
        sys.stdout.write(readable_json({"files": files}) + "\n")
        return 0
    for family, file in written.items():
        print(f"{short_path(file)}: {size_text(sizes[family])}")
    return 0


def _to_tensorboard(opened: Run, target: str, options: argparse.Namespace) -> Path:
    """Send the run to a sink of TensorBoard, and return the folder."""
    from sonde.inspector import TensorBoard

    for name, option in (("--families", options.families), ("--port", options.port), ("--layers", options.layers)):
        if option is not None:
            raise ArgumentError(f"{name} chooses rows of CSV and Parquet files; TensorBoard's own page chooses tags by name")
    sink = TensorBoard(target, numbers=None if options.number is None else (options.number,))
    first = 0 if options.first is None else options.first
    last = opened.last_step if options.last is None else options.last
    opened.send_to(sink, every=range(first, last + 1))
    return sink.folder


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
