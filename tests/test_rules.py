"""The rules: from which number on each says something, in which words and how gravely."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sonde import rules
from sonde.rules import Finding
from sonde.run import Findings


def said(found: Finding | None) -> tuple[str, str, str] | None:
    return None if found is None else (found.rule, found.severity, found.message)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (rules.judge("nonfinite", 0, 0, 5), None),
        (rules.judge("nonfinite", 3, 1, 1200), ("nonfinite", "bad", "not finite: 3 NaN, 1 inf")),
        (rules.judge("nonfinite", 0, 1200, 1200, what="gradient"), ("nonfinite", "bad", "gradient not finite: 1,200 inf")),
        (rules.judge("dead", 0.24), None),
        (rules.judge("dead", math.nan), None),
        (rules.judge("dead", 0.25), ("dead", "note", "25 % dead in a batch")),
        (rules.judge("dead", 0.9), ("dead", "note", "90 % dead in a batch")),
        (rules.judge("dead", 0.91), ("dead", "bad", "91 % dead")),
        (rules.judge("dead", 0.999), ("dead", "bad", "99 % dead")),
        (rules.judge("all_zero", 7, 8), None),
        (rules.judge("all_zero", 1, 1), None),
        (rules.judge("all_zero", 8, 8), ("all_zero", "bad", "all zero")),
        (rules.judge("constant", 2.0, 1e-6, 9), None),
        (rules.judge("constant", 2.0, 1e-8, 9), ("constant", "warn", "constant")),
        (rules.judge("constant", 2.0, 0.0, 1), None),
        (rules.judge("constant", math.nan, math.nan, 9), None),
        (rules.judge("saturated", 0.49), None),
        (rules.judge("saturated", 0.5), ("saturated", "note", "50 % saturated")),
        (rules.judge("gradient_zero", 1e-300), None),
        (rules.judge("gradient_zero", 0.0), ("gradient_zero", "bad", "gradient is zero")),
        (rules.judge("gradient_large", 99.0, 1.0), None),
        (rules.judge("gradient_large", 400.0, 1.0), ("gradient_large", "warn", "gradient 400 x the median")),
        (rules.judge("gradient_large", 400.0, 0.0), None),
        (rules.judge("gradient_small", 2e-3, 1.0), None),
        (rules.judge("gradient_small", 2e-4, 1.0), ("gradient_small", "warn", "gradient 1/5,000 of the median")),
        (rules.judge("gradient_small", 0.0, 1.0), None),
        (rules.judge("update_large", 0.1), None),
        (rules.judge("update_large", 0.25), ("update_large", "warn", "each step moves it by 25 % of its size")),
        (rules.judge("update_small", 1e-5), None),
        (rules.judge("update_small", 2e-6), ("update_small", "warn", "each step moves it by 2e-06 of its size")),
        (rules.judge("update_small", 0.0), ("update_small", "warn", "no step moves it")),
        (rules.judge("update_small", math.nan), None),
        (rules.judge("output_growth", 99.0, 1.0), None),
        (rules.judge("output_growth", 899.0, 1.5), ("output_growth", "bad", "output grew 599-fold, to 899")),
        (rules.judge("output_growth", math.nan, 1.5), None),
        (rules.judge("output_growth", 5.0, 0.0), None),
        (rules.judge("output_large", 999.0, 0.02), None),
        (
            rules.judge("output_large", 4288.0, 3.0),
            ("output_large", "warn", "output of size 4,288 from the beginning, 3 in the first layer"),
        ),
        (rules.judge("weight_growth", 9.0, 1.0), None),
        (rules.judge("weight_growth", 1e9, 0.1), ("weight_growth", "warn", "weight grew 1e+10-fold, to 1e+09")),
        (rules.judge("step_large", 0.1), None),
        (
            rules.judge("step_large", 0.83),
            ("step_large", "warn", "one step moved half of the weights by 83 % of their size or more"),
        ),
        (rules.judge("gradient_growth", 999.0, 1.0), None),
        (rules.judge("gradient_growth", 2000.0, 2.0), ("gradient_growth", "bad", "grew 1,000-fold, to 2,000")),
        (rules.judge("gradient_growth", math.inf, 0.0), None),
        (rules.judge("spike", 4.0, 2.0, 9.9), None),
        (rules.judge("spike", 4.0, 2.0, 15.0), ("spike", "warn", "jumped to 4, 2 x its median")),
        (rules.judge("spike", 4.0, 2.0, 5.0, 0.41), None),
        (rules.judge("spike", 4.0, 2.0, 5.0, 0.4), ("spike", "warn", "jumped to 4, 2 x its median")),
        (rules.judge("gradient_vanishing", 1.1e-4, 1.0), None),
        (
            rules.judge("gradient_vanishing", 1e-4, 1.0),
            ("gradient_vanishing", "warn", "gradients vanish towards the input: 1/10,000 of those of the last layers"),
        ),
        (rules.judge("gradient_exploding", 9999.0, 1.0), None),
        (
            rules.judge("gradient_exploding", 2e4, 1.0),
            ("gradient_exploding", "warn", "gradients explode towards the input: 20,000 x those of the last layers"),
        ),
        (rules.judge("update_huge", 0.6), None),
        (rules.judge("update_huge", 1.0), ("update_huge", "warn", "one step moves it by 100 % of its size")),
        (rules.judge("update_lost", 0.49), None),
        (rules.judge("update_lost", 0.5), ("update_lost", "note", "50 % of its updates are lost to rounding")),
        (rules.judge("update_lost", 0.98), ("update_lost", "note", "98 % of its updates are lost to rounding")),
        (rules.judge("update_lost", 0.99), ("update_lost", "warn", "99 % of its updates are lost to rounding")),
        (rules.judge("gradient_cleared", 4), None),
        (
            rules.judge("gradient_cleared", 5),
            (
                "gradient_cleared",
                "bad",
                "its gradient is cleared between backward() and step(), so that no step learns anything",
            ),
        ),
        (rules.judge("input_large", 999.0), None),
        (
            rules.judge("input_large", 1e3),
            ("input_large", "warn", "what goes into it is of size 1,000, from the beginning on"),
        ),
        (rules.judge("input_large", 5e3, 1e3), None),
        (rules.judge("input_large", 0.9, 1e-9), None),
        (
            rules.judge("input_large", 1.0, 0.0),
            ("input_large", "warn", "what goes into it is of size 1, inf x as large as before"),
        ),
        (
            rules.judge("input_large", 100.0, 1.0),
            ("input_large", "warn", "what goes into it is of size 100, 100 x as large as before"),
        ),
        (rules.judge("input_same", 5.0, 1.0, 129.0), None),
        (rules.judge("input_same", 5.0, 1.0, 128.0), ("input_same", "warn", "what goes in is the same 128 samples, in 5 passes")),
        (rules.judge("overwritten", 3.0, 1.0), None),
        (rules.judge("overwritten", math.nan, math.nan, 0.51), None),
        (
            rules.judge("overwritten", math.nan, math.nan, 0.01),
            (
                "overwritten",
                "warn",
                "99 % of each step is taken back before the next one begins: something else writes into it",
            ),
        ),
        (rules.judge("unmoved", 4), None),
        (rules.judge("unmoved", 5), ("unmoved", "bad", "gets a gradient, and no optimizer moves it")),
        (rules.judge("gradient_kept", 4), None),
        (rules.judge("gradient_kept", 5), ("gradient_kept", "bad", "its gradient is never cleared, and adds up")),
        (rules.judge("unreached", 4), None),
        (rules.judge("unreached", 5), ("unreached", "bad", "no gradient reaches it")),
        (rules.judge("frozen", 0, 9), None),
        (rules.judge("frozen", 2, 2), None),
        (rules.judge("frozen", 1, 2), ("frozen", "warn", "is frozen, between weights that are trained")),
        (rules.judge("output_small", 1.0, 1.1e-3), None),
        (
            rules.judge("output_small", 1.0, 1e-3),
            ("output_small", "warn", "outputs fade through the network from the beginning: from 1 to 0.001"),
        ),
        (rules.judge("weight_shrinking", 0.11, 1.0), None),
        (rules.judge("weight_shrinking", 0.1, 1.0), ("weight_shrinking", "warn", "weight shrank to 0.1, 1/10 of what it was")),
        (rules.judge("flat", 0.05), None),
        (rules.judge("flat", 0.01), ("flat", "warn", "saturated: its mean slope is 0.01 of the largest")),
        (rules.judge("constant_weight", 1.0, 1e-6), None),
        (
            rules.judge("constant_weight", 0.5, 0.0),
            ("constant_weight", "bad", "all elements are 0.5: its units are all alike, and learn alike"),
        ),
        (rules.judge("constant_weight", 0.5, 0.11, 0.1), None),
        (rules.judge("constant_weight", 0.19, 0.1, 0.1), None),
        (
            rules.judge("constant_weight", 0.5, 0.1, 0.1),
            ("constant_weight", "bad", "all elements were 0.5: its units are all alike, and learn alike"),
        ),
        (rules.judge("weight_large", 20.0, 0.1), None),
        (rules.judge("weight_large", 20.0, 0.0), None),
        (rules.judge("weight_large", 2.9, 0.1, does_harm=True), None),
        (
            rules.judge("weight_large", 4.0, 0.1, does_harm=True),
            ("weight_large", "warn", "begins with weights of size 4, 40 x as large as usual"),
        ),
        (
            rules.judge("weight_large", 4.0, 0.1, 0.0, 20.0, does_harm=True),
            ("weight_large", "warn", "begins with weights of size 4, 40 x as large as usual: outputs of size 20"),
        ),
        (
            rules.judge("weight_large", 4.0, 0.1, 0.0, 20.0, does_harm=True, recurs=True),
            (
                "weight_large",
                "warn",
                "begins with weights of size 4, 40 x as large as usual: of inputs of size 1, sums of size 20 go into its state",
            ),
        ),
        (rules.judge("weight_large", 9.9, 1.0, 1.0), None),
        (
            rules.judge("weight_large", 10.0, 1.0, 1.0),
            ("weight_large", "warn", "begins with weights of size 10, 10 x as large as usual"),
        ),
        (rules.judge("weight_small", 1, 1e-9, 0.01), None),
        (rules.judge("weight_small", 4, 2e-4, 0.1), None),
        (
            rules.judge("weight_small", 4, 1e-4, 0.1),
            (
                "weight_small",
                "warn",
                "begins with weights 0.1 x as large as usual, as 4 layers in a row do: what goes through fades",
            ),
        ),
        (rules.judge("gate_shut", 4.9, -6.0, 0.5), None),
        (rules.judge("gate_shut", 5.0, -6.0, 2.0), None),
        (
            rules.judge("gate_shut", 5.0, -6.0, 0.5, gate="forget gate", effect="nothing is kept"),
            ("gate_shut", "warn", "the bias of its forget gate begins at -6: nothing is kept"),
        ),
        (
            rules.judge("weight_large", 30.0, 0.1),
            ("weight_large", "warn", "begins with weights of size 30, 300 x as large as usual"),
        ),
        (rules.judge("attention_large", 10.0, 9.9), None),
        (
            rules.judge("attention_large", 10.0, 12.0),
            ("attention_large", "warn", "attention scores of size 120: softmax takes one of them and forgets the others"),
        ),
        (rules.judge("rank_collapse", 1.11), None),
        (
            rules.judge("rank_collapse", 1.1),
            ("rank_collapse", "warn", "its outputs all point in one direction (effective rank 1.1)"),
        ),
        (rules.judge("one_index", 33, 32, 128), None),
        (rules.judge("one_index", 0, 32, 128), None),
        (rules.judge("one_index", 32, 32, 7), None),
        (
            rules.judge("one_index", 32, 32, 128),
            (
                "one_index",
                "bad",
                "of 128 indices of a step a gradient reaches one row alone: they are all the same, or the loss uses one alone",
            ),
        ),
        (rules.judge("dropped", 0.8), None),
        (rules.judge("dropped", 0.99), ("dropped", "warn", "99 % dropped")),
        (rules.judge("would_overflow", 0.0, 0.0), None),
        (rules.judge("would_overflow", 0.01, 0.0), ("would_overflow", "warn", "1 % of its values would overflow")),
        (rules.judge("would_underflow", 0.25, 0.0), None),
        (rules.judge("would_underflow", 0.3, 0.0), ("would_underflow", "warn", "30 % of its values would be rounded to zero")),
        (rules.judge("overflow_near", 32_752.0, 65_504.0), None),
        (
            rules.judge("overflow_near", 40_000.0, 65_504.0),
            ("overflow_near", "warn", "magnitudes up to 40,000, the format ends at 65,504"),
        ),
        (rules.judge("underflow", 0.9, 2.0**-14, 2.0**-14), None),
        (rules.judge("underflow", 0.49, 1e-6, 2.0**-14), None),
        (
            rules.judge("underflow", 1.0, 0.0, 2.0**-14),
            ("underflow", "warn", "gradient underflows: all of it is zero in float16, whose smallest number is 6.0e-08"),
        ),
        (
            rules.judge("underflow", 0.5, 1e-6, 2.0**-14),
            (
                "underflow",
                "warn",
                "gradient underflows: 50 % zero, the rest up to 1.0e-06, where normal numbers begin at 6.1e-05",
            ),
        ),
        (
            rules.judge("loss_stuck", 0.970, 0.985, 1.0, 0.008, math.nan, math.nan, math.nan, 300.0),
            None,
        ),  # a fall that is none by chance
        (
            rules.judge("loss_stuck", 0.985, 0.985, 1.0, 0.008, math.nan, math.nan, math.nan, 300.0),
            ("loss_stuck", "warn", "the loss does not fall: 1 in the first third, 0.985 in the last"),
        ),
        (rules.judge("loss_stuck", 0.985, 0.985, 1.0, 0.008, math.nan, math.nan, math.nan, 30.0), None),
        (rules.judge("loss_rising", 1.5, 1.0, 0.8), None),
        (rules.judge("loss_rising", 0.04, 0.1, -0.1), None),
        (
            rules.judge("loss_rising", 1.6, 1.0, 0.8),
            ("loss_rising", "bad", "the loss rises: 1.6, where it was 1 at first and 0.8 at best"),
        ),
        (
            rules.judge("loss_rising", 1.3, 1.0, 0.2),
            ("loss_rising", "bad", "the loss rises: 1.3, where it was 1 at first and 0.2 at best"),
        ),
        (rules.judge("loss_rising", 1.0, 1.0, 0.2, 0.5), None),
        (rules.judge("loss_rising", 1.6, 1.0, 0.8, 0.2), None),
        (rules.judge("loss_rising", 4.0, 1.0, 0.8, 0.0, math.nan, 1.0), None),  # the first values are around 0
        (rules.judge("loss_unbounded", -9.0, -4.0, 0.0, 1.0), None),
        (rules.judge("loss_unbounded", -11.0, -6.0, 0.0, 1.0), None),  # it slows down
        (rules.judge("loss_unbounded", -11.0, -4.0, 0.0, 1.0, 0.4), None),  # it began around 0
        (
            rules.judge("loss_unbounded", -13.0, -5.0, 0.0, -0.1, 0.4),
            ("loss_unbounded", "warn", "the loss falls without bound: from -0.1 to -13"),
        ),
        (
            rules.judge("loss_unbounded", -1.5, -1.42, -1.4, -1.4, 0.1, math.log(4), -1.3, -2.2),  # at last
            ("loss_unbounded", "warn", "the loss falls without bound: from -1.4 to -2.2"),
        ),
        (rules.judge("loss_unbounded", -2.0, -1.5, -1.4, -1.1, 0.1, math.log(4)), None),
        (
            rules.judge("loss_unbounded", -2.2, -1.5, -1.4, -1.4, 0.1, math.log(4)),
            ("loss_unbounded", "warn", "the loss falls without bound: from -1.4 to -2.2"),
        ),
        (rules.judge("loss_unbounded", -11.0, -5.0, 0.0, 1.0, 0.0, math.nan, 1.0), None),  # it crosses zero, as that of a density
        (rules.judge("loss_unbounded", -0.9, -0.4, -0.2, -0.05), None),  # a score ends at -1
        (
            rules.judge("loss_unbounded", -130.0, -50.0, 0.0, 1.0, 0.0, math.nan, 1.0),
            ("loss_unbounded", "warn", "the loss falls without bound: from 1 to -130"),
        ),
        (
            rules.judge("loss_unbounded", -13.0, -5.0, 0.0, 1.0, 0.0, math.nan, 1.0, grows=True),  # with it an output or a weight
            ("loss_unbounded", "warn", "the loss falls without bound: from 1 to -13"),
        ),
        (rules.judge("loss_unbounded", -3.0, -1.5, -0.1, -0.03), None),  # a density: evenly, by the logarithm of a scale
        (
            rules.judge("loss_unbounded", -11.0, -5.0, -1.0, -1.0),
            ("loss_unbounded", "warn", "the loss falls without bound: from -1 to -11"),
        ),
        (rules.judge("loss_stuck", 0.9, 0.95, 1.0, 0.0, math.nan), None),
        (rules.judge("loss_stuck", 1.0, 1.0, 1.0, 0.02, math.nan), None),
        (
            rules.judge("loss_stuck", 1.0, 1.0, 1.0, 0.001, math.nan),
            ("loss_stuck", "warn", "the loss does not fall: 1 in the first third, 1 in the last"),
        ),
        (rules.judge("loss_stuck", 0.1, 0.1, 0.1, 0.001, math.log(3)), None),
        (
            rules.judge("loss_stuck", 1.1, 1.1, 2.0, 0.001, math.log(3)),
            ("loss_stuck", "warn", "the loss stays at that of a guess, 1.1: 2 in the first third, 1.1 in the last"),
        ),
        (rules.judge("loss_stuck", 1.1, 1.1, 2.0, 0.001, math.log(3), lowest=0.8), None),  # it was better, and did not stay
        (rules.judge("overfitting", 1.1, 1.0, 2.0, 0.1, 0.5), None),
        (rules.judge("overfitting", 1.3, 1.0, 2.0, 0.6, 0.5), None),
        (rules.judge("overfitting", 0.003, 0.001, 2.0, 1e-4, 1e-3), None),
        (rules.judge("loss_stuck", 1.07, 1.07, 1.13, 0.001, math.log(3), 1.1), None),  # better than a guess, if it rests there
        (
            rules.judge("overfitting", 1.3, 1.0, 2.0, 0.1, 0.5),
            ("overfitting", "warn", "overfitting: the validation loss is 1.3, 1.3 x its smallest, the loss 0.1"),
        ),
        (rules.judge("no_training_forward", 1, 9), None),
        (rules.judge("no_training_forward", 0, 0), None),
        (rules.judge("no_training_forward", 0, 1), None),
        (
            rules.judge("no_training_forward", 1, 1),
            ("no_training_forward", "bad", "0 of 1 logged steps had a training forward: is the model in eval()?"),
        ),
        (
            rules.judge("no_training_forward", 312, 312),
            ("no_training_forward", "bad", "0 of 312 logged steps had a training forward: is the model in eval()?"),
        ),
    ],
)
def test_each_rule_at_its_limit(found: Finding | None, wanted: tuple[str, str, str] | None) -> None:
    assert said(found) == wanted


AT_ITS_LIMIT: list[tuple[Finding | None, bool]] = [
    # from the limit on
    (rules.judge("gradient_large", 100.0, 1.0), True),
    (rules.judge("gradient_small", 1e-3, 1.0), True),
    (rules.judge("output_growth", 100.0, 1.0), True),
    (rules.judge("output_large", 1000.0, 1.0), True),
    (rules.judge("output_large", 1000.0, 0.5), True),  # against 1 where the first layer's is smaller
    (rules.judge("weight_growth", 10.0, 1.0), True),
    (rules.judge("gradient_exploding", 1e4, 1.0), True),
    (rules.judge("frozen", 34, 66), True),
    (rules.judge("constant", 0.5, 0.5e-7, 9), True),
    (rules.judge("constant_weight", 0.5, 0.5e-7), True),
    (rules.judge("constant_weight", 0.5, 0.25 * 1.001, 0.25), True),  # a step of 0.25, and a mean that is twice as large
    (rules.judge("one_index", 32, 32, 8), True),
    (rules.judge("attention_large", 10.0, 10.0), True),
    (rules.judge("spike", 20.0, 2.0, 5.0, 2.0), True),
    (rules.judge("initial_loss", 1.5, 1.0), True),
    (rules.judge("initial_error", 10.0, 1.0), True),
    (rules.judge("overfitting", 1.05, 1.0, 1.0, 0.5, 0.5, factor=1.05), True),
    (rules.judge("zeroed_as_good", 2.0, 1.0, 1.5, share=0.5), True),
    (rules.judge("zeroed_as_good", 2.0, 0.5, 1.0, share=0.5), True),  # twice the loss of the real inputs
    (rules.judge("zeroed_as_good", 2.0, 0.0, 0.1), True),  # of which there is none left
    (rules.judge("spike", 5.0, 2.0, 5.0, 2.0, above=2.5), True),
    (rules.judge("spike", 4.0, 2.0, 10.0), True),
    (rules.judge("labels_outside", 0, 10, 10), True),
    (rules.judge("loss_rising", 1.6, 1.0, 0.0), True),
    (rules.judge("loss_stuck", 1.0, 1.0, 1.0, 0.0, 2.0, fall=0.5, near=0.5), True),  # not far below a guess
    # beyond the limit alone
    (rules.judge("update_large", 0.2), False),
    (rules.judge("update_small", 1e-5), False),
    (rules.judge("update_huge", 0.6), False),
    (rules.judge("step_large", 0.2), False),
    (rules.judge("labels_outside", 0, 9, 10), False),
    (rules.judge("target_trained", 2.0), True),
    (rules.judge("target_trained", 1.0), False),
    (rules.judge("labels_several", 1.5), True),
    (rules.judge("labels_alike", 256.0, 10.0, 1.0), True),
    (rules.judge("labels_alike", 255.0, 10.0, 1.0), False),
    (rules.judge("labels_alike", 256.0, 9.0, 1.0), False),
    (rules.judge("padding_counted", 0.5), True),
    (rules.judge("padding_alone", 0.0, 0.1), True),
    (rules.judge("padding_alone", 1e-4, 0.1), True),
    (rules.judge("padding_alone", 0.1, 0.1), False),
    (rules.judge("future_seen", 1e-6, 1.0), False),
    (rules.judge("target_shifted", 0.0), True),
    (rules.judge("target_shifted", 1.0), False),
    (rules.judge("target_shifted", 2.0), True),
    (rules.judge("outputs_alike", 0.75, 25.0, 7.5), True),
    (rules.judge("outputs_alike", 0.75, 24.0, 7.5), False),
    (rules.judge("outputs_alike", 0.75, 25.0, 7.4), False),
    (rules.judge("outputs_alike", 0.0, 0.0, 1.0), False),
    (rules.judge("target_beyond", 0.05, -1.0, 2.0), True),
    (rules.judge("target_beyond", 1.0, math.nan, math.nan, side=1.0), True),
    (rules.judge("target_own", 10.0), True),
    (rules.judge("target_own", 9.0), False),
    (rules.judge("target_of_another", 0.99), True),
    (rules.judge("target_of_another", 0.98), False),
    (rules.judge("views_same", 10.0), True),
    (rules.judge("views_same", 9.0), False),
    (rules.judge("pushed_one_way", 18.0, 5.0, 1.0), True),
    (rules.judge("pushed_one_way", 18.0, 4.9, 1.0), False),
    (rules.judge("errors_cancel", 6.0), True),
    (rules.judge("errors_cancel", 5.0), False),
    (rules.judge("metric_falls", 0.75, 1.0, 0.05), True),
    (rules.judge("metric_falls", 0.76, 1.0, 0.05), False),
    (rules.judge("metric_falls", 0.75, 1.0, 0.06), False),
    (rules.judge("metric_falls", 1.09, 1.0, 0.05, is_level=True), True),
    (rules.judge("metric_falls", 1.11, 1.0, 0.06, is_level=True), False),
    (rules.judge("metric_falls", 1.09, 1.0, 0.04, is_level=True), False),
    (rules.judge("padding_counted", 0.2, is_given=True), True),
    (rules.judge("padding_counted", 0.4), False),
    (rules.judge("attention_large", math.nan, math.nan, sharp=0.95, places=8.0), True),
    (rules.judge("attention_large", math.nan, math.nan, sharp=0.94, places=8.0), False),
    (rules.judge("terms_uneven", 3e3), True),
    (rules.judge("terms_uneven", 2.9e3), False),
    (rules.judge("sentinel", 0.01, -999.0, -3.0), True),
    (rules.judge("class_regressed", 6.0), True),
    (rules.judge("class_regressed", 5.0), False),
    (rules.judge("class_regressed", 6.0, 0.0), False),
    (rules.judge("loss_unbounded", *[math.nan] * 4, is_maximised=True), True),
    (rules.judge("penalty_alone", 0.15, 0.7), True),
    (rules.judge("penalty_alone", 0.16, 0.7), False),
    (rules.judge("penalty_alone", 0.1, 0.71), False),
    (rules.judge("penalty_alone", 0.5, 0.7, at_most=0.02), True),
    (rules.judge("penalty_alone", 0.5, 0.7, at_most=0.03), False),
    (rules.judge("label_seen", 0.005, 0.0, 0.2, 8.0), True),
    (rules.judge("label_seen", 0.005, 0.0, 0.19, 8.0), False),
    (rules.judge("label_seen", 0.005, 0.0, 0.2, 7.9), False),
    (rules.judge("label_seen", 1e-6, 0.0), True),
    (rules.judge("label_seen", 1e-5, 0.0), False),
    (rules.judge("generator_misled", 10.0, 0.0), True),
    (rules.judge("generator_misled", 9.0, 0.0), False),
    (rules.judge("all_linear", 0.0), False),
    (rules.judge("weight_of_many", 2.0, 0.5), True),
    (rules.judge("weight_of_many", 1.9, 0.5), False),
    (rules.judge("weight_of_many", 2.0, 0.49), False),
    (rules.judge("overfitting", 0.37, 0.37, 0.77, 0.0004, 0.0004, 0.69, 5.0), True),  # a few samples by heart
    (rules.judge("overfitting", 0.37, 0.37, 0.77, 0.008, 0.008, 0.69, 5.0), False),
    (rules.judge("overfitting", 0.3, 0.3, 0.77, 0.0004, 0.0004, 0.69, 5.0), False),
    (rules.judge("overfitting", 1.5, 1.3, 1.4, 1.2, 1.3, 1.39, 4.0), True),  # by its rise alone
    (rules.judge("overfitting", 178.0, 178.0, 2200.0, 0.002, 0.002, math.nan, 3.0, 1.44), True),  # of other inputs
    (rules.judge("overfitting", 178.0, 178.0, 2200.0, 0.002, 0.002, math.nan, 2.0, 1.44), False),  # statistics may yet settle
    (rules.judge("overfitting", 11.0, 11.0, 30.0, 0.9, 0.9, math.nan, 3.0, 1.44), False),
    (rules.judge("overfitting", 1.4, 1.35, 1.4, 1.2, 1.3, 1.39, 5.0), True),
    (rules.judge("overfitting", 1.4, 1.35, 1.4, 1.2, 1.3, 1.39, 4.0), False),
    (rules.judge("overfitting", 1.4, 1.35, 3.0, 1.2, 1.3, 1.39, 5.0), False),  # no cross-entropy, as its first value says
    (rules.judge("overfitting", 1.4, 1.3, 1.4, 1.2, 1.3, 1.39, 5.0), False),
    (rules.judge("overfitting", 6.0, 6.0, 6.0, 0.3, 0.3, 1.39, 3.0, 1.45), True),  # worse than a guess from the first one on
    (rules.judge("overfitting", 6.0, 6.0, 6.0, 0.3, 0.3, 1.39, 2.0, 1.45), False),
    (rules.judge("overfitting", 0.0, 0.0, 0.0, 0.0, 0.0, 1.39, 5.0, 1.45), False),  # no loss at all, in evaluation or in training
    (rules.judge("overfitting", 2.0, 2.0, 2.0, 0.3, 0.3, 1.39, 3.0, 1.45), False),
    (rules.judge("overfitting", 6.0, 6.0, 6.0, 0.9, 0.9, 1.39, 3.0, 1.45), False),
    (rules.judge("overfitting", 6.0, 6.0, 6.0, 0.3, 0.3, 1.39, 3.0, 4.0), False),  # no cross-entropy, as its first value says
    (rules.judge("overfitting", 6.7, 6.7, 8.4, 0.2, 0.2, math.nan, 5.0), True),  # where it began
    (rules.judge("overfitting", 6.7, 6.7, 8.4, 0.2, 0.2, math.nan, 4.0), False),
    (rules.judge("overfitting", 6.7, 6.7, 8.4, 2.2, 2.2, math.nan, 5.0), False),
    (rules.judge("overfitting", 6.1, 6.1, 8.4, 0.2, 0.2, math.nan, 5.0), False),
    (rules.judge("weight_of_ones", 20.0, 20.0), True),
    (rules.judge("weight_of_ones", 20.0, 19.0), False),
    (rules.judge("weight_of_ones", 19.0, 20.0), False),
    (rules.judge("few_indices", 0.5, 2.0, 40.0, 400.0), True),
    (rules.judge("few_indices", 0.5, 3.0, 40.0, 400.0), False),
    (rules.judge("few_indices", 0.5, 2.0, 40.0, 399.0), False),
    (rules.judge("few_indices", 0.9, 4.0, 8.0, 10.0), True),
    (rules.judge("few_indices", 0.9, 4.0, 7.0, 10.0), False),
    (rules.judge("few_indices", 0.9, 4.0, 8.0, 10.0, is_sequence=False), False),
    (rules.judge("few_indices", 1.0, 1.0, 40.0, 4000.0), False),
    (rules.judge("norm_starved", 0.1), True),
    (rules.judge("norm_starved", 0.2), False),
    (rules.judge("running_off", 1.0, 1.0), True),
    (rules.judge("running_off", 0.9, 2.0), True),
    (rules.judge("running_off", 0.9, 1.9), False),
    (rules.judge("norm_setting", math.nan, math.nan, 0.01), True),
    (rules.judge("norm_setting", math.nan, math.nan, 0.06), False),
    (rules.judge("loss_broadcast", 8, 8), False),
    (rules.judge("step_lost", 2.0**-23, 2.0**-23), False),
    (rules.judge("not_overfit", 1.0, 0.5, half=0.5), False),
    (rules.judge("cut_off", 0.0, 1.0), False),
    (rules.judge("samples_mixed", 1e-6, 1e-6), False),
    (rules.judge("random_output", 0.0, 1e-6), False),
    (rules.judge("overfitting", 1.5, 1.0, 1.0, 1.5, 1.5), False),  # no more than the training loss
    (rules.judge("loss_rising", 1.5, 1.0, 0.8), False),
    (rules.judge("loss_rising", 1.9, 2.0, 0.0), False),  # most of what was won is lost again, and no more
    (rules.judge("loss_rising", 2.5, 1.0, 1.0, 0.25), True),
    (rules.judge("loss_rising", 2.5, 1.0, 1.0, 0.25, lately=1.8), False),  # by chance
    (rules.judge("loss_rising", 1.3, 1.0, 0.4, 0.25), True),
    (rules.judge("loss_rising", 1.2, 1.0, 0.4, 0.25), False),  # it has come back, and no more
    (rules.judge("loss_rising", 1.3, 1.0, 0.4, 0.25, rested=0.8), False),
    (rules.judge("loss_rising", 1.6, 1.0, 1.0, 0.1, rested=0.8, lately=1.0), True),  # no noisy one
    (rules.judge("loss_rising", 1.2, 1.25, 0.1, 0.0, 1.1), True),  # that of a guess again
    (rules.judge("loss_rising", 1.2, 1.5, 0.0, 0.0, 1.1), False),
    (rules.judge("loss_rising", 1.45, 1.0, 0.7), False),  # too little was won
    (rules.judge("loss_rising", 1.2, 1.0, 0.6), False),  # no more than twice the smallest
    (rules.judge("loss_unbounded", -10.0, -4.0, 0.0, 1.0), False),
    (rules.judge("loss_unbounded", -2.0, -1.0, 0.0, -1.0, factor=1.0), False),
    (rules.judge("loss_unbounded", -15.0, -6.0, 0.0, 1.0), True),
    (rules.judge("loss_unbounded", -12.0, -6.0, 0.0, 1.0, faster=1.0), True),
    (rules.judge("loss_stuck", 0.5, 0.75, 1.0, 0.0, math.nan, fall=0.5), False),
    (rules.judge("loss_stuck", 1.0, 1.5, 9.0, 0.0, 1.0, fall=0.5), False),
    (rules.judge("loss_stuck", 1.0, 1.0, 9.0, 0.0, 2.0, near=0.5), False),
]


@pytest.mark.parametrize(("found", "is_found"), AT_ITS_LIMIT)
def test_a_number_that_equals_the_limit_is_on_the_side_that_the_condition_says(found: Finding | None, is_found: bool) -> None:
    """Found where the condition says "x as large" or "or more", not where it says "more than", "below" or "outside"."""
    assert (found is not None) is is_found


@pytest.mark.parametrize(
    "found",
    [
        lambda: rules.judge("gradient_large", 0.0, 0.0),
        lambda: rules.judge("gradient_small", 0.0, 0.0),
        lambda: rules.judge("gradient_growth", 0.0, 0.0),
        lambda: rules.judge("gradient_vanishing", 0.0, 0.0),
        lambda: rules.judge("gradient_exploding", 0.0, 0.0),
        lambda: rules.judge("output_growth", 0.0, 0.0),
        lambda: rules.judge("output_small", 0.0, 0.0),
        lambda: rules.judge("weight_growth", 0.0, 0.0),
        lambda: rules.judge("weight_large", 0.0, 0.0),
        lambda: rules.judge("weight_shrinking", 0.0, 0.0),
        lambda: rules.judge("loss_rising", 5.0, 0.0, 0.0),
        lambda: rules.judge("loss_rising", 5.0, 1.0, -0.1),
        lambda: rules.judge("loss_unbounded", 0.0, 0.0, 0.0, 0.0),
        lambda: rules.judge("loss_stuck", 1.0, 1.0, 0.0, 0.0, 1.0),
        lambda: rules.judge("initial_error", 0.0, 0.0),
        lambda: rules.judge("overfitting", 0.0, 0.0, 0.0, -1.0, -1.0),
        lambda: rules.judge("zeroed_as_good", 1.0, 1.0, 1.0),
    ],
)
def test_nothing_is_said_against_a_size_of_zero(found: Any) -> None:
    """A quotient by nothing is none: no rule divides by 0, or finds 0 large beside 0."""
    assert found() is None


NUMBERS = [
    -200.0,
    -20.0,
    -1.0,
    -1e-6,
    0.0,
    1e-9,
    1e-6,
    1e-5,
    1e-3,
    0.02,
    0.05,
    0.2,
    0.25,
    0.5,
    0.6,
    0.9,
    1.0,
    1.1,
    1.5,
    2.0,
    5.0,
    8.0,
    10.0,
]
NUMBERS += [100.0, 300.0, 1e3, 1e4, 65_504.0, math.inf, math.nan]


@pytest.mark.parametrize("name", [name for name, each in rules.RULES.items() if each.measure is not None])
def test_a_condition_says_the_same_of_an_array_as_of_each_number_in_it(name: str) -> None:
    """Of 2,000 draws from numbers at, next to and far from limits; the value of what is found is the same, too."""
    entry, generator = rules.RULES[name], np.random.default_rng(0)
    drawn = generator.choice(NUMBERS, (len(entry.reads), 2000))
    assert entry.measure is not None
    with np.errstate(all="ignore"):
        holds, values = (np.broadcast_to(each, 2000) for each in entry.measure(*drawn))
        found = [entry.judge(*numbers) for numbers in drawn.T]
    assert [each is not None for each in found] == holds.tolist()
    assert holds.any()
    assert not holds.all()
    np.testing.assert_array_equal([each.value for each in found if each is not None], values[holds])


def test_what_an_entry_names_is_there() -> None:
    """What follows from a rule is a rule, and thresholds that are named are its own."""
    for each in rules.RULES.values():
        named = {name for name in (each.least, each.note_until) if isinstance(name, str) and name}
        assert each.brings <= rules.RULES.keys()
        assert named <= each.thresholds.keys()


@pytest.mark.parametrize("name", sorted(rules.RULES))
def test_an_advice_has_the_words_of_what_it_tries_and_of_nothing_else(name: str) -> None:
    words = {"lr": "lower a learning rate", "clip_grad_norm": "clip the gradient norm"}
    assert {each for each, said in words.items() if said in rules.RULES[name].advice} == set(rules.RULES[name].tries)


@pytest.mark.parametrize("name", [name for name, each in rules.RULES.items() if each.window is not None])
def test_a_rule_must_hold_as_often_as_its_condition_says(name: str) -> None:
    """In 3 of 5 logged steps, for example, and so often where nothing is said; docs/rules.md names those that differ."""
    said = re.search(r"(\d) of (\d) (logged steps|medians|evaluations)", rules.RULES[name].condition)
    unsaid = {"update_huge": (1, 1), "gradient_alone": (1, 1), "update_small": (4, 5)}
    window = rules.RULES[name].window
    assert window is not None
    assert (window.most, window.of) == ((int(said[1]), int(said[2])) if said else unsaid.get(name, (3, 5)))


def test_the_severity_at_a_limit() -> None:
    """A loss that falls by just the least is learnt, though not as expected; a difference of just the limit is rounding."""
    (learnt, random) = (rules.judge("not_overfit", 1.0, 0.5, least=0.5, half=0.9), rules.judge("random_output", 1e-6, 1e-6))
    assert learnt is not None
    assert random is not None
    assert (learnt.severity, random.severity) == ("warn", "note")


def test_every_rule_is_listed_with_its_condition_and_source() -> None:
    assert set(rules.RULES) == {
        "nonfinite", "dead", "all_zero", "constant", "saturated", "gradient_zero", "gradient_large", "gradient_small",
        "update_large", "update_small", "output_growth", "output_large", "weight_growth", "step_large", "gradient_growth", "spike",
        "no_training_forward", "gradient_vanishing", "gradient_exploding", "update_huge", "update_lost", "unmoved", "unreached",
        "frozen", "output_small", "weight_shrinking", "flat", "constant_weight", "dropped", "overflow_near", "underflow",
        "attention_large", "weight_large", "one_index", "gradient_kept", "gradient_cleared", "input_large",
        "rank_collapse", "would_overflow", "would_underflow", "begins_large", "input_same", "overwritten",
        "loss_rising", "loss_unbounded", "loss_stuck", "overfitting",
        "betas_odd", "rate_small",
        "rate_negative", "decay_large", "momentum_large", "rate_grown", "gradient_alone", "target_large", "bounded",
        "loss_summed", "labels_several", "labels_alike", "norm_setting", "optimizer_renewed", "held_twice", "eps_large",
        "eps_lost", "frozen_raw",
        "eval_mode", "labels_outside", "loss_broadcast", "softmax_twice", "initial_loss", "initial_error", "cut_off",
        "missing_in_optimizer", "step_lost", "not_overfit", "zeroed_as_good", "input_unused", "samples_mixed",
        "random_output", "target_trained", "padding_counted", "padding_alone", "future_seen", "target_shifted",
        "residual_missing", "outputs_alike", "target_beyond", "weight_of_ones", "few_indices", "running_off", "norm_starved",
        "target_of_another", "views_same", "pushed_one_way", "errors_cancel", "metric_falls",
        "weight_small", "gate_shut",
        "target_own", "terms_uneven", "penalty_alone", "label_seen", "generator_misled", "all_linear", "weight_of_many",
        "sentinel", "class_regressed",
    }  # fmt: skip
    assert all(each.condition and each.source and each.advice and each.judge.__name__ == name for name, each in rules.RULES.items())
    assert [name for name, each in rules.RULES.items() if "{lr}" in each.advice or "{clip" in each.advice] == []


def numbers(**given: float) -> Any:
    seen = {"count": 10.0, "nan": 0.0, "inf": 0.0, "zeros": 0.0, "mean": 0.5, "std": 1.0, "norm": 2.0}
    return SimpleNamespace(**(seen | given))


def messages(found: list[Finding]) -> list[str]:
    return [each.message for each in found]


def test_the_rules_of_an_output() -> None:
    """What is not finite is said alone; an output whose units cannot be told is all zero, else its units are dead."""
    assert messages(rules.of_output(numbers())) == []
    assert messages(rules.of_output(numbers(count=0.0, zeros=0.0))) == []
    assert messages(rules.of_output(numbers(nan=2.0, zeros=8.0), dead_share=0.8)) == ["not finite: 2 NaN"]
    assert messages(rules.of_output(numbers(zeros=10.0, mean=0.0, std=0.0))) == ["all zero"]
    assert messages(rules.of_output(numbers(zeros=10.0, mean=0.0, std=0.0), dead_share=1.0)) == ["100 % dead"]
    assert messages(rules.of_output(numbers(std=0.0), saturated_share=1.0)) == ["constant", "100 % saturated"]


def test_the_rules_of_a_gradient() -> None:
    """Against the median of its kind; one of a single element is not compared."""
    assert messages(rules.of_gradient(numbers(), 2.0)) == []
    assert messages(rules.of_gradient(numbers(inf=1.0), 2.0)) == ["gradient not finite: 1 inf"]
    assert messages(rules.of_gradient(numbers(norm=0.0), 0.0)) == ["gradient is zero"]
    assert messages(rules.of_gradient(numbers(norm=800.0), 2.0)) == ["gradient 400 x the median"]
    assert messages(rules.of_gradient(numbers(norm=800.0, count=1.0), 2.0)) == []


def test_the_rules_of_an_update() -> None:
    """A weight without a size, or of size 0, has no ratio, so that nothing is said of a weight that is NaN."""
    assert messages(rules.of_update(0.5, 1.0)) == ["each step moves it by 50 % of its size"]
    assert messages(rules.of_update(0.0, 1.0)) == ["no step moves it"]
    assert messages(rules.of_update(0.0, 0.0)) == messages(rules.of_update(0.0, math.nan)) == []


def test_a_finding_carries_its_numbers_and_can_be_placed() -> None:
    found = rules.judge("gradient_large", 400.0, 1.0)
    assert found is not None
    assert (found.evidence, found.value, found.site) == ({"size": 400.0, "median": 1.0}, 400.0, "")
    placed = found.at("0.weight:grad", 1, 30)
    assert (placed.site, placed.epoch, placed.step, placed.message) == ("0.weight:grad", 1, 30, found.message)


def of_losses(values: list[float]) -> set[str]:
    """The rules that find something in losses, one in each step."""
    scalars = rules.ScalarFindings(rules.Chosen())
    for step, value in enumerate(values):
        scalars.add("loss", value, epoch=0, step=step)
    return {each.rule for each in scalars.findings(at_end=True)}


def test_a_jump_of_a_loss_that_is_back_at_once_is_no_spike_where_it_is_not_far_above_all_before() -> None:
    """As of batches of a sparse reward; what stays, comes back slowly, comes at the end, or is thirty times all before is one."""
    noisy = [0.0007 + 0.03 * math.exp(-step / 5) + 0.0002 * (step % 3) for step in range(150)]
    assert "spike" not in of_losses([0.04 if step in (100, 130) else each for step, each in enumerate(noisy)])
    for spikes in ([0.04] * 5, [0.04, 0.03, 0.02, 0.015, 0.01], [1.2]):
        assert "spike" in of_losses([*noisy[:100], *spikes, *noisy[100 + len(spikes) :]])
    assert "spike" not in of_losses([*noisy[:100], 0.4, *noisy[101:]])
    assert "spike" in of_losses([*noisy[:100], 0.04])


@pytest.mark.parametrize(
    ("values", "is_told"),
    [([0.0] * 6, True), ([0.0] * 5 + [0.1], False), ([0.0] * 4, False), ([0.5] * 6, False), ([0.0] * 40, True)],
)
def test_a_metric_that_is_zero_throughout_is_told_at_the_end(values: list[float], is_told: bool) -> None:
    """As the overlap of a mask whose pixels are all called background; not before: what is exact comes late."""
    scalars = rules.ScalarFindings(rules.Chosen())
    for step, value in enumerate(values):
        scalars.add("iou", value, epoch=0, step=30 * step)
    assert not list(scalars.findings())
    assert [each.message for each in scalars.findings(at_end=True)] == (
        [f"iou is 0 throughout, in {len(values)} values up to step {30 * (len(values) - 1):,}"] if is_told else []
    )


@pytest.mark.parametrize(
    ("name", "values", "is_told"),
    [
        ("reward", [0.5 + 0.2 * (-1) ** at for at in range(80)], True),
        ("eval/return_mean", [-200.0] * 80, True),
        ("reward", [0.5 + 0.2 * (-1) ** at + 0.01 * at for at in range(80)], False),  # it rises
        ("reward", [*[0.2] * 12, *[0.9 + 0.05 * (-1) ** at for at in range(68)]], False),  # it has risen at once
        ("success", [1.0] * 80, False),  # there is nothing above
        ("reward", [0.5 + 0.2 * (-1) ** at for at in range(59)], False),  # too few
        ("accuracy", [0.5 + 0.2 * (-1) ** at for at in range(80)], False),  # that of trained layers may stay
    ],
)
def test_a_reward_that_does_not_rise_is_told_at_the_end(name: str, values: list[float], is_told: bool) -> None:
    scalars = rules.ScalarFindings(rules.Chosen())
    for at, value in enumerate(values):
        scalars.add(name, value, 0, 2 * at)
    assert not list(scalars.findings())
    found = list(scalars.findings(at_end=True))
    assert ["does not rise" in each.message for each in found] == ([True] if is_told else [])


@pytest.mark.parametrize(("rises", "told"), [(True, []), (False, ["loss_rising"])])
def test_a_loss_that_rises_while_the_reward_does_is_that_of_values_that_grow(rises: bool, told: list[str]) -> None:
    findings = Findings()
    for step in range(120):
        reward = 0.1 * (-1) ** step + (step / 100 if rises else 0.0)
        findings.judge([], [("loss", 0.1 + step / 100, 0, step), ("reward", reward, 0, step)])
    assert [each.rule for each in findings.judged() if each.rule == "loss_rising"] == told


@pytest.mark.parametrize(("factor", "told"), [(0.98, []), (1.0, ["loss_rising"])])
def test_a_loss_that_jumps_as_the_task_changes_and_is_low_again_has_not_risen(factor: float, told: list[str]) -> None:
    findings = Findings()
    for step in range(300):
        loss = 2.3 * 0.95**step if step < 150 else 5 * factor ** (step - 150)
        findings.judge([], [("loss", 0.05 + loss, 0, step)])
        if step == 160:
            assert "loss_rising" in [each.rule for each in findings.judged()]
    assert [each.rule for each in findings.judged() if each.rule == "loss_rising"] == told


def test_overfitting_is_taken_back_by_a_smaller_validation_loss() -> None:
    scalars = rules.ScalarFindings(rules.Chosen())
    values = [*[1 - 0.1 * at for at in range(8)], *[0.45] * 6, 0.2]
    told = []
    for at, value in enumerate(values):
        for part in range(10):
            scalars.add("loss", 0.9 ** (at + part / 10), 0, 10 * at + part)
        scalars.add("val_loss", value, 0, 10 * at + 9)
        told.append("overfitting" in {each.rule for each in scalars.findings()})
    assert (told[-2], told[-1]) == (True, False)


def test_a_norm_of_gradients_that_jumps_by_less_than_ten_is_no_spike() -> None:
    """As of data with long tails, early in a training."""
    noisy = [2.0 + 0.1 * (step % 3) for step in range(40)]
    for jump, is_told in ((10.0, False), (30.0, True)):
        scalars = rules.ScalarFindings(rules.Chosen())
        for step, value in enumerate([*noisy, jump, *noisy]):
            scalars.add("grad_norm_raw", value, epoch=0, step=step)
        assert ("spike" in {each.rule for each in scalars.findings()}) is is_told


def test_a_loss_that_comes_down_from_its_peak_does_not_rise() -> None:
    """A codebook is learnt at the cost of the loss at first; one that stays up is told, if later."""
    up = [1 + 1.8 * step / 48 for step in range(48)]
    assert "loss_rising" not in of_losses([*up, *[1 + 1.8 * math.exp(-step / 60) for step in range(150)]])
    assert "loss_rising" in of_losses([*up, *[max(1.7, 2.8 - step / 40) for step in range(150)]])
    assert "loss_rising" in of_losses([*up, *[2.8] * 100])


@pytest.mark.parametrize(("first", "is_told"), [(2.0, False), (0.1, True)])
def test_a_loss_that_rises_to_less_than_its_far_higher_first_value_does_not_rise(first: float, is_told: bool) -> None:
    """As where values are learnt from their own estimates, which grow."""
    scalars = rules.ScalarFindings(rules.Chosen())
    for step in range(300):
        value = first if not step else 0.1 * 0.98**step if step < 60 else min(0.9, 0.03 * 1.02 ** (step - 60))
        scalars.add("loss", value, 0, step)
    assert any(each.rule == "loss_rising" for each in scalars.findings(at_end=True)) is is_told


@pytest.mark.parametrize(("begun", "is_told"), [(1.0, False), (0.5, True)])
def test_a_loss_that_falls_in_its_first_steps_alone_is_not_stuck(begun: float, is_told: bool) -> None:
    """As of a linear model that is given all samples in each step."""
    scalars = rules.ScalarFindings(rules.Chosen())
    for step in range(400):
        scalars.add("param_norm", 1.0, 0, step)
        scalars.add("update_norm", 0.01, 0, step)
        scalars.add("lr", 0.1, 0, step)
        scalars.add("loss", 0.47 + (begun - 0.47) * 0.5**step, 0, step)
    assert any(each.rule == "loss_stuck" for each in scalars.findings(at_end=True)) is is_told


@pytest.mark.parametrize(
    ("rate", "is_told"),
    [
        (lambda step: 0.05 * (1 + math.cos(math.pi * step / 5)), True),  # T_max in epochs, stepped in each batch
        (lambda step: 0.05 * (1 + math.cos(math.pi * step / 15)), False),
        (lambda step: 0.05 * (1 + math.cos(math.pi * (step % 10) / 10)), False),  # warm restarts, which rise at once
        (lambda step: 0.05 * (2 + math.cos(math.pi * step / 5)), False),  # not to zero
        (lambda step: 0.05 * (1 + math.cos(math.pi * step / 90)), False),
    ],
)
def test_a_rate_that_swings_every_few_steps_is_told(rate: Callable[[int], float], is_told: bool) -> None:
    scalars = rules.ScalarFindings(rules.Chosen())
    for step in range(90):
        scalars.add("lr", rate(step), 0, step)
        scalars.add("loss", 1 / (1 + step), 0, step)
    assert [each.message for each in scalars.of_rates("") if each.rule == "rate_small"] == [
        "the learning rate goes from 0.1 to 0 and back every 10 steps"
    ] * is_told


@pytest.mark.parametrize(
    ("values", "is_told"), [([1.8, 1.79, 1.78, 1.79], True), ([1.8, 1.7, 1.6, 1.55], False), ([1.8, 1.79], False)]
)
def test_a_validation_loss_that_stays_at_that_of_a_guess_is_told_at_the_end(values: list[float], is_told: bool) -> None:
    """Though samples of the training are learnt by heart, if only a little."""
    scalars = rules.ScalarFindings(rules.Chosen(), chance=lambda model: math.log(6))
    for step in range(40 * len(values)):
        scalars.add("loss", 1.85 - 0.001 * step, 0, step)
        if step % 40 == 39:
            scalars.add("val_loss", values[step // 40], 0, step)
    told = [each.message for each in scalars.findings(at_end=True) if each.rule == "loss_stuck" and "val_loss" in each.message]
    assert told == ["val_loss stays at that of a guess, 1.792: it is 1.79, and was 1.78 at best"] * is_told
    assert not [each for each in scalars.findings() if "val_loss" in each.message]


@pytest.mark.parametrize(
    ("moved", "fall", "is_told"),
    [(1e-4, 0.001, True), (1e-3, 0.001, False), (1e-4, 0.004, False), (1e-4, 0.0, False), (1e-4, 1e-5, False)],
)
def test_steps_that_hardly_move_the_weights_of_a_loss_that_creeps_are_told_at_the_end(
    moved: float, fall: float, is_told: bool
) -> None:
    scalars = rules.ScalarFindings(rules.Chosen())
    for step in range(150):
        for name, value in (
            ("param_norm", 1.0),
            ("update_norm", moved),
            ("lr", 1e-5),
            ("loss", 1.8 - fall * step + 0.01 * (step % 3)),
        ):
            scalars.add(name, value, 0, step)
    assert [each.message for each in scalars.of_rates("")] == []
    told = [each.message for each in scalars.of_rates("", at_end=True)]
    assert [each[:60] for each in told] == ["all steps together have moved the weights by 1 %, and the loss"[:60]] * is_told
