"""An argument of another type than a public function says is refused before anything is done; what behaves as the type is not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.checked import checked
from sonde.errors import ArgumentError, SondeError
from sonde.run import memory_run

WRONG: list[Any] = [3, "no such thing", 1.5, [object()], object(), b"bytes", {1: 2}]


def calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Return each function with arguments that it takes."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.ones(2, 4)
    run = memory_run().run()
    return {
        "watch": (sonde.watch, (model,), {"to": "memory", "verbose": False}),
        "track": (sonde.track, (model,), {}),
        "observe": (sonde.observe, (model, lambda event: None), {}),
        "extract": (sonde.extract, (model, [x], "0", "store"), {"progress": False, "dry_run": True}),
        "stream": (sonde.stream, (model, [x], "0"), {}),
        "compare": (sonde.compare, (model, model, x), {"verbose": False}),
        "why_nan": (sonde.why_nan, (model, x), {}),
        "preflight": (sonde.preflight, (model, x), {"steps": 1, "verbose": False}),
        "summary": (sonde.summary, (model, x), {}),
        "capture": (sonde.capture, (model, x), {}),
        "check": (sonde.check, (run,), {}),
        "Limits": (sonde.Limits, (), {}),
        "BadSteps": (sonde.BadSteps, (), {}),
        "Ranks": (sonde.Ranks, (), {}),
    }


DATA = {"batch", "batch_b", "graph", "batches", "device"}
"""Arguments that the model, or torch, takes or refuses in words of its own."""


def arguments() -> Iterator[tuple[str, str]]:
    """Yield the name of each function with that of each of its arguments."""
    for name, (function, _, _) in calls().items():
        for each in inspect.signature(function).parameters.values():
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name not in DATA:
                yield name, each.name


@pytest.mark.parametrize(("name", "argument"), list(arguments()))
@pytest.mark.filterwarnings("ignore")
def test_no_value_of_another_type_gets_past_the_call_as_an_error_of_python(
    name: str, argument: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken, or refused by an error of sonde."""
    monkeypatch.chdir(tmp_path)
    for wrong in WRONG:
        function, given, options = calls()[name]
        parameters = inspect.signature(function).parameters.values()
        places = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)]
        if argument in places[: len(given)]:
            given = tuple([wrong if place == argument else value for place, value in zip(places, given, strict=False)])
        else:
            options = {**options, argument: wrong}
        try:
            made = function(*given, **options)
        except SondeError:
            continue
        getattr(made, "detach", lambda: None)()


@checked("judged")
def example(
    count: int = 1,
    share: float = 0.5,
    flag: bool = False,
    how: Literal["a", "b"] | None = None,
    fn: Callable[[Any], Any] | None = None,
    judged: int = 0,
    *rest: int,
    **more: int,
) -> tuple[Any, ...]:
    return count, share, flag, how, fn, judged, rest, more


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3)},
        {"count": torch.tensor(3)},
        {"share": 1},
        {"share": np.float32(0.5)},
        {"share": torch.tensor(0.5)},
        {"flag": np.bool_(True)},
        {"flag": 1},
        {"how": None},
        {"fn": Tensor.sum},
        {"judged": "what the function itself looks at"},
        {"unknown": "what has no annotation of its own"},
    ],
)
def test_what_behaves_as_the_type_does_is_of_it(given: dict[str, Any]) -> None:
    assert example(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 1.5}, "count=1.5: give a whole number"),
        ({"share": "half"}, "share='half': give a number"),
        ({"flag": "no"}, "flag='no': give True or False"),
        ({"how": "c"}, "how='c': give 'a', 'b' or None"),
        ({"fn": 3}, "fn=3: give a function or None"),
        ({"count": "x" * 99}, f"count='{'x' * 56}...: give a whole number"),
    ],
)
def test_the_error_says_what_was_given_and_what_to_give(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        example(**given)
    assert str(caught.value) == said


def test_what_is_missing_or_too_much_is_left_to_python() -> None:
    with pytest.raises(TypeError, match="module"):
        sonde.track()  # type: ignore[call-arg]
