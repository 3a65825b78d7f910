"""Two recorded trainings side by side: what is read, what parts and when, what differs to the last bit, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from sonde.errors import ArgumentError
from sonde.rows import Layout
from sonde.run.comparison.side_by_side import PHASES
from sonde.run.comparison.two_runs import Parts, compare_rows
from sonde.run.run import Run
from sonde.run.store.memory_writer import memory_run
from sonde.site import PORTS, Site

SITES = (
    "fc:output",
    "head:output",
    "head:grad_output",
    "fc:grad_output",
    "head.weight:grad",
    "fc.weight:grad",
    "fc.weight:update",
    "head.weight:update",
    "fc.weight:param",
    "head.weight:param",
)
SIZES = np.array([1.0, 2.0, 0.1, 0.2, 0.01, 0.02, 1e-3, 1e-3, 0.5, 0.4])
ORDER = [0, 1, 1, 0, 1, 0, 0, 1, 0, 1]

Change = Callable[[int, dict[str, float]], None]


def record(
    seed: int = 0,
    *,
    steps: range = range(0, 400, 10),
    change: Change | None = None,
    sites: tuple[str, ...] = SITES,
    loss: float = 1.0,
    noise: float = 0.05,
    about: dict[str, Any] | None = None,
) -> Run:
    """A run whose numbers scatter by *noise* about constants; *change* is given each step's numbers by site."""
    random = np.random.default_rng(seed)
    with memory_run(about) as writer:
        for step in steps:
            rms = dict(zip(sites, SIZES[: len(sites)] * np.exp(random.normal(0, noise, len(sites))), strict=True))
            value = loss * float(np.exp(random.normal(0, noise)))
            if change is not None:
                change(step, rms)
            there = [site for site in sites if site in rms]
            order = [ORDER[sites.index(site)] for site in there]
            numbers = {"rms": [rms[site] for site in there], "count": [4096.0] * len(there), "nan": [0.0] * len(there)}
            for at, site in enumerate(there):
                if rms[site] == np.inf:
                    numbers["nan"][at], numbers["rms"][at] = 1.0, 1.0
            writer.append("moments", Layout(there, order=order), numbers, step=step)
            writer.scalar("loss", value, step=step)
            writer.scalar("overhead", random.random(), step=step)
        return writer.run()


@cache
def plain() -> Run:
    """The run without a change; no test writes into it."""
    return record()


def times(site: str, factor: float, first: int = 0, last: int = 10**9) -> Change:
    def change(step: int, rms: dict[str, float]) -> None:
        if first <= step <= last:
            rms[site] *= factor

    return change


def where(parts: Parts) -> list[tuple[int, str, str]]:
    return [(each.step, each.site, each.number) for each in parts.partings]


def test_every_port_has_its_place_in_a_step() -> None:
    assert set(PHASES) == set(PORTS)


def test_a_run_is_identical_to_itself() -> None:
    found = compare_rows(plain(), record())
    assert found.identical
    assert not found.partings
    assert not found.scalars
    assert found.difference is None


def test_two_seeds_do_not_part_and_are_not_identical() -> None:
    for seed in range(1, 4):
        found = compare_rows(plain(), record(seed))
        assert not found.identical
        assert (found.partings, found.scalars, found.difference) == ((), (), None)


@pytest.mark.parametrize(("site", "factor"), [*zip(SITES[::2], [10.0] * 5, strict=True), *zip(SITES[1::2], [0.1] * 5, strict=True)])
def test_a_change_of_one_place_of_another_seed_is_found_with_its_step(site: str, factor: float) -> None:
    found = compare_rows(plain(), record(1, change=times(site, factor, 200)))
    assert where(found)[0] == (200, site, "rms")
    first = found.partings[0]
    assert first.factor == pytest.approx(factor, rel=0.2)  # two means of five values that scatter by 5 %
    assert {Site.parse(each.site).path for each in found.partings} == {Site.parse(site).path}


@pytest.mark.parametrize("site", SITES[::3])
def test_the_smallest_change_of_an_equal_run_is_found_to_the_last_bit(site: str) -> None:
    found = compare_rows(plain(), record(change=times(site, 1.0001, 200)))
    assert not found.partings
    assert found.difference is not None
    assert (found.difference.step, found.difference.site, found.difference.since) == (200, site, 190)
    assert (found.difference.places, found.difference.of) == (1, len(SITES))


def test_any_recorded_number_counts_not_only_the_one_that_is_compared() -> None:
    def run(other: float) -> Run:
        with memory_run() as writer:
            for step in range(10):
                writer.append("moments", Layout(["fc:output"]), {"rms": [1.0], "max": [other if step == 7 else 3.0]}, step=step)
            return writer.run()

    found = compare_rows(run(3.0), run(3.0000001))
    assert found.difference is not None
    assert found.difference.step == 7
    assert not found.identical


def test_where_all_layers_changed_since_the_last_logged_step_the_one_that_parted_is_named() -> None:
    def change(step: int, rms: dict[str, float]) -> None:
        if step >= 200:
            for site in rms:
                rms[site] *= 1.001
            rms["head.weight:update"] *= 10

    found = compare_rows(plain(), record(change=change))
    assert found.difference is not None
    assert (found.difference.step, found.difference.site) == (200, "head.weight:update")


def test_where_the_first_layers_are_frozen_the_last_of_them_is_named_and_no_output_behind_it() -> None:
    """All gradients of one layer's parameters, and those at its output, end in one step; those at the output come first in time."""

    def change(step: int, rms: dict[str, float]) -> None:
        if step >= 200:
            for site in ("fc:grad_output", "fc.weight:grad"):
                del rms[site]

    found = compare_rows(plain(), record(1, change=change))
    assert [(each.step, each.site, each.kind) for each in found.partings[:2]] == [
        (200, "fc.weight:grad", "no rows"),
        (200, "fc:grad_output", "no rows"),
    ]


def test_other_data_are_named_by_the_first_layer_that_sees_them() -> None:
    def change(step: int, rms: dict[str, float]) -> None:
        if step >= 200:
            for site in rms:
                rms[site] *= 3.0 if site == "fc:output" else 1.2

    found = compare_rows(plain(), record(change=change))
    assert found.difference is not None
    assert (found.difference.step, found.difference.site) == (200, "fc:output")


def test_of_one_step_forward_comes_before_backward_and_that_before_the_update() -> None:
    def change(step: int, rms: dict[str, float]) -> None:
        if step >= 200:
            for site in rms:
                rms[site] *= 20

    found = compare_rows(plain(), record(1, change=change))
    assert [site for _, site, number in where(found) if number == "rms"] == list(SITES)


def test_a_layer_that_began_with_other_weights_is_named_by_its_weights() -> None:
    def change(step: int, rms: dict[str, float]) -> None:
        for site in ("head.weight:param", "head:output", "head:grad_output", "fc:grad_output"):
            rms[site] *= 4

    assert where(compare_rows(plain(), record(1, change=change)))[0] == (0, "head.weight:param", "rms")


@pytest.mark.parametrize(("moved", "first"), [(1000.0, "head.weight:update"), (500.0, "head.weight:param")])
def test_a_weight_that_the_first_step_may_have_moved_did_not_begin_with_other_values(moved: float, first: str) -> None:
    """Both are logged after the step, which comes first in time. The weight is 1.2 larger, the step had the size 1, or 0.5."""

    def change(step: int, rms: dict[str, float]) -> None:
        rms["head.weight:param"] *= 4
        rms["head.weight:update"] *= moved

    found = compare_rows(record(noise=0.01), record(1, noise=0.01, change=change))
    assert where(found)[0] == (0, first, "rms")


def test_a_weight_without_a_row_of_its_update_began_with_other_values_if_it_differs() -> None:
    def change(step: int, rms: dict[str, float]) -> None:
        for site in ("head.weight:param", "head:output"):
            rms[site] *= 4

    sites = tuple(site for site in SITES if not site.endswith(":update"))
    assert where(compare_rows(record(sites=sites), record(1, sites=sites, change=change)))[0] == (0, "head.weight:param", "rms")


def test_the_ratio_of_update_to_parameter_is_compared() -> None:
    def change(step: int, rms: dict[str, float]) -> None:  # a weight that shrinks under updates of the same size
        if step >= 100:
            rms["fc.weight:param"] /= 2
            rms["fc.weight:update"] *= 1.3

    found = compare_rows(record(noise=0.01), record(1, noise=0.01, change=change))
    assert where(found) == [(100, "fc.weight:update", "update / param")]


def test_exact_zero_against_a_number_parts() -> None:
    found = compare_rows(plain(), record(1, change=times("fc.weight:update", 0.0, 200)))
    assert where(found)[0] == (200, "fc.weight:update", "rms")
    assert found.partings[0].b == 0.0


def test_a_place_without_rows_from_a_step_on_is_named() -> None:
    def frozen(step: int, rms: dict[str, float]) -> None:
        if step >= 200:
            del rms["fc.weight:grad"]

    for a, b in ((record(), record(1, change=frozen)), (record(1, change=frozen), record())):
        first = compare_rows(a, b).partings[0]
        assert (first.step, first.site, first.kind) == (200, "fc.weight:grad", "no rows")


def test_elements_that_are_not_finite_in_one_run_are_named_at_once() -> None:
    def broken(step: int, rms: dict[str, float]) -> None:
        if step == 200:  # for one step alone
            rms["head:output"] = np.inf

    first = compare_rows(plain(), record(1, change=broken)).partings[0]
    assert (first.step, first.site, first.kind) == (200, "head:output", "not finite")
    both = compare_rows(record(change=broken), record(1, change=broken))
    assert not both.partings


def test_scalars_part_too_and_what_says_nothing_of_the_training_is_left_out() -> None:
    def run(seed: int, factor: float) -> Run:
        return record(seed, loss=factor)

    found = compare_rows(run(0, 1.0), run(1, 3.0))
    assert [(each.step, each.number, each.site) for each in found.scalars] == [(0, "loss", "")]
    assert not found.partings


def test_a_metric_that_may_be_negative_is_compared_on_its_own_scale() -> None:
    def run(seed: int, sign: float) -> Run:
        random = np.random.default_rng(seed)
        with memory_run() as writer:
            for step in range(40):
                writer.scalar("reward", (sign if step >= 20 else -1.0) * 5 + random.normal(0, 0.2), step=step)
            return writer.run()

    assert [each.step for each in compare_rows(run(0, -1.0), run(1, 1.0)).scalars] == [20]
    assert not compare_rows(run(0, 1.0), run(1, 1.0)).scalars


def test_runs_of_other_intervals_are_compared_at_the_steps_of_both() -> None:
    found = compare_rows(record(steps=range(0, 400, 4)), record(1, steps=range(0, 400, 6), change=times("fc:output", 9.0, 200)))
    assert found.steps.tolist() == list(range(0, 400, 12))
    assert where(found)[0] == (204, "fc:output", "rms")
    assert "steps that both have" in found.notes[0]


def test_runs_that_logged_other_steps_are_compared_in_intervals() -> None:
    found = compare_rows(record(steps=range(0, 400, 4)), record(1, steps=range(1, 400, 4), change=times("fc:output", 9.0, 200)))
    assert found.resolution > 1
    assert abs(found.partings[0].step - 200) <= found.resolution
    assert found.partings[0].site == "fc:output"
    assert "intervals" in found.notes[0]


@pytest.mark.slow
def test_long_runs_are_compared_in_intervals_and_the_very_step_is_named() -> None:
    steps, sites, late = range(3000), SITES[:2], 1234
    found = compare_rows(record(steps=steps, sites=sites), record(1, steps=steps, sites=sites, change=times(sites[1], 9.0, late)))
    assert found.resolution == 12
    assert where(found)[0] == (1234, "head:output", "rms")
    exact = compare_rows(record(steps=steps, sites=sites), record(steps=steps, sites=sites, change=times(sites[1], 1.01, late)))
    assert exact.difference is not None
    assert (exact.difference.step, exact.difference.site) == (1234, "head:output")


@pytest.mark.slow
def test_repeats_make_a_small_change_visible_and_a_usual_one_not() -> None:
    repeats = [record(seed, noise=0.01) for seed in range(1, 4)]
    small = record(9, noise=0.01, change=times("fc:output", 1.4, 200))
    assert not compare_rows(record(noise=0.01), small).partings
    assert where(compare_rows(record(noise=0.01), small, baseline=repeats))[0] == (200, "fc:output", "rms")
    usual = [record(seed, noise=0.01, change=times("fc:output", 1.4**seed)) for seed in range(1, 3)]
    assert not compare_rows(record(noise=0.01), small, baseline=usual).partings


def test_layers_of_another_name_are_joined_by_a_function() -> None:
    other = tuple(site.replace("fc", "dense") for site in SITES)
    a, b = record(), record(1, sites=other, change=times("dense:output", 9.0, 200))
    plain = compare_rows(a, b)
    assert all("dense" in site for site in plain.only_b)
    assert not plain.partings

    def rename(site: Site) -> Site | None:
        return Site(site.path.replace("fc", "dense"), site.port)

    assert where(compare_rows(a, b, rename=rename))[0] == (200, "fc:output", "rms")


def test_numbers_that_are_nothing_beside_others_are_rounding() -> None:
    """As the gradient of a bias before a normalisation: zero, but for rounding, which other code makes a thousand times larger."""
    tiny = times("fc:grad_output", 1e-7)

    def larger(step: int, rms: dict[str, float]) -> None:
        rms["fc:grad_output"] *= 1e-4

    assert not compare_rows(record(change=tiny), record(1, change=larger)).partings
    assert compare_rows(plain(), record(1, change=tiny)).partings  # but one that vanishes in one run alone parts


def test_settings_and_modules_that_differ_are_named() -> None:
    def about(lr: float, kinds: tuple[str, str], parameters: int) -> dict[str, Any]:
        model = [
            {"name": "", "type": "Net", "parameters": 0},
            {"name": "fc", "type": kinds[0], "parameters": parameters},
            {"name": kinds[1], "type": "ReLU", "parameters": 0},
        ]
        return {"config": {"lr": lr, "same": 1}, "environment": {"torch": "2.13"}, "model": model}

    found = compare_rows(record(about=about(1e-3, ("Linear", "act"), 20)), record(1, about=about(3e-2, ("Linear", "relu"), 30)))
    assert found.settings == {"lr": (1e-3, 3e-2)}
    assert found.layers == (
        "modules of a alone: act (ReLU)",
        "modules of b alone: relu (ReLU)",
        "fc: 20 parameters in a, 30 in b",
    )


def test_runs_that_cannot_be_compared_are_refused_in_words() -> None:
    with memory_run() as writer:
        empty = writer.run()
    with pytest.raises(ArgumentError, match="nothing was recorded in it yet"):
        compare_rows(plain(), empty)
    with pytest.raises(ArgumentError, match=r"no steps in common: .* has 0 to 390 and .* has 1,000 to 1,390"):
        compare_rows(plain(), record(steps=range(1000, 1400, 10)))


def test_runs_without_a_common_place_are_compared_by_scalars_and_say_so() -> None:
    found = compare_rows(record(sites=("a:output",)), record(1, sites=("b:output",), loss=5.0))
    assert [each.number for each in found.scalars] == ["loss"]
    assert any("no place in common" in note for note in found.notes)
    with memory_run() as one, memory_run() as other:
        one.append("moments", Layout(["layers.0:output"]), {"rms": [1.0]}, step=0)
        other.append("moments", Layout(["layers.1:output"]), {"rms": [1.0]}, step=0)
        with pytest.raises(ArgumentError, match=r"no place in common: a has 1, as layers\.0, and b 1\. Nearest: layers\.1\."):
            compare_rows(one.run(), other.run())


def test_runs_of_few_steps_say_that_their_scatter_is_hardly_known() -> None:
    found = compare_rows(record(steps=range(4)), record(1, steps=range(4)))
    assert any("few" in note for note in found.notes)
    assert not found.partings


def test_a_run_that_is_still_written_is_compared_as_far_as_it_is() -> None:
    found = compare_rows(plain(), record(1, steps=range(0, 250, 10), change=times("fc:output", 9.0, 200)))
    assert found.steps[-1] == 240
    assert where(found)[0] == (200, "fc:output", "rms")
