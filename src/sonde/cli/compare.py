"""Find the first place where two saved sides part: two folders of ``Tracker.save``, or two runs. Exit code 1 if they do."""

from __future__ import annotations

import argparse
from typing import Any

from sonde.errors import ArgumentError
from sonde.view.table import standard_output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.add_argument("a", help="a folder of saved tensors, or a run")
    parser.add_argument("b", help="another one of the same kind")
    parser.add_argument(
        "--match",
        action="append",
        default=[],
        metavar="A=B",
        help="names of a that are others in b, as 'layers.*=blocks.*'; repeat it",
    )
    parser.add_argument("--noise", type=float, help="relative distance that counts as equal (default: measured, or from the types)")
    parser.add_argument("--html", metavar="FILE", help="write the comparison to this file too, as page.html")


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    from sonde.diagnosis.compare.compare import compare

    given: dict[str, Any] = {"match": _match(options.match)} if options.match else {}
    if options.noise is not None:
        given["noise"] = options.noise
    found: Any = compare(options.a, options.b, **given)
    standard_output().print(found)
    if options.html:
        found.save(options.html)
    return 0 if found.same else 1


def _match(texts: list[str]) -> dict[str, str]:
    """Return the patterns of ``--match``.

    Raises:
        ArgumentError: one is not written ``A=B``.
    """
    pairs = [text.partition("=") for text in texts]
    for text, (one, sign, other) in zip(texts, pairs, strict=True):
        if not (one and sign and other):
            raise ArgumentError(f"--match {text!r}: write a name of a, =, and a name of b, as 'layers.*=blocks.*'")
    return {one: other for one, _, other in pairs}
