"""Apply the rules to the rows of a run, while it is written or afterwards: over its whole history, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sonde.rows import RowBlock
from sonde.rules import RULES, Chosen, Finding, FirstDefect, LayerFindings, ModelFacts, PortFindings, ScalarFindings
from sonde.run.schema import main_families

__all__ = ["Findings"]


class Findings:
    """The findings so far. The thread that writes feeds it with all rows, in order.

    Attributes:
        besides: return findings that the training itself makes, of what has no rows. A rule that finds something there is not
            applied to the rows of the same model.

    Args:
        about: the description that the run begins with.
        chosen: the rules that are applied.
    """

    def __init__(self, about: Mapping[str, object] | None = None, chosen: Chosen | None = None) -> None:
        self.chosen = Chosen() if chosen is None else chosen
        self.besides: list[Callable[[], Iterable[Finding]]] = []
        self._facts = ModelFacts(about or {})
        self._defect = FirstDefect()
        self._layers: dict[tuple[str, str], LayerFindings] = {}  # by family and model
        self._scalars = ScalarFindings(self.chosen, self._moved_first, self._facts.chance)
        self._ports = PortFindings(self._facts, self.chosen)
        self._families: set[str] = set()
        self._seen: dict[str, int] = {}  # of each number at a port, and each scalar, at how many steps
        self._said: set[tuple[str, str, int]] = set()
        self._last = (0, 0)

    def look(self, block: RowBlock) -> None:
        """Look at finished rows of one model."""
        self._defect.look(block)
        self._families.add(block.family)
        if block.family not in main_families(self._families) or not len(block):
            return
        key = block.family, next(iter(block.layout.model), "")
        moments, ports = len(block.moments), set(block.layout.port)
        for place in [f"{number}:{port}" for number in block.numbers for port in ports]:
            self._seen[place] = self._seen.get(place, 0) + moments
        if "rms" in block.numbers:
            if key not in self._layers:
                self._layers[key] = LayerFindings(self._facts, self.chosen)
            self._layers[key].add(block)
        self._ports.look(block)
        self._last = max(self._last, (int(block.moments[-1, 1]), int(block.moments[-1, 0])))

    def look_aside(self, role: str, block: RowBlock) -> None:
        """Look at rows that are not written: parameters as they were when a step began, or gradients before clipping.

        They come before the other rows of this step.
        """
        self._defect.look_aside(role, block)

    def look_at_scalar(self, name: str, value: float, epoch: int, step: int) -> None:
        """Look at a pushed value or a norm."""
        kind = name.rpartition("/")[2]
        self._seen[kind] = self._seen.get(kind, 0) + 1
        self._defect.look_at_scalar(name, value, epoch, step)
        self._scalars.add(name, value, epoch, step)
        self._ports.look_at_scalar(name, value, epoch, step)

    def all(self) -> list[Finding]:
        """Return the findings of all rules, the gravest first; of one cause the first alone."""
        defect = self._defect.finding() if self.chosen.is_on("nonfinite") else None
        found = [] if defect is None else [defect]
        found += (each for each in self._ports.findings() if each.severity != "note")
        for layers in self._layers.values():
            found += layers.findings()
        found += self._scalars.findings()
        of_training = [each for told in self.besides for each in told()]
        known = {each.identity for each in of_training}
        found = [*of_training, *(each for each in found if each.identity not in known)]
        first = {(each.rule, each.site, each.call): each for each in reversed(found)}  # one of each, from the first family
        found = [each for each in found if first[each.rule, each.site, each.call] is each]
        return sorted(_causes(found), key=lambda each: each.severity != "bad")

    def fresh(self) -> list[Finding]:
        """Return the findings by rules that have found nothing before in the same model.

        A NaN counts only once a later step was seen: until then an earlier place of its step may come.
        """
        found = []
        for each in self.all():
            key = each.identity
            if key in self._said or (each.rule == "nonfinite" and each.step >= self._last[0]):
                continue
            self._said.add(key)
            found.append(each)
        return found

    def not_judged(self) -> dict[str, str]:
        """Return by rule what was not recorded that the rule needs."""
        return {
            name: ", ".join(missing)
            for name, rule in self.chosen.applied().items()
            if (missing := [need for need in rule.needs if not any(one in self._seen for one in need.split("|"))])
        }

    def too_early(self) -> dict[str, int]:
        """Return by rule how many logged steps it needs, of rules whose numbers were recorded at fewer steps."""
        missing = self.not_judged()
        return {
            name: least
            for name, rule in self.chosen.applied().items()
            if name not in missing and rule.needs and self._most_steps(rule.needs) < (least := self.chosen.least(name))
        }

    def _most_steps(self, needs: Iterable[str]) -> int:
        """Return at how many steps all numbers of *needs* are there, at most."""
        return min(max(self._seen.get(one, 0) for one in need.split("|")) for need in needs)

    def _moved_first(self, step: int, deviations: float) -> tuple[str, float] | None:
        found = (each.moved_first(step, deviations) for each in self._layers.values())
        return next((each for each in found if each is not None), None)


def _causes(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that do not follow from another one.

    From a NaN follows all that was first seen at its step or later; from others what their rules bring about.
    """
    every = list(found)
    rules = {each.rule for each in every}
    followed = {name for rule in rules for name in (RULES[rule].brings if rule in RULES else ())}
    broken = min((each.first_step or 0 for each in every if each.rule == "nonfinite"), default=None)
    for each in every:
        late = broken is not None and each.rule != "nonfinite" and (each.first_step or 0) > broken
        if each.rule not in followed and not late:
            yield each
