"""In which order the modules of a model run, seen once, and which stand where nothing was seen."""

from __future__ import annotations

from torch import nn

from sonde.engine import Event, Probe, observe, selection
from sonde.engine.compiled_regions import regions

__all__ = ["Ordering"]


class Ordering:
    """The place of each module in the order in which they return, children before parents.

    It is seen in the first logged step, by a probe of its own. Of a compiled model, whose code another hook would change, the
    order is that of ``named_modules()``.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self._model = model
        self._name = name
        self._seen: dict[str, int] = {}
        self._probe: Probe | None = None

    def watch(self) -> None:
        """Look at what runs until :meth:`settle`."""
        if self._probe is None and not self._seen and not regions(self._model):
            self._probe = observe(self._model, self._note, name=self._name)

    def settle(self) -> bool:
        """Take the probe off; whether it had seen anything new."""
        if self._probe is None:
            return False
        self._probe.detach()
        self._probe = None
        return bool(self._seen)

    def places(self) -> dict[str, int]:
        """By module name; modules that were not seen to run come last."""
        names = [item.name for item in selection.members(self._model)]
        places = dict(self._seen)
        for name in names:
            places.setdefault(name, len(places))
        return places

    def _note(self, event: Event) -> None:
        self._seen.setdefault(event.name, len(self._seen))
