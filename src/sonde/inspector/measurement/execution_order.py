"""Find out in which order the modules of a model run."""

from __future__ import annotations

from torch import nn

from sonde.engine import Event, Probe, observe, selection
from sonde.engine.compiled_regions import regions

__all__ = ["Ordering"]


class Ordering:
    """The place of each module in the order in which they return, children before parents.

    A probe observes the order in the first logged step. For a compiled model, whose code another hook would change, the order is
    that of ``named_modules()``.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self._model = model
        self._name = name
        self._seen: dict[str, int] = {}
        self._probe: Probe | None = None

    def watch(self) -> None:
        """Observe which modules run until :meth:`settle`."""
        if self._probe is None and not self._seen and not regions(self._model):
            self._probe = observe(self._model, self._note, name=self._name)

    def settle(self) -> bool:
        """Take the probe off; return whether it has seen any module."""
        if self._probe is None:
            return False
        self._probe.detach()
        self._probe = None
        return bool(self._seen)

    def places(self) -> dict[str, int]:
        """Return the place of each module by name; modules that were not seen to run come last."""
        names = [item.name for item in selection.members(self._model)]
        places = dict(self._seen)
        for name in names:
            places.setdefault(name, len(places))
        return places

    def _note(self, event: Event) -> None:
        self._seen.setdefault(event.name, len(self._seen))
