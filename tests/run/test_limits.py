"""Rows whose numbers equal a limit, or are next to it: each rule finds something on the one side, and nothing on the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import sonde
from sonde.rows import Layout
from sonde.run import memory_run

Value = float | Callable[[int], float]
Rows = dict[str, dict[str, Value]]

STEPS = 12


def rules_that_find(rows: Rows, model: list[dict[str, Any]], thresholds: Mapping[str, Any] | None = None) -> set[str]:
    """Return the rules that find something in a run of *model* with these numbers by site, constant or a function of the step."""
    names = sorted({name for numbers in rows.values() for name in numbers})
    layout = Layout(list(rows), order=[list(dict.fromkeys(map(layer_of, rows))).index(layer_of(site)) for site in rows])
    with memory_run({"model": [{"name": "", "type": "Net"}, *model]}) as writer:
        for step in range(STEPS):
            held = [[numbers.get(name, math.nan) for numbers in rows.values()] for name in names]
            at = {
                name: [value(step) if callable(value) else value for value in line] for name, line in zip(names, held, strict=True)
            }
            writer.append("moments", layout, at, step=step)
        return {found.rule for found in sonde.check(writer.run(), rules=thresholds).findings}


def layer_of(site: str) -> str:
    return site.partition(":")[0].removesuffix(".weight")


def layers(*kinds: str, dtype: str = "float32", shape: tuple[int, int] = (4, 3)) -> list[dict[str, Any]]:
    """Layers ``0``, ``1``, ... of these kinds, with weights."""
    about: dict[str, Any] = {"parameters": math.prod(shape), "shapes": {"weight": list(shape)}, "dtypes": {"weight": dtype}}
    weightless: dict[str, Any] = {"parameters": 0}
    return [
        {"name": str(place), "type": kind, **(about if kind in ("Linear", "Embedding") else weightless)}
        for place, kind in enumerate(kinds)
    ]


def weight(place: int, *, size: Value = 1.0, update: Value = 0.01, gradient: Value = 1.0, **others: Value) -> Rows:
    """The rows of a weight of layer *place*, which are healthy but for what is given."""
    of_all: dict[str, Value] = {"mean": 0.0, "std": 1.0, "count": 100.0, "zeros": 0.0}
    of_update = {name.removeprefix("update_"): value for name, value in others.items() if name.startswith("update_")}
    of_gradient = {name.removeprefix("gradient_"): value for name, value in others.items() if name.startswith("gradient_")}
    of_weight = {name: value for name, value in others.items() if name in ("mean", "std")}
    return {
        f"{place}.weight:param": of_all | of_weight | {"rms": size},
        f"{place}.weight:grad": of_all | of_gradient | {"rms": gradient},
        f"{place}.weight:update": of_all | of_update | {"rms": update},
    }


def three(**given: Value) -> Rows:
    """Three weights, the one in the middle with what is given."""
    return weight(0) | weight(1, **given) | weight(2)


def outputs(*sizes: float, **given: Value) -> Rows:
    """Outputs of layers of these sizes; what is given is of the second."""
    rows: Rows = {
        f"{place}:output": {"rms": size, "mean": size / 2, "std": size, "zeros": 0.0, "count": 100.0}
        for place, size in enumerate(sizes)
    }
    rows["1:output"] |= given
    return rows


def once(value: float, usual: float) -> Callable[[int], float]:
    """*value* at step 5, else *usual*."""
    return lambda step: value if step == 5 else usual


def later(value: float, first: float) -> Callable[[int], float]:
    """*first* at the first three steps, and then *value*."""
    return lambda step: first if step < 3 else value


def up(value: float) -> float:
    return math.nextafter(value, math.inf)


def down(value: float) -> float:
    return math.nextafter(value, -math.inf)


LINEAR = layers("Linear", "Linear", "Linear")
EIGHT = layers(*["Linear"] * 8)


def deep(first: float, last: float) -> Rows:
    """Eight weights with gradients from *first* to *last*, two and two alike."""
    between = [first * (last / first) ** share for share in (0.3, 0.3, 0.6, 0.6)]
    rows: Rows = {}
    for place, size in enumerate((first, first, *between, last, last)):
        rows |= weight(place, gradient=size)
    return rows


def fading(first: float, last: float) -> Rows:
    """Outputs of nine layers; the last one is that of the model."""
    between = [first * (last / first) ** share for share in (0.2, 0.4, 0.6, 0.8)]
    return outputs(first, first, *between, last, last, 1.0)


ATTENTION = [{"name": "0", "type": "Net"}, *({"name": f"0.{name}", "type": "Linear"} for name in "qkv"), *layers("", "Linear")[1:]]


def attention(query: float, key: float) -> Rows:
    rows = {f"0.{name}:output": size for name, size in (("q", query), ("k", key), ("v", 1.0))}
    return {site: {"rms": size, "mean": 0.0, "std": size} for site, size in (rows | {"1:output": 1.0}).items()}


def looked_up(elements: float, indices: float) -> Rows:
    """An embedding of 10 vectors of 3 numbers, whose gradient has so many elements that are not 0, and layers behind it."""
    rows = weight(0, gradient_count=30.0, gradient_zeros=30.0 - elements) | weight(1) | weight(2)
    return {"0:output": {"rms": 1.0, "mean": 0.0, "std": 1.0, "count": 3.0 * indices, "zeros": 0.0}} | rows


LIMITS: dict[str, tuple[str, list[dict[str, Any]], Callable[[float], Rows], float, float, Mapping[str, Any] | None]] = {
    # rule, layers, rows of a number, a number that is found, the next one that is not, thresholds
    "an update of 20 %": ("update_large", LINEAR, lambda x: three(update=x), up(0.2), 0.2, None),
    "one update of 60 %": ("update_huge", LINEAR, lambda x: three(update=once(x, 0.01)), up(0.6), 0.6, None),
    "an update of 1e-5": ("update_small", LINEAR, lambda x: three(update=x), down(1e-5), 1e-5, None),
    "no update": ("update_small", LINEAR, lambda x: three(update=x), 0.0, 1e-4, {"update_small": {"least": 1e-300}}),
    "a tenth of a weight": ("weight_shrinking", LINEAR, lambda x: three(size=later(x, 1.0)), 0.1, up(0.1), None),
    "ten times a weight": ("weight_growth", LINEAR, lambda x: three(size=later(x, 1.0)), 10.0, down(10.0), None),
    "equal elements": (
        "constant_weight",
        LINEAR,
        lambda x: three(size=0.5, mean=0.5, std=x, update=0.0),
        0.5e-7,
        up(0.5e-7),
        {"update_small": False},
    ),
    "a gradient of zero": ("gradient_zero", LINEAR, lambda x: three(gradient=x), 0.0, 5e-324, None),
    "1e-4 of the last gradients": ("gradient_vanishing", EIGHT, lambda x: deep(x, 1.0), 1e-4, up(1e-4), None),
    "1e4 times the last gradients": ("gradient_exploding", EIGHT, lambda x: deep(1.0, x), 1e-4, up(1e-4), None),
    "half of the updates in bfloat16": (
        "update_lost",
        layers(*["Linear"] * 3, dtype="bfloat16"),
        lambda x: three(update_zeros=x, update=0.01),
        50.0,
        49.0,
        None,
    ),
    "a tanh": (
        "flat",
        layers("Linear", "Tanh", "Linear"),
        lambda x: outputs(1.0, x, 1.0, absmax=1.0),
        up(0.75),
        0.75,
        {"flat": {"least": 1 - 0.75**2}},
    ),
    "a tanh with elements beyond 1": (
        "flat",
        layers("Linear", "Tanh", "Linear"),
        lambda x: outputs(1.0, 0.99, 1.0, absmax=x),
        1.0,
        up(1.0),
        None,
    ),
    "a sigmoid": (
        "flat",
        layers("Linear", "Sigmoid", "Linear"),
        lambda x: outputs(1.0, 0.75, 1.0, mean=x, absmax=1.0),  # 4 (mean of y - mean of its square)
        down(0.625),
        0.625,
        {"flat": {"least": 4 * (0.625 - 0.75**2)}},
    ),
    "an output of zeros": (
        "all_zero",
        LINEAR,
        lambda x: outputs(1.0, 0.0, 1.0, mean=0.0, std=0.0, zeros=x, count=100.0),
        100.0,
        99.0,
        None,
    ),
    "zeros of eight elements": (
        "all_zero",
        LINEAR,
        lambda x: outputs(1.0, 0.0, 1.0, mean=0.0, std=0.0, zeros=x, count=x),
        8.0,
        7.0,
        None,
    ),
    "an output of one value": (
        "constant",
        LINEAR,
        lambda x: outputs(1.0, 0.5, 1.0, mean=0.5, std=x, count=100.0),
        0.5e-7,
        up(0.5e-7),
        None,
    ),
    "one value of nine elements": (
        "constant",
        LINEAR,
        lambda x: outputs(1.0, 0.5, 1.0, mean=0.5, std=0.0, count=x),
        9.0,
        8.0,
        None,
    ),
    "three quarters dropped": (
        "dropped",
        [{**each, "rate": 0.9} if each["type"] == "Dropout" else each for each in layers("Linear", "Dropout", "Linear")],
        lambda x: outputs(1.0, 1.0, 1.0, zeros=x, count=100.0),
        76.0,
        75.0,
        {"dropped": {"most": 0.75}},
    ),
    "scores of size 100": ("attention_large", ATTENTION, lambda x: attention(x, 10.0), 10.0, down(10.0), None),
    "one row of an embedding": (
        "one_index",
        layers("Embedding", "Linear", "Linear", shape=(10, 3)),
        lambda x: looked_up(x, 8),
        3.0,
        4.0,
        None,
    ),
    "no row of an embedding": (
        "one_index",
        layers("Embedding", "Linear", "Linear", shape=(10, 3)),
        lambda x: looked_up(x, 8),
        1.0,
        0.0,
        None,
    ),
    "eight indices": (
        "one_index",
        layers("Embedding", "Linear", "Linear", shape=(10, 3)),
        lambda x: looked_up(3.0, x),
        8.0,
        7.0,
        None,
    ),
    "half of the range of float16": (
        "overflow_near",
        layers(*["Linear"] * 3, dtype="float16"),
        lambda x: outputs(1.0, 1.0, 1.0, absmax=x),
        up(32_752.0),
        32_752.0,
        None,
    ),
    "half of a gradient in float16": (
        "underflow",
        layers(*["Linear"] * 3, dtype="float16"),
        lambda x: three(gradient_zeros=x, gradient_absmax=1e-6, gradient=1e-7),
        50.0,
        49.0,
        None,
    ),
    "normal numbers of float16": (
        "underflow",
        layers(*["Linear"] * 3, dtype="float16"),
        lambda x: three(gradient_zeros=90.0, gradient_absmax=x, gradient=1e-7),
        down(2.0**-14),
        2.0**-14,
        None,
    ),
    "a hundred times an output": (
        "output_growth",
        LINEAR,
        lambda x: outputs(1.0, 1.0, 1.0) | {"1:output": {"rms": later(x, 1.0)}},
        100.0,
        down(100.0),
        None,
    ),
    "a thousand times the first output": ("output_large", LINEAR, lambda x: outputs(1.0, x, 1.0), 1000.0, down(1000.0), None),
    "outputs of a thousandth": ("output_small", layers(*["Linear"] * 9), lambda x: fading(1.0, x), 1e-3, up(1e-3), None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_number_at_its_limit(case: str) -> None:
    """The number that is found, and the nearest that is not."""
    rule, model, rows, found, not_found, thresholds = LIMITS[case]
    assert rule in rules_that_find(rows(found), model, thresholds)
    assert rule not in rules_that_find(rows(not_found), model, thresholds)


def test_healthy_rows_have_no_finding() -> None:
    """The numbers that all cases begin with."""
    assert rules_that_find(three(), LINEAR) == set()
    assert rules_that_find(outputs(1.0, 1.0, 1.0), LINEAR) == set()
    assert rules_that_find(deep(1.0, 1.0), EIGHT) == set()
    assert rules_that_find(attention(1.0, 1.0), ATTENTION) == set()
    assert rules_that_find(looked_up(30.0, 8), layers("Embedding", "Linear", "Linear", shape=(10, 3))) == set()


def late(value: float, usual: float, begin: int) -> Callable[[int], float]:
    """*usual* before the step *begin*, and *value* from then on."""
    return lambda step: usual if step < begin else value


@pytest.mark.parametrize(("rate", "is_found"), [("ends", False), ("has ended", True)])
def test_the_last_steps_of_a_schedule_may_be_none(rate: str, is_found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learning rate of 0 in the last 5 of 80 steps is the end of a schedule; in the last 20 of 80 it wastes them."""
    monkeypatch.setattr("tests.run.test_limits.STEPS", 80)
    rows = three(update=late(0.0, 0.01, 75 if rate == "ends" else 60))
    assert ("update_small" in rules_that_find(rows, LINEAR)) is is_found


@pytest.mark.parametrize(("begin", "end", "is_found"), [(0.001, 0.5, False), (0.5, 50.0, True)])
def test_a_weight_that_begins_smaller_than_usual_may_grow_to_its_usual_size(begin: float, end: float, is_found: bool) -> None:
    """500 times as large as at first, and no larger than a layer of torch begins."""
    rows = {name: numbers for place in range(3) for name, numbers in weight(place, size=late(end, begin, 6), update=1e-5).items()}
    assert ("weight_growth" in rules_that_find(rows, LINEAR)) is is_found
