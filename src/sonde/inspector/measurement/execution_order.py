"""Find out in which order the modules of a model run."""

from __future__ import annotations

from torch import nn

from sonde.engine import Clock, Event, Probe, members, observe


class Ordering:
    """The place of each module in the order in which they return, children before parents.

    A probe observes the order in the first logged step. For a compiled model, whose code would be compiled again when the probe
    goes, the order is that of ``named_modules()``, but with children before parents, too.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self._model = model
        self._name = name
        self._seen: dict[str, int] = {}
        self._probe: Probe | None = None
        self._clock: Clock | None = None  # while the probe waits for a forward

    def watch(self, clock: Clock) -> None:
        """Observe which modules run, from the next forward of *clock* until :meth:`stop`."""
        if self._probe is None and self._clock is None and not self._seen:
            self._clock = clock
            clock.call_before_forward(self._begin)

    def _begin(self) -> None:
        """Put the probe on as a forward begins, which shows whether the model is called as compiled code."""
        clock = self._wait_no_more()
        if clock is not None and not clock.compiled_modules():
            self._probe = observe(self._model, self._note, name=self._name)

    def _wait_no_more(self) -> Clock | None:
        clock, self._clock = self._clock, None
        if clock is not None:
            clock.call_no_more(self._begin)
        return clock

    def forget(self) -> None:
        """See the order anew."""
        self.stop()
        self._seen = {}

    def stop(self) -> bool:
        """Take the probe off; return whether it has seen any module."""
        self._wait_no_more()
        if self._probe is None:
            return False
        self._probe.detach()
        self._probe = None
        return bool(self._seen)

    def places(self) -> dict[str, int]:
        """Return the place of each module by name; modules that were not seen to run come last."""
        places = dict(self._seen)
        for name in _children_first([item.name for item in members(self._model)]):
            places.setdefault(name, len(places))
        return places

    def _note(self, event: Event) -> None:
        self._seen.setdefault(event.name, len(self._seen))


def _children_first(names: list[str]) -> list[str]:
    """Return *names*, in which parents come before their children, with children before their parents."""
    found: list[str] = []
    above: list[str] = []
    for name in names:
        while above and above[-1] and not name.startswith(f"{above[-1]}."):
            found.append(above.pop())
        above.append(name)
    return found + above[::-1]
