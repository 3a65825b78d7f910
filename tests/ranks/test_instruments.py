"""The instruments that are no ``watch``, on models that two ranks train: what each says on a rank is true, and none hangs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from tests.quick import quick
from tests.ranks.oracle import EXACT
from tests.ranks.trainings import TRAININGS, Training, batch, net
from torch import Tensor, nn
from torch import distributed as dist

import sonde
from sonde import recorders

PAGE = Path(__file__).parents[2] / "docs" / "ranks.md"
SETUPS = ("DDP", "FSDP2", "tensor parallel")
RANKS = 2
LIMIT = 100.0


def own_batch(share: tuple[int, int]) -> tuple[Tensor, Tensor]:
    x, y = batch(0)
    return x.chunk(share[1])[share[0]], y.chunk(share[1])[share[0]]


def loss_of(labels: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda output: nn.functional.cross_entropy(output, labels)


def number(tensor: Tensor) -> float:
    return float(tensor.detach().double().norm())


LAYERS = [name for name, _ in net().named_modules()]

# One function for each instrument: from the model and the batch of a rank to plain numbers and words


def track(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    with sonde.track(model) as tracker:
        loss_of(y)(model(x)).backward()
    return {
        f"{stash.name} {place} {stash.grad}": number(tensor)
        for stash in tracker
        for place, tensor in enumerate(stash.value if isinstance(stash.value, tuple) else (stash.value,))
        if isinstance(tensor, Tensor)
    }


def record(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    held = [kind().modules(model) for kind in (recorders.ForwardOutput, recorders.BackwardOutput)]
    loss_of(y)(model(x)).backward()
    for recorder in held:
        for slot, samples in zip(LAYERS, recorder.data, strict=True):
            tensors = [each for sample in samples for each in (sample if isinstance(sample, tuple) else (sample,))]
            found[f"{type(recorder).__name__} {slot}"] = [number(each) for each in tensors if isinstance(each, Tensor)]
        recorder.remove()
    return found


def summary(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    made = sonde.summary(model, x, loss_fn=loss_of(y))
    rows = {row.name: (row.params, row.params_before, row.output_shapes, row.mean, row.std) for row in made.rows}
    return {"rows": rows, "parameters": made.total_params, "loss": made.loss}


def why_nan(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    made = sonde.why_nan(model, x, loss_of(y))
    return {"cause": made.cause, "largest": [each.value for each in made.largest]}


def compare(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    made = sonde.compare(model, model, x, loss_fn=loss_of(y), verbose=False)
    floors = {str(place.site): place.floor < 1e-9 for place in made.places}
    return {"ok": made.ok, "rounding": floors}


CHECKS = ("runs", "labels", "loss_input", "initial_loss", "depth", "alive", "gradients", "deterministic", "input_used", "overfit")


def preflight(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    made = sonde.preflight(model, x, loss_of(y), checks=CHECKS, steps=20, verbose=False)
    return {"model": made.model, **{check.name: (check.verdict, check.words) for check in made.checks}}


def doctor(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    try:
        made = sonde.doctor(model, x, loss_of(y), seconds=0.1, verbose=False)
    except sonde.errors.ArgumentError as error:
        return {"refused": str(error)}
    return {"model": made.model, **{name: made[name].verdict for name in ("unchanged", "paths", "coverage")}}


def capture(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    graph = sonde.capture(model, x)
    return {node.site: (node.type, node.call, node.parameters, node.flops) for node in graph.nodes if node.kind == "module"}


INSTRUMENTS = {each.__name__: each for each in (track, record, summary, why_nan, compare, preflight, doctor, capture)}


def asked(name: str, what: str, who: tuple[int, ...]) -> dict[str, Any]:
    """Ask on the ranks *who*, with gradients there and after an evaluation; return what was said, and whether all is as before."""
    training: Training = TRAININGS[name][1]()
    x, y = own_batch(training.share)
    loss_of(y)(training.model(x)).backward()
    training.model.eval()
    with torch.no_grad():
        training.model(x)
    training.model.train()
    held = [each for group in training.optimizer.param_groups for each in group["params"]]

    def contents() -> list[Tensor]:
        tensors = [*held, *(each.grad for each in held if each.grad is not None)]
        return [getattr(each, "to_local", lambda each=each: each)().detach().clone() for each in tensors]

    before = contents()
    said = INSTRUMENTS[what](training.model, x, y) if dist.get_rank() in who else {}
    is_same = what in ("track", "record") or all(map(torch.equal, before, contents()))
    training.step(0)
    return {"said": said, "same": is_same}


def alone(what: str, share: tuple[int, int]) -> dict[str, Any]:
    """Return what the instrument says in one process of the batch that a rank has."""
    return INSTRUMENTS[what](net(), *own_batch(share))


PART = re.compile(r"blocks\.\d\.(up|act)\b| depth$")
"""Under tensor parallelism a rank has half of the features there; how outputs grow through the layers is of its half, too."""


@dataclass
class Seen:
    """What an instrument said in a set-up, compared with one process.

    Attributes:
        same: how many of its answers were equal.
        part: how many are of the features that the rank has.
        unjudged: how many the instrument does not judge here, and says so.
        wrong: a line for each other one.
        refused: the sentence of an instrument that does not answer here.
    """

    same: int = 0
    part: int = 0
    unjudged: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: str = ""

    def add(self, setup: str, said: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Compare what a rank said with what one process says."""
        for key in sorted(wanted.keys() | said.keys()):
            if is_like(wanted.get(key), said.get(key)):
                self.same += 1
            elif setup == "tensor parallel" and PART.search(key):
                self.part += 1
            elif isinstance(said.get(key), tuple) and said[key][0] == "unknown":
                self.unjudged += 1
            else:
                self.wrong.append(f"{key}: {said.get(key)}, and in one process {wanted.get(key)}")

    def cell(self) -> str:
        """Return the text of the table's cell."""
        if self.refused:
            return "refused by a sentence"
        counts = {f"{self.part} of the rank's part": self.part, f"{self.unjudged} not judged": self.unjudged}
        wrong = [f"{len(self.wrong)} wrong"] if self.wrong else []
        return ", ".join([str(self.same), *(words for words, count in counts.items() if count), *wrong])


def is_like(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=EXACT, abs=EXACT)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_like, one, other))
    return bool(one == other)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: each for part, held in value.items() for key, each in flat(held, f"{name} {part}").items()}
    return {name: value}


@functools.cache
def seen(name: str, what: str) -> Seen:
    """Ask on all ranks, or where the instrument wants that on the first alone."""
    who = (0,) if (what, name) == ("doctor", "DDP") else tuple(range(RANKS))
    ranks = on_ranks(RANKS, asked, name, what, who, limit=LIMIT, check=False)
    assert all(rank.error is None and not rank.hung for rank in ranks), "\n".join(map(str, ranks))
    found = Seen()
    for rank in who:
        answer = ranks[rank].value
        assert answer["same"], f"{what} under {name} has changed parameters or gradients of rank {rank}"
        found.refused = answer["said"].get("refused", "")
        if not found.refused:
            found.add(name, flat(answer["said"]), flat(alone(what, (0, 1) if name == "tensor parallel" else (rank, RANKS))))
    return found


CELLS = quick([(what, name) for what in INSTRUMENTS for name in SETUPS], ("track", "FSDP2"), ("doctor", "FSDP2"))


@pytest.mark.parametrize(("what", "name"), CELLS)
@pytest.mark.filterwarnings("ignore::sonde.errors.ObservationWarning")
def test_an_instrument_says_on_each_rank_what_it_says_in_one_process(what: str, name: str) -> None:
    """Of the rank's batch, after an evaluation that leaves parameters gathered; parameters and gradients stay as they are."""
    found = seen(name, what)
    assert not found.wrong, "\n".join(found.wrong)
    assert bool(found.refused) == (what == "doctor" and name != "DDP")
    if found.refused:
        assert re.search("on several ranks|over several ranks", found.refused), found.refused
        assert "in one process" in found.refused


# One rank alone


def alone_on_a_rank() -> list[str]:
    """Ask on rank 1 alone under DDP, whose wrapper is left out."""
    training = TRAININGS["DDP"][1]()
    found = []
    if dist.get_rank() == 1:
        x, y = own_batch(training.share)
        found = [
            what for what in ("summary", "why_nan", "compare", "preflight", "capture") if INSTRUMENTS[what](training.model, x, y)
        ]
        found.append(doctor(training.model, x, y)["refused"])
    training.step(0)
    return found


@pytest.mark.slow
def test_under_ddp_one_rank_alone_may_ask() -> None:
    nobody, found = values(on_ranks(RANKS, alone_on_a_rank, limit=LIMIT))
    assert nobody == []
    assert found[:-1] == ["summary", "why_nan", "compare", "preflight", "capture"]
    assert found[-1].startswith("this is rank 1: call doctor on rank 0 alone")


def with_averages_in_common() -> str:
    """Ask about a layer that averages over ranks in its forward, of which no parameter tells."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    return str(doctor(model, batch(0)[0].float(), batch(0)[1])["refused"])


def test_doctor_refuses_layers_that_average_over_ranks() -> None:
    for said in values(on_ranks(RANKS, with_averages_in_common)):
        assert said.startswith("SyncBatchNorm 1 averages over several ranks"), said


# Answers that are not the same on each rank


def broken(name: str, where: str) -> dict[str, Any]:
    """Ask why, of a model that goes wrong on rank 0 alone."""
    training = TRAININGS[name][1]()
    x, y = own_batch(training.share)
    block: Any = training.model.get_submodule("blocks.0")
    if dist.get_rank() == 0:
        weight = block.up.weight.to_local()
        if where == "a weight":
            weight.data[0, 0] = float("inf")
        elif where == "an operation":
            block.act.forward = lambda x: torch.log(torch.relu(x) - 1)
        else:
            x = x.index_fill(0, torch.tensor([0]), float("nan"))
    found = sonde.why_nan(training.model, x, loss_of(y))
    return {"text": str(found), "operation": found.operation, "reached": found.reached}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FSDP2", "tensor parallel"])
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("a weight", "the first inf is in the parameter blocks.0.up.weight"),
        ("an operation", "the first NaN is made by log in blocks.0.act, forward"),
        ("the batch", "the first NaN is in the input x"),
    ],
)
def test_why_nan_names_the_place_on_its_rank_and_the_rank_elsewhere(name: str, where: str, words: str) -> None:
    """What a collective has brought is read when it is there, and what has gone into it stays this rank's."""
    ranks = on_ranks(RANKS, broken, name, where, limit=LIMIT, check=False)
    assert all(rank.error is None and not rank.hung for rank in ranks), "\n".join(map(str, ranks))
    here, there = values(ranks)
    assert words in here["text"], here["text"]
    assert {"the output", "the loss"} <= set(here["reached"]), here["text"]
    assert "has come from another rank" in there["text"], there["text"]
    assert "what a collective has brought holds" in there["text"], there["text"]


def apart(name: str) -> dict[str, Any]:
    """Compare with a model of which rank 0 holds one number more, by far more than rounding and less than a disturbed weight."""
    one, other = TRAININGS[name][1](), TRAININGS[name][1]()
    if dist.get_rank() == 0:
        weight: Any = other.model.get_submodule("blocks.0.up").weight
        weight.to_local().data[0, 0] += 1e-6
    x, y = own_batch(one.share)
    found = sonde.compare(one.model, other.model, x, loss_fn=loss_of(y), verbose=False)
    return {"ok": found.ok, "culprit": None if found.culprit is None else str(found.culprit.site), "text": str(found)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "elsewhere"), [("FSDP2", "blocks.0.up:output"), ("tensor parallel", "blocks.0.down:output")])
@pytest.mark.filterwarnings("ignore::sonde.errors.ObservationWarning")
def test_models_that_part_on_one_rank_part_on_each(name: str, elsewhere: str) -> None:
    """How far rounding moves a tensor is measured of what collectives have brought, and not of what they still write."""
    ranks = on_ranks(RANKS, apart, name, limit=LIMIT, check=False)
    assert all(rank.error is None and not rank.hung for rank in ranks), "\n".join(map(str, ranks))
    assert [(each["ok"], each["culprit"]) for each in values(ranks)] == [(False, "blocks.0.up:output"), (False, elsewhere)]


# The table of the page

HEAD = ["instrument", *SETUPS]


def table() -> list[str]:
    """Return the lines of the page's table."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for what in INSTRUMENTS:
        shown = "recorders" if what == "record" else what
        lines.append([f"`sonde.{shown}`", *(seen(name, what).cell() for name in SETUPS)])
    return [f"| {' | '.join(line)} |" for line in lines]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sonde.errors.ObservationWarning")
def test_the_table_of_the_page_is_what_the_instruments_give() -> None:
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    first = lines.index(f"| {' | '.join(HEAD)} |")
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    assert lines[first:last] == table(), "\n".join(table())
