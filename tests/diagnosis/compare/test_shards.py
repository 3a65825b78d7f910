"""What ranks of one model have saved is put together and compared with one process: healthy set-ups agree, faults have a place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diagnosis.compare import parallel
from tests.processes import on_ranks
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError
from sonde.types import Comparison


def compared(folder: Path, setup: str, fault: str, ranks: int = 2, **single: Any) -> Comparison:
    on_ranks(ranks, getattr(parallel, setup), folder, fault)
    parallel.single(folder, **single)
    return sonde.compare(folder / "single", folder / "ranks")


HEALTHY = [
    ("data_parallel", "", 2, {}),
    ("data_parallel", "strided", 2, {}),
    ("data_parallel", "accumulated", 2, {}),
    ("data_parallel", "stepped", 2, {"stepped": True}),
    ("data_parallel", "clipped", 2, {"clipped": True}),
    ("ddp", "", 2, {}),
    ("recomputed", "", 2, {}),
    ("fsdp", "", 2, {}),
    ("fsdp", "", 4, {}),
    ("dtensors", "", 2, {}),
    ("sequence_parallel", "", 2, {}),
    ("two_dimensions", "", 4, {}),
    ("by_hand", "", 2, {}),
    ("by_hand", "positions", 2, {}),
    ("pipeline", "", 2, {}),
    ("pipeline", "GPipe", 2, {}),
    ("pipeline", "tied", 2, {"tied": True}),
]
"""Set-ups of ``parallel``, each with the number of ranks, and how the one process is run."""


@pytest.mark.slow
@pytest.mark.parametrize(("setup", "kind", "ranks", "single"), HEALTHY)
def test_an_identical_model_on_ranks_does_not_part(tmp_path: Path, setup: str, kind: str, ranks: int, single: Any) -> None:
    """Inputs, outputs, gradients and parameters: all are compared, and none is near what counts as apart."""
    found = compared(tmp_path, setup, kind, ranks, **single)
    assert found.ok, found
    assert len(found.places) == 155
    assert not [place for place in found.places if place.remark.startswith("not compared")]
    assert max(place.relative / place.floor for place in found.places if 0 < place.floor < 1) < 0.25


FAULTS = [
    ("by_hand", "not summed", "blocks.1.down:output", None, "differ from each other", {}),
    ("by_hand", "gradient not summed", "blocks.1.norm2:grad_output", "their sum equals that of a", "addends on ranks 0, 1", {}),
    ("by_hand", "bias on each rank", "blocks.1.down:output", "plus", "", {}),
    ("by_hand", "mask of the vocabulary", "embed:output", None, "", {}),
    ("by_hand", "replicas differ", "blocks.1.norm2:output", "blocks.1.norm2.weight differs", "rank 0 alone agrees", {}),
    ("by_hand", "positions from 0", "position:input", None, "", {}),
    (
        "by_hand",
        "positions, norms not summed",
        "blocks.1.norm2.weight:grad",
        "their sum equals that of a",
        "addends on ranks 0, 1",
        {},
    ),
    ("by_hand", "positions, gradient not summed", "blocks.1.norm2:grad_output", None, "", {}),
    ("data_parallel", "own weights", "embed:output", None, "only what rank 1 holds differs", {}),
    ("data_parallel", "same samples", "(root):input", None, "the parts of ranks 0, 1 are equal", {}),
    ("data_parallel", "summed", "head.weight:grad", "the gradient of b is 2 times that of a", "", {}),
    ("data_parallel", "accumulated, not divided", "head.weight:grad", "the gradient of b is 2 times that of a", "", {}),
    ("data_parallel", "one left out", "blocks.1.up.weight:grad", "their mean equals that of a", "", {}),
    (
        "data_parallel",
        "clipped by a norm of all ranks",
        "head.weight:grad",
        "0.707107 times",
        "",
        {"clipped": True},
    ),
    ("data_parallel", "not sent", "blocks.0.attention.v.weight:param", None, "rank 0 alone agrees", {"stepped": True}),
    ("pipeline", "tied, stale", "head:output", "head.weight differs", "", {"tied": True}),
    ("pipeline", "tied, gradient not summed", "head.weight:grad", None, "", {"tied": True}),
    ("pipeline", "block twice", "blocks.0:input", None, "rank 0 alone agrees", {}),
    ("pipeline", "not scaled", "head.weight:grad", "the gradient of b is 4 times that of a", "", {}),
    ("recomputed", "another scale", "blocks.1.down.weight:grad", None, "", {}),
]
"""Set-ups, faults, the places where they show first, what is proved of them, what is remarked, and how one process runs."""


@pytest.mark.slow
@pytest.mark.parametrize(("setup", "fault", "site", "cause", "remark", "single"), FAULTS)
def test_a_fault_of_parallel_code_is_named_at_its_module(
    tmp_path: Path, setup: str, fault: str, site: str, cause: str | None, remark: str, single: Any
) -> None:
    found = compared(tmp_path, setup, fault, **single)
    assert found.culprit is not None
    assert str(found.culprit.site) == site, found
    assert remark in found.culprit.remark
    assert found.cause is None if cause is None else found.cause is not None and cause in found.cause.message, found


# Without processes: what ranks would save is written by hand


class Fixed(nn.Module):
    """Gives what it was given, and a gradient that was given."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


def saved(folder: Path, rank: int | None, tensors: list[Tensor], **options: Any) -> Path:
    """Save the outputs of one layer, one forward after the other, as *rank* would."""
    model = nn.Sequential(Fixed())
    with sonde.track(model, grad=False, include=["0"]) as tracker:
        for tensor in tensors:
            model(tensor)
    with pytest.MonkeyPatch.context() as patch:
        if rank is not None:
            patch.setattr(torch.distributed, "is_initialized", lambda: True)
            patch.setattr(torch.distributed, "get_rank", lambda: rank)
        return tracker.save(folder, **options)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def of_ranks(folder: Path, whole: Tensor, *parts: list[Tensor], ids: list[Any] | None = None) -> Comparison:
    one = saved(folder / "one", None, [whole], **({} if ids is None else {"ids": range(len(whole))}))
    for rank, held in enumerate(parts):
        saved(folder / "ranks" / str(rank), rank, held, **({} if ids is None else {"ids": ids[rank]}))
    return sonde.compare(one, folder / "ranks")


X = drawn(4, 6, 8)
LAYOUTS: dict[str, list[list[Tensor]]] = {
    "samples": [[X[:2]], [X[2:]]],
    "samples, unevenly": [[X[:3]], [X[3:]]],
    "positions": [[X[:, :3]], [X[:, 3:]]],
    "features": [[X[..., :4]], [X[..., 4:]]],
    "features of which each rank has a share of two groups": [
        [torch.cat((X[..., :2], X[..., 4:6]), -1)],
        [torch.cat((X[..., 2:4], X[..., 6:]), -1)],
    ],
    "samples, then features": [[X[:2, :, :4]], [X[:2, :, 4:]], [X[2:, :, :4]], [X[2:, :, 4:]]],
    "features, then samples": [[X[:2, :, :4]], [X[2:, :, :4]], [X[:2, :, 4:]], [X[2:, :, 4:]]],
    "samples on pairs of replicas": [[X[:2]], [X[:2]], [X[2:]], [X[2:]]],
    "samples on replicas further apart": [[X[:2]], [X[2:]], [X[:2]], [X[2:]]],
    "micro-batches on one rank": [[X[:1], X[1:2], X[2:3], X[3:]]],
    "micro-batches on ranks": [[X[:1], X[1:2]], [X[2:3], X[3:]]],
    "replicas": [[X], [X]],
    "another forward behind it": [[X[:2], 3 * X[:2]], [X[2:], 3 * X[2:]]],
}
"""How ranks may hold a tensor: of each rank what it held in its forwards."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_put_together_as_they_lie(tmp_path: Path, layout: str) -> None:
    found = of_ranks(tmp_path, X, *LAYOUTS[layout])
    assert found.ok, found
    assert [(str(place.site), place.shape, place.relative) for place in found] == [("0:output", "4×6×8", 0.0)]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "another forward behind it"])
def test_one_wrong_element_of_a_part_parts_however_it_lies(tmp_path: Path, layout: str) -> None:
    *parts, last = LAYOUTS[layout]
    wrong = last[-1].clone()
    wrong.view(-1)[-1] += 0.1
    found = of_ranks(tmp_path, X, *parts, [*last[:-1], wrong])
    assert str(found.culprit.site) == "0:output"  # type: ignore[union-attr]
    assert found.culprit.largest == pytest.approx(0.1, rel=1e-4)  # type: ignore[union-attr]


def test_samples_are_ordered_by_their_ids(tmp_path: Path) -> None:
    found = of_ranks(tmp_path, X, [X[[3, 1]]], [X[[0, 2]]], ids=[[3, 1], [0, 2]])
    assert found.ok
    assert found[0].relative == 0


def test_samples_are_ordered_as_one_process_had_them(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", None, [X[[2, 0, 3, 1]]], ids=[2, 0, 3, 1])
    folders = [saved(tmp_path / str(rank), rank, [X[own]], ids=own) for rank, own in enumerate(([3, 1], [0, 2]))]
    assert sonde.compare(one, folders).ok


def test_a_sample_that_two_ranks_have_is_compared_on_both(tmp_path: Path) -> None:
    ids = [[0, 1, 2], [3, 0]]
    assert of_ranks(tmp_path / "a", X, [X[:3]], [X[[3, 0]]], ids=ids).ok
    other = X[[3, 0]].clone()
    other[1] += 1.0
    found = of_ranks(tmp_path / "b", X, [X[:3]], [other], ids=ids)
    assert "rank 0 alone agrees" in found.culprit.remark  # type: ignore[union-attr]


def test_positions_are_ordered_by_ids_along_their_axis(tmp_path: Path) -> None:
    """As where each rank has one position from the beginning and one from the end."""
    one = saved(tmp_path / "one", None, [X])
    order = [[0, 1, 4], [5, 2, 3]]
    folders = [saved(tmp_path / str(rank), rank, [X[:, own]], ids={1: own}) for rank, own in enumerate(order)]
    assert sonde.compare(one, folders).ok
    assert sonde.compare(folders, one).ok


def test_addends_part_and_their_sum_is_proved(tmp_path: Path) -> None:
    found = of_ranks(tmp_path, X, [0.25 * X], [0.75 * X])
    assert found.cause is not None
    assert found.cause.rule == "addends"
    assert "their sum equals that of a" in found.cause.message


def test_what_is_no_sum_of_the_ranks_is_not_explained(tmp_path: Path) -> None:
    found = of_ranks(tmp_path, X, [0.25 * X], [0.76 * X + 0.1 * drawn(8)])
    assert found.cause is None
    assert "differ from each other" in found.culprit.remark  # type: ignore[union-attr]


def test_ranks_that_hold_other_shapes_than_one_process_part_with_both_shapes(tmp_path: Path) -> None:
    found = of_ranks(tmp_path, X, [X[:1]], [X[1:3]])
    assert found.culprit is not None
    assert "4×6×8 in a" in found.culprit.remark


class WithLoss(nn.Module):
    """A model that returns its own loss in front of its output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return y.square().mean(), y


def test_a_tensor_that_one_process_alone_is_given_is_no_error(tmp_path: Path) -> None:
    """As a mask that the code between the layers makes on one machine, and leaves to the kernel on another."""
    model, x = Scaled(), drawn(4, 8)
    for folder, mask in (("one", torch.ones(4, 8)), ("ranks/0", None), ("ranks/1", None)):
        with sonde.track(model, ports=("input", "output")) as tracker:
            model(x, mask=mask)
        tracker.save(tmp_path / folder)
    assert sonde.compare(tmp_path / "one", tmp_path / "ranks").ok
    assert sonde.compare(tmp_path / "ranks", tmp_path / "one").ok


def test_a_weight_of_joined_projections_is_put_together_from_shares_of_each(tmp_path: Path) -> None:
    """Each rank has half of the rows of the one projection, and half of those of the other behind them."""
    torch.manual_seed(0)
    whole, x = nn.Linear(8, 16), drawn(4, 8)
    rows = torch.arange(16).view(2, 2, 4)
    for folder, own in (("one", torch.arange(16)), ("ranks/0", rows[:, 0].flatten()), ("ranks/1", rows[:, 1].flatten())):
        model = nn.Linear(8, len(own))
        model.weight.data, model.bias.data = whole.weight[own].detach().clone(), whole.bias[own].detach().clone()
        with sonde.track(model, ports=("input", "output")) as tracker:
            model(x).sum().backward()
        tracker.save(tmp_path / folder, parameters=True)
    found = sonde.compare(tmp_path / "one", tmp_path / "ranks")
    assert found.ok, found
    assert "weight:param" in {str(place.site) for place in found.places}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = Taking()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        made: Tensor = self.inner(x, mask=mask)
        return made


class Taking(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x * mask


def test_the_loss_that_a_model_returns_is_compared_by_the_mean_of_the_ranks(tmp_path: Path) -> None:
    x = drawn(4, 8)
    for name, own in (("one", x), ("ranks/0", x[:2]), ("ranks/1", x[2:])):
        model = WithLoss()
        with sonde.track(model, ports=("input", "output", "grad_output")) as tracker:
            model(own)[0].backward()
        tracker.save(tmp_path / name)
    found = sonde.compare(tmp_path / "one", tmp_path / "ranks")
    assert found.ok, found
    assert len(found["layer:grad_output"]) == 1
    assert "losses of their own" in found.notes[0]


def test_tensors_in_keyword_arguments_are_kept_and_saved(tmp_path: Path) -> None:
    x = drawn(4, 8)
    model = WithLoss()
    with sonde.track(model, ports="input") as tracker:
        model(x=x)
    saved_at = sonde.open_tensors(tracker.save(tmp_path / "kept"))
    assert torch.equal(saved_at.at("(root):input")[0], x)


def test_ranks_are_compared_with_ranks(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("same", 1.0), ("other", 1.5)):
        for rank, part in enumerate((X[:2], X[2:])):
            saved(tmp_path / name / str(rank), rank, [part * (factor if rank else 1.0)])
    assert sonde.compare(tmp_path / "a", tmp_path / "same").ok
    assert not sonde.compare(tmp_path / "a", tmp_path / "other").ok


def test_two_folders_of_one_rank_are_refused(tmp_path: Path) -> None:
    folders = [saved(tmp_path / name, 0, [X]) for name in ("a", "b")]
    with pytest.raises(ArgumentError, match="two of the folders are of rank 0"):
        sonde.compare(folders[0], folders)


# A live model beside ranks


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def averaging(folder: Path, model: nn.Module, x: Tensor, *, scale: float = 1.0) -> Path:
    """Save what two ranks hold that have half of the samples each and average their gradients."""
    ranks = [copy.deepcopy(model) for _ in range(2)]
    trackers = []
    for rank, part in zip(ranks, x.chunk(2), strict=True):
        with sonde.track(rank, ports=("input", "output", "grad_output")) as tracker:
            (mean_square(rank(part)) * scale).backward()
        trackers.append(tracker)
    for own in zip(*(rank.parameters() for rank in ranks), strict=True):
        mean = torch.stack([each.grad for each in own if each.grad is not None]).mean(0)
        for each in own:
            each.grad = mean.clone()
    for number, tracker in enumerate(trackers):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.distributed, "is_initialized", lambda: True)
            patch.setattr(torch.distributed, "get_rank", lambda number=number: number)
            tracker.save(folder / str(number), parameters=True)
    return folder


def test_a_live_model_is_compared_with_what_ranks_have_saved(tmp_path: Path) -> None:
    model, x = mlp(), drawn(16, 8)
    ranks = averaging(tmp_path / "ranks", model, x)
    before = [held.clone() for held in model.parameters()]
    for pair in ((model, ranks), (ranks, model)):
        found = sonde.compare(*pair, x, loss_fn=mean_square, verbose=False)
        assert found.ok, found
        assert {place.site.port for place in found.places} == {"input", "output", "grad_output", "grad", "param"}
        assert {place.stage for place in found.places} == {"forward", "backward", "update"}
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert all(held.grad is None for held in model.parameters())
    with torch.no_grad():
        model[2].weight[0, 0] += 1
    found = sonde.compare(model, ranks, x, loss_fn=mean_square, verbose=False)
    assert found.culprit is not None
    assert found.cause is not None
    assert (str(found.culprit.site), found.cause.rule) == ("2:output", "weight_differs")


def test_a_live_model_without_the_loss_of_the_saved_side_is_compared_forward_alone(tmp_path: Path) -> None:
    model, x = mlp(), drawn(16, 8)
    found = sonde.compare(model, averaging(tmp_path, model, x), x, verbose=False)
    assert found.ok
    assert {place.stage for place in found.places} == {"forward", "update"}
    assert "a: no gradients: loss_fn= is missing, the loss of the saved side" in found.notes


def test_a_scale_of_the_loss_is_told_from_losses_of_parts(tmp_path: Path) -> None:
    """Each rank has the mean of its half, times 3: gradients at outputs are 6 times those of the whole."""
    model, x = mlp(), drawn(16, 8)
    found = sonde.compare(model, averaging(tmp_path, model, x, scale=3.0), x, loss_fn=mean_square, verbose=False)
    assert found.culprit is not None
    assert found.cause is not None
    assert str(found.culprit.site) == "(root):grad_output"
    assert found.cause.message == "the gradient of b is 3 times that of a"


OF_TRANSFORMERS = [
    ("shards", "", None, None),
    ("shards", "scaled", "(root):grad_output", "the gradient of b is 2 times that of a"),
    ("shards", "stale", "model.layers.1.mlp.down_proj:output", "down_proj.weight differs"),
    ("columns", "", None, None),
    ("columns", "not summed", "model.layers.1.mlp.down_proj:output", "their sum equals that of a"),
    ("columns", "stale norm", "model.layers.1.input_layernorm:output", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "fault", "site", "cause"), OF_TRANSFORMERS)
def test_a_model_of_transformers_on_ranks_is_compared_with_one_in_one_process(
    tmp_path: Path, how: str, fault: str, site: str | None, cause: str | None
) -> None:
    """Live or saved, and whichever side is first."""
    pytest.importorskip("transformers")
    on_ranks(2, parallel.llama_on_ranks, tmp_path / "ranks", how, fault)
    model, batch = parallel.llama(), parallel.llama_batch()
    parallel.save_llama(model, batch, tmp_path / "one", range(len(batch)))
    given = {"input_ids": batch, "labels": batch, "use_cache": False}
    live = sonde.compare(model, tmp_path / "ranks", given, verbose=False)
    for found in (
        sonde.compare(tmp_path / "one", tmp_path / "ranks"),
        live,
        sonde.compare(tmp_path / "ranks", model, given, verbose=False),
    ):
        assert len(found.places) == 137
        assert (None if found.culprit is None else str(found.culprit.site)) == site, found
    if cause is not None:
        assert live.cause is not None
        assert cause in live.cause.message


# Rounding, and parameters


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


def measured(model: nn.Module, folder: Path, *, measure: bool = True) -> Path:
    x = drawn(16, 8).to(next(model.parameters()).dtype)

    def step() -> None:
        model(x).float().square().mean().backward()

    with sonde.track(model) as tracker:
        step()
        if measure:
            tracker.measure_rounding(step)
    return tracker.save(folder, parameters=True)


def test_saved_sides_with_measured_rounding_are_judged_as_live_ones(tmp_path: Path) -> None:
    half = mlp().bfloat16()
    found = sonde.compare(measured(mlp(), tmp_path / "a"), measured(half, tmp_path / "b"))
    live = sonde.compare(mlp(), mlp().bfloat16(), drawn(16, 8), verbose=False)
    assert found.ok
    assert live.ok
    one, other = found["4:output"][0], live["4:output"][0]
    assert one.floor == pytest.approx(other.floor, rel=2.0)
    assert one.floor < 0.5


def test_measuring_leaves_everything_as_it_was(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    x = drawn(16, 8)

    def step() -> None:
        torch.manual_seed(1)
        model(x).square().mean().backward()

    with sonde.track(model) as tracker:
        step()
        before = {name: held.clone() for name, held in model.state_dict().items()}
        gradients = [held.grad for held in model.parameters()]
        copies = [held.grad.clone() for held in model.parameters() if held.grad is not None]
        state, stashes = torch.get_rng_state(), list(tracker)
        tracker.measure_rounding(step)
        assert list(tracker) == stashes
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(held, before[name]) for name, held in model.state_dict().items())
    assert all(held.grad is kept for held, kept in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(held.grad, kept) for held, kept in zip(model.parameters(), copies, strict=True))  # type: ignore[arg-type]


def test_a_step_that_runs_something_else_is_refused() -> None:
    model, batches = mlp(), iter(drawn(9, 16, 8))
    with sonde.track(model) as tracker:
        model(next(batches))
        with pytest.raises(ArgumentError, match="made another tensor at 0:output"):
            tracker.measure_rounding(lambda: model(next(batches)))
        assert len(tracker) == 6


def test_rounding_is_measured_behind_the_step_and_inside_of_the_block() -> None:
    model = mlp()
    with sonde.track(model) as tracker:
        with pytest.raises(ArgumentError, match="nothing was tracked yet"):
            tracker.measure_rounding(lambda: model(drawn(2, 8)))
        model(drawn(2, 8))
    with pytest.raises(ArgumentError, match="the tracker is detached"):
        tracker.measure_rounding(lambda: model(drawn(2, 8)))


def test_a_parameter_that_differs_is_put_in_and_explains_the_output(tmp_path: Path) -> None:
    other = mlp()
    with torch.no_grad():
        other[2].weight[3] *= 1.5
    one, two = mlp(), other
    folders = []
    for name, model in (("a", one), ("b", two)):
        with sonde.track(model, ports=("input", "output")) as tracker:
            model(drawn(16, 8))
        folders.append(tracker.save(tmp_path / name, parameters=True))
    found = sonde.compare(*folders)
    assert str(found.culprit.site) == "2:output"  # type: ignore[union-attr]
    assert found.cause is not None
    assert found.cause.message == "2.weight differs: with a's in its place the output of b equals that of a"


def test_a_parameter_without_a_gradient_in_one_side_parts(tmp_path: Path) -> None:
    frozen = mlp()
    frozen[2].requires_grad_(False)
    found = sonde.compare(measured(mlp(), tmp_path / "a"), measured(frozen, tmp_path / "b"))
    assert str(found.culprit.site) == "2.weight:grad"  # type: ignore[union-attr]
    assert "no gradient in b" in found.culprit.remark  # type: ignore[union-attr]


class Chosen(nn.Module):
    """A mean with weights of a softmax, to which one bias for all scores gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.score = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.score(x).softmax(0) * x).sum(0)


@pytest.mark.parametrize("measure", [True, False])
def test_gradients_that_are_zero_but_for_rounding_may_be_anything(tmp_path: Path, measure: bool) -> None:
    """As measured, and without a measurement by the size of the other gradients."""
    folders = [measured(model, tmp_path / name, measure=measure) for name, model in (("a", Chosen()), ("b", Chosen().double()))]
    found = sonde.compare(*folders)
    assert found.ok, found
    assert found["score.bias:grad"][0].relative > 0.1
