"""The hook of one probe on one module or parameter: what hooks for events and hooks for statistics have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.engine.clock.clock import Clock
from sonde.engine.clock.forward import Forward
from sonde.engine.probes.delivery import Delivery
from sonde.engine.probes.targets import Sites
from sonde.engine.torch_api import compiler_state, hooks
from sonde.engine.torch_api.autograd_state import graph_task, is_transformed, transforms
from sonde.engine.unseen import blocks, is_quiet
from sonde.site import Port
from sonde.stats import Piece

_AT_THE_BORDER = (
    "one call of compiled code returns it beside other tensors: uses inside that code, such as a loss that is computed there, "
    "are not in its gradient"
)

_SPLIT_OTHERWISE = "left out: it is split among ranks in another way than the parameter"
_IN_PARTS = (
    "its gradient came in parts, as several reentrant checkpoints in one backward pass use it: what .grad held is delivered after "
    "each part. grad_at_step=True observes the whole gradient"
)

_RECORDED = "called by torch.export, torch.jit.trace, make_fx or in a FakeTensorMode, where nothing is delivered"

# What a hook works for that no probe uses
_NO_MODULE = nn.Module()
_NO_TIME = Clock(_NO_MODULE)
_NOBODY = Delivery(lambda event: None, strict=False, training=None, on_failure=lambda: None)

_is_recorded = compiler_state.is_recorded
_thread: Callable[[], int] = threading.get_ident


class SiteHook(hooks.Hook):
    """A hook of one probe at a time on one module or parameter; abstract.

    It is made once, begins for each probe that it is used by, and is given up between these (:class:`KeptHooks`).

    Attributes:
        delivery: the way to the observer, and its switch.
        clock: of the root that the module belongs to.
        name: of the module or parameter, as in its sites.
        module: the module, or the one that owns the parameter.
        target: the hooked module or parameter.
        sites: by port, not to be changed.
        was_eager: the hook has run outside compiled code, so that it can be taken out while the probe rests.
        is_in: the hook is in.
        handle: of the hook, if it ever was in.
        has_looked: since the hook was put in, it was looked whether its tensor comes out of compiled code beside others.
    """

    __slots__ = ("clock", "delivery", "handle", "has_looked", "is_in", "module", "name", "sites", "switch", "target", "was_eager")

    register: ClassVar[Callable[..., hooks.Handle]]

    def __init__(self, name: str, sites: Sites) -> None:
        self.name = name
        self.sites = sites
        self.handle: hooks.Handle | None = None

    def begin(self, delivery: Delivery, clock: Clock, module: nn.Module, parameter: nn.Parameter | None) -> None:
        """Work for the probe of *delivery* from now on: on *parameter*, which *module* owns, or on *module* itself."""
        self.delivery = delivery
        self.switch = delivery.switch
        self.clock = clock
        self.module = module
        self.target: Any = module if parameter is None else parameter
        if self.handle is not None and not self.handle.is_on(self.target):
            self.handle = None  # the module has another dictionary of hooks now
        self.was_eager = self.is_in = self.has_looked = False

    def give_up(self) -> None:
        """Work for no probe, and hold nothing of it: only while the hook is out. What comes late is not delivered."""
        self.delivery, self.switch, self.clock = _NOBODY, _NOBODY.switch, _NO_TIME
        self.module = self.target = _NO_MODULE

    def counts(self, added: Mapping[int, int]) -> dict[Port, int]:
        """Return how often something was delivered or added, by port.

        Args:
            added: of rows of a statistic, by their ids, as :meth:`sonde.stats.Table.additions` reads them.
        """
        raise NotImplementedError

    def take_over(self, old: Self) -> None:
        """Go on where *old* stopped, whose module or parameter was replaced by this one's."""
        raise NotImplementedError

    @property
    def has_fired(self) -> bool:
        """Whether anything of a module was delivered or added. Reads no device."""
        return any(self.counts({}).values())

    @property
    def is_on_module(self) -> bool:
        """Whether a module is hooked, and no parameter."""
        return self.target is self.module

    def size_factor(self, port: Port) -> float:
        """Return how many times as large as the measured tensor the whole tensor at *port* is: 1, or more for a sample."""
        return 1.0

    def was_stepped(self) -> bool:
        """Return whether an optimizer was seen to step the parameter."""
        return False

    def attach(self) -> None:
        """Put the hook in. Idempotent; nothing happens for a parameter that is frozen or has no shape as yet."""
        target = self.target
        if self.is_in or (target is not self.module and (not target.requires_grad or is_lazy(target))):
            return
        if self.handle is None or not self.handle.put_back(self):
            self.handle = self._register()
        self.is_in = True
        self.has_looked = False

    def _register(self) -> hooks.Handle:
        return type(self).register(self.target, self)

    def detach(self) -> None:
        """Take the hook out. Idempotent."""
        if self.handle is not None and self.is_in:
            self.handle.remove()
        self.is_in = False

    def note(self, text: str) -> None:
        """Write *text* into the coverage of the hook's sites."""
        self.delivery.note(self.sites.values(), text)

    def note_part(self, port: Port, tensor: Tensor) -> None:
        """Note in the coverage of *port* which part of *tensor*, which is distributed, this rank holds, if it is not all of it."""
        site = self.sites[port]
        if site not in self.delivery.notes and (Piece.is_part(tensor) or Piece.is_partial_sum(tensor)):
            self.delivery.note([site], Piece.in_words(tensor))

    def gradient_part(self, gradient: Tensor) -> Tensor | None:
        """Return the part of the parameter's *gradient* where this rank holds the parameter, and note it in the coverage.

        None, and noted, if this rank does not have it.
        """
        part = Piece.like(gradient, self.target)
        if part is not None:
            self.note_part("grad", self.target)
        elif Piece.is_partial_sum(gradient):
            self.note_part("grad", gradient)
        else:
            self.delivery.note([self.sites["grad"]], _SPLIT_OTHERWISE)
        return part

    def note_units(self, output: Any) -> None:
        """Note in the coverage if *output*, a plain tensor, has fewer features than its layer, whose weight is split among ranks.

        So tensor parallelism leaves an output: each rank has some of the features.
        """
        module = self.module
        whole = module.out_features if isinstance(module, nn.Linear) else getattr(module, "embedding_dim", 0)
        if type(output) is Tensor and output.dim() and isinstance(whole, int) and output.shape[-1] < whole:
            text = f"rank {torch.distributed.get_rank()}'s part: {output.shape[-1]} of {whole} features"
            self.delivery.note([site for site in self.sites.values() if site not in self.delivery.notes], text)

    def note_border(self, port: Port, tensors: Iterable[Tensor]) -> None:
        """Note in the coverage of *port* if *tensors*, whose gradients are observed, come out of one call of compiled code."""
        if compiler_state.come_out_together(tensors):
            self.delivery.note([self.sites[port]], _AT_THE_BORDER)

    def look_at_border(self, port: Port, tensor: Tensor) -> None:
        """Note in the coverage of *port* if *tensor*, which came alone, is one of several results of compiled code; once."""
        self.has_looked = True
        self.note_border(port, [tensor])

    def look_at_pass(self, port: Port, before: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return which backward pass runs, how many have ended, and the thread; note in the coverage if it is a part of another.

        That is so if a gradient came *before* in another pass of the same thread, and none has ended since.
        """
        now = graph_task(), self.clock.backward_counter.count, _thread()
        if before[1:] == now[1:] and before[0] != now[0]:
            self.delivery.note([site for site in (self.sites[port],) if site not in self.delivery.notes], _IN_PARTS)
        return now

    def failed(self, error: Exception) -> None:
        """Report *error*, and observe nothing more at any of the sites."""
        for site in self.sites.values():
            self.delivery.failed_at(site, error)

    def stop_at(self, port: Port, why: str) -> None:
        """Stop observing at *port*, and note *why* in the coverage."""
        self.delivery.stop_at(self.sites[port], why)

    def is_quiet(self) -> bool:
        """Return whether what happens now in this thread is not to be seen. Asked only while ``unseen.blocks`` has any."""
        return is_quiet(self.delivery.number, self.module, self.target, self.clock.root())

    def is_recorded(self) -> bool:
        """Return whether a program is written down now, and note that nothing is delivered there."""
        if _is_recorded():
            self._refuse()
            return True
        return False

    def rests_in_trace(self) -> bool:
        """Return whether code of the module that is traced now is to deliver nothing: surely no observed pass, or at rest.

        Without gradients code of a model in training mode may be a part of a reentrant checkpoint: the clock decides at run time.
        Compiled code has a graph for each answer.
        """
        switch = self.switch
        if switch.training is None or not switch.in_code:
            return not switch.in_code
        model = self.clock.module()
        is_training = model is None or model.training
        return not is_training if switch.training else is_training and torch.is_grad_enabled()

    def _admitted(self) -> Forward | None:
        """Return the forward that an eager module call belongs to; None if nothing of the call may be delivered."""
        self.was_eager = True
        if blocks and self.is_quiet():
            return None
        thread = self.delivery.thread
        if (thread is not None and thread != _thread() and graph_task() == -1) or transforms() is not None:
            self._refuse()
            return None
        forward = self._forward_observed()
        return None if forward is not None and forward.may_be_recorded and self.is_recorded() else forward

    def _admitted_compiled(self) -> Forward | None:
        """Return the forward that a module call in compiled code belongs to; None if nothing of the call may be delivered."""
        return None if blocks and self.is_quiet() else self._forward_observed()

    def _forward_observed(self) -> Forward | None:
        """Return the forward of this thread; None if it is no pass that the probe observes."""
        clock = self.clock
        forward = held if (held := clock.local.forward) is not None and held.began == clock.stamp else clock.current()
        if forward.is_on_ranks and clock.is_for_shapes():
            return None
        training = self.switch.training
        if training is not None and clock.is_training(forward, graph_task()) is not training:
            return None
        return forward

    def _refuse(self) -> None:
        """Note why an eager module call is not observed."""
        if is_transformed():  # its tensors are wrappers that must not outlive the transform
            self.note("called inside a torch.func transform, where nothing is delivered")
        elif _is_recorded():
            self.note(_RECORDED)
        else:
            self.note("called in another thread than the one that entered the probe")
