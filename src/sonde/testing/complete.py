"""Check that a probe misses nothing: compare the delivered events with an oracle of plain torch hooks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sonde.checkup import difference, same_bits, settled
from sonde.engine import Coverage, Event, Where, autograd_state, is_floating, observe, sites, walk
from sonde.keep import Tracker, track
from sonde.testing.trial import Loss, Trial, listed, same_chance


def assert_complete(
    model: nn.Module,
    /,
    *args: Any,
    loss_fn: Loss | None = None,
    include: Where = None,
    exclude: Where = None,
    factory: Callable[[], nn.Module] | None = None,
    **kwargs: Any,
) -> None:
    """Assert that every selected site of *model* delivers all of its events, or that the coverage gives the reason.

    Plain torch hooks record one forward and backward pass of a copy, ``sonde`` records another, from the same state of the
    random generators. The two records must agree on

    * the sites: one for each module with a forward and each parameter;
    * the calls: one event for each call of a module, in the same order, numbered from 0, with the same tensors at the same
      leaf paths, and the same flag for a module that returned its input;
    * the gradients: one event for each call and backward pass in which a returned tensor got a gradient, with the gradients
      of all returned tensors, equal to those of a hook on each tensor;
    * activation checkpointing: a repeated call has the phase ``recompute`` and the number of the call whose values it
      repeats;
    * parameters: one event for each accumulation, with the gradient so far;
    * the coverage: the number of delivered events at each site, and a reason where the number is 0.

    The comparison leaves out calls inside ``torch.func`` transforms.

    >>> import torch
    >>> from sonde.testing import assert_complete
    >>> assert_complete(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(inplace=True)), torch.ones(2, 4))

    Args:
        model: any model in eager mode, without a wrapper around it.
        args, kwargs: the arguments of the call.
        loss_fn: maps the output to a scalar; the default is the sum of the mean squares of all tensors that need a gradient.
        include, exclude: the modules, as for :func:`sonde.observe`.
        factory: makes the same model again, for a model that cannot be deep-copied.

    Raises:
        AssertionError: an event is missing, superfluous or different; the message names the event and the site.
        SelectionError: the selection matches nothing.
        ArgumentError: the model cannot be copied and there is no *factory*.
    """
    trial = Trial(model, args, kwargs, loss_fn, factory)
    with same_chance() as rewind:
        rewind()
        oracle = _Oracle(trial.fresh_model())
        with oracle:
            _run(trial, oracle.model, oracle.begin_backward)
        rewind()
        copy = trial.fresh_model()
        chosen = {site.path for site in sites(copy, include, exclude)}
        found = _observed(trial, copy, include, exclude)
    wrong = _wrong(oracle, found, chosen, selected=include is not None or exclude is not None)
    if wrong:
        raise AssertionError(listed(f"what was recorded of {type(model).__name__} is not complete", wrong))


def _run(trial: Trial, model: nn.Module, before_backward: Callable[[], object] = bool) -> None:
    args, kwargs = trial.fresh_batch()
    loss = trial.loss(settled(model(*args, **kwargs)))
    if loss is not None:
        before_backward()
        torch.autograd.backward(loss)


# --------------------------------------------------------------------------------------------------------------- records


@dataclass
class _Record:
    """One event: site, call, and the tensors by leaf path."""

    name: str
    port: str
    call: int
    leaves: dict[str, Tensor]
    phase: str = "forward"
    passthrough: bool = False
    forward: int = 0

    def __str__(self) -> str:
        again = " (recomputed)" if self.phase == "recompute" else ""
        return f"{self.name or '(root)'}:{self.port}, call {self.call}{again}"


@dataclass
class _Found:
    """All that the probes delivered, and their coverage."""

    records: list[_Record] = field(default_factory=list)
    coverage: list[Coverage] = field(default_factory=list)

    def at(self, *ports: str) -> list[_Record]:
        return [record for record in self.records if record.port in ports]


def _observed(trial: Trial, model: nn.Module, include: Where, exclude: Where) -> _Found:
    found = _Found()

    def keep(event: Event) -> None:
        leaves = {path: tensor.detach().clone() for path, tensor in event.leaves}
        port = event.site.port
        found.records.append(
            _Record(event.name, port, event.call, leaves, event.phase, event.passthrough, event.tick.forward)
        )  # fmt: skip

    with (
        track(model, include=include, exclude=exclude, strict=True) as tracker,
        observe(model, keep, include, exclude, ports=("input", "grad"), strict=True) as probe,
    ):
        _run(trial, model)
    found.records += _kept(tracker)
    found.coverage = [tracker.coverage(), probe.coverage()]
    return found


def _kept(tracker: Tracker) -> Iterable[_Record]:
    for stash in tracker:
        yield _Record(
            stash.name, stash.site.port, stash.call, stash.leaves, stash.phase, stash.passthrough, stash.tick.forward
        )  # fmt: skip


class _Oracle:
    """The same records, made with torch's own hooks in the simplest way.

    Every leaf of every output gets a hook of its own. A call after the start of the backward pass is a recomputation.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.inputs: list[_Record] = []
        self.outputs: list[_Record] = []
        self.parameters: list[_Record] = []
        self.modules = {module: name for name, module in model.named_modules() if _can_be_called(module)}
        self._gradients: dict[tuple[str, int, int], dict[str, Tensor]] = {}  # by name, call and backward pass
        self._handles: list[Any] = []
        self._again = False

    def begin_backward(self) -> None:
        """Mark the end of the forward; observe the gradients of parameters from now on."""
        self._again = True
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and not is_lazy(parameter):
                self._handles.append(_on_accumulated(parameter, partial(self._accumulated, name)))

    def __enter__(self) -> Self:
        for module, name in self.modules.items():
            self._handles.append(module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(partial(self._leave, name), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        if not autograd_state.is_transformed():
            self._add(self.inputs, name, "input", _clones((*walk(args), *walk(kwargs))))

    def _leave(self, name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if autograd_state.is_transformed():
            return
        found = walk(output)
        given = {id(tensor) for _, tensor in walk((args, kwargs))}
        record = self._add(self.outputs, name, "output", _clones(found))
        record.passthrough = any(id(tensor) in given and (path == "" or is_floating(tensor)) for path, tensor in found)
        for path, tensor in found:
            if tensor.requires_grad:
                self._handles.append(_on_gradient(tensor, partial(self._arrive, name, record.call, path)))

    def _add(self, records: list[_Record], name: str, port: str, leaves: dict[str, Tensor]) -> _Record:
        past = [record for record in records if record.name == name]
        call = _repeated(past, leaves) if self._again else len(past)
        records.append(_Record(name, port, call, leaves, "recompute" if self._again else "forward"))
        return records[-1]

    def _arrive(self, name: str, call: int, path: str, gradient: Tensor | None) -> None:
        if gradient is None:  # of an output of a node with several, where another was used
            return
        key = (name, call, autograd_state.graph_task())
        self._gradients.setdefault(key, {})[path] = gradient.detach().clone()

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.parameters.append(_Record(name, "grad", 0, {"": parameter.grad.detach().clone()}))

    @property
    def gradients(self) -> list[_Record]:
        return [_Record(name, "grad_output", call, leaves) for (name, call, _), leaves in self._gradients.items()]


def _can_be_called(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward and not isinstance(module, torch.jit.ScriptModule)


def _repeated(past: list[_Record], leaves: dict[str, Tensor]) -> int:
    """Return the call in *past* that has these values and was recomputed least often; -1 if there is no call."""
    again = Counter(record.call for record in past if record.phase == "recompute")
    made = [record for record in past if record.phase == "forward"]
    ranked = sorted(made, key=lambda record: (not _same(record.leaves, leaves), again[record.call], record.call))
    return ranked[0].call if ranked else -1


def _on_gradient(tensor: Tensor, hook: Callable[[Tensor], None]) -> Any:
    return tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _on_accumulated(parameter: Tensor, hook: Callable[[Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _clones(found: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {path: tensor.detach().clone() for path, tensor in found}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(same_bits(tensor, other[path]) for path, tensor in one.items())


# ------------------------------------------------------------------------------------------------------------- comparing


def _wrong(oracle: _Oracle, found: _Found, chosen: set[str], *, selected: bool) -> list[str]:
    """Return all differences between the two records, in words."""
    wrong = []
    modules = set(oracle.modules.values())
    if not selected and chosen != modules:
        wrong.append(f"sites: {_names(modules - chosen)} missing, {_names(chosen - modules)} too many")
    wanted = [record for record in (*oracle.outputs, *oracle.inputs, *oracle.gradients) if record.name in chosen]
    for port in ("output", "input"):
        wrong += _in_order([record for record in wanted if record.port == port], found.at(port))
    wrong += _by_place([record for record in wanted if record.port == "grad_output"], found.at("grad_output"))
    if not selected:
        wrong += _by_place(oracle.parameters, found.at("grad"))
    wrong += [f"{record}: of forward {record.forward}, though there was one" for record in found.records if record.forward]
    return wrong + _coverage_wrong(found)


def _names(names: set[str]) -> str:
    return ", ".join(sorted(name or "(root)" for name in names)) or "none"


def _in_order(wanted: list[_Record], found: list[_Record]) -> list[str]:
    """Return the differences between two sequences of module calls, which must be the same."""
    if [_key(record) for record in wanted] != [_key(record) for record in found]:
        return _order_wrong(wanted, found)
    return [text for one, other in zip(wanted, found, strict=True) for text in _differences(one, other)]


def _order_wrong(wanted: list[_Record], found: list[_Record]) -> list[str]:
    missing = Counter(map(str, wanted)) - Counter(map(str, found))
    extra = Counter(map(str, found)) - Counter(map(str, wanted))
    lines = [f"{text}: {count} x not delivered" for text, count in missing.items()]
    lines += [f"{text}: delivered {count} x too often" for text, count in extra.items()]
    if not lines:
        first = next(i for i, (one, other) in enumerate(zip(wanted, found, strict=True)) if _key(one) != _key(other))
        lines = [f"order: delivery {first} is {found[first]}, and should be {wanted[first]}"]
    return lines


def _key(record: _Record) -> tuple[Any, ...]:
    return record.name, record.port, record.call, record.phase


def _by_place(wanted: list[_Record], found: list[_Record]) -> list[str]:
    """Return the differences between gradients of the same call or parameter: their number, then the n-th with the n-th."""
    places: dict[tuple[str, int], tuple[list[_Record], list[_Record]]] = defaultdict(lambda: ([], []))
    for side, records in enumerate((wanted, found)):
        for record in records:
            places[record.name, record.call][side].append(record)
    lines = []
    for expected, delivered in places.values():
        if len(expected) != len(delivered):
            lines.append(f"{(expected or delivered)[0]}: {len(delivered)} delivered, {len(expected)} expected")
        lines += [text for one, other in zip(expected, delivered, strict=False) for text in _differences(one, other)]
    return lines


def _differences(wanted: _Record, found: _Record) -> list[str]:
    if list(wanted.leaves) != list(found.leaves) and not (
        wanted.port == "grad_output" and wanted.leaves.keys() == found.leaves.keys()
    ):
        return [f"{wanted}: leaves {list(found.leaves)}, expected {list(wanted.leaves)}"]
    lines = []
    if wanted.port == "output" and wanted.passthrough != found.passthrough:
        lines.append(f"{wanted}: passthrough is {found.passthrough}, expected {wanted.passthrough}")
    for path, tensor in wanted.leaves.items():
        text = difference(tensor, found.leaves[path])
        if text:
            lines.append(f"{wanted}, leaf {path or '(itself)'}: {text} (torch, sonde)")
    return lines


def _coverage_wrong(found: _Found) -> list[str]:
    delivered = Counter((record.name, record.port) for record in found.records)
    lines = []
    for line in (line for coverage in found.coverage for line in coverage):
        count = delivered[line.site.path, line.site.port]
        if line.count != count:
            lines.append(f"coverage: {line.site} counts {line.count} events of {count}")
        if not line.count and not line.reason:
            lines.append(f"coverage: {line.site} delivered nothing, and no reason is given")
    return lines
