"""Judge numbers: what is wrong with a tensor, a loss or a training, where, and since when; for tables, runs and checks alike.

A rule is one entry of :data:`RULES`: a function under ``@entry`` (``@rule`` for one of the user's own) whose condition works on a
number and on an array alike, with its words, thresholds, window and advice. :func:`judge` applies one to single numbers,
:class:`Chosen` those that ``rules=`` of ``watch`` and ``check`` names. Rows of a run are judged step by step, live and afterwards
by the same code: by :class:`LayerFindings` (sizes of layers and weights), :class:`PortFindings` (numbers of one row),
:class:`ScalarFindings` (losses and norms) and :class:`FirstDefect` (where a NaN began). :func:`told` puts the findings of a run in
the order of their story: a root first, behind it what it explains. Nothing here needs a model, a tensor or a
run. Sizes (norms, root mean squares) and limits have no unit: each size is compared with another one of the same unit.
"""

from sonde.rules import batches as batches
from sonde.rules import before_training as before_training
from sonde.rules import gradients as gradients
from sonde.rules import growth as growth
from sonde.rules import health as health
from sonde.rules import loop as loop
from sonde.rules import updates as updates
from sonde.rules.chosen import Chosen, Given, judge
from sonde.rules.defects import FirstDefect
from sonde.rules.finding import RULES, Finding, Rule, Severity, rule
from sonde.rules.health import DEAD_SAMPLES, SATURATED_AT
from sonde.rules.layer_findings import LayerFindings
from sonde.rules.layer_groups import among, others
from sonde.rules.loop import SPIKE_VALUES
from sonde.rules.model_facts import ModelFacts
from sonde.rules.place_history import DEFECTS
from sonde.rules.places import of_gradient, of_output, of_size, of_update
from sonde.rules.port_findings import PortFindings
from sonde.rules.scalar_findings import ScalarFindings
from sonde.rules.story import chapters, gravity, implied, related, told
from sonde.rules.updates import UPDATE_USUAL

__all__ = [
    "DEAD_SAMPLES",
    "DEFECTS",
    "RULES",
    "SATURATED_AT",
    "SPIKE_VALUES",
    "UPDATE_USUAL",
    "Chosen",
    "Finding",
    "FirstDefect",
    "Given",
    "LayerFindings",
    "ModelFacts",
    "PortFindings",
    "Rule",
    "ScalarFindings",
    "Severity",
    "among",
    "chapters",
    "gravity",
    "implied",
    "judge",
    "of_gradient",
    "of_output",
    "of_size",
    "of_update",
    "others",
    "related",
    "rule",
    "told",
]
