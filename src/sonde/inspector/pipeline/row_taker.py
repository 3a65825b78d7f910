"""Take the rows of one model's measurements into batches: after a logged step, a backward pass, or evaluation passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from sonde.engine import Pace, RowKeys, Scaling, SiteHook, backward_calls, held_by
from sonde.inspector.batches import BatchChecks, LossGraph, PartPasses
from sonde.inspector.between_steps import BetweenSteps
from sonde.inspector.forward_modes import EvaluationModes, ForwardModes
from sonde.inspector.initial_gates import InitialGates
from sonde.inspector.kept_gradients import KeptGradients
from sonde.inspector.left_out import LeftOut
from sonde.inspector.measurement.execution_order import Ordering
from sonde.inspector.measurement.measurement import Measurement
from sonde.inspector.measurement.parameter_rows import ParameterRows
from sonde.inspector.odd_settings import OddSettings
from sonde.inspector.pipeline.batch import Batch, BatchBuilder
from sonde.inspector.same_inputs import SameInputs
from sonde.inspector.settings import Settings
from sonde.schedule import Tick
from sonde.site import GRADIENT_PORTS, MODULE_PORTS, Port
from sonde.warn import warn_user

Send = Callable[[BatchBuilder, "list[Batch]"], None]
"""Takes the data of a moment, and the batches that have waited for this moment."""

_FLATTENED = (
    "FullyShardedDataParallel (FSDP1, deprecated in torch) keeps the parameters of this model in flat tensors: rows of parameters, "
    "their gradients and updates are of what each rank holds, and there are no norms over all parameters. Inputs, outputs and "
    "their gradients are joined. With fully_shard (FSDP2) all rows are of the whole model"
)

_LONG = 0.95  # momentum from which on its steps are recorded


class RowTaker:
    """The measurements of one model, and the moments at which their rows are taken.


    Attributes:
        measurements: all that are attached.
        evaluated: whether evaluation passes were seen since their rows were last taken.
        evaluated_alone: of the clock's count of such calls outside of the root, those whose rows were taken.
        modes: in which logged steps no forward was in training mode.
        left_out: the parameters that the first logged steps leave as they are.
        gates: whether those of recurrent layers are shut as the training begins.
        kept: whether the gradients of the step before are cleared.
        between: whether parameters change between steps.
        same: whether all samples that go in are the same.
        settings: what is wrong with those of the optimizers.
        loss_graph: how the first losses were made.
        batches: what outputs of some batches depend on, and their targets.
        parts: the same of the parts of a model that is never called itself.
        looks: those of these that find something by themselves.

    Args:
        send: called with the data of each moment.
    """

    def __init__(self, model: nn.Module, name: str, settings: Settings, send: Send) -> None:
        self.measurements: list[Measurement] = []
        self.evaluated = False
        self.evaluated_alone = 0
        self.modes = ForwardModes(name)
        self.evaluations = EvaluationModes(settings.rules, name)
        self.left_out = LeftOut(settings.rules, model)
        self.gates = InitialGates(settings.rules)
        self.kept = KeptGradients(settings.rules)
        self.between = BetweenSteps()
        self.same = SameInputs(settings.rules, model, name)
        self.settings = OddSettings(settings.rules, name)
        self.loss_graph = LossGraph(settings.rules, model, name)
        self.batches = BatchChecks(settings.rules, model, name)
        self.parts = PartPasses(settings.rules, model, name)
        self.looks = (
            self.left_out, self.gates, self.kept, self.same, self.settings, self.batches, self.parts, self.loss_graph,
            self.evaluations,
        )  # fmt: skip
        self._send = send
        self._scaling = Scaling(settings.scaler)
        self._ordering = Ordering(model, name)
        self._prefix = f"{name}/" if name else ""
        self._places: dict[str, int] = {}
        self._hooks: dict[Port, tuple[list[SiteHook], list[SiteHook]]] = {}  # by port, those of a list that has all ports
        self._starts = ParameterRows("parameters before a step", "param", lambda parameter: parameter)
        self._raw = ParameterRows("gradients before clipping", "grad", attrgetter("grad"))
        self._waiting: list[Batch] = []  # of backward passes, until it is known that they belong to a step
        self.has_sequences = False
        part = settings.part
        self._scope = part.scope
        self._keys = RowKeys(model, settings.batch_ranks, part.size) if part.merges else None
        self._starts.keys = self._raw.keys = self._keys
        if self._keys is not None and self._keys.is_flattened and part.leads:
            warn_user(_FLATTENED)

    def add(self, measurement: Measurement, pace: Pace) -> None:
        """Attach the hooks of *measurement*."""
        measurement.scope, measurement.keys = self._scope, self._keys
        self.measurements.append(measurement)
        self.has_sequences = self.has_sequences or measurement.is_sequence
        measurement.attach(pace)

    def detach(self) -> None:
        """Take all hooks out."""
        self._ordering.stop()
        for each in (self.loss_graph, self.batches, self.parts):
            backward_calls.listen_no_more(each)
        self.left_out.end(self._hooks_at("param"), self._ordering.ran)
        self.kept.end()
        self.settings.end()
        self.batches.end()
        self.parts.end()
        for measurement in self.measurements:
            measurement.attachment.detach()

    @property
    def divides(self) -> bool:
        """Whether gradients that a backward pass has left are divided by the scale of a loss before they are recorded."""
        return self._scaling.scale is not None

    def layers(self) -> set[str]:
        """The modules that lenses look at, or whose parameters they look at."""
        return {site.layer for each in self.measurements if not each.hidden for site in each.attachment.sites()}

    def begin_step(self, pace: Pace, *, again: bool = False) -> None:
        """Switch the hooks for the step that begins; *again*: they were switched for this step by another decision."""
        if again or pace.on or pace.was_on or (self.has_sequences and (pace.in_pair or pace.was_in_pair)):
            in_code = pace.on or (self.has_sequences and pace.in_pair)
            for measurement in self.measurements:
                measurement.begin_step(pace, in_code=in_code)
        if pace.on:
            self.watch_order()
            self.parts.begin_step(self._ordering.parts())
        else:
            self.parts.rest()
        self.listen(pace)

    def listen(self, pace: Pace, *, passes: bool = False) -> None:
        """See what is sent backward in the step that runs, if that is looked at: of its training *passes*, or as it is logged."""
        looks = passes or (pace.on and (self.loss_graph.looks or self.parts.looks))
        for each in (self.loss_graph, self.batches, self.parts):
            (backward_calls.listen if looks else backward_calls.listen_no_more)(each)

    def never_stepped(self, passes: int, epoch: int, step: int) -> None:
        """Judge a model that no optimizer has stepped, where others were: so many *passes* have left it gradients."""
        self.left_out.never_stepped(self._hooks_at("param"), passes, epoch, step, self._ordering.ran)

    def look_at_start(self, step: int) -> None:
        """Look whether the parameters are finite as *step* begins, which is logged."""
        self._starts.measure(self._hooks_at("param"), step)

    def _hooks_at(self, port: Port) -> list[SiteHook]:
        """The hooks of all parameters, those that the norms over all come from: one list as long as no hook comes or goes."""
        source = next((each for each in self.measurements if port in each.norms), None)
        if source is None:
            return []
        known, hooks = self._hooks.get(port, (None, []))
        if known is not (held := source.attachment.hooks.held):
            hooks = [hook for hook in held if port in hook.sites]
            self._hooks[port] = held, hooks
        return hooks

    def watch_order(self) -> None:
        """See in which order modules run, unless this is known."""
        clock = next((clock for each in self.measurements for clock in each.attachment.clocks), None)
        if clock is not None:
            self._ordering.watch(clock)

    def begin_anew(self) -> None:
        """The model has changed: see again in which order its modules run, and compare nothing with tensors from before."""
        self._ordering.forget()
        for measurement in self.measurements:
            measurement.forget_previous()

    def take_step(self, ended: Tick, optimizer: Optimizer | None, turn: int, *, pairs: bool) -> None:
        """Take the rows of the logged step that has *ended*.

        Args:
            ended: the step.
            optimizer: has made the step, or a part of it; None without one.
            turn: the number of the optimizer among those of the model.
            pairs: whether to take the rows of pairs of steps too.
        """
        if self._ordering.end_step():
            self._places = {}
            for measurement in self.measurements:
                measurement.forget_order()
        self._scaling.notice()
        scales: dict[str, Tensor] = {}
        if (scale := self._scaling.scale) is not None:
            scales |= {port: scale for port in GRADIENT_PORTS if port in MODULE_PORTS}
        if (scale := Scaling.at_step(optimizer)) is not None:
            scales["grad"] = scale
        builder = BatchBuilder(ended.epoch, ended.step, ends_interval=True)
        held = None if optimizer is None else held_by(optimizer)
        if self.left_out.looks:
            self.left_out.check(self._hooks_at("param"), held, ended.epoch, ended.step, self._ordering.ran)
        if self.gates.looks:
            self.gates.check(self._hooks_at("param"), ended.epoch, ended.step)
        if self.kept.looks:
            self.kept.check(self._hooks_at("param"), held, ended.epoch, ended.step)
        if held is not None:
            self.between.begin(self._hooks_at("param"), held)
        builder.parameter_rows(self._starts, self._starts.row_index(self._order(), None), role="start")
        raw_scales = None if self._scaling.scale is None else {"grad": self._scaling.scale}
        builder.parameter_rows(self._raw, self._raw.row_index(self._order(), held), role="raw", scales=raw_scales)
        for measurement in self.measurements:
            wanted = pairs or not measurement.is_sequence
            if measurement.kind == "step" and wanted and measurement.attachment.attached:
                builder.rows(measurement, self._order(), scales=scales)
        if optimizer is not None:
            self.settings.look(optimizer, self._hooks_at("param"), ended.epoch, ended.step)
            self.loss_graph.climbs = self.settings.climbs
            for name, rate in _learning_rates(optimizer, turn):
                builder.scalar(self._prefix + name, rate, "lowest")
        waited, self._waiting = self._waiting, []
        self._send(builder, waited)

    def take_backward(self, epoch: int, step: int) -> None:
        """Take the rows that belong to the backward pass that has ended alone. They wait for the end of the step.

        The gradients now, as long as no other pass adds to them, are those before clipping.
        """
        self._raw.measure(self._hooks_at("grad"), step)
        self.loss_graph.look(epoch, step)
        self.batches.look_at_loss()
        self.parts.look_at_loss()
        if self.left_out.looks:
            self.left_out.look_at_gradients(self._hooks_at("grad"))
        scale = self._scaling.scale
        scales: Mapping[str, Tensor] = {} if scale is None else {"grad": scale}
        builder = BatchBuilder(epoch, step)
        for measurement in self.measurements:
            if measurement.kind == "micro_step" and measurement.attachment.attached:
                builder.rows(measurement, self._order(), micro_step=len(self._waiting), scales=scales)
        if builder:
            self._waiting.append(builder.batch())

    def take_evaluation(self, epoch: int, step: int) -> None:
        """Take the rows of the evaluation passes since the last step."""
        self.evaluated = False
        builder = BatchBuilder(epoch, step)
        for measurement in self.measurements:
            if measurement.kind == "evaluation" and measurement.attachment.attached:
                builder.rows(measurement, self._order())
        if builder:
            self._send(builder, [])

    def end_pair(self, pace: Pace) -> None:
        """Drop pairs of a step that ends none, and the tensors before where the next step is not observed."""
        for measurement in self.measurements:
            if measurement.is_sequence:
                if not pace.ends_pair:
                    measurement.table.reset()
                if not pace.in_pair:
                    measurement.forget_previous()

    def was_skipped(self, step: int) -> bool:
        """Whether the scaler skipped the attempt at *step*."""
        return self._scaling.skipped(step)

    def discard(self) -> None:
        """Drop the rows of an attempt at a step that was skipped."""
        self._waiting.clear()
        for measurement in self.measurements:
            if measurement.kind != "evaluation":
                measurement.table.reset()

    def _order(self) -> dict[str, int]:
        if not self._places:
            self._places = self._ordering.places()
        return self._places


def _learning_rates(optimizer: Optimizer, number: int) -> Iterator[tuple[str, float | Tensor]]:
    """Yield the learning rate of each parameter group with its name: ``lr``; ``lr/0``, ``lr/1``, ... where there are several.

    Of other optimizers of a model than the first the names begin with ``lr_1``, ``lr_2``, ... A tensor stays on its device.
    Of a momentum that adds up many steps the number of these follows, as ``momentum_steps``.
    """
    name = "lr" if number == 0 else f"lr_{number}"
    groups = optimizer.param_groups
    for index, group in enumerate(groups):
        rate = group.get("lr")
        if isinstance(rate, Tensor) and rate.numel() != 1:
            continue
        if isinstance(rate, int | float | Tensor):
            yield (name if len(groups) == 1 else f"{name}/{index}"), rate
    momentum = groups[0].get("momentum")
    if number == 0 and isinstance(momentum, float) and _LONG <= momentum < 1 and not groups[0].get("dampening"):
        yield "momentum_steps", 1 / (1 - momentum)
