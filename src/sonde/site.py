"""Name one place in a network: the table of ports, the class ``Site``, and the one parser of a site's text.

A site is a module's path, a port (which of its tensors), a leaf (which tensor of a structured value) and, where a run
holds several models, the model's name. Its text is ``[model/]path:port[leaf]``::

    layers.3.mlp:output          the output of layers.3.mlp
    (root):output.logits         the field ``logits`` of the value that the model itself returns
    G/enc:grad_output[0]         the gradient of the first output of ``enc`` in the model G
    head.weight:grad             the accumulated gradient of a parameter

The text parses back to an equal site. In a path or a model name the characters ``% / : [ ]``, white space, control characters and
lone surrogates are written ``%XX``, so that any name a module can have survives the round trip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, cast
from urllib.parse import unquote

from sonde.errors import SiteError

Port = Literal["input", "output", "grad_output", "grad_input", "grad", "param", "update"]
"""The names of the ports, for type checkers; a test holds them equal to the keys of ``PORTS``."""

Phase = Literal["forward", "recompute", "backward", "step"]
"""When an event happened; ``recompute`` is activation checkpointing running the forward again, ``step`` an optimizer step."""


@dataclass(frozen=True, slots=True)
class PortInfo:
    """One port: a tensor that can be observed at a module or a parameter.

    Attributes:
        of: the value that is observed, or whose gradient is: a module's ``input``, its ``output``, or a ``parameter``.
        phase: when the port's events happen.
        unit: the unit of the tensor's elements, in words.
        words: the tensors at this port, in words, plural.
    """

    of: Literal["input", "output", "parameter"]
    phase: Phase
    unit: str
    words: str


PORTS: Mapping[Port, PortInfo] = MappingProxyType(
    {
        "input": PortInfo("input", "forward", "unit of the input", "inputs"),
        "output": PortInfo("output", "forward", "unit of the output", "outputs"),
        "grad_output": PortInfo("output", "backward", "loss / unit of the output", "gradients of outputs"),
        "grad_input": PortInfo("input", "backward", "loss / unit of the input", "gradients of inputs"),
        "grad": PortInfo("parameter", "backward", "loss / unit of the parameter", "gradients of parameters"),
        "param": PortInfo("parameter", "step", "unit of the parameter", "parameters"),
        "update": PortInfo("parameter", "step", "unit of the parameter", "updates of parameters"),
    }
)
"""Every port, in the order in which the ports of one module happen. A new port is one entry here (and in ``Port``) and its hook."""

MODULE_PORTS: tuple[Port, ...] = tuple(port for port, info in PORTS.items() if info.of != "parameter")
"""The ports whose sites name a module."""
PARAMETER_PORTS: tuple[Port, ...] = tuple(port for port, info in PORTS.items() if info.of == "parameter")
"""The ports whose sites name a parameter."""
GRADIENT_PORTS: tuple[Port, ...] = tuple(port for port, info in PORTS.items() if info.phase == "backward")
"""The ports whose tensors are gradients, which a ``GradScaler`` scales."""

OTHER_CALLS = -1
"""In place of a call's number: all calls that have no row of their own; of a parameter, which is not called, all there is."""

_ROOT = "(root)"
_RESERVED = re.compile(r"[%/:\[\]\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TEXT = re.compile(r"(?:(?P<model>[^/:\[\]\s]+)/)?(?P<path>[^/:\[\]\s]+)(?::(?P<port>[a-z_]+)(?P<leaf>[.\[{].*)?)?", re.DOTALL)
_LEAF = re.compile(r"(?:\.\w+|\[.+?\]|\{\d+\})*", re.DOTALL)


def _escape(name: str) -> str:
    if name == _ROOT:
        return name.replace("(", "%28")
    return _RESERVED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), name)


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in a network.

    Attributes:
        path: the module's (or parameter's) name as ``named_modules()`` gives it, wrapper parts removed; ``""`` is the root.
        port: one of ``PORTS``: which of the module's or parameter's tensors.
        leaf: the path of one tensor in a structured value, ``""`` for the whole value: ``[0]``, ``.logits``, ``['h'][2]``.
        model: the model's name where several are observed together, otherwise ``""``.

    Raises:
        SiteError: the port is unknown, or the leaf is not the path of a tensor.
    """

    path: str
    port: Port = "output"
    leaf: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        if self.port not in PORTS:
            raise SiteError(f"{self.port!r} is not a port; the ports are {', '.join(PORTS)}")
        if self.leaf and _LEAF.fullmatch(self.leaf) is None:
            raise SiteError(f"{self.leaf!r} is not the path of a leaf, which is written as [0], .logits or ['hidden'][2]")

    def __deepcopy__(self, memo: object) -> Site:
        """Return this: it never changes."""
        return self

    def __str__(self) -> str:
        return f"{self._place}:{self.port}{self.leaf}"

    @staticmethod
    def parse(text: str) -> Site:
        """The site that *text* names; the port is ``output`` where none is written.

        Raises:
            SiteError: *text* does not have the form ``[model/]path:port[leaf]``.
        """
        return _parsed(text)

    @staticmethod
    def asked(key: str | Site, names: Iterable[str] = ()) -> tuple[Site, bool]:
        """The site that *key* names, and whether *key* names the whole module: a text without a port, or one of *names*."""
        if isinstance(key, Site):
            return key, False
        if "/" in key and (known := frozenset(names)):  # a slash in a name, and not behind the name of a model
            head, _, port = key.rpartition(":")
            if key in known:
                return Site(key), True
            if head in known and port in PORTS:
                return Site(head, cast(Port, port)), False
        try:
            return _parsed(key), ":" not in key
        except SiteError:
            return Site(key), True

    def covers(self, other: Site, *, whole_module: bool = False) -> bool:
        """Whether *other* is this site or a leaf of it; with *whole_module*, whether it belongs to the same module."""
        if (self.path, self.model) != (other.path, other.model):
            return False
        return whole_module or (self.port == other.port and self.leaf in ("", other.leaf))

    @property
    def _place(self) -> str:
        model = f"{_escape(self.model)}/" if self.model else ""
        return f"{model}{_escape(self.path) or _ROOT}"

    @property
    def name(self) -> str:
        """The text without the port, for people: ``G/layers.3.mlp[0]``, ``(root)``, ``head.weight``."""
        return f"{self._place}{self.leaf}"

    @property
    def owner(self) -> Site:
        """The output, as a whole, of the module that the site belongs to; for a parameter, of the module that holds it."""
        path = self.path.rpartition(".")[0] if PORTS[self.port].of == "parameter" else self.path
        return Site(path, "output", "", self.model)

    @property
    def layer(self) -> str:
        """The module that the site belongs to, as text without the model: ``layers.3.mlp``, ``(root)``."""
        return _escape(self.owner.path) or _ROOT

    def at(self, leaf: str) -> Site:
        """The same site, narrowed to one leaf."""
        return self if leaf == self.leaf else replace(self, leaf=leaf)

    def port_of(self, port: Port) -> Site:
        """The site of the same module or parameter at another port, as a whole."""
        return replace(self, port=port, leaf="")


@lru_cache(16_384)  # a run repeats the texts of its sites in every row
def _parsed(text: str) -> Site:
    found = _TEXT.fullmatch(text)
    leaf = found["leaf"] or "" if found is not None else ""
    if found is None or (found["port"] is not None and found["port"] not in PORTS) or _LEAF.fullmatch(leaf) is None:
        raise SiteError(
            f"{text!r} is not the name of a site. A site is written [model/]path:port[leaf], as layers.3.mlp:output, "
            f"(root):output.logits or G/enc:grad_output[0]; the ports are {', '.join(PORTS)}"
        )
    path = "" if found["path"] == _ROOT else unquote(found["path"], errors="surrogatepass")
    return Site(path, cast(Port, found["port"] or "output"), leaf, unquote(found["model"] or "", errors="surrogatepass"))
