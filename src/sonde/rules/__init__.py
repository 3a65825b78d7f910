"""Judge numbers: every rule's threshold, its words, its severity and its source, for tables, findings and checks alike.

A rule is a small pure function: numbers in, a :class:`Finding` out, or None where nothing is wrong. Nothing here needs a model,
a tensor or a run. :data:`RULES` lists the rules; a new one is a function under ``@rule`` and a line where its numbers are known.
The keyword-only arguments of a rule are its thresholds, which ``rules=`` of ``watch`` and ``check`` can set (:class:`Chosen`).
Sizes (norms, root mean squares) and limits have no unit: each size is compared with another one of the same unit.
"""

from sonde.rules.chosen import Chosen, Given
from sonde.rules.finding import RULES, Finding, Rule, Severity, percent, rule, short
from sonde.rules.gradients import (
    GRADIENT_GROWTH,
    GRADIENT_LARGE,
    GRADIENT_SMALL,
    gradient_growth,
    gradient_large,
    gradient_small,
    gradient_zero,
)
from sonde.rules.growth import OUTPUT_GROWTH, OUTPUT_LARGE, WEIGHT_GROWTH, output_growth, output_large, weight_growth
from sonde.rules.health import (
    DEAD_MOST,
    DEAD_SAMPLES,
    DEAD_SOME,
    SATURATED_AT,
    all_zero,
    constant,
    dead,
    nonfinite,
    saturated,
)
from sonde.rules.loop import SPIKE, SPIKE_VALUES, no_training_forward, spike
from sonde.rules.places import of_gradient, of_output, of_size, of_update
from sonde.rules.updates import UPDATE_LARGE, UPDATE_SMALL, UPDATE_USUAL, step_large, update_large, update_small

__all__ = [
    "DEAD_MOST",
    "DEAD_SAMPLES",
    "DEAD_SOME",
    "GRADIENT_GROWTH",
    "GRADIENT_LARGE",
    "GRADIENT_SMALL",
    "OUTPUT_GROWTH",
    "OUTPUT_LARGE",
    "RULES",
    "SATURATED_AT",
    "SPIKE",
    "SPIKE_VALUES",
    "UPDATE_LARGE",
    "UPDATE_SMALL",
    "UPDATE_USUAL",
    "WEIGHT_GROWTH",
    "Chosen",
    "Finding",
    "Given",
    "Rule",
    "Severity",
    "all_zero",
    "constant",
    "dead",
    "gradient_growth",
    "gradient_large",
    "gradient_small",
    "gradient_zero",
    "no_training_forward",
    "nonfinite",
    "of_gradient",
    "of_output",
    "of_size",
    "of_update",
    "output_growth",
    "output_large",
    "percent",
    "rule",
    "saturated",
    "short",
    "spike",
    "step_large",
    "update_large",
    "update_small",
    "weight_growth",
]
