"""Draw readable names for runs, such as quiet-otter.

The package ``coolname`` does the same; it would be one more dependency for two lists of words.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import count
from pathlib import Path


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    """
    amber agile bold brave bright brisk calm candid clear clever cosy curious daring deft eager early fair fleet fond frank
    gentle glad golden grand green happy hardy honest humble ideal jolly keen kind lively loyal lucid lucky mellow merry mild
    modest neat nimble noble plain polite proud quick quiet rapid ready regal rosy serene sharp shy silver sleek smart snug
    sober solid spry steady still stout sunny swift tidy true vivid warm wary wise witty young zesty
    """
)
ANIMALS = _words(
    """
    adder badger bat bear beaver bison bittern boar bream bunting carp cod crab crane crow curlew deer dolphin dormouse dove
    duck dunlin eagle eel egret elk falcon ferret finch fox frog gannet goose grebe grouse gull hare hawk heron hoopoe ibex
    ibis jay kestrel kite lapwing lark lemming linnet lizard lynx magpie marten merlin mole moose mouse newt nightjar orca
    osprey otter owl partridge perch pika plover puffin quail rail raven robin rook salmon seal shrew shrike skua snipe stoat
    stork swan swift tern thrush toad trout turtle vole weasel whale wolf wren
    """
)
_TRIES = 50


def new_folder(root: Path) -> Path:
    """Make and return an empty folder in *root* with a new readable name.

    Names are drawn from the operating system's random numbers: a training's own random state stays as it is. Two processes
    never get the same folder.

    Raises:
        OSError: *root* cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    return _first_free(root / name for name in _candidates())


def numbered_folder(path: Path) -> Path:
    """Make and return *path* or, if that folder is not empty, the first free one of path-2, path-3, ...

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sonde.run import numbered_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (numbered_folder(Path(folder) / "run") / "file").touch()
    ...     numbered_folder(Path(folder) / "run").name
    'run-2'

    Raises:
        OSError: the folder above cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not any(path.iterdir()):
        return path
    return _first_free(path if number == 1 else path.with_name(f"{path.name}-{number}") for number in count(1))


def _candidates() -> Iterator[str]:
    for _ in range(_TRIES):
        yield _draw()
    for number in count(2):
        yield f"{_draw()}-{number}"


def _draw() -> str:
    return f"{secrets.choice(ADJECTIVES)}-{secrets.choice(ANIMALS)}"


def _first_free(candidates: Iterator[Path]) -> Path:
    for folder in candidates:
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("the candidates never end")
