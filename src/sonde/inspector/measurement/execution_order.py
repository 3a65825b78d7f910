"""Find out in which order the modules of a model run, and what becomes of what they return."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from torch import Tensor, nn

from sonde.engine import Clock, Event, Probe, graph_nodes, members, observe


@dataclass
class Ran:
    """What was seen of a module in the first logged step: in training passes.

    Attributes:
        place: in the order in which modules return.
        has_graph: one of its calls has returned a tensor that gradients can come to.
        is_passed_on: what it returned was returned by a module around it, beside other tensors.
        is_returned: what it returned, or a view of that, is one of several outputs of the model.
    """

    place: int
    has_graph: bool = False
    is_passed_on: bool = False
    is_returned: bool = False


class Ordering:
    """The place of each module in the order in which they return, children before parents.

    A probe observes the order in the first logged step. For a compiled model, whose code would be compiled again when the probe
    goes, the order is that of ``named_modules()``, but with children before parents, too.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self._model = model
        self._name = name
        self.ran: dict[str, Ran] = {}  # by module
        self._returned: dict[str, weakref.ref[Tensor]] = {}
        self._wholes: dict[str, weakref.ref[Tensor]] = {}  # what these are views of, or they themselves
        self._probe: Probe | None = None
        self._clock: Clock | None = None  # while the probe waits for a forward
        self._is_uncalled = False  # none came in a logged step: parts of the model may be called by themselves
        self._is_new = False  # the probe was put on after that, for the step that begins

    def watch(self, clock: Clock) -> None:
        """Observe which modules run, from the next forward of *clock* until :meth:`stop`."""
        if self._probe is None and self._clock is None and not self.ran:
            self._clock = clock
            if self._is_uncalled and not clock.may_be_compiled():
                self._begin()
                self._is_uncalled, self._is_new = False, self._probe is not None
            else:
                clock.call_before_forward(self._begin)

    def _begin(self) -> None:
        """Put the probe on as a forward begins, which shows whether the model is called as compiled code."""
        clock = self._wait_no_more()
        if clock is not None and not clock.compiled_modules():
            probe, former = observe(self._model, self._note, name=self._name), self._probe
            if former is not None:  # attaching has called this method again
                former.detach()
            self._probe = probe

    def _wait_no_more(self) -> Clock | None:
        clock, self._clock = self._clock, None
        if clock is not None:
            clock.call_no_more(self._begin)
        return clock

    def forget(self) -> None:
        """See the order anew."""
        self.stop()
        self.ran = {}

    def end_step(self) -> bool:
        """End a logged step: take the probe off that has seen it; return whether it has seen any module."""
        if self._is_new and not self.ran:  # the next one has begun already
            self._is_new = False
            return False
        self._is_uncalled = self._clock is not None
        return self.stop()

    def stop(self) -> bool:
        """Take the probe off; return whether it has seen any module."""
        self._wait_no_more()
        if self._probe is None:
            return False
        self._probe.detach()
        self._probe = None
        self._returned, self._wholes = {}, {}
        return bool(self.ran)

    def parts(self) -> tuple[str, ...]:
        """Return the outermost modules that were seen to run, where the model itself was not."""
        above = {name: [name[:at] for at, sign in enumerate(name) if sign == "."] for name in self.ran}
        return () if "" in self.ran else tuple([name for name, each in above.items() if self.ran.keys().isdisjoint(each)])

    def places(self) -> dict[str, int]:
        """Return the place of each module by name; modules that were not seen to run come last."""
        places = {name: ran.place for name, ran in self.ran.items()}
        for name in _children_first([item.name for item in members(self._model)]):
            places.setdefault(name, len(places))
        return places

    def _note(self, event: Event) -> None:
        ran = self.ran.setdefault(event.name, Ran(len(self.ran)))
        leaves = [tensor for _, tensor in event.leaves]
        if len(leaves) > 1:
            inside = f"{event.name}." if event.name else ""
            for name, returned in self._returned.items():
                tensor = returned()
                if name.startswith(inside) and name != event.name and any(leaf is tensor for leaf in leaves):
                    self.ran[name].is_passed_on = True
            for name, returned in self._wholes.items() if not event.name else ():
                self.ran[name].is_returned |= any(_whole(leaf) is returned() for leaf in leaves)
        elif leaves:
            self._returned[event.name], self._wholes[event.name] = weakref.ref(leaves[0]), weakref.ref(_whole(leaves[0]))
        ran.has_graph = ran.has_graph or any(leaf.requires_grad for leaf in leaves)


def _whole(tensor: Tensor) -> Tensor:
    """Return what *tensor* is a view of; itself where it is none."""
    base = graph_nodes.viewed_of(tensor)
    return tensor if base is None else base


def _children_first(names: list[str]) -> list[str]:
    """Return *names*, in which parents come before their children, with children before their parents."""
    found: list[str] = []
    above: list[str] = []
    for name in names:
        while above and above[-1] and not name.startswith(f"{above[-1]}."):
            found.append(above.pop())
        above.append(name)
    return found + above[::-1]
