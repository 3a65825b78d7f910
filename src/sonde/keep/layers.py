"""Reduce a tracker's stashes to one row per layer, apply the rules to each row, and make the tracker's table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from torch import Tensor, nn

from sonde import rules
from sonde.answer import Grid
from sonde.engine import Coverage, LayerAxes
from sonde.keep.stash import leaves_of
from sonde.recorders import is_measurable, value_text
from sonde.stats import PLAIN, Accumulator, Moments, Result, dense
from sonde.view import GRADIENT_IS, NO_ELEMENTS, LayerRow, Quantity, first_of, layer_table, notes_of

# Beyond this, only the last forward is summarised
_MOST_ELEMENTS = 100_000_000
_MOST_STASHES = 5_000

# Calls of a module in one forward whose outputs are judged apart; later ones together
_APART = 8

_UNKNOWN: Mapping[str, LayerAxes] = {}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Numbers of outputs.

    Attributes:
        moments: of the elements.
        dead: share of units that are zero for every sample and position; None if there are no units or too few samples.
        saturated: share of a tanh's or sigmoid's elements that are near its limits.
    """

    moments: Result
    dead: float | None
    saturated: float


@dataclass
class Layer:
    """The numbers of one layer, over all its stashes.

    Attributes:
        name, kind: the module's name and class.
        shape: the shape of the first tensor of the last output, as text; behind it the number of further tensors.
        calls: number of outputs kept.
        output: moments of the first floating-point tensor of the outputs, all calls together; None without such a tensor.
        gradient: moments of the gradients of that tensor; None without any.
        dead, saturated: of all calls together, see :class:`Outputs`.
        by_call: the same numbers of each call in a forward, by its index; 8 stands for all later ones. Empty for a layer that
            is called once.
        same_as: the name of another layer that returned the very same tensor, ``""`` if none did.
        passthrough: the layer returned one of its inputs.
        recomputed: number of outputs that activation checkpointing made again, which no other number counts.
        value, gradient_value: the numbers that a ``stash_value`` kept in place of tensors.
        findings: the findings of the rules on these numbers.
        notes: further remarks.
    """

    name: str
    kind: type[nn.Module]
    shape: str = ""
    calls: int = 0
    output: Result | None = None
    gradient: Result | None = None
    dead: float | None = None
    saturated: float = 0.0
    by_call: dict[int, Outputs] = field(default_factory=dict)
    same_as: str = ""
    passthrough: bool = False
    recomputed: int = 0
    value: float | None = None
    gradient_value: float | None = None
    findings: list[rules.Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Outputs:
    """The running sums of the outputs of one call of a layer, over all forwards."""

    def __init__(self) -> None:
        self.moments = Accumulator(Moments())
        self.alive: Tensor | None = None
        self.samples = 0
        self.saturated = 0

    def add(self, tensor: Tensor, axes: LayerAxes, kind: type[nn.Module]) -> None:
        if type(tensor) not in PLAIN:
            tensor = dense(tensor)
        self.moments.update(tensor)
        units = _units_alive(tensor, axes)
        if units is not None:
            self._join(*units)
        if issubclass(kind, nn.Tanh):
            self.saturated += int((tensor.abs() > rules.SATURATED_AT).sum())
        elif issubclass(kind, nn.Sigmoid):
            self.saturated += int(((tensor - 0.5).abs() > rules.SATURATED_AT / 2).sum())

    def _join(self, alive: Tensor | None, samples: int) -> None:
        self.samples += samples
        if alive is not None:
            self.alive = alive if self.alive is None or self.alive.shape != alive.shape else self.alive | alive

    def merge(self, other: _Outputs) -> None:
        self.moments.merge(other.moments)
        self._join(other.alive, other.samples)
        self.saturated += other.saturated

    def numbers(self) -> Outputs:
        moments = self.moments.compute()
        judged = self.alive is not None and self.samples >= rules.DEAD_SAMPLES
        return Outputs(
            moments,
            1.0 - float(self.alive.float().mean()) if self.alive is not None and judged else None,
            self.saturated / moments.count if moments.count else 0.0,
        )


class Tally:
    """The running sums of one layer; ``finish`` makes its :class:`Layer`."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.gradient = Accumulator(Moments())
        self.path: str | None = None  # the leaf whose numbers the row has
        self.seen_gradient = False
        self._outputs: dict[int, _Outputs] = {}  # by call; the last one of all that come later

    def add_output(self, tensor: Tensor, axes: LayerAxes | None = None, call: int = 0) -> None:
        self._outputs.setdefault(min(call, _APART), _Outputs()).add(tensor, axes or LayerAxes.of(tensor), self.layer.kind)

    def add_gradient(self, tensor: Tensor) -> None:
        self.gradient.update(tensor)
        self.seen_gradient = True

    def finish(self) -> Layer:
        layer = self.layer
        layer.gradient = self.gradient.compute() if self.seen_gradient else None
        if self._outputs:
            joined = next(iter(self._outputs.values()))
            if len(self._outputs) > 1:
                layer.by_call = {call: outputs.numbers() for call, outputs in self._outputs.items()}
                joined = _Outputs()
                for outputs in self._outputs.values():
                    joined.merge(outputs)
            found = joined.numbers()
            layer.output, layer.dead, layer.saturated = found.moments, found.dead, found.saturated
        return layer


def _units_alive(tensor: Tensor, axes: LayerAxes) -> tuple[Tensor, int] | None:
    """A mask of the units that are non-zero anywhere, and the number of samples and positions; None for a tensor without units."""
    if tensor.ndim < 2 or tensor.numel() == 0 or axes.units is None or axes.units >= tensor.ndim:
        return None
    units = axes.units_first(tensor)
    return None if units is None else ((units != 0).any(dim=1), units.shape[1])


def layers_of(stashes: Iterable[Any], axes: Mapping[str, LayerAxes] = _UNKNOWN) -> list[Layer]:
    """One :class:`Layer` for each module, in the order in which the modules first returned."""
    tallies: dict[str, Tally] = {}
    owners: dict[int, str] = {}
    for stash in stashes:
        name, kind = getattr(stash, "name", ""), getattr(stash, "type", type(stash))
        tally = tallies.setdefault(name, Tally(Layer(name, kind if isinstance(kind, type) else type(stash))))
        layer = tally.layer
        if getattr(stash, "phase", "forward") == "recompute":
            layer.recomputed += 1
            continue
        port = getattr(getattr(stash, "site", None), "port", "output")
        if port not in ("output", "grad_output"):
            if (note := f"{port} kept") not in layer.notes:
                layer.notes.append(note)
            continue
        held = leaves_of(stash)
        number = next((float(item) for item in held.values() if isinstance(item, int | float)), None)
        if getattr(stash, "grad", False):
            floating = held.get(tally.path) if tally.path is not None else _first_measurable(held.items())[1]
            if floating is not None and is_measurable(floating):
                tally.add_gradient(floating)
            layer.gradient_value = number
            continue
        layer.calls += 1
        layer.passthrough |= bool(getattr(stash, "passthrough", False))
        layer.shape = _shape(list(held.values()))
        path, floating = _first_measurable(held.items())
        if floating is not None:
            tally.path = path
            tally.add_output(floating, axes.get(name), getattr(stash, "call", 0))
            layer.same_as = owners.setdefault(id(floating), layer.name)
        layer.value = number
    layers = [tally.finish() for tally in tallies.values()]
    for layer in layers:
        if layer.same_as == layer.name:
            layer.same_as = ""
    annotate(layers)
    return layers


def _first_measurable(held: Iterable[tuple[str, Any]]) -> tuple[str | None, Any]:
    return next(((path, item) for path, item in held if is_measurable(item)), (None, None))


def first_measurable(leaves: Iterable[tuple[str, Tensor]]) -> Tensor | None:
    """The first tensor of *leaves* that :func:`is_measurable` accepts; None if there is none."""
    found: Tensor | None = _first_measurable(leaves)[1]
    return found


def _shape(held: list[Any]) -> str:
    tensors = [item for item in held if isinstance(item, Tensor)]
    if not tensors:
        return "kept: " + type(held[0]).__name__ if held else "no tensor"
    return first_of([value_text(tensor) for tensor in tensors])


def annotate(layers: list[Layer]) -> None:
    """Put the findings of the rules, and further remarks, into *layers*; a gradient is compared with the median over all layers."""
    # norms, not means over elements, which differ between a map of features and its pooled vector on any healthy network
    sizes = [g.norm for g in (layer.gradient for layer in layers) if g is not None and g.count > 1 and g.norm > 0]
    typical = median(sizes) if sizes else 0.0
    tracked = any(layer.gradient is not None for layer in layers)
    for layer in layers:
        if layer.output is not None:
            layer.findings += _of_outputs(layer)
        if layer.gradient is not None:
            layer.findings += rules.of_gradient(layer.gradient, typical)
        elif tracked and layer.output is not None and layer.output.count:
            layer.notes.append("no gradient")
        if layer.output is not None and not layer.output.count:
            layer.notes.append(NO_ELEMENTS)
        if layer.passthrough:
            layer.notes.append("returns its input")
        elif layer.same_as:
            inside = layer.name and layer.same_as.startswith(f"{layer.name}.")
            other = f"its {layer.same_as.removeprefix(f'{layer.name}.')}" if inside else layer.same_as
            layer.notes.append(f"same tensor as {other}")
        if layer.recomputed:
            layer.notes.append("recomputed")


def _of_outputs(layer: Layer) -> list[rules.Finding]:
    """The findings about all outputs of *layer* together, and of each rule that finds a call alone worse, that of its worst call.

    One module in several places, an activation function above all, is as often dead in one of them and alive in the others.
    """
    assert layer.output is not None
    found = {
        finding.rule: finding for finding in rules.of_output(layer.output, dead_share=layer.dead, saturated_share=layer.saturated)
    }
    for call, each in layer.by_call.items():
        for finding in rules.of_output(each.moments, dead_share=each.dead, saturated_share=each.saturated):
            known = found.get(finding.rule)
            if known is None or _gravity(finding) > _gravity(known):
                later = " or later" if call == _APART else ""
                found[finding.rule] = replace(finding, call=call, message=f"{finding.message} in call {call}{later}")
    return list(found.values())


_SEVERITIES = ("note", "warn", "bad")


def _gravity(finding: rules.Finding) -> tuple[int, float]:
    whole = finding.call == -1  # of two that are alike the one about all calls
    return _SEVERITIES.index(finding.severity), (finding.value if finding.rule in ("dead", "saturated") else 0.0) + whole * 1e-9


def grid(stashes: list[Any], axes: Mapping[str, LayerAxes], *, title: str, empty: str, coverage: Callable[[], Coverage]) -> Grid:
    """The table of a tracker; of very many or very large stashes, the table of the last forward alone."""
    footer: list[str] = []
    shown = stashes
    elements = sum(item.numel() for stash in stashes for item in leaves_of(stash).values() if isinstance(item, Tensor))
    if len(stashes) > _MOST_STASHES or elements > _MOST_ELEMENTS:
        last = max(stash.tick.forward for stash in stashes if hasattr(stash, "tick"))
        shown = [stash for stash in stashes if getattr(stash, "tick", None) is None or stash.tick.forward == last]
        footer.append(f"summarised: forward {last} alone, {len(shown)} of {len(stashes)} stashes")
    layers = layers_of(shown, axes)
    several = any(layer.calls > 1 for layer in layers)
    if shown:
        silent = [line for line in coverage().missing if line.site.port == "output"]
        if silent:
            names = ", ".join(line.site.path or "(root)" for line in silent[:4])
            footer.append(f"not seen: {names}{', ...' if len(silent) > 4 else ''}; coverage() says why")
        if any(layer.gradient is not None for layer in layers):
            footer.append(GRADIENT_IS)
    return layer_table(title, (_row(layer, several) for layer in layers), footer, empty=empty)


def _row(layer: Layer, several: bool) -> LayerRow:
    texts = {"output": layer.shape} | ({"calls": str(layer.calls)} if several else {})
    notes = notes_of(layer.findings, layer.notes)
    return LayerRow(layer.name, layer.kind.__name__, texts, numbers_of(layer), notes, repeats=bool(layer.same_as))


def numbers_of(layer: Layer) -> dict[str, Quantity]:
    """The numbers of *layer* by the headings of the layer table."""
    found: dict[str, Quantity] = {}
    seen, gradient = layer.output, layer.gradient
    if seen is not None and seen.count:
        found["mean ± std"] = Quantity.of(seen.mean, seen.nan, seen.inf, seen.count, seen.std if seen.count > 1 else None)
        if seen.finite > 0:
            found["zeros"] = Quantity(seen.zeros / seen.count)
    elif layer.value is not None:
        found["mean ± std"] = Quantity(layer.value)
    if gradient is not None and gradient.count:
        found["gradient"] = Quantity.of(gradient.norm, gradient.nan, gradient.inf, gradient.count)
    elif layer.gradient_value is not None:
        found["gradient"] = Quantity(layer.gradient_value)
    return found
