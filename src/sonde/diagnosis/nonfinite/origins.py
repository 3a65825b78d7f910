"""Follow non-finite values from the operation that made them to wherever they flow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sonde.diagnosis.nonfinite.source_lines import RawFrame, SourceLine
from sonde.diagnosis.nonfinite.tensor_facts import TensorFacts, dense, memory_of
from sonde.site import Phase, Site

Kind = Literal["NaN", "inf"]
Source = Literal["operation", "constant", "input", "parameter", "buffer", "gradient", "uninitialised", "outside", "rank", "state"]


class Cause(NamedTuple):
    """Why an operation made a non-finite value.

    Attributes:
        name: of the kind of cause: ``log of zero``.
        sentence: with the numbers.
        advice: what to do, in one line.
    """

    name: str
    sentence: str
    advice: str

    @property
    def may_be_size(self) -> bool:
        """Whether values that grew may have made it: an overflow has, and what no other cause is known of may have."""
        return self.name == "unknown" or ("overflow" in self.name and "loss scale" not in self.name)


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor, or number, that went into an operation.

    Attributes:
        name: as in the line of code, where that is known, or the name of the argument.
        facts: of the whole tensor as it was before the operation.
        value: the element at the offending position; None where no single element meets it.
        at: positions and numbers around it in words, as of a row; may be empty.
    """

    name: str
    facts: TensorFacts
    value: float | complex | None = None
    at: str = ""


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """The module call in which an operation ran, or whose derivative ran.

    Attributes:
        path: the module's canonical name; None outside of any module, as in a loss function.
        kind: its class; of one whose hook ran, ``hook of ReLU``, and of one that has written it, ``hook in Block``.
        call: index of the call in the forward, where it is known.
        phase: when.
    """

    path: str | None
    kind: str
    call: int | None
    phase: Phase

    @property
    def site(self) -> Site | None:
        """The site at which the value first shows."""
        if self.path is None:
            return None
        return Site(self.path, "grad_input" if self.phase == "backward" else "output")


@dataclass(frozen=True, slots=True, eq=False)
class Producer:
    """A forward operation, noted for the derivative of it and for readers of its result.

    Attributes:
        operator: its name without namespace and overload: ``sqrt``.
        frames: what called it.
        made: the origins of the bad values that it has made itself.
    """

    operator: str
    frames: tuple[RawFrame, ...]
    made: list[Origin] = field(default_factory=list)


class Zeros(NamedTuple):
    """The autograd node whose derivative made zeros of a gradient.

    Attributes:
        node: its name: ``WhereBackward0``.
        sequence: the number by which the operation of the forward is known.
        number: of elements that are 0.
    """

    node: str
    sequence: int
    number: int


@dataclass(eq=False, slots=True)
class Origin:
    """The place where non-finite values came about.

    Attributes:
        number: its order among all origins of the run.
        kind: what was made.
        source: by what.
        place: the module call.
        name: the operation as users call it; of a tensor that was given, its name.
        operator: the kernel: ``aten::_softmax``.
        lines: the Python that called it, the innermost first; of a derivative, of the forward operation.
        operands: what went in.
        result: what came out.
        index: position of the first bad element in the result.
        cause: why.
        derivative: the autograd node that ran, and the backward written in Python that did.
        reproductions: lines of Python that may make such a value again, the best first.
        parameter: of an operation in an optimizer's step, the name of the parameter that it writes.
        parents: origins of non-finite values that went in.
        forward: the operation of the forward that this is, or whose derivative this is a part of; None where it is not known.
        is_rest: an operation over rows has found nothing but the infinities of a mask in one.
        left_out: the choice that does not take these values, and its line: ``where (train.py:12)``; ``""`` if none was seen.
        given: of a tensor that was there before: -inf if its only bad values are -inf.
        exact: of an overflow, the first bad element as it should have been; None where that is not known.
        is_of_softmax: of a tensor that was there before: a softmax reads it, for which -inf is a mask.
        is_turned: a product makes +inf of its -inf, which is done with no mask.
        lost: where a later operation made 0 of this infinity, so that nothing behind it shows; ``""`` if none did.
    """

    number: int
    kind: Kind
    source: Source
    place: ModulePlace
    name: str
    operator: str = ""
    lines: list[SourceLine] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    result: TensorFacts | None = None
    index: tuple[int, ...] | None = None
    cause: Cause | None = None
    derivative: str = ""
    parameter: str = ""
    reproductions: list[str] = field(default_factory=list)
    parents: tuple[Origin, ...] = ()
    forward: Producer | None = None
    is_rest: bool = False
    left_out: str = ""
    given: float | None = None
    exact: float | None = None
    is_of_softmax: bool = False
    is_turned: bool = False
    lost: str = ""

    @property
    def sources(self) -> tuple[Origin, ...]:
        """The origins of what went in and, of a derivative, of what its operation has made in the forward."""
        made = self.forward.made if self.derivative and self.forward is not None else ()
        return (*self.parents, *(each for each in made if each.number < self.number))

    @property
    def is_intended(self) -> bool:
        """Whether this is an infinity that the code may hold on purpose, as a mask or the start of a minimum."""
        if self.kind == "NaN":
            return False
        return (
            self.is_rest
            or self.source in ("constant", "buffer", "outside")
            or (self.source == "input" and self.given == float("-inf"))
        )

    @property
    def is_mask(self) -> bool:
        """Whether this is an infinity of the code that stands for "nothing here": it is no fault behind a loss that is bad.

        A number that the code writes; or a tensor whose only bad values are -inf, and which a layer or a softmax reads. What else a
        loss function reads are targets and weights.
        """
        if not self.is_intended or self.source == "constant":
            return self.is_intended
        if self.is_turned or self.is_rest:
            return False
        return self.given == float("-inf") and (self.source != "outside" or self.place.path is not None or self.is_of_softmax)


def ancestors(origins: Iterable[Origin], *, of_forward: bool = False) -> list[Origin]:
    """Return *origins* and all that they came from, in order.

    Args:
        origins: where to begin.
        of_forward: of a derivative, take the bad values that its operation has made in the forward as well.
    """
    found: dict[int, Origin] = {}
    pending = list(origins)
    while pending:
        origin = pending.pop()
        if origin.number not in found:
            found[origin.number] = origin
            pending += origin.sources if of_forward else origin.parents
    return [found[number] for number in sorted(found)]


def descendants(origins: Iterable[Origin], first: set[Origin]) -> set[Origin]:
    """Return those of *origins*, and of all that they came from, that have come out of any of *first*."""
    found: set[Origin] = set()
    for origin in ancestors(origins, of_forward=True):
        if any(each in first or each in found for each in origin.sources):
            found.add(origin)
    return found


@dataclass(slots=True)
class Stored:
    """What is known of a piece of memory."""

    memory: StorageWeakRef
    origins: tuple[Origin, ...] = ()
    producer: Producer | None = None
    holds_constant: bool = False  # of the size of the format's limit
    is_of_ranks: bool = False  # a collective writes it
    zeros: Zeros | None = None
    parameter: str = ""  # of which an update computes this


class Flow:
    """The origins of the non-finite values in each piece of memory, and the operation that wrote there last."""

    def __init__(self) -> None:
        self._stored: dict[int, Stored] = {}
        self._written = 0

    def of(self, tensor: Tensor) -> Stored | None:
        """Return what is known of the memory of *tensor*; None where nothing is, or it has none."""
        reference = memory_of(tensor)
        if reference is None:
            return None
        held = self._stored.get(reference.cdata)
        return held if held is not None and not held.memory.expired() else None

    def note(
        self,
        tensor: Tensor,
        origins: tuple[Origin, ...],
        producer: Producer | None,
        *,
        holds_constant: bool = False,
        is_of_ranks: bool = False,
        zeros: Zeros | None = None,
        parameter: str = "",
    ) -> None:
        """Note that *producer* wrote into the memory of *tensor*, and where its non-finite values, or zeros, come from."""
        reference = memory_of(tensor)
        if reference is None:
            return
        before = self.of(tensor)
        if before is not None and before.origins and not _covers(tensor):
            origins = (*before.origins, *(origin for origin in origins if origin not in before.origins))
        self._stored[reference.cdata] = Stored(reference, origins, producer, holds_constant, is_of_ranks, zeros, parameter)
        self._written += 1
        if self._written % 4096 == 0:
            self._stored = {key: held for key, held in self._stored.items() if not held.memory.expired()}


def _covers(tensor: Tensor) -> bool:
    """Return whether *tensor* is all of its memory."""
    held = dense(tensor)
    return held is None or held.numel() * held.element_size() >= held.untyped_storage().nbytes()
