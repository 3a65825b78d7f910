"""What is examined: the model with its batch, and how it is watched."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from sonde.checkup.compiling import Backend, Compilations, counted
from sonde.checkup.copied_training import NEVER, Training, watching
from sonde.checkup.operator_log import OperatorLog
from sonde.checkup.pass_facts import Change, Facts, changes, facts_of_passes, not_compared
from sonde.checkup.timing import Difference, Times, Way, interleaved
from sonde.diagnosis import Subject
from sonde.engine import Coverage, ProbeError, private_parts, regions
from sonde.errors import SelectionError, SondeError
from sonde.inspector import Inspector, flat
from sonde.lens import AnyLens, Lens, default_lenses
from sonde.site import Port

_PASSES = 3  # one that is logged, one that is not, one that is logged again
_EVERY = 2
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """What one lens costs at one port.

    Attributes:
        lens: its name.
        port: the port.
        rows: how many rows it fills in a logged step: one for each site and call.
        one_in: the lens measures in one of so many logged steps.
        bytes: of all its rows, in memory.
        difference: how much longer a step takes that it measures; None where that was not measured.
    """

    lens: str
    port: Port
    rows: int
    one_in: int
    bytes: int
    difference: Difference | None = None


@dataclass
class Steps:
    """What the operators of one step show, without an observer, in a step that is not logged, and in a logged one.

    Attributes:
        bare, plain, logged: the operators.
        coverage: of the logged step.
        errors: of observers.
        costs: of each lens and port, without times.
    """

    bare: OperatorLog
    plain: OperatorLog
    logged: OperatorLog
    coverage: Coverage
    errors: tuple[ProbeError, ...]
    costs: list[Cost]


class Examination:
    """Runs copies of a model with and without ``watch``. Each result is computed when it is first asked for.

    Attributes:
        subject: the model, the batch, the loss and the optimizer.
        lenses: what is looked at; None for the default.
        every: which steps a training would log.
        seconds: the time that timing may take.
        trains: the model is in training mode.
        compiles: copies are compiled; where they are not, compiled modules run as plain Python.
        notes: what the reader must know of how the model ran.
        raised: what the model raises under ``watch`` alone, once :attr:`changes` were asked for.

    Args:
        given: further arguments of ``watch``.
    """

    def __init__(
        self,
        subject: Subject,
        lenses: tuple[AnyLens, ...] | None,
        every: int,
        seconds: float,
        compiles: bool | None,
        given: Mapping[str, Any],
    ) -> None:
        self.subject, self.lenses, self.every, self.seconds = subject, lenses, every, seconds
        self.trains = subject.model.training
        self.compiles = self.is_compiled if compiles is None else compiles
        self._backend = Backend(subject.model) if self.compiles else None
        self._given = given
        self.notes: list[str] = []
        self.raised: Exception | None = None

    @property
    def passes(self) -> str:
        """What was compared, in words."""
        return f"{_PASSES} steps ({-(-_PASSES // _EVERY)} logged)" if self.trains else f"{_PASSES} forwards"

    @cached_property
    def is_compiled(self) -> bool:
        """Whether the model, or a part of it, is compiled."""
        return bool(regions(self.subject.model))

    @cached_property
    def devices(self) -> int:
        """The number of accelerators that the parameters are on."""
        return len({parameter.device for parameter in self.subject.model.parameters() if not parameter.is_cpu})

    def _watch(
        self, training: Training, every: Any, lenses: tuple[AnyLens, ...] | None = None
    ) -> AbstractContextManager[Inspector]:
        optimizer = training.optimizer
        return watching(training, every, optimizer=optimizer, lenses=self.lenses if lenses is None else lenses, **self._given)

    def _fits(self, training: Training, lenses: tuple[AnyLens, ...] | None) -> bool:
        """Return whether each of *lenses* finds something to look at."""
        try:
            with self._watch(training, NEVER, lenses):
                return lenses is not None
        except SelectionError:
            return False

    @property
    def _used(self) -> tuple[AnyLens, ...]:
        return default_lenses(self.subject.model) if self.lenses is None else self.lenses

    @cached_property
    def private_parts(self) -> tuple[int, dict[str, str]]:
        """How many private parts of torch sonde uses; and those that are missing, with what happens without them."""
        parts = private_parts()
        return len(parts), {private.name: private.without for private, is_there in parts.items() if not is_there}

    # Whether anything changes

    def _facts(self, *, watched: bool) -> Facts:
        with Training.of(self.subject, self._backend) as training:

            def state() -> Any:
                return None if training.optimizer is None else training.optimizer.state_dict()

            return facts_of_passes(
                training.model,
                training.arguments,
                training.loss_of,
                passes=_PASSES,
                make=(lambda model: self._watch(training, _EVERY)) if watched else None,
                step=training.step,
                state=state,
                called=training.called,
            )

    @cached_property
    def changes(self) -> tuple[list[Change], list[Change], int, list[str]]:
        """What differs between two unobserved runs; between an unobserved run and a watched one.

        Also how many facts were compared, and the names of those that cannot be read.
        """
        plain = self._facts(watched=False)
        unsteady = changes(plain, self._facts(watched=False))
        try:
            changed = changes(plain, self._facts(watched=True))
        except SondeError:
            raise
        except Exception as error:
            self.raised = error
            changed = [Change("the watched run", f"raises {type(error).__name__}: {error}")]
        unread = not_compared(plain)
        return unsteady, changed, len(plain) - len(unread), unread

    # What runs

    @cached_property
    def steps(self) -> Steps:
        """The operators of single steps, and what the inspector of the logged one has seen."""
        bare = self._log(None)[0]
        plain = self._log(NEVER)[0]
        logged, inspector = self._log(1)
        assert inspector is not None
        return Steps(bare, plain, logged, inspector.coverage(), inspector.errors, self._costs(inspector))

    def _log(self, every: Any) -> tuple[OperatorLog, Inspector | None]:
        with Training.of(self.subject) as training:
            log = OperatorLog(training.model)
            if every is None:
                self._steps_in(log, training, None)
                inspector = None
            else:
                with self._watch(training, every) as inspector:
                    self._steps_in(log, training, inspector)
        return log, inspector

    def _steps_in(self, log: OperatorLog, training: Training, inspector: Inspector | None) -> None:
        for _ in range(_WARM_UP):
            training.run(inspector, training.arguments())
        if inspector is not None:
            inspector.run  # noqa: B018  # waits for the thread that writes: the next step writes the coverage, once
            training.run(inspector, training.arguments())
        arguments = training.arguments()
        with log:
            training.run(inspector, arguments)

    def _costs(self, inspector: Inspector) -> list[Cost]:
        often = {lens.name: lens.one_in for lens in flat(self._used) if isinstance(lens, Lens)}
        found: dict[tuple[str, Port], tuple[int, int]] = {}
        for measurement in inspector._last().measurements():
            for port, (rows, size) in measurement.rows_by_port().items():
                known = found.get((measurement.family, port), (0, 0))
                found[measurement.family, port] = known[0] + rows, known[1] + size
        found = {key: value for key, value in found.items() if self.trains or key[0].endswith("_eval")}
        return [
            Cost(family, port, rows, often.get(family.removesuffix("_eval"), 1), size)
            for (family, port), (rows, size) in found.items()
        ]

    # What is compiled

    @cached_property
    def compilations(self) -> tuple[Compilations, Compilations]:
        """What is compiled in a few steps, without an observer, and with one that logs every second step."""
        with Training.of(self.subject, Backend(self.subject.model)) as training:  # loads the compiler
            training.run(None, training.arguments())
        found = []
        for watched in (False, True):
            backend = Backend(self.subject.model)
            with Training.of(self.subject, backend) as training, self._observer(training, watched=watched) as inspector:
                found.append(counted(partial(_step, training, inspector), backend, 2 * _EVERY))
        return found[0], found[1]

    def _observer(self, training: Training, *, watched: bool) -> AbstractContextManager[Inspector | None]:
        return self._watch(training, _EVERY) if watched else nullcontext()

    # How long it takes

    @cached_property
    def times(self) -> Times[str] | None:
        """The times of a step: ``bare``, ``plain`` (watched, not logged) and ``logged``; None if there was too little time."""
        with Training.of(self.subject, self._backend) as training:
            training.stand_still()
            ways: dict[str, Way] = {"bare": nullcontext, "plain": self._way(training, NEVER), "logged": self._way(training, 1)}
            return interleaved(training, ways, self.seconds / 2)

    @cached_property
    def costs(self) -> list[Cost]:
        """What each lens costs at each port, timed if there is time: a step in which each lens measures, with and without it."""
        if self.times is None:
            return self.steps.costs
        with Training.of(self.subject, self._backend) as training:
            training.stand_still()
            whole = tuple(_changed(lens, one_in=1) if isinstance(lens, Lens) else lens for lens in self._used)
            ways: dict[Cost | None, Way] = {None: self._way(training, 1, whole)}
            for cost in self.steps.costs:
                rest = _without(whole, cost)
                if self._fits(training, rest):
                    ways[cost] = self._way(training, 1, rest)
            times = interleaved(training, ways, self.seconds / 2)
        if times is None:
            self.notes.append(f"the times of lenses take longer to measure than {self.seconds / 2:g} s: give more seconds=")
            return self.steps.costs
        return [replace(cost, difference=times.difference(None, cost)) if cost in ways else cost for cost in self.steps.costs]

    def _way(self, training: Training, every: Any, lenses: tuple[AnyLens, ...] | None = None) -> Way:
        return lambda: self._watch(training, every, lenses)


def _step(training: Training, inspector: Inspector | None) -> None:
    training.run(inspector, training.arguments())


def _changed(lens: Lens, **values: Any) -> Lens:
    """Return a copy of *lens* with other attributes; ``dataclasses.replace`` would call the constructor of its class."""
    made = copy.copy(lens)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _without(lenses: tuple[AnyLens, ...], cost: Cost) -> tuple[AnyLens, ...] | None:
    """Return *lenses* without one port of one of them; None where the lens belongs to another, or nothing would be left."""
    kept: list[AnyLens] = []
    found = False
    for lens in lenses:
        if not isinstance(lens, Lens) or lens.name != cost.lens.removesuffix("_eval"):
            kept.append(lens)
            continue
        found = True
        ports = tuple(port for port in lens.ports if port != cost.port)
        if ports:
            kept.append(_changed(lens, ports=ports))
    return tuple(kept) if found and any(isinstance(lens, Lens) for lens in kept) else None
