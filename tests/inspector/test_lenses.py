"""Each ready-made lens, against numbers computed by hand from the tensors; and a new one in ten lines."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.inspector.training import small, train
from torch import Tensor, nn
from torch.optim import SGD

from sonde import lens
from sonde.cli import main
from sonde.errors import ArgumentError, SelectionError
from sonde.inspector import Inspector, watch
from sonde.schedule import Steps, Warmup
from sonde.stats import Accumulator, ExponentHistogram, Field, Statistic
from sonde.stats.statistic import Column
from sonde.view import plots


@dataclass(frozen=True)
class Kurtosis(Statistic):
    """Fourth standardised moment: about 3 for normal values."""

    fields: ClassVar[tuple[Field, ...]] = tuple(Field(f"s{power}") for power in range(5))

    def measure(self, tensor: Tensor) -> Tensor:
        return torch.stack([tensor.double().pow(power).sum() for power in range(5)])

    def finish(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        m1, m2, m3, m4 = (columns[f"s{power}"] / columns["s0"] for power in range(1, 5))
        return {"kurtosis": (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / (m2 - m1**2) ** 2}


def test_a_new_lens_is_ten_lines() -> None:
    """A statistic of one's own becomes a family of the run."""
    model, optimizer = small()
    kurtosis = lens.Lens("kurtosis", Kurtosis(), ("output", "param"), include=nn.Linear)
    x = torch.randn(50, 4)
    with watch(model, every=1, to="memory", lenses=kurtosis, verbose=False) as inspector:
        model(x).sum().backward()
        outputs = model[0](x).detach().double()
        optimizer.step()
    found = inspector.run.series("0:output", "kurtosis")[1]
    centred = outputs - outputs.mean()
    expected = (centred.pow(4).mean() / centred.pow(2).mean() ** 2).item()
    assert found.tolist() == pytest.approx([expected])  # both calls, with a backward pass between them, are its first
    assert {row["site"] for row in inspector.run.table("kurtosis").to_pylist()} == {
        "0:output",
        "2:output",
        *(f"{name}:param" for name, _ in model.named_parameters()),
    }


def record(lenses: Any, steps: int = 3, **settings: Any) -> tuple[Inspector, list[dict[str, Tensor]]]:
    """A training under *lenses*; with it, of each step, what a lens may look at."""
    torch.manual_seed(0)
    model, optimizer = small()
    kept: list[dict[str, Tensor]] = []
    with watch(model, every=1, to="memory", lenses=lenses, verbose=False, strict=True, **settings) as inspector:
        for _ in range(steps):
            hidden = model[0](x := torch.randn(5, 4))
            out = model[2](model[1](hidden))
            out.retain_grad()
            optimizer.zero_grad()
            out.square().sum().backward()
            before = model[0].weight.detach().clone()
            grad = model[0].weight.grad
            assert grad is not None
            assert out.grad is not None
            optimizer.step()
            kept.append(
                {
                    "x": x,
                    "relu": hidden.detach().relu(),
                    "out": out.detach(),
                    "grad_out": out.grad,
                    "grad": grad.clone(),
                    "param": model[0].weight.detach().clone(),
                    "update": model[0].weight.detach() - before,
                    "before": before,
                }
            )
    return inspector, kept


def test_norms_of_outputs_gradients_parameters_and_updates() -> None:
    """Norm and root mean square; of outputs per sample."""
    inspector, kept = record(
        [
            lens.OutputNorm(),
            lens.OutputGradientGeometry(compute_correlation=False),
            lens.ParameterNorm(),
            lens.ParameterGradientGeometry(compute_correlation=False),
        ]
    )
    run = inspector.run
    per_sample = [one["out"].norm(dim=1).mean().item() for one in kept]
    assert run.series("2:output", "norm", family="output_norm")[1].tolist() == pytest.approx(per_sample)
    for family, site, name in (
        ("output_gradient", "2:grad_output", "grad_out"),
        ("parameter_norm", "0.weight:param", "param"),
        ("parameter_gradient", "0.weight:grad", "grad"),
    ):
        assert run.series(site, "norm", family=family)[1].tolist() == pytest.approx([one[name].norm().item() for one in kept])
        rms = [one[name].square().mean().sqrt().item() for one in kept]
        assert run.series(site, "rms", family=family)[1].tolist() == pytest.approx(rms)


def test_activation_and_death() -> None:
    """Of the ReLU, per call: the share of active outputs, and of units without any."""
    inspector, kept = record(lens.OutputActivation())
    active = [(one["relu"] > 0).double() for one in kept]
    rates = inspector.run.series("1:output", "call_activation")[1]
    deaths = inspector.run.series("1:output", "call_death")[1]
    assert rates.tolist() == pytest.approx([one.mean().item() for one in active])
    assert deaths.tolist() == pytest.approx([(one.sum(0) == 0).double().mean().item() for one in active])


def test_activation_of_parameter_gradients() -> None:
    """A unit that no sample reached has no gradient."""
    inspector, kept = record(lens.ParameterGradientActivation(parameters=("weight",)))
    found = inspector.run.series("0.weight:grad", "call_death")[1]
    assert found.tolist() == pytest.approx([(one["grad"] == 0).all(1).double().mean().item() for one in kept])
    assert {site.path for site in inspector.sites} == {"0.weight", "2.weight"}


def test_channels_are_found_by_the_layer_before() -> None:
    """Of a convolution on the second axis, of a linear layer on the last; units that are never active are counted alike."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 6), nn.ReLU())
    with torch.no_grad():
        model[0].bias[:1] = -100.0  # type: ignore[index]
        model[3].bias[:3] = -100.0  # type: ignore[index]
    optimizer = SGD(model.parameters(), lr=0.0)
    with watch(model, every=1, to="memory", lenses=lens.OutputActivation(), verbose=False) as inspector:
        model(torch.rand(2, 1, 8, 8)).sum().backward()
        optimizer.step()
    found = {row["site"]: row["call_death"] for row in inspector.run.table("activation").to_pylist()}
    assert found["1:output"] >= 0.25
    assert found["4:output"] >= 0.5
    assert (found["1:output"] * 4) % 1 == 0
    assert (found["4:output"] * 6) % 1 == 0


def test_dropout_and_given_layers() -> None:
    """What the lens looks at can be chosen."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(), nn.ReLU())
    for chosen, expected in (
        (lens.OutputActivation(), {"2", "3"}),
        (lens.OutputActivation(dropout=False), {"3"}),
        (lens.OutputActivation(activation=False), {"2"}),
        (lens.OutputActivation(include=nn.GELU, channel_last=True), {"1"}),
    ):
        with watch(model, to="memory", lenses=chosen, verbose=False) as inspector:
            assert {site.path for site in inspector.sites} == expected


def test_a_costly_lens_looks_at_one_in_so_many_logged_steps() -> None:
    """The default set does so for activation."""
    inspector, _ = record(None, 23)
    assert inspector.run.series("1:output", "call_death")[0].tolist() == [0, 10, 20]
    inspector, _ = record([lens.moments(), lens.OutputActivation(one_in=7)], 20)
    assert inspector.run.series("1:output", "call_death")[0].tolist() == [0, 7, 14]


def test_evaluation_can_be_asked_of_one_lens() -> None:
    """The family of the others has no such rows."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", lenses=[lens.moments(), lens.OutputNorm(record_eval=True)], verbose=False) as inspector:
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        model.eval()
        x = torch.randn(3, 4)
        with torch.no_grad():
            expected = model(x).norm(dim=1).mean().item()
    assert "moments_eval" not in inspector.run.families
    assert inspector.run.series("2:output", "norm", family="output_norm_eval")[1].tolist() == pytest.approx([expected])


def test_how_lenses_are_shown_is_plain_data() -> None:
    """It is in run.json."""
    shown = [each.described() for each in (lens.moments(), lens.OutputActivation(), lens.ParameterNorm(), lens.LossMetrics())]
    assert [one["family"] for one in shown] == ["moments", "activation", "parameter_norm", "scalars"]
    assert shown[1]["number"] == "call_death"
    assert shown[1]["worst"] is True


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0).item()


def test_the_cosine_of_successive_gradients() -> None:
    """Of outputs and of parameters; the first step has no predecessor."""
    inspector, kept = record([lens.OutputGradientGeometry(), lens.ParameterGradientGeometry()], 4)
    for family, site, name in (
        ("output_gradient_cosine", "2:grad_output", "grad_out"),
        ("parameter_gradient_cosine", "0.weight:grad", "grad"),
    ):
        steps, values = inspector.run.series(site, "cosine", family=family)
        assert steps.tolist() == [1, 2, 3]
        assert values.tolist() == pytest.approx([cosine(one[name], other[name]) for one, other in pairwise(kept)])


def test_where_few_steps_are_logged_each_is_compared_with_the_one_before() -> None:
    """Never a gradient with one of four steps ago; in between no copy is kept."""
    torch.manual_seed(0)
    model, optimizer = small()
    gradients = []
    lenses = [lens.moments(), lens.ParameterGradientGeometry()]
    with watch(model, every=4, to="memory", lenses=lenses, verbose=False, strict=True) as inspector:
        for step in range(10):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            gradient = model[0].weight.grad
            assert gradient is not None
            gradients.append(gradient.clone())
            optimizer.step()
            assert inspector._training is not None
            pairs = next(each._pairs for each in inspector._training.measurements() if each._pairs is not None)
            assert bool(len(pairs.history)) is (step % 4 == 3)
    steps, values = inspector.run.series("0.weight:grad", "cosine")
    assert steps.tolist() == [4, 8]
    assert values.tolist() == pytest.approx([cosine(gradients[step - 1], gradients[step]) for step in (4, 8)])
    assert inspector.run.series("0.weight:grad", "norm", family="moments")[0].tolist() == [0, 4, 8]


@pytest.mark.parametrize(
    ("every", "logged"),
    [
        (2, [2, 4, 6, 8]),
        (range(1, 9, 3), [1, 4, 7]),
        (Warmup(3, then=4), [1, 2, 4, 8]),
        (lambda tick: tick.step in (3, 8), [3, 8]),
        (iter([2, 5]), [2, 5]),
    ],
    ids=["every", "range", "warmup", "callable", "iterator"],
)
def test_cosines_are_of_logged_steps_only(every: Steps, logged: list[int]) -> None:
    """Each with the gradient of the step right before, however steps are chosen; the first step has none."""
    torch.manual_seed(0)
    model, optimizer = small()
    gradients = []
    lenses = lens.ParameterGradientGeometry()
    with watch(model, every=every, to="memory", lenses=lenses, verbose=False, strict=True) as inspector:
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            gradients.append(model.get_parameter("0.weight").grad.clone())  # type: ignore[union-attr]  # there is one
            optimizer.step()
    steps, values = inspector.run.series("0.weight:grad", "cosine")
    assert steps.tolist() == logged
    assert values.tolist() == pytest.approx([cosine(gradients[step - 1], gradients[step]) for step in logged])


def test_cosines_of_each_backward_pass() -> None:
    """What is accumulated after a pass, with what was after the pass before; of the very first there is none, and no warning."""
    torch.manual_seed(0)
    model, optimizer = small()
    kept = []
    lenses = lens.ParameterGradientGeometry()
    with watch(model, every=2, to="memory", lenses=lenses, gradients="both", verbose=False, strict=True) as inspector:
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(5, 4)).square().sum().backward()
                kept.append(model.get_parameter("0.weight").grad.clone())  # type: ignore[union-attr]  # there is one
            optimizer.step()
    query = "SELECT step, micro_step, cosine FROM parameter_gradient_cosine_micro WHERE site = '0.weight:grad' ORDER BY ALL"
    rows = inspector.run.sql(query).fetchall()
    assert [row[:2] for row in rows] == [(0, 1), (2, 0), (2, 1)]
    assert [row[2] for row in rows] == pytest.approx([cosine(kept[one - 1], kept[one]) for one in (1, 4, 5)])


def test_lenses_that_belong_to_another_are_described_too() -> None:
    """As are those that are asked for, in the run's description; with how they are drawn."""
    model, _ = small()
    lenses = [lens.ParameterGradientGeometry(), lens.ParameterUpdateGeometry(), lens.LossMetrics()]
    with watch(model, to="memory", lenses=lenses, verbose=False) as inspector:
        shown = {each["family"]: each for each in inspector.run.info["lenses"]}
    families = ["parameter_gradient", "parameter_gradient_cosine", "parameter_update", "parameter_update_ratio", "scalars"]
    assert list(shown) == families
    assert shown["parameter_gradient_cosine"]["number"] == "cosine"
    assert shown["parameter_update_ratio"]["log"] is True


def test_powers_of_two_from_a_training_to_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts of every logged step, those of the statistic itself; the picture holds them, and the table has room without them."""
    torch.manual_seed(0)
    model, optimizer = small()
    outputs: list[Tensor] = []
    model[2].register_forward_hook(lambda module, args, output: outputs.append(output.detach()))  # type: ignore[index]
    with watch(model, every=2, to=tmp_path / "run", lenses=lens.exponents(), verbose=False, strict=True) as inspector:
        train(model, optimizer, 5)
    run = inspector.run
    steps, counts = run.series("2:output", "powers")
    assert steps.tolist() == [0, 2, 4]
    seen = [Accumulator(ExponentHistogram()).update(outputs[step]).columns()["powers"][0] for step in (0, 2, 4)]
    np.testing.assert_array_equal(counts, np.stack(seen))
    assert {"exponents-output", "exponents-grad"} <= set(plots.plan(run))
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "exponents  21 rows" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    figure = plots.exponents(run, include="^2$")
    mesh = next(each for each in figure.axes[0].collections if type(each).__name__ == "QuadMesh")
    drawn = np.ma.filled(mesh.get_array(), 0.0)
    np.testing.assert_allclose(drawn.sum(axis=0), 1.0)
    assert drawn.shape[1] == 3


def test_what_a_step_did_in_proportion_to_the_weight() -> None:
    """Update and ratio of each logged step, the first too."""
    inspector, kept = record(lens.ParameterUpdateGeometry(parameters=("weight",)))
    run = inspector.run
    lengths = [one["update"].norm().item() for one in kept]
    ratios = [length / one["before"].norm().item() for length, one in zip(lengths, kept, strict=True)]
    assert run.series("0.weight:update", "norm", family="parameter_update")[1].tolist() == pytest.approx(lengths)
    assert run.series("0.weight:update", "ratio")[1].tolist() == pytest.approx(ratios)


def test_the_cosine_of_successive_updates() -> None:
    """Also where few steps are logged: each with the update of the step right before."""
    inspector, kept = record(lens.ParameterUpdateGeometry(compute_correlation=True), 4)
    steps, values = inspector.run.series("0.weight:update", "cosine", family="parameter_update_cosine")
    assert steps.tolist() == [1, 2, 3]
    expected = [cosine(one["update"], other["update"]) for one, other in pairwise(kept)]
    assert values.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)  # the oracle's update is rounded to float32
    torch.manual_seed(0)
    model, optimizer = small()
    kept_updates = []
    lenses = lens.ParameterUpdateGeometry(compute_correlation=True)
    with watch(model, every=3, to="memory", lenses=lenses, verbose=False, strict=True) as inspector:
        for _ in range(7):
            before = model.get_parameter("0.weight").detach().double()
            train(model, optimizer, 1)
            kept_updates.append(model.get_parameter("0.weight").detach().double() - before)
    steps, values = inspector.run.series("0.weight:update", "cosine", family="parameter_update_cosine")
    assert steps.tolist() == [3, 6]
    assert values.tolist() == pytest.approx([cosine(kept_updates[step - 1], kept_updates[step]) for step in (3, 6)], rel=1e-12)


def test_updates_of_the_parameters_of_one_optimizer() -> None:
    """Those of another are not measured, and something that is no optimizer is refused at once."""
    model, _ = small()
    first, second = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)  # type: ignore[index]
    with watch(model, every=1, to="memory", lenses=lens.ParameterUpdateGeometry(first), verbose=False, strict=True) as inspector:
        model(torch.randn(5, 4)).sum().backward()
        first.step()
        second.step()
    found = {row["site"] for row in inspector.run.table("parameter_update").to_pylist()}
    assert found == {"0.weight:update", "0.bias:update"}
    with pytest.raises(ArgumentError, match="optimizer=list: give"):
        lens.ParameterUpdateGeometry([first])  # type: ignore[arg-type]


def test_output_norms_without_those_of_activations() -> None:
    """With ``activation=False``."""
    inspector, _ = record(lens.OutputNorm(activation=False))
    assert {site.path for site in inspector.sites} == {"0", "2"}


def test_conditions_of_matrices() -> None:
    """Of each weight after the step, as its singular values say; a bias has none."""
    inspector, kept = record(lens.ParameterCond(parameters=("weight", "bias")))
    values = [torch.linalg.svdvals(one["param"].double()) for one in kept]
    found = inspector.run.series("0.weight:param", "condition")[1]
    assert found.tolist() == pytest.approx([(one[0] / one[-1]).item() for one in values], rel=1e-9)
    assert {site.path for site in inspector.sites} == {"0.weight", "2.weight"}


def test_a_model_without_layers_for_an_optional_lens_is_no_error() -> None:
    """The lens warns; one that was given layers is an error."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    with pytest.warns(UserWarning, match="the lens 'activation' finds no layer in this model and records nothing"):
        inspector = watch(model, to="memory", lenses=[lens.OutputActivation(), lens.OutputNorm()], verbose=False)
    assert {site.path for site in inspector.sites} == {"0", "1"}
    inspector.detach()
    with pytest.raises(SelectionError, match="ReLU"):
        watch(model, to="memory", lenses=[lens.OutputActivation(include=nn.ReLU), lens.OutputNorm()], verbose=False)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: lens.OutputNorm(line_aggregation="meen"), "line_aggregation='meen'.*Nearest: mean"),
        (lambda: lens.OutputNorm(line_aggregation=()), "at least one line"),
        (lambda: lens.OutputNorm(range_aggregation="mean"), "range_aggregation='mean'"),
        (lambda: lens.OutputNorm(comparison_aggregation="st"), "comparison_aggregation='st'"),
        (lambda: lens.OutputGradientGeometry(range_aggregation=("std", "Q2")), "range_aggregation="),
        (lambda: lens.OutputActivation(death_aggregation="average"), "death_aggregation='average'"),
        (lambda: lens.ParameterGradientActivation(activation_aggregation="average"), "activation_aggregation='average'"),
        (lambda: lens.ParameterNorm(aggregation_method="q1"), "aggregation_method='q1'.*Nearest: Q1"),
        (lambda: lens.LossMetrics(loss_line="nonsense"), "loss_line='nonsense': there are mean, [^.]*IQR$"),
        (lambda: lens.LossMetrics(loss_range="mean"), "loss_range='mean'"),
        (lambda: lens.LossMetrics(metrics_line=None), "metrics_line=None: at least one line"),  # type: ignore[arg-type]
        (lambda: lens.LossMetrics(metrics_range="nonsense"), "metrics_range='nonsense'"),
    ],
)
def test_aggregations_are_checked_when_a_lens_is_made(make: Callable[[], object], argument: str) -> None:
    """The message names the argument and the nearest aggregation."""
    with pytest.raises(ArgumentError, match=argument):
        make()


def test_a_pushed_loss_is_of_training_where_the_model_is() -> None:
    """Without ``train=`` the model's mode says whether a loss is of training or of evaluation."""
    model, optimizer = small()
    with watch(model, every=1, to="memory", verbose=False) as inspector:
        train(model, optimizer, 1)
        inspector.push_loss(2.0)
        model.eval()
        inspector.push_loss(3.0)
        inspector.push_loss(5.0, train=True)
    run = inspector.run
    assert [values.tolist() for _, values in (run.scalar("loss"), run.scalar("val_loss"))] == [[3.5], [3.0]]


def test_the_loss_of_the_last_epoch() -> None:
    """By default its first line; another aggregate if asked; an error that says what is missing."""
    model, optimizer = small()
    losses = lens.LossMetrics(loss_line=("median", "mean"))
    with pytest.raises(ArgumentError, match="no inspector has this lens"):
        losses.loss(train=True)
    with watch(model, every=1, to="memory", lenses=losses, verbose=False) as inspector:
        with pytest.raises(ArgumentError, match="none has ended"):
            losses.loss(train=True)
        for pushed in ([1.0, 2.0, 9.0], [5.0, 6.0, 10.0]):
            for loss in pushed:
                train(model, optimizer, 1)
                inspector.push_loss(loss, train=True)
            inspector.tick_epoch()
        assert losses.loss(train=True) == 6.0
        assert losses.loss(train=True, method="mean") == 7.0
        assert losses.loss(train=True, method="min") == 5.0
        with pytest.raises(ArgumentError, match="epoch 1 has no 'val_loss'"):
            losses.loss(train=False)
        with pytest.raises(ArgumentError, match="method='avg'"):
            losses.loss(train=True, method="avg")
    assert losses.loss(train=True) == 6.0
    assert copy.deepcopy(losses) == losses
    assert pickle.loads(pickle.dumps(losses)) == losses
