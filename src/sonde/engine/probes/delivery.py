"""Hand events to one observer: its switch, its thread, its errors, and notes about sites it could not see."""

from __future__ import annotations

import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from sonde.engine import structure
from sonde.engine.event import Event, Subscriber, weakly
from sonde.engine.failures import ProbeError, name_of, raise_if_foreign
from sonde.engine.probes.gradients import Pending
from sonde.engine.torch_api import hooks
from sonde.engine.unseen import next_number
from sonde.errors import ArgumentError
from sonde.site import Site
from sonde.stats import Lent, Piece, Statistic
from sonde.warn import warn_user


class Switch:
    """Whether a probe observes now, and which passes. Compiled code reads a switch, and there is a graph for each answer.

    Attributes:
        on: the probe observes.
        in_code: compiled code delivers. It may do so while the probe rests: another state would be another graph.
        training: True: training passes alone are observed; False: evaluation passes alone; None: both.
    """

    __slots__ = ("in_code", "on", "training")

    def __init__(self, training: bool | None) -> None:
        self.on = self.in_code = False
        self.training = training


@dataclass(slots=True)
class _Leaf:
    """A leaf of the graph that a module returned, the one hook on it, and its listeners in the last forward."""

    tensor: weakref.ref[Tensor]
    handle: hooks.Handle
    forward: int
    listeners: list[hooks.Listener]


class Delivery:
    """The way from the hooks of one probe to its observer; the one place where a failure of an observer ends up.


    Attributes:
        subscriber: called with each event, but for those at sites that have stopped; of a statistic a function that does nothing.
        looking: the same for some events of each site: whether the subscriber leaves them as they are. If strict, for all. A
            subscriber of sonde's own that says so by an attribute ``leaves_what_it_is_lent`` is not looked at.
        observer: the name of the subscriber or statistic.
        switch: whether the probe observes.
        thread: the only thread that is observed; None for all.
        number: of this observer, since it was attached, see ``unseen.py``.
        strict: errors are raised again.
        on_failure: called without arguments when an observer has failed; stops the probe where nothing is left to observe.
        errors: records of these failures.
        stopped_by: the failure that stopped the probe.
        stopped: sites that have failed, where nothing more is observed; the reason, as text, by site.
        refused: by site, how many of the events the observer has made nothing of, since it has failed there.
        notes: by site, why it could not be observed, or not everything of it.
        pieces: by site, which part of each distributed tensor there this rank holds, by leaf path; None for a partial sum.
        pending: gradients of structured values that have not all come.
    """

    def __init__(self, do: Subscriber | Statistic, *, strict: bool, training: bool | None, on_failure: Callable[[], None]) -> None:
        self._whole: Subscriber = _nobody if isinstance(do, Statistic) else weakly(do)
        self._is_own = bool(getattr(do, "leaves_what_it_is_lent", False))
        self.strict = strict
        self._deliver_to(self._whole)
        self.observer = name_of(do if isinstance(do, Statistic) else self._whole)
        self.switch = Switch(training)
        self.thread: int | None = None
        self.number = next_number()
        self.on_failure = on_failure
        self.errors: list[ProbeError] = []
        self.stopped_by: Exception | None = None
        self.stopped: dict[Site, str] = {}
        self.refused: Counter[Site] = Counter()
        self.notes: dict[Site, str] = {}
        self.pieces: dict[Site, dict[str, Piece | None]] = {}
        self.pending = Pending()
        self._leaves: dict[tuple[int, int], _Leaf] = {}
        self._warned: set[tuple[object, ...]] = set()  # type and line of errors that have stopped a site
        self._said: set[str] = set()  # what a subscriber should not do, and was said to have done

    def deliver(self, event: Event, count: int) -> None:
        """Call the subscriber with the event number *count*, from 1, of its site; its errors do not reach the training."""
        try:
            (self.subscriber if count & (count - 1) else self.looking)(event)
        except Exception as error:
            self.refuse(event.site, error)

    def _deliver_to(self, whole: Subscriber) -> None:
        """Deliver to *whole*: one call for each event, where nobody has to be looked at."""
        self.looking: Subscriber = whole if self._is_own else self._look
        self.subscriber: Subscriber = self.looking if self.strict else whole

    def _look(self, event: Event) -> None:
        """Call the subscriber; look whether it leaves what it is lent as it is (if not, stop the site), and what it returns."""
        site = event.site
        if site in self.stopped:
            self.refused[site] += 1
            return
        lent = Lent([*event.leaves, *structure.walk((event.args, event.kwargs))])
        returned = self._whole(event)
        path = lent.written()
        if path is not None:
            self._wrote(event, path)
        if returned is not None and returned is not event and returned is not event.value:
            self._look_at_returned(site, returned)

    def _look_at_returned(self, site: Site, returned: object) -> None:
        """Warn, once, if the subscriber has *returned* what may be meant for the model, or to be kept: tensors, or a number."""
        if "returned" not in self._said and (isinstance(returned, float) or structure.walk(returned)):
            self._said.add("returned")
            warn_user(
                f"{self.observer} has returned a {type(returned).__name__} at {site}, which nothing uses: an observer changes "
                "nothing in the model, and what it is to keep it stores itself. Let it return None. To put another tensor in the "
                "place of one, use a hook of torch"
            )

    def _wrote(self, event: Event, path: str) -> None:
        """Stop the site of *event*: the subscriber has written into its tensor at *path*. If strict, raise."""
        is_value = any(path == known for known, _ in event.leaves)
        which = event.site.at(path) if is_value else f"an argument of the call at {event.site}"
        what = f"{self.observer} has written into {which}"
        error = ArgumentError(
            f"{what}, so that the model goes on with other numbers than it would unobserved. An observer is lent tensors: let it "
            "work on a copy, as event.value.clone(). To change a model, use a hook of torch"
        )
        if self.strict:
            raise error
        self.refused[event.site] += 1
        self.stop_at(event.site, f"stopped: {what}")
        self.errors.append(ProbeError.of(self.observer, event.site, error))
        self.on_failure()
        if "wrote" not in self._said:
            self._said.add("wrote")
            warn_user(f"{error}. Nothing more is observed where it does; errors are in .errors, and strict=True raises them")

    def begin(self) -> None:
        """Observe at all sites, also where the observer has failed before."""
        self.number = next_number()
        self.stopped_by = None
        self.stopped.clear()
        self._deliver_to(self._whole)

    def refuse(self, site: Site, error: Exception) -> None:
        """Stop *site* alone, at which the subscriber has failed: the event that was delivered there does not count."""
        raise_if_foreign(error)
        self.refused[site] += 1
        self.failed_at(site, error)
        self.on_failure()

    def _elsewhere(self, event: Event) -> None:
        """Call the subscriber, unless it has failed at the event's site."""
        if event.site in self.stopped:
            self.refused[event.site] += 1
        else:
            self._whole(event)

    def failed(self, error: Exception, observer: object) -> None:
        """Keep the error of what all sites need, as the schedule; stop the probe and warn once; if strict, raise it again."""
        raise_if_foreign(error)
        if self.strict:
            raise error
        name = name_of(observer)
        self.stopped_by = error
        self.errors.append(ProbeError.of(name, None, error))
        self.on_failure()
        warn_user(
            f"sonde stopped observing: {name} raised {type(error).__name__}: {error}. The training goes on without it; "
            "what was recorded is kept, the error is in .errors, and strict=True raises it."
        )

    def failed_at(self, site: Site, error: Exception, observer: object = None, *, was: str = "observed") -> None:
        """Keep the error of an observer (by default the probe's), and stop *site* alone; if strict, raise it again.

        Warn once for each place in the source that has raised: a function may fail at every layer.
        """
        raise_if_foreign(error)
        if self.strict:
            raise error
        if site in self.stopped:
            return
        name = self.observer if observer is None else name_of(observer)
        self.stop_at(site, f"stopped: {type(error).__name__}: {error}")
        origin = error.__cause__ if isinstance(error.__cause__, Exception) else error
        frames = traceback.extract_tb(origin.__traceback__)[-1:]
        cause = (type(origin), *((frame.filename, frame.lineno) for frame in frames))
        self.errors.append(ProbeError.of(name, site, error))
        if cause not in self._warned:
            self._warned.add(cause)
            warn_user(
                f"nothing more is {was} at {site}: {name} raised {type(error).__name__} at {site}: {error}. The other "
                f"sites and the training go on. What was {was} stays, errors are in .errors, and strict=True raises them."
            )

    def stop_at(self, site: Site, why: str) -> None:
        """Stop observing at *site*, and note *why* in the coverage."""
        self._deliver_to(self._elsewhere)
        self.stopped[site] = why

    def not_finished(self, site: Site, error: Exception) -> None:
        """Keep the error of the statistic, which cannot make numbers of a row at *site*, and warn; if strict, raise it again."""
        if self.strict:
            raise error
        if not any(known.site == site for known in self.errors):
            self.errors.append(ProbeError.of(self.observer, site, error))
            self.note([site.at("")], f"{site.leaf} its row could not be finished: {type(error).__name__}: {error}".lstrip())
            warn_user(
                f"there are no numbers at {site}: {self.observer} raised {type(error).__name__}: {error}. The other rows are "
                "there, errors are in .errors, and strict=True raises them."
            )

    def has_stopped(self, site: Site, leaf: str = "") -> bool:
        """Return whether *site*, or its *leaf*, has failed."""
        return bool(self.stopped) and (site in self.stopped or (leaf != "" and site.at(leaf) in self.stopped))

    def why_stopped(self, site: Site) -> str:
        """Return why *site* has stopped, or its first leaf that has; ``""`` if none has."""
        whole = self.stopped.get(site)
        if whole is not None:
            return whole
        return next((f"{part.leaf} {why}" for part, why in self.stopped.items() if part.at("") == site), "")

    def has_ended(self, sites: Iterable[Site]) -> bool:
        """Return whether nothing more is observed at *sites*, since the observer has failed: as a whole, or at each of them."""
        return self.stopped_by is not None or (bool(self.stopped) and all(self.why_stopped(site) for site in sites))

    def note(self, sites: Iterable[Site], text: str) -> None:
        """Write *text* into the coverage of *sites*."""
        for site in sites:
            self.notes[site] = text

    def listen_to_leaf(self, hook: hooks.Hook, forward: int, tensor: Tensor, listener: hooks.Listener) -> None:
        """Call *listener* with each gradient of *tensor*, a leaf of the graph that *hook* has seen in the forward *forward*.

        A leaf outlives the forward: it gets one hook, and only listeners of the last forward are called.
        """
        key = (id(hook), id(tensor))
        known = self._leaves.get(key)
        if known is not None and known.tensor() is tensor:
            if known.forward != forward:
                known.forward, known.listeners[:] = forward, []
            known.listeners.append(listener)
            return
        listeners = [listener]

        def deliver(gradient: Tensor) -> None:
            for each in tuple(listeners):
                each(gradient)

        reference = weakref.ref(tensor, lambda _: self._leaves.pop(key, None))
        self._leaves[key] = _Leaf(reference, hooks.on_tensor(tensor, deliver), forward, listeners)

    def stop(self) -> None:
        """Switch off, and take the hooks on leaves out. Idempotent."""
        self.switch.on = self.switch.in_code = False
        self.thread = None
        for leaf in tuple(self._leaves.values()):
            leaf.handle.remove()
        self._leaves.clear()

    def forget_subscriber(self) -> None:
        """Hold the subscriber no longer."""
        self.subscriber = self.looking = self._whole = _nobody


def _nobody(event: Event) -> None:
    """The subscriber of a probe that feeds a statistic."""
