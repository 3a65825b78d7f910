"""The nodes of a recording, under the names that the fourth seed gave them."""

from __future__ import annotations

from typing import Any

__all__ = ["BaseNode", "LayerNode", "OpNode", "ParamNode", "TensorNode"]


class BaseNode:
    """One recorded thing.

    Attributes:
        name: what it is called in a picture.
        fn: what it stands for, see the subclasses. No tensor of the run is held.
        depth: how many modules it lies in.
        parent: the key, in ``Recorder.nodes``, of the module call that it lies in; None at the top.
        key: its own key.
    """

    def __init__(self, name: str = "", fn: Any = None, depth: int = -1, parent: int | None = None, key: int | None = None) -> None:
        self.name = name
        self.fn = fn
        self.depth = depth
        self.parent = parent
        self.key = key

    def __repr__(self) -> str:
        name = self.name.replace("\n", " ")
        return f"{type(self).__name__}({name!r}, depth={self.depth}, key={self.key}, parent={self.parent})"


class TensorNode(BaseNode):
    """A tensor that went into a module or came out of one. ``fn`` is a tensor of its shape and dtype without memory."""


class ParamNode(TensorNode):
    """A parameter; ``fn`` is the parameter."""


class OpNode(BaseNode):
    """An operation; ``fn`` is its node in the graph (:class:`sonde.run.graph.data.Node`)."""


class LayerNode(BaseNode):
    """A module call; ``fn`` is the module.

    Attributes:
        subnets: the keys of what lies directly in it, in the order in which it came about.
        call: index of the module's call within the forward, from 0.
    """

    def __init__(self, name: str = "", fn: Any = None, depth: int = -1, parent: int | None = None, key: int | None = None) -> None:
        super().__init__(name, fn, depth, parent, key)
        self.subnets: list[int] = []
        self.call = 0
