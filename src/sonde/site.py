"""Name one place in a network: the table of ports, the class ``Site``, and the one parser of a site's text.

A site is a module's path, a port (which of its tensors), a leaf (which tensor of a structured value) and, where a run
holds several models, the model's name. Its text is ``[model/]path:port[leaf]``::

    layers.3.mlp:output          the output of layers.3.mlp
    (root):output.logits         the field ``logits`` of the value that the model itself returns
    G/enc:grad_output[0]         the gradient of the first output of ``enc`` in the model G
    head.weight:grad             the accumulated gradient of a parameter

The text parses back to an equal site. In it alone the characters ``% / : [ ]``, white space, control characters and lone
surrogates of a path or a model's name are written ``%XX``, so that any name a module can have survives the round trip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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

MODULE_PORTS: tuple[Port, ...] = tuple([port for port, info in PORTS.items() if info.of != "parameter"])
"""The ports whose sites name a module."""
PARAMETER_PORTS: tuple[Port, ...] = tuple([port for port, info in PORTS.items() if info.of == "parameter"])
"""The ports whose sites name a parameter."""
GRADIENT_PORTS: tuple[Port, ...] = tuple([port for port, info in PORTS.items() if info.phase == "backward"])
"""The ports whose tensors are gradients, which a ``GradScaler`` scales."""

OTHER_CALLS = -1
"""In place of a call's number: all calls that have no row of their own; of a parameter, which is not called, all there is."""

_ROOT = "(root)"
_RESERVED = re.compile(r"[%/:\[\]\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PORT = re.compile(r":(?P<port>[a-z_]+)(?P<leaf>[.\[{].*)?", re.DOTALL)
_TEXT = re.compile(rf"(?:(?P<model>[^/:\[\]\s]+)/)?(?P<path>[^/:\[\]\s]+)(?:{_PORT.pattern})?", re.DOTALL)
_LEAF = re.compile(r"(?:\.\w+|\[.+?\]|\{\d+\})*", re.DOTALL)


def _escape(name: str) -> str:
    if name == _ROOT:
        return name.replace("(", "%28")
    return _RESERVED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), name)


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in a network.

    >>> import sonde
    >>> site = sonde.Site("layers.3.mlp", "output")
    >>> str(site), site.port_of("input"), site.covers(sonde.Site("layers.3.mlp", "output", "[0]"))
    ('layers.3.mlp:output', Site(path='layers.3.mlp', port='input', leaf='', model=''), True)

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

        >>> site = Site.parse("encoder.0:grad_output[1]")
        >>> site.path, site.port, site.leaf
        ('encoder.0', 'grad_output', '[1]')

        Raises:
            SiteError: *text* does not have the form ``[model/]path:port[leaf]``.
        """
        return _parsed(text)

    @staticmethod
    def asked(key: str | Site, known: Iterable[Site], canonical: Callable[[str], str] = str) -> tuple[Site, bool]:
        """The site that *key* names, and whether *key* names the whole module: a text without a port, or a module's own name.

        >>> import sonde
        >>> known = [sonde.Site("0"), sonde.Site("0", "input")]
        >>> sonde.Site.asked("0:input", known)
        (Site(path='0', port='input', leaf='', model=''), False)
        >>> sonde.Site.asked("0", known)
        (Site(path='0', port='output', leaf='', model=''), True)

        Args:
            key: a site, its text, or the name of a module or parameter as the model has it, also with a port and a leaf.
            known: sites of all modules and parameters that can be meant; their ports and leaves do not matter.
            canonical: from any name of a module to the one in its sites.

        Raises:
            SiteError: *key* can mean two of the *known*: it is the text of one and, as the model has it, the name of another.
        """
        if isinstance(key, Site):
            return replace(key, path=canonical(key.path)), False
        places = {(each.model, each.path) for each in known}
        readings = {replace(site, path=canonical(site.path)): whole for site, whole in Site.readings(key).items()}
        there = {site: whole for site, whole in readings.items() if (site.model, site.path) in places}
        if len(there) > 1:
            raise Site.unclear(key, there)
        return next(iter((there or readings).items()))

    @staticmethod
    def unclear(text: str, sites: Iterable[Site]) -> SiteError:
        """The error for a *text* that can mean each of *sites*.

        >>> import sonde
        >>> error = sonde.Site.unclear("a", [sonde.Site("a"), sonde.Site("a", "param")])
        >>> type(error).__name__, str(error).partition(",")[0]
        ('SiteError', "'a' can mean a:output and a:param")
        """
        one, other, *_ = sites
        return SiteError(
            f"{text!r} can mean {one} and {other}, which this model has both: in place of the text give "
            f"sonde.site.Site({one.path!r}, {one.port!r}) or sonde.site.Site({other.path!r}, {other.port!r})"
        )

    @staticmethod
    def readings(text: str) -> dict[Site, bool]:
        """All sites that *text* can mean, and whether it names a whole module: first as a site's text, then as it stands.

        >>> import sonde
        >>> sonde.Site.readings("fc:output")
        {Site(path='fc', port='output', leaf='', model=''): False, Site(path='fc:output', port='output', leaf='', model=''): True}
        """
        found: dict[Site, bool] = {}
        with suppress(SiteError):
            found[_parsed(text)] = ":" not in text
        for model, rest in [("", text), *((text[: at.start()], text[at.end() :]) for at in re.finditer("/", text))]:
            found.setdefault(Site(rest, model=model), True)
            for at in re.finditer(":", rest):
                port = _PORT.fullmatch(rest, at.start())
                if port is not None and port["port"] in PORTS and _LEAF.fullmatch(port["leaf"] or ""):
                    found.setdefault(Site(rest[: at.start()], cast(Port, port["port"]), port["leaf"] or "", model), False)
        return found

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
        """The name of the module that the site belongs to, as ``named_modules()`` has it: ``layers.3.mlp``, ``""`` for the root."""
        return self.owner.path

    def at(self, leaf: str) -> Site:
        """The same site, narrowed to one leaf.

        >>> str(Site.parse("lstm").at("[0]"))
        'lstm:output[0]'
        """
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
