"""A site: the one name that a place in a network has, everywhere in sonde.

A site is a module's path, a port (which of its tensors), a leaf (which tensor of a structured value) and, where a run
holds several models, the model's name. Its text is ``[model/]path:port[leaf]``::

    layers.3.mlp:output          the output of layers.3.mlp
    (root):output.logits         the field ``logits`` of what the model itself returns
    G/enc:grad_output[0]         the gradient of the first output of ``enc`` in the model G
    head.weight:grad             the accumulated gradient of a parameter

and it parses back to an equal site. In a path or a model name the characters ``% / : [ ]`` and white space are written
``%XX``, so that any name a module can have survives the round trip.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args
from urllib.parse import unquote

from sonde.errors import SiteError

__all__ = ["PORTS", "Phase", "Port", "Site"]

Port = Literal["input", "output", "grad_input", "grad_output", "param", "grad", "update"]
"""Which tensor of a module (the first four) or of a parameter (the last three)."""

Phase = Literal["forward", "recompute", "backward", "step"]
"""When an event happened; ``recompute`` is activation checkpointing running the forward again, ``step`` an optimizer step."""

PORTS: tuple[Port, ...] = get_args(Port)

_ROOT = "(root)"
_RESERVED = re.compile(r"[%/:\[\]\s]")
_TEXT = re.compile(r"(?:(?P<model>[^/:\[\]\s]+)/)?(?P<path>[^/:\[\]\s]+)(?::(?P<port>[a-z_]+)(?P<leaf>[.\[{].*)?)?", re.DOTALL)


_LEAF = re.compile(r"(?:\.\w+|\[.+?\]|\{\d+\})*", re.DOTALL)


def _escape(name: str) -> str:
    if name == _ROOT:
        return name.replace("(", "%28")
    return _RESERVED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in a network.

    Attributes:
        path: the module's (or parameter's) name as ``named_modules()`` gives it, wrapper parts removed; ``""`` is the root.
        port: which of its tensors.
        leaf: the path of one tensor in a structured value, ``""`` for the whole value: ``[0]``, ``.logits``, ``['h'][2]``.
        model: the model's name where several are observed together, otherwise ``""``.
    """

    path: str
    port: Port = "output"
    leaf: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        if self.port not in PORTS:
            raise SiteError(f"{self.port!r} is not a port; the ports are {', '.join(PORTS)}")
        if _LEAF.fullmatch(self.leaf) is None:
            raise SiteError(f"{self.leaf!r} is not the path of a leaf, which is written as [0], .logits or ['hidden'][2]")

    def __str__(self) -> str:
        model = f"{_escape(self.model)}/" if self.model else ""
        return f"{model}{_escape(self.path) or _ROOT}:{self.port}{self.leaf}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """The site that *text* names; the port is ``output`` where none is written.

        Raises:
            SiteError: *text* does not have the form ``[model/]path:port[leaf]``.
        """
        found = _TEXT.fullmatch(text)
        leaf = found["leaf"] or "" if found is not None else ""
        if found is None or (found["port"] is not None and found["port"] not in PORTS) or _LEAF.fullmatch(leaf) is None:
            raise SiteError(
                f"{text!r} is not the name of a site. A site is written [model/]path:port[leaf], as layers.3.mlp:output, "
                f"(root):output.logits or G/enc:grad_output[0]; the ports are {', '.join(PORTS)}"
            )
        path = "" if found["path"] == _ROOT else unquote(found["path"])
        port: Port = found["port"] or "output"
        return cls(path, port, leaf, unquote(found["model"] or ""))

    def at(self, leaf: str) -> Site:
        """The same site, narrowed to one leaf."""
        return self if leaf == self.leaf else replace(self, leaf=leaf)

    def port_of(self, port: Port) -> Site:
        """The same module's site at another port, as a whole."""
        return replace(self, port=port, leaf="")
