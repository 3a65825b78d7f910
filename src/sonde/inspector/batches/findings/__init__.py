"""Judge the numbers of training passes: labels, targets, gradients, the layers in between, and what outputs depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sonde.inspector.batches.findings.dependence_findings import DependenceFindings
from sonde.inspector.batches.findings.gradient_findings import GradientFindings
from sonde.inspector.batches.findings.label_findings import LabelFindings
from sonde.inspector.batches.findings.layers_of_pass import SHUT_LOOKS as SHUT_LOOKS
from sonde.inspector.batches.findings.layers_of_pass import LayersOfPass
from sonde.inspector.batches.findings.pass_history import History
from sonde.inspector.batches.findings.target_findings import TEMPERATURE as TEMPERATURE
from sonde.inspector.batches.findings.target_findings import TargetFindings
from sonde.inspector.batches.look import Look, Table
from sonde.rules import Chosen, Finding


class BatchFindings:
    """Judges training passes, in their order.

    Args:
        chosen: the rules that are applied.
        part: the module whose passes these are.
        tables: its embeddings, by the name of the parameter.
    """

    def __init__(self, chosen: Chosen, part: str, tables: Mapping[str, Table]) -> None:
        history = History()
        self._labels = LabelFindings(chosen, part, history)
        self._layers = LayersOfPass(chosen, part, history, tables)
        self._dependence = DependenceFindings(chosen, part, history)
        self._targets = TargetFindings(chosen, part, history)
        self._gradients = GradientFindings(chosen, part, history)

    @property
    def axes(self) -> set[int]:
        """Those of an output that may be of classes, as far as is known."""
        return self._labels.axes

    def of(self, look: Look, numbers: Mapping[str, float]) -> Iterator[Finding | None]:
        """Yield what one pass shows, beside those before it."""
        for each in (self._labels, self._layers, self._dependence, self._targets, self._gradients):
            yield from each.of(look, numbers)

    def at_end(self) -> Iterator[Finding | None]:
        """Yield what the last passes of a training show."""
        yield from self._labels.at_end()
        yield from self._targets.at_end()
