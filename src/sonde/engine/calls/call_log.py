"""Record which module call made which nodes of the autograd graph.

Autograd numbers the nodes that a thread makes. When a module call begins or ends, the number of the next node is noted with the
call that runs from then on; so a bisection by a node's number finds the call in which the node was made. Nothing is put on
tensors or modules but a token in the metadata of the nodes that a root has returned.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Hashable
from typing import Any, NamedTuple

from torch import nn

from sonde.engine import structure
from sonde.engine.calls.module_paths import ModuleNode
from sonde.engine.torch_api import autograd_state, hooks


class ModuleCall(NamedTuple):
    """A module call that is running, or whose backward is.

    >>> import sonde, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> def inside(module, args, output):
    ...     print([(each.path, each.module) for each in sonde.where().stack])
    >>> with sonde.ModuleTracker(net):
    ...     handle = net[1].register_forward_hook(inside)
    ...     _ = net[1](torch.ones(1, 2))
    [('', ReLU())]
    >>> handle.remove()

    Attributes:
        path: the module's canonical name, as in its sites; ``""`` for the root.
        module: the module; None in the backward of one that is gone.
        call: index of the call within one forward of the root, from 0; None where that is not known, as while the
            gradient of a parameter is accumulated, which belongs to all calls.
        name: the name under which the module was called, led by the label of its model: ``GPT.blocks.0``.
    """

    path: str
    module: nn.Module | None
    call: int | None
    name: str


class Call:
    """One module call: its module (``place``), its index, its parent call (``above``), its root call."""

    __slots__ = ("above", "index", "place", "resumed", "root_call")

    def __init__(self, place: ModuleNode, index: int | None, above: Call | None, root_call: RootCall, resumed: Call | None) -> None:
        self.place = place
        self.index = index  # among the calls of its module in the root call; None where gradients of many calls are summed
        self.above = above
        self.root_call = root_call
        self.resumed = resumed  # goes on when this call ends; differs from above in a recomputation

    def chain(self) -> list[Call]:
        """Return the calls from the root down to this one."""
        calls: list[Call] = []
        call: Call | None = self
        while call is not None:
            calls.append(call)
            call = call.above
        return calls[::-1]

    def for_people(self) -> ModuleCall:
        """Return this call as users see it."""
        return ModuleCall(self.place.path, self.place.module(), self.index, self.place.name)


class _Token:
    """Lives as long as the autograd graph that holds it."""

    __slots__ = ("__weakref__",)


class RootCall:
    """One call of a root module, or one recomputation: the module calls in it, by the numbers of autograd nodes.

    Attributes:
        numbers, calls: from each number on, the call that ran (None: none did).
        counts: by id of a module, the index of its last call; all modules live while the root runs.
        order: calls inside activation checkpoints, as they began.
        made: by checkpoint, its first position in ``order``.
        recording: gradients are enabled; without them no checkpoint is in the root call.
        task: the backward pass in which a recomputation runs; else -1.
        outer: the root call that ran when this one began.
        graph: the token in the graph of the output.
        reached: the last backward pass that came through the output; None where that is not watched.
    """

    __slots__ = ("calls", "counts", "graph", "made", "numbers", "order", "outer", "reached", "recording", "task")

    def __init__(self, number: int, task: int, recording: bool, outer: RootCall | None) -> None:
        self.numbers: list[int] = [number]
        self.calls: list[Call | None] = [None]
        self.counts: dict[int, int] = {}
        self.order: list[Call] = []
        self.made: dict[Hashable, int] = {}
        self.recording = recording
        self.task = task
        self.outer = outer
        self.graph: weakref.ref[_Token] | None = None
        self.reached: int | None = None

    def begin(self, place: ModuleNode, above: Call | None, resumed: Call | None, number: int) -> Call:
        """Begin a call of the module at *place*, and return it: from the node *number* on, that call runs."""
        counts, key = self.counts, place.key
        index = counts[key] = counts.get(key, -1) + 1
        call = Call(place, index, above, self, resumed)
        if self.recording and (checkpoint := autograd_state.checkpoint_made()) is not None:
            self.made.setdefault(checkpoint, len(self.order))
            self.order.append(call)
        if self.numbers[-1] == number:  # the same as note(), written out since it runs at every call
            self.calls[-1] = call
        else:
            self.numbers.append(number)
            self.calls.append(call)
        return call

    def note(self, number: int, call: Call | None) -> None:
        """Note that *call* runs from the node *number* on."""
        if self.numbers[-1] == number:
            self.calls[-1] = call
        else:
            self.numbers.append(number)
            self.calls.append(call)

    def covers(self, number: int) -> bool:
        """Return whether the node *number* was made in this root call."""
        return self.numbers[0] <= number and (self.calls[-1] is not None or number < self.numbers[-1])

    def at(self, number: int) -> Call | None:
        """Return the innermost call in which the node *number* was made."""
        return self.calls[bisect_right(self.numbers, number) - 1]

    def tie(self, output: Any, *, watched: bool) -> None:
        """Keep this record while *output*'s autograd graph lives; with *watched* note the backward passes that come through it."""
        token = _Token()
        for _, leaf in structure.walk(output):
            node = leaf.grad_fn
            if node is not None and self.covers(autograd_state.sequence_of_node(node)):
                metadata: dict[Any, Any] = node.metadata  # type: ignore[assignment]  # torch declares a method
                metadata.setdefault("sonde", []).append(token)
                self.graph = weakref.ref(token)
                if watched:
                    self.reached = -1
                    hooks.on_node(node, _Reaches(self))

    def nearness(self, task: int) -> int:
        """Return how likely *task* runs nodes of this root call, where threads have made nodes of the same numbers: 0 is best."""
        return 1 if self.reached is None else 0 if self.reached == task else 2

    def is_needed(self) -> bool:
        """Return whether the autograd graph of the output lives."""
        return self.graph is not None and self.graph() is not None


class _Reaches:
    """Notes that a backward pass has come to the output of a root call."""

    __slots__ = ("root_call",)

    def __init__(self, root_call: RootCall) -> None:
        self.root_call = root_call

    def __call__(self, gradients: Any) -> None:
        self.root_call.reached = autograd_state.graph_task()
