"""Find the first place where two sides part: two models, two runs, or two folders of tensors that ``Tracker.save`` has written.

Models come from functions, which are called one after the other, each after ``torch.manual_seed(0)``. Both models are given the
batch and the loss of A, unless each is to have its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sonde.cli.completers import complete_sides, completes
from sonde.cli.given import attempt, expect_page, load, show
from sonde.cli.run_options import expect_json, find_run
from sonde.errors import ArgumentError, StoreError
from sonde.paths import absolute_path

EXAMPLES = """
sonde compare quiet-otter calm-heron              two runs in the folder runs
sonde compare mine.py:setup theirs.py:model       the models of two functions
sonde compare mine theirs --match 'layers.*=blocks.*' -o page.html

a function is called without arguments, and returns what one for doctor does,
(model, batch) or (model, batch, loss_fn, optimizer); that of B the same, or a
model alone
"""
EXIT = "0 the sides are equal but for rounding and noise, 1 they part, 2 they could not be compared"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    about = "a function that makes a model (MODULE:FUNCTION or file.py:FUNCTION), a run (its folder or name), or saved tensors"
    completes(parser.add_argument("a", metavar="A", help=about), complete_sides)
    completes(parser.add_argument("b", metavar="B", help="another one of the same kind"), complete_sides)
    parser.add_argument("--own-batch", action="store_true", help="of functions: give each model its own batch and loss")
    parser.add_argument("--no-backward", action="store_true", help="of functions: compare no gradients")
    parser.add_argument(
        "--match",
        action="append",
        default=[],
        metavar="A=B",
        help="names of a that are others in b, as 'layers.*=blocks.*'; repeat it",
    )
    parser.add_argument("--noise", type=float, help="relative distance that counts as equal (default: measured, or from the types)")
    expect_json(parser, "a, b, verdict, ok, findings, and where the sides part")
    expect_page(parser)


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    from sonde.diagnosis import compare

    given: dict[str, Any] = {"match": _match(options.match)} if options.match else {}
    if options.noise is not None:
        given["noise"] = options.noise
    functions = [_is_function(side) for side in (options.a, options.b)]
    found: Any
    if all(functions):
        given |= {**_models(options), "verbose": not options.json}
        found = attempt("comparing the models", lambda: compare(**given))
    elif any(functions) or options.own_batch or options.no_backward:
        other = options.b if functions[0] else options.a
        raise ArgumentError(f"{other!r} is no function: write the module or file, a colon, and the function, as train.py:setup")
    else:
        found = compare(_side(options.a), _side(options.b), **given)
    show(found, options)
    return 0 if found.ok else 1


def _is_function(given: str) -> bool:
    module, _, name = given.rpartition(":")
    return bool(module) and name.isidentifier() and not absolute_path(given).exists()


def _models(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``compare`` that the two functions make: the models, the batch, losses and optimizers."""
    import torch

    made = []
    for place, text in enumerate((options.a, options.b)):
        torch.manual_seed(0)
        made.append(load(text, may_be_model=place == 1))
    (model_a, batch, *rest_a), (model_b, *rest_b) = made
    more: dict[str, Any] = {"a": model_a, "b": model_b, "batch": batch, "backward": not options.no_backward}
    loss_a, optimizer_a = (*rest_a, None, None)[:2]
    own, loss_b, optimizer_b = (*rest_b, None, None, None)[:3]
    if options.own_batch:
        if not rest_b:
            raise ArgumentError(f"--own-batch: {options.b} returns a model alone; let it return (model, batch)")
        more["batch_b"] = own
        loss_b = loss_a if loss_b is None else loss_b
    else:
        if rest_b:
            print(f"both models are given the batch and the loss of {options.a}; --own-batch gives each its own", file=sys.stderr)
        loss_b = loss_a
    if loss_a is not None:
        more["loss_fn"] = (loss_a, loss_b)
    if optimizer_a is not None:
        more["optimizer"] = optimizer_a if optimizer_b is None else (optimizer_a, optimizer_b)
    return more


def _side(given: str) -> Path:
    """Return the folder of saved tensors, or else the run, that is *given*."""
    folder = absolute_path(given)
    if folder.is_dir() and not (folder / "run.json").exists() and any(folder.glob("*.json")):
        return folder
    try:
        return find_run(given)
    except StoreError as error:
        if folder.exists():
            raise
        beside = [each.name for each in folder.parent.glob("*/") if any(each.glob("*.json"))] if folder.parent.is_dir() else []
        raise StoreError(f"{error} Folders of saved tensors beside it: {', '.join(sorted(beside)[:8]) or 'none'}") from None


def _match(texts: list[str]) -> dict[str, str]:
    """Return the patterns of ``--match``."""
    pairs = [text.partition("=") for text in texts]
    for text, (one, sign, other) in zip(texts, pairs, strict=True):
        if not (one and sign and other):
            raise ArgumentError(f"--match {text!r}: write a name of a, =, and a name of b, as 'layers.*=blocks.*'")
    return {one: other for one, _, other in pairs}
