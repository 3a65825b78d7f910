"""A preprocessor where a lens is wanted, a lens where a preprocessor is wanted, and what both say of one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde import lens, preprocessor
from sonde.errors import ArgumentError


def training(given: Any, model: nn.Module, x: Tensor) -> sonde.Inspector:
    """One logged step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, lenses=given, to="memory", verbose=False, strict=True) as inspector:
        model(x)[0].square().sum().backward()
        optimizer.step()
    return inspector


PAIRS: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (preprocessor.OutputNorm, lens.OutputNorm),
    (preprocessor.OutputActivation, lens.OutputActivation),
    (preprocessor.OutputGradientGeometry, lambda: lens.OutputGradientGeometry(skip_activation=False)),
    (preprocessor.GradientGeometry, lens.ParameterGradientGeometry),
    (preprocessor.GradientActivation, lambda: lens.ParameterGradientActivation(eps=1e-8)),
    (preprocessor.ParameterNorm, lambda: lens.ParameterNorm(parameters=("weight", "bias"))),
    (lambda: preprocessor.ParameterDifferenceGeometry(correlation=False), lens.ParameterUpdateGeometry),
    (preprocessor.ParameterDifferenceGeometry, lambda: lens.ParameterUpdateGeometry(compute_correlation=True)),
    (preprocessor.UpdateRatio, lens.ParameterUpdateGeometry),
    (preprocessor.Conditioning, lens.ParameterCond),
]


class Mine(preprocessor.OutputNorm):
    def process_fw(self, name: str, module: Any, layer_input: Any, layer_output: Any) -> None:
        super().process_fw(name, module, layer_input, 2 * layer_output)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_preprocessor_stands_for_the_lens_that_measures_the_same(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    """The same families, sites and numbers, as one preprocessor or among lenses."""
    tables = []
    for given in (one(), [lens.LossMetrics(), other()]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        run = training(given, model, torch.randn(5, 4)).run
        tables.append({family: str(run.table(family).to_pylist()) for family in run.families if family != "scalars"})
    assert tables[0]
    assert tables[0] == tables[1]


def test_the_two_output_norms_agree_per_sample_also_where_time_comes_first() -> None:
    """The mean over samples of each sample's norm, of a linear layer and of a recurrent one with (time, sample, feature)."""
    for model, x in ((nn.Linear(4, 3), torch.randn(5, 4)), (nn.RNN(4, 3), torch.randn(7, 5, 4))):
        y = model(x)
        samples = (y[0].transpose(0, 1) if isinstance(y, tuple) else y).double().flatten(1)
        expected = torch.linalg.vector_norm(samples, dim=1).mean().item()
        seen = preprocessor.OutputNorm()
        with sonde.observe(model, seen):
            model(x)
        assert seen.value[""].mean == pytest.approx(expected, rel=1e-12)  # float64 throughout
        inspector = training(lens.OutputNorm(), model, x)
        site = "(root):output" if isinstance(model, nn.Linear) else "(root):output[0]"
        assert inspector.run.series(site, "norm")[1].tolist() == pytest.approx([expected], rel=1e-12)


def test_a_lens_is_observed_by_its_statistic_at_its_ports_and_layers() -> None:
    """Layers that are given to ``observe`` go before those of the lens."""
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(5, 4)
    with sonde.observe(model, lens.OutputNorm(), strict=True) as probe:
        y = model(x)
    assert [row["site"] for row in probe.rows()] == ["0:output", "1:output"]
    expected = torch.linalg.vector_norm(y.double(), dim=1).mean().item()
    assert probe.rows()[1]["norm"] == pytest.approx(expected, rel=1e-12)
    with sonde.observe(model, lens.ParameterNorm(), include="weight") as probe:
        assert [str(site) for site in probe.sites] == ["0.weight:param"]


def test_what_cannot_stand_for_the_other_says_what_to_give() -> None:
    """A preprocessor of one's own or of losses; a lens that compares tensors."""
    model = nn.Linear(2, 2)
    for given, reason in (
        (preprocessor.LossModule(), r"which module returns the loss: give lens.LossMetrics\(loss_fn="),
        (preprocessor.ExplicitCall(), r"push_loss\(\) and push_metric\(\) of the inspector"),
        (preprocessor.UpdateRounding(), r"one tensor at a time: feed it beside .*observe\(model, UpdateRounding"),
        (Mine(), "is a OutputNorm of your own, and a lens would record the numbers of OutputNorm"),
        (preprocessor.OutputNorm(batched=False), "leave batched= out"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            sonde.watch(model, lenses=given, to="memory", verbose=False)
    cosine = lens.Lens("turns", sonde.stats.Cosine(), ("grad",))
    with pytest.raises(ArgumentError, match="'turns' is not one statistic of single tensors"):
        sonde.observe(model, cosine)
