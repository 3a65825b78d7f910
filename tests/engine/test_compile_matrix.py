"""All instruments at once, in one training of each kind: backend, graphs, checkpoint, accumulation and precision.

The numbers are those of plain hooks on an eager twin, and the training has the bits of a twin that nobody observes.
A forward with a graph break in a loop runs in eager code, and torch compiles the head that it calls only if the head has a hook.
Inductor adds up the gradient of the bias in another order: its twin has a hook there that does nothing.

``python -m tests.engine.test_compile_matrix`` runs all cases and writes their table into ``docs/compile.md``.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo
from tests import bounds
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde import lens, preprocessor
from sonde.recorders import BackwardOutput, ForwardOutput
from sonde.stats import Accumulator, ExponentHistogram, Moments, Spectrum

STEPS, ROWS, WIDTH = 2, 5, 4


class Case(NamedTuple):
    """One training: what compiles, into which graphs, which checkpoints, how many backward passes a step, in which precision."""

    backend: str
    graphs: str
    checkpoint: str
    accumulation: int
    precision: str

    def __str__(self) -> str:
        return "-".join(map(str, self))


BACKENDS = ("eager", "aot_eager", "inductor")
GRAPHS = ("one", "several", "break")
CHECKPOINTS = ("none", "reentrant", "non-reentrant")
COLUMNS = tuple(itertools.product((1, 4), ("float32", "bfloat16")))
CASES = [
    Case(backend, graphs, kind, *column)
    for backend, graphs, kind, column in itertools.product(BACKENDS, GRAPHS, CHECKPOINTS, COLUMNS)
    if backend != "eager" or graphs == "one"  # nothing is compiled: there are no graphs
]


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """Return some of *cases* in which each two values that are together in any of them are together."""

    def pairs(case: Case) -> set[Any]:
        return set(itertools.combinations(enumerate(case), 2))

    missing = set().union(*map(pairs, cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def accumulates_once(case: Case) -> bool:
    """Return whether one backward pass accumulates once into each parameter.

    A reentrant checkpoint in eager code makes a pass of its own inside the pass, in which the block that is called twice gets a
    part of its gradient.
    """
    return case.checkpoint != "reentrant" or (case.backend != "eager" and case.graphs != "several")


QUICK = frozenset(pairwise([case for case in CASES if case.backend != "inductor"]))

# A float32 training: in each step forward and backward, in three blocks and a head, sums over the width and a few operations more;
# and the sums over the rows in the gradients of parameters. In bfloat16 each of the operations rounds once, whatever it adds up.
LAYERS = 4
ROUNDINGS = {"float32": STEPS * 2 * (LAYERS * (WIDTH + 6) + ROWS), "bfloat16": STEPS * 2 * LAYERS * 4}


# The model and its training


class Block(nn.Module):
    """A layer, two nonlinearities, and something random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu, self.drop = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.relu(self.linear(x).tanh() + 2))  # far from 0, where a rounding would decide what is dead
        return out


class Tower(nn.Module):
    """A block, another one that is called twice, and a head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(WIDTH, 3)
        self.case = case

    def part(self, block: nn.Module, x: Tensor) -> Tensor:
        out: Tensor
        if self.case.checkpoint == "none":
            out = block(x)
        else:
            out = checkpoint(block, x, use_reentrant=self.case.checkpoint == "reentrant")
        return out

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.first, self.second, self.second):
            x = x + self.part(block, x)
            if self.case.graphs == "break":
                torch._dynamo.graph_break()
        out: Tensor = self.head(x)
        return out


class When(NamedTuple):
    """A place in time: the step, the backward pass in it, and the module's call in the forward."""

    step: int
    micro_step: int
    call: int


Seen = dict[tuple[str, When], Tensor]
Watchers = Callable[[nn.Module, torch.optim.Optimizer], Any]


def train(case: Case, attach: Watchers | None = None, next_forward: Callable[[int, int], None] | None = None) -> dict[Any, Tensor]:
    """Return all that a training leaves: losses, gradients, parameters and the random state, by the time and a name."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Tower(case)
    if case.backend != "eager":
        for part in (model.first, model.second) if case.graphs == "several" else (model,):
            part.compile(backend=case.backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if attach is not None:
        attach(model, optimizer)
    left: dict[Any, Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro_step in range(case.accumulation):
            x = torch.randn(ROWS, WIDTH, requires_grad=True)
            if next_forward is not None:
                next_forward(step, micro_step)
            with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bfloat16"):
                loss = model(x).square().mean()
            loss.backward()
            when = When(step, micro_step, 0)
            assert x.grad is not None
            left |= {("loss", when): loss.detach(), ("x", when): x.grad, ("random", when): torch.get_rng_state()}
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                left[f"{name}:grad", when] = parameter.grad.clone()
        optimizer.step()
        left |= {(name, When(step, -1, 0)): parameter.detach().clone() for name, parameter in model.named_parameters()}
    return left


@functools.cache
def oracle(accumulation: int, precision: str) -> Seen:
    """Return what plain hooks see in an eager twin without checkpoints, which computes the same numbers."""
    seen: Seen = {}
    now = [0, 0]
    calls: Counter[str] = Counter()

    def next_forward(step: int, micro_step: int) -> None:
        now[:] = step, micro_step
        calls.clear()

    def leave(name: str, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        when = When(*now, calls[name])
        calls[name] += 1
        seen[f"{name}:input", when] = args[0].detach().clone()
        seen[f"{name}:output", when] = output.detach().clone()
        output.register_hook(lambda gradient: seen.__setitem__((f"{name}:grad_output", when), gradient.clone()))

    def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for name, module in model.named_modules():
            module.register_forward_hook(functools.partial(leave, name or "(root)"))

    left = train(Case("eager", "one", "none", accumulation, precision), attach, next_forward)
    return seen | {key: tensor for key, tensor in left.items() if key[0].endswith(":grad")}


# The instruments

LENSES = (
    lens.moments(),
    lens.OutputActivation(),
    lens.OutputNorm(include="linear"),
    lens.OutputGradientGeometry(include="linear"),
    lens.exponents("output", "grad_output", include="linear"),
    lens.Lens("spectrum", Spectrum(WIDTH), ("output", "grad_output"), include="linear"),
    lens.ParameterUpdateGeometry(),
    lens.LossMetrics(),
)


class Instruments:
    """Every instrument, attached to one training."""

    def __init__(self, case: Case) -> None:
        self.ports: list[Any] = ["input", "output", "grad_output", *(["grad"] if accumulates_once(case) else [])]
        self.seen: Seen = {}
        self.repeated: list[Any] = []

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        gradients: Any = "both" if "grad" in self.ports else "step"
        self.inspector = sonde.watch(
            model, optimizer, every=1, lenses=LENSES, gradients=gradients, to="memory", verbose=False, strict=True
        )
        self.sums = sonde.observe(model, Moments(), ports=self.ports, strict=True)
        self.events = sonde.observe(model, self.keep, ports=self.ports, strict=True)
        self.tracker = sonde.track(model)
        self.outputs, self.gradients = ForwardOutput().modules(model), BackwardOutput().modules(model)
        self.norms = preprocessor.OutputNorm(inplace=False)
        self.geometry = preprocessor.OutputGradientGeometry(inplace=False)
        measured = [sonde.observe(model, each, include="linear", strict=True) for each in (self.norms, self.geometry)]
        self.probes = [self.inspector, self.sums, self.events, self.tracker, self.outputs, self.gradients, *measured]

    def keep(self, event: sonde.types.Event) -> None:
        if event.phase != "recompute":
            ((_, tensor),) = event.leaves
            place = str(event.site), When(event.tick.step, event.tick.micro_step, event.call)
            if place in self.seen:
                self.repeated.append(place)
            self.seen[place] = tensor.detach().clone()

    def detach(self) -> None:
        self.coverage = [line for probe in (self.inspector, self.events, self.sums, self.tracker) for line in probe.coverage()]
        for probe in self.probes:
            probe.detach()


def by(seen: Seen, key: Callable[[str, When], Any]) -> dict[Any, list[Tensor]]:
    """Return the tensors in the order of their places in time, in lists by *key*."""
    grouped: dict[Any, list[Tensor]] = {}
    for (site, when), tensor in sorted(seen.items(), key=lambda item: item[0][1]):
        grouped.setdefault(key(site, when), []).append(tensor)
    return grouped


def ports_of(seen: Seen, *ports: str, layer: str = "") -> Seen:
    return {key: tensor for key, tensor in seen.items() if key[0].split(":")[1] in ports and layer in key[0]}


def assert_moments(found: dict[str, Any], tensors: Sequence[Tensor], place: Any) -> None:
    """Compare numbers of ``Moments`` with those of *tensors* together."""
    values = torch.cat([tensor.double().flatten() for tensor in tensors])
    largest, rel = values.abs().max().item(), bounds.relative(bounds.SUM + len(values))
    assert found["count"] == len(values), place
    assert found["mean"] == pytest.approx(values.mean().item(), rel=rel, abs=rel * largest), place
    assert found["norm"] == pytest.approx(values.norm().item(), rel=rel), place
    assert found["absmax"] == largest, place


def assert_close(found: Tensor, expected: Tensor, precision: str, place: Any) -> None:
    slack = bounds.relative(ROUNDINGS[precision], getattr(torch, precision)) * expected.abs().max().item()
    assert found.shape == expected.shape, place
    assert (found.double() - expected.double()).abs().max().item() <= slack, place


def an_empty_hook(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a hook that does nothing on the head, which torch compiles then."""
    model.get_submodule("head").register_forward_hook(lambda module, args, output: None)


def check(case: Case) -> int:
    """Compare all that the instruments have seen in a training; return how many tensors and rows were compared."""
    if case.backend != "inductor":
        return checked(case)
    import torch._inductor.config

    with torch._inductor.config.patch(fallback_random=True):  # random numbers as in eager code
        return checked(case)


def checked(case: Case) -> int:
    """Do as :func:`check`, with the compiler's settings as they are."""
    expected = oracle(case.accumulation, case.precision)
    alone = train(case, an_empty_hook if (case.backend, case.graphs) == ("inductor", "break") else None)
    all_of = Instruments(case)
    observed = train(case, all_of.attach)
    all_of.detach()

    # nothing changes
    assert observed.keys() == alone.keys()
    assert [place for place, tensor in observed.items() if not torch.equal(tensor, alone[place])] == []

    # events: each tensor once, with the value of the eager twin
    seen = all_of.seen
    expected = {key: tensor for key, tensor in expected.items() if key[0].split(":")[1] in all_of.ports}
    assert all_of.repeated == [], case
    assert {place: tensor.dtype for place, tensor in seen.items()} == {place: tensor.dtype for place, tensor in expected.items()}
    for place, tensor in seen.items():
        assert_close(tensor, expected[place], case.precision, place)
    assert [line for line in all_of.coverage if line.reason or not line.count] == []

    compared = len(seen)
    compared += compare_kept(all_of, seen) + compare_sums(all_of, seen)
    return compared + compare_run(all_of, seen | {key: tensor for key, tensor in observed.items() if key[0].endswith(":grad")})


def compare_kept(all_of: Instruments, seen: Seen) -> int:
    """``track`` and recorders keep the tensors that a subscriber is given."""
    stashes = [stash for stash in all_of.tracker if stash.phase != "recompute"]
    kept = {(str(stash.site), When(stash.tick.step, stash.tick.micro_step, stash.call)): stash.first_value for stash in stashes}
    wanted = ports_of(seen, "output", "grad_output")
    assert len(stashes) == len(kept)
    assert kept.keys() == wanted.keys()
    assert [place for place, tensor in kept.items() if not torch.equal(tensor, wanted[place])] == []
    for recorder, port in ((all_of.outputs, "output"), (all_of.gradients, "grad_output")):
        for name, tensors in by(ports_of(seen, port), lambda site, when: site.split(":")[0]).items():
            found = recorder["" if name == "(root)" else name]
            assert len(found) == len(tensors), (port, name)
            assert sorted(map(torch.Tensor.tolist, found)) == sorted(map(torch.Tensor.tolist, tensors)), (port, name)
    return len(kept) * 2


def compare_sums(all_of: Instruments, seen: Seen) -> int:
    """``observe`` with a statistic, and preprocessors, have the numbers of the tensors that a subscriber is given."""
    rows = {(row["site"], row["call"]): row for row in all_of.sums.rows()}
    wanted = by(seen, lambda site, when: (site, -1 if site.endswith(":grad") else when.call))
    assert rows.keys() == wanted.keys()
    for place, tensors in wanted.items():
        assert rows[place]["calls"] == len(tensors), place
        assert_moments(rows[place], tensors, place)
    for name, tensors in by(ports_of(seen, "output", layer="linear"), lambda site, when: site.split(":")[0]).items():
        norms = [tensor.double().norm(dim=1).mean().item() for tensor in tensors]
        assert sorted(all_of.norms.value[name]) == pytest.approx(sorted(norms), rel=bounds.relative(ROWS + WIDTH + 3)), name
    for name, tensors in by(ports_of(seen, "grad_output", layer="linear"), lambda site, when: site.split(":")[0]).items():
        norms = [tensor.double().norm().item() for tensor in tensors]
        found = all_of.geometry.value[name]
        assert sorted(getattr(found, "norm", found)) == pytest.approx(sorted(norms), rel=bounds.relative(ROWS * WIDTH + 3))
    return len(rows)


def compare_run(all_of: Instruments, seen: Seen) -> int:
    """``watch`` writes rows of every lens with the numbers of the tensors that a subscriber is given."""
    run = all_of.inspector.run
    compared = 0

    def rows_of(family: str, *ports: str) -> dict[Any, dict[str, Any]]:
        nonlocal compared
        rows = [row for row in run.table(family).to_pylist() if row["port"] in ports]
        found = {(row["site"], row["step"], row["call"]): row for row in rows}
        assert len(found) == len(rows), family
        compared += len(rows)
        return found

    def place(site: str, when: When) -> Any:
        return site, when.step, when.call

    borders = ("output", "grad_output")
    rows, wanted = rows_of("moments", *borders), by(ports_of(seen, *borders), place)
    assert rows.keys() == wanted.keys()
    for at, tensors in wanted.items():
        assert_moments(rows[at], tensors, at)
    rows, layers = rows_of("exponents", *borders), by(ports_of(seen, *borders, layer="linear"), place)
    assert rows.keys() == layers.keys()
    spectra, sizes, geometry = (
        rows_of("spectrum", *borders),
        rows_of("output_norm", "output"),
        rows_of("output_gradient", "grad_output"),
    )
    assert spectra.keys() == rows.keys() == sizes.keys() | geometry.keys()
    for at, tensors in layers.items():
        counts = functools.reduce(lambda each, tensor: each.update(tensor), tensors, Accumulator(ExponentHistogram())).compute()
        assert {name: rows[at][name] for name in ("count", "zeros", "negative", "p50")} == {
            name: getattr(counts, name) for name in ("count", "zeros", "negative", "p50")
        }, at
        length = torch.cat([tensor.double().flatten() for tensor in tensors]).norm().item()
        assert spectra[at]["norm"] == pytest.approx(length, rel=bounds.relative(bounds.SUM + ROWS * WIDTH)), at
    rows = rows_of("activation", "output")
    of_relu = by(ports_of(seen, "output", layer="relu"), place) | by(ports_of(seen, "output", layer="drop"), place)
    assert rows.keys() == of_relu.keys()
    for at, tensors in of_relu.items():
        active = torch.stack([(tensor != 0).double().mean() for tensor in tensors]).mean().item()
        assert rows[at]["activation"] == pytest.approx(active, rel=bounds.relative(len(tensors) + 2)), at
    by_parameter = by(ports_of(seen, "grad"), lambda site, when: (site, when.step))
    for (site, step, _), row in rows_of("moments", "grad").items():
        assert_moments(row, by_parameter[site, step][-1:], (site, step))
    micro = run.table("moments_micro").to_pylist() if "grad" in all_of.ports else []
    assert len(micro) == (len(ports_of(seen, "grad")) if "grad" in all_of.ports else 0)
    for row in micro:
        assert_moments(row, [seen[row["site"], When(row["step"], row["micro_step"], 0)]], row["site"])
    return compared + len(micro)


def marked(case: Case) -> Any:
    """Return *case*; it is slow unless it belongs to the pairwise ones and takes few seconds, whoever else computes."""
    is_quick = case in QUICK and (case.backend == "eager" or (case.graphs, case.checkpoint) == ("several", "reentrant"))
    return pytest.param(case, id=str(case), marks=[] if is_quick else [pytest.mark.slow])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_every_instrument_is_right_and_changes_nothing(case: Case) -> None:
    assert check(case)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_with_a_graph_break_outside_of_loops_inductor_computes_the_bits_of_a_training_without_any_hook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch._inductor.config

    def forward(self: Tower, x: Tensor) -> Tensor:
        x = x + self.part(self.first, x)
        torch._dynamo.graph_break()
        x = x + self.part(self.second, x)
        out: Tensor = self.head(x)
        return out

    monkeypatch.setattr(Tower, "forward", forward)
    case = Case("inductor", "break", "none", 1, "float32")
    with torch._inductor.config.patch(fallback_random=True):
        alone = train(case)
        all_of = Instruments(case)
        observed = train(case, all_of.attach)
        all_of.detach()
    assert {name.split(":")[0] for name, _ in all_of.seen} >= {"first", "second.linear", "head"}
    assert [place for place, tensor in observed.items() if not torch.equal(tensor, alone[place])] == []


def test_the_pairwise_cases_have_all_pairs() -> None:
    cases = [case for case in CASES if case.backend != "inductor"]
    wanted = {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}
    assert {pair for case in QUICK for pair in itertools.combinations(enumerate(case), 2)} == wanted


# The table

PAGE = Path(__file__).parents[2] / "docs" / "compile.md"
HEADER = ("backend", "graphs", "checkpoint", *(f"{count} × {precision}" for count, precision in COLUMNS))


def table_in(page: str) -> dict[Case, str]:
    """Return the cells of the table in *page*."""
    cells = {}
    for line in page.splitlines():
        texts = [text.strip() for text in line.strip("|").split("|")]
        if line.startswith("|") and texts[0] in BACKENDS:
            for column, text in zip(COLUMNS, texts[3:], strict=True):
                cells[Case(texts[0], texts[1] if texts[0] != "eager" else "one", texts[2], *column)] = text
    return cells


def lines_of(cells: dict[Case, str]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| {' | '.join(HEADER)} |"
    yield "|---" * 3 + "|---:" * len(COLUMNS) + "|"
    for start in range(0, len(CASES), len(COLUMNS)):
        of_row = CASES[start : start + len(COLUMNS)]
        case = of_row[0]
        first = (case.backend, "" if case.backend == "eager" else case.graphs, case.checkpoint)
        yield f"| {' | '.join((*first, *(cells.get(each, '') for each in of_row)))} |"


def test_the_page_has_every_case() -> None:
    """Each with the number of tensors and rows that were compared; blank where a case was not run as yet."""
    cells = table_in(PAGE.read_text())
    assert list(cells) == CASES
    assert all(int(text) > 0 for text in cells.values() if text)


def main(backends: Sequence[str]) -> None:
    """Run the cases of *backends*, all by default, and write their numbers into the table of the page."""
    for case in CASES:
        if not backends or case.backend in backends:
            found = f"{check(case):,}".replace(",", "")
            sys.stdout.write(f"{case} {found}\n")
            sys.stdout.flush()
            page = PAGE.read_text()
            cells = table_in(page) | {case: found}
            PAGE.write_text(re.sub(r"(?m)(^\|.*\n)+", "\n".join(lines_of(cells)) + "\n", page, count=1))


if __name__ == "__main__":
    main(sys.argv[1:])
