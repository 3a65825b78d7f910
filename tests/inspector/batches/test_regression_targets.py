"""What a regression loss says of its targets: how far off they are, and what kind of numbers they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.inspector.batches.test_batch_checks import mlp, trained
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.inspector.batches.regression_targets import errors_of, sentinel_numbers

pytestmark = pytest.mark.first_is_quick

Loss = Callable[[Tensor, Tensor], Tensor]
REGRESSIONS: dict[str, Loss] = {
    "mean": functional.mse_loss,
    "sum": lambda made, wanted: functional.mse_loss(made, wanted, reduction="sum"),
    "by hand": lambda made, wanted: ((wanted - made) ** 2).mean(),
    "a product": lambda made, wanted: (error := made - wanted).mul(error).sum(1).mean(),
    "weighed": lambda made, wanted: functional.mse_loss(made, wanted) / 8,
    "scaled": lambda made, wanted: (made - wanted).square().sum() * 3.0,
    "one of two": lambda made, wanted: functional.mse_loss(made, wanted) + (made.exp() + 1).log().sum() * 0,
    "absolute": functional.l1_loss,
    "absolute, by hand": lambda made, wanted: (wanted - made).abs().mean(),
    "of Huber": lambda made, wanted: functional.huber_loss(made, wanted) + functional.cross_entropy(made, wanted.argmax(1)),
    "smooth": functional.smooth_l1_loss,
    "turned": lambda made, wanted: functional.mse_loss(wanted, made),
    "a part": lambda made, wanted: functional.mse_loss(made[:, 0], wanted[:, 0]),
    "picked": lambda made, wanted: functional.mse_loss(made.gather(1, torch.zeros(6, 1, dtype=torch.int64)), wanted[:, :1]),
    "none first": lambda made, wanted: functional.mse_loss(made, wanted, reduction="none").mean(1).sum(),
}


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_errors_are_read_of_any_regression_before_its_backward_pass(kind: str) -> None:
    torch.manual_seed(0)
    made, wanted = (torch.randn(6, 4, requires_grad=True) * 1.0), torch.randn(6, 4)
    number = made.grad_fn._sequence_nr()  # type: ignore[union-attr]
    ((errors, is_ordered),) = errors_of(REGRESSIONS[kind](made, wanted), number)
    assert is_ordered == (kind != "picked")
    expected = (made - wanted).detach().double()
    expected = expected[:, 0] if kind == "a part" else expected[:, :1] if kind == "picked" else expected
    assert torch.allclose(errors, expected, atol=1e-6)  # differences of float32 of size 1


def test_no_errors_are_read_of_a_cross_entropy_nor_of_another_output() -> None:
    made, other = (torch.randn(6, 4, requires_grad=True) * 1.0 for _ in range(2))
    number = made.grad_fn._sequence_nr()  # type: ignore[union-attr]
    assert not [*errors_of(functional.cross_entropy(made, torch.zeros(6, dtype=torch.int64)), number)]
    assert not [*errors_of(functional.mse_loss(other, torch.zeros(6, 4)), number)]


@pytest.mark.parametrize(
    ("column", "code"),
    [
        (torch.cat([torch.randn(60), torch.full((4,), -999.0)]), -999.0),
        (torch.cat([torch.rand(40), torch.full((24,), 9999.0)]), 9999.0),
        (torch.randn(64), None),
        (torch.randn(64).exp() ** 2, None),  # with a long tail
        (torch.randint(3, (64,)).float(), None),
        (torch.cat([torch.zeros(60), torch.full((4,), 5.0)]), None),  # counts, most of which are 0
        (torch.cat([torch.randn(60), torch.full((4,), -2.0)]), None),
        (torch.randn(64).clamp(-0.5, 0.5), None),
    ],
)
def test_a_number_far_from_all_others_is_a_sentinel(column: Tensor, code: float | None) -> None:
    found = sentinel_numbers(torch.stack([torch.randn(64), column], 1))
    if code is not None:
        assert float(found["code"]) == code
    else:  # one that is far off alone is one of a long tail, and another in each pass
        assert found["code"].isnan() or found["alone"]
    assert code is None or float(found["coded"]) == pytest.approx(float((column == code).double().mean()))


@pytest.mark.parametrize("where", ["targets", "inputs", "none"])
def test_a_code_for_what_is_missing_is_found(where: str) -> None:
    torch.manual_seed(0)
    model = mlp(1)

    def loss(_: int) -> Tensor:
        x = torch.randn(48, 8)
        is_missing = torch.rand(48) < 0.15
        target = x[:, :1].tanh()
        if where == "targets":
            target = torch.where(is_missing[:, None], -999.0, target)
        if where == "inputs":
            x = torch.where(is_missing[:, None] & (torch.arange(8) == 3), -999.0, x)
        return functional.mse_loss(model(x), target)

    found = trained(model, loss, steps=30)
    assert ("sentinel" in found) is (where != "none")
    assert where == "none" or f"of {where} are -999" in found["sentinel"].message


@pytest.mark.parametrize(("times", "is_told"), [(1, False), (3, True)])
def test_one_sample_far_off_of_data_that_are_the_same_in_each_step_is_no_code(times: int, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1)
    x = torch.randn(48, 8)
    x[:times, 3] = -300.0
    assert ("sentinel" in trained(model, lambda _: functional.mse_loss(model(x), x[:, :1].tanh()), steps=30)) is is_told


class Cut(nn.Module):
    """A regression whose outputs are cut in the forward."""

    def __init__(self, low: float | None, high: float | None, *, is_tanh: bool = False) -> None:
        super().__init__()
        self.body, self.ends, self.is_tanh = mlp(1), (low, high), is_tanh
        nn.init.constant_(self.body[-1].bias, 1.5)  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(x)
        return functional.hardtanh(made) if self.is_tanh else made.clamp(*self.ends)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Cut(0.0, 1.0), "clamp"),
        (Cut(2.0, None), "clamp"),
        (Cut(None, None, is_tanh=True), "hardtanh"),
        (Cut(0.5, 5.5), ""),
        (Cut(1e-6, None), ""),
    ],
)
def test_targets_beyond_what_outputs_are_cut_to_are_found(model: Cut, told: str) -> None:
    torch.manual_seed(0)

    def loss(_: int) -> Tensor:
        x = torch.randn(48, 8)
        return functional.mse_loss(model(x), (x[:, :1] + 3).clamp(1, 5))

    found = trained(model, loss, steps=30, lr=1e-2)
    assert ("target_beyond" in found) is bool(told)
    assert not told or f"are beyond what the last {told} can return" in found["target_beyond"].message


@pytest.mark.parametrize(("low", "told"), [(40.0, "the clampmin that makes the outputs returns the same for "), (-40.0, "")])
def test_outputs_that_are_nearly_all_cut_are_told_by_what_cuts_them(low: float, told: str) -> None:
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(1)

        def forward(self, x: Tensor) -> Tensor:
            return (100 * self.body(x)).clamp_min(low)  # type: ignore[no-any-return]

    model = Model()
    found = trained(model, lambda _: functional.smooth_l1_loss(model(x := torch.randn(48, 8)), low + 1 + x[:, :1].relu()), 60)
    assert ("input_unused" in found) is bool(told)
    assert not told or found["input_unused"].message.startswith(told)


@pytest.mark.parametrize("loss_fn", [functional.mse_loss, functional.smooth_l1_loss, functional.l1_loss])
@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (20_000.0, True)])
def test_targets_that_outputs_do_not_come_near_are_found(loss_fn: Loss, scale: float, is_told: bool) -> None:
    """Beside a loss that the model returns, too."""

    class Regressor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(1)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            made = self.body(x)
            return {"loss": loss_fn(made, y), "made": made}

    torch.manual_seed(0)
    model = Regressor()

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 8)
        made: dict[str, Tensor] = model(x, (x[:, :1] + 2) * scale)
        return made["loss"]

    found = trained(model, loss, steps=130)
    assert ("target_large" in found) is is_told
    assert "output_large" not in found
    assert not is_told or found["target_large"].site == "(root):output"


@pytest.mark.parametrize(("kind", "is_told"), [("all columns", True), ("one hot", False), ("one column", False), ("real", False)])
def test_classes_that_are_regressed_in_all_columns_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(1 if kind == "one column" else 5)

    def loss(_: int) -> Tensor:
        x = torch.randn(32, 8)
        label = x[:, :5].argmax(1)
        made = model(x)
        wanted = functional.one_hot(label, 5).float() if kind == "one hot" else label[:, None].float().expand_as(made)
        return functional.mse_loss(made, x[:, :5] if kind == "real" else wanted)

    assert ("class_regressed" in trained(model, loss, steps=20)) is is_told


@pytest.mark.parametrize(("kind", "is_told"), [("own", False), ("fresh", True), ("weak", False)])
def test_targets_that_nothing_explains_are_found(kind: str, is_told: bool) -> None:
    torch.manual_seed(0)
    model = mlp(2)

    def loss(_: int) -> Tensor:
        x = torch.randn(64, 8)
        noise = torch.randn(64, 2)
        return functional.mse_loss(model(x), {"own": x[:, :2], "fresh": noise, "weak": x[:, :2] + 0.5 * noise}[kind])

    found = trained(model, loss, steps=200)
    assert ("loss_stuck" in found) is is_told
    assert not is_told or "of what the targets vary" in found["loss_stuck"].message


@pytest.mark.parametrize("loss_fn", [functional.l1_loss, functional.huber_loss])
@pytest.mark.parametrize(("kind", "rule"), [("causal", ""), ("both sides", "future_seen"), ("same", "target_shifted")])
def test_series_are_read_off_absolute_errors_too(loss_fn: Loss, kind: str, rule: str) -> None:
    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv1d(1, 8, 3), nn.Conv1d(8, 1, 3)

        def forward(self, x: Tensor) -> Tensor:
            pad = (1, 1) if kind == "both sides" else (2, 0)
            made: Tensor = self.two(functional.pad(self.one(functional.pad(x, pad)).relu(), pad))
            return made

    torch.manual_seed(0)
    model = Series()

    def loss(_: int) -> Tensor:
        series = torch.randn(16, 1, 25).cumsum(2) * 0.3
        given, wanted = series[..., :-1], series[..., 1:]
        return loss_fn(model(given), given if kind == "same" else wanted)

    found = trained(model, loss, steps=30)
    assert {"future_seen", "target_shifted"} & set(found) == ({rule} if rule else set())


@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (500.0, True)])
def test_targets_of_one_of_several_outputs_that_drown_the_others_are_found(scale: float, is_told: bool) -> None:
    """Though they are reached."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kind, self.price = mlp(16), nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            held = self.body(x).relu()
            return {"price": self.price(held)[:, 0], "kind": self.kind(held)}

    torch.manual_seed(0)
    model = Two()

    def loss(_: int) -> Tensor:
        x = torch.randn(48, 8)
        made = model(x)
        return functional.mse_loss(made["price"], x[:, 0] * scale) + functional.cross_entropy(made["kind"], x[:, 1:4].argmax(1))

    found = trained(model, loss, steps=25, lr=1e-2)
    assert ("target_large" in found) is is_told
    assert not is_told or "x that at the output kind" in found["target_large"].message


def test_targets_of_zeros_and_ones_have_no_sentinel() -> None:
    """Their zeros are read off gradients with the rounding of float32."""
    torch.manual_seed(0)
    model = mlp(8, nn.Sigmoid())

    def loss(_: int) -> Tensor:
        x = (torch.rand(32, 8) < 0.4).float()
        return functional.mse_loss(model(x), x)

    assert "sentinel" not in trained(model, loss, steps=30)


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("drawn twice", "warn"), ("drawn once", None), ("of other samples", None), ("given, of a dead model", "note")],
)
def test_noise_that_is_drawn_once_more_for_its_target_is_told(kind: str, severity: str | None) -> None:
    """Beside the loss that stands, whose advice names it; a note, where what goes in holds the targets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    if "dead" in kind:
        nn.init.constant_(model[0].bias, -50.0)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(220):
            x, noise = torch.randn(256, 8).sign(), torch.randn(256, 8)
            drawn = {"drawn twice": torch.randn(256, 8), "drawn once": noise, "of other samples": 3 * x.roll(1, 0)}
            aim = drawn.get(kind, (x + noise) / 2**0.5)
            loss = functional.mse_loss(model(x + noise), aim)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss.item(), train=True)
    told = {each.rule: each for each in inspector.findings}
    assert ("target_of_another" in told) is (severity is not None)
    assert "dead" in kind or ("loss_stuck" in told) is (kind != "drawn once")
    if severity is not None:
        assert told["target_of_another"].severity == severity
        assert severity == "note" or "target_of_another" in told["loss_stuck"].advice
