"""Parameters that a training leaves as they are: found where that is a fault, and silent where it is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import sonde
from sonde.rules import Finding


class Detach(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def deep(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), *middle, nn.Tanh(), nn.Linear(4, 2))


def but(model: nn.Module, *left: str) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if not name.startswith(left)]


def found(
    model: nn.Module,
    *optimizers: Optimizer,
    steps: int = 12,
    to: Any = "memory",
    turn: Callable[[int], Sequence[int]] | None = None,
    before: Callable[[], object] = lambda: None,
    **options: Any,
) -> list[Finding]:
    """Train with the *optimizers* whose numbers *turn* returns for a step; return the findings about what is left out."""
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    with sonde.watch(model, every=1, to=to, verbose=False, **options) as inspector:
        for step in range(steps):
            for number in range(len(optimizers)) if turn is None else turn(step):
                before()
                model.zero_grad()
                model(x).square().mean().backward()
                optimizers[number].step()
    return [each for each in inspector.findings if each.rule in ("unmoved", "unreached", "frozen_raw", "constant_weight")]


def test_a_layer_of_no_optimizer_is_unmoved_from_the_first_logged_step_on() -> None:
    model = deep()
    (one,) = found(model, SGD(but(model, "2."), 0.1))
    assert (one.rule, one.site, one.severity, one.first_step) == ("unmoved", "2.weight:param", "bad", 0)
    assert one.message == "2.weight: gets a gradient, and no optimizer moves it (also 2.bias)"
    assert one.evidence == {"steps": 10.0}


def test_layers_before_a_detach_are_unreached() -> None:
    model = deep(Detach())
    (one,) = found(model, SGD(model.parameters(), 0.1))
    assert (one.rule, one.site, one.first_step) == ("unreached", "0.weight:param", 0)
    assert one.message == "0.weight: no gradient reaches it (also 2.weight, 0.bias and 1 more)"


def test_a_head_that_was_replaced_after_the_optimizer_was_made_is_unmoved() -> None:
    model = deep()
    optimizer = SGD(model.parameters(), 0.1)
    model[-1] = nn.Linear(4, 2)
    (one,) = found(model, optimizer)
    assert (one.site, one.severity) == ("4.weight:param", "bad")
    assert one.advice.startswith("the optimizer holds as many parameters that are none of the model's: where a layer was replaced")
    (other,) = found(model, SGD(but(model, "4."), 0.1))
    assert "none of the model's" not in other.advice


def test_layers_that_were_replaced_are_more_than_a_note_though_they_are_most_of_the_model() -> None:
    model = deep()
    optimizer = SGD(model.parameters(), 0.1)
    model[0], model[2] = nn.Linear(4, 4), nn.Linear(4, 4)
    assert [(each.rule, each.severity, each.site) for each in found(model, optimizer)] == [("unmoved", "bad", "0.weight:param")]


def test_a_run_on_disk_has_the_finding_too(tmp_path: Path) -> None:
    model = deep()
    (live,) = found(model, SGD(but(model, "2."), 0.1), to=tmp_path / "run")
    (recorded,) = [each for each in sonde.open_run(tmp_path / "run").findings if each.rule == "unmoved"]
    assert (recorded.site, recorded.message, recorded.severity) == (live.site, live.message, live.severity)
    assert (recorded.step, recorded.first_step, recorded.value, recorded.advice) == (0, 0, 10.0, live.advice)


@pytest.mark.parametrize(("steps", "number"), [(4, 0), (5, 1), (9, 1)])
def test_a_short_run_is_judged_at_its_end_if_it_has_five_logged_steps(steps: int, number: int) -> None:
    model = deep()
    assert len(found(model, SGD(but(model, "2."), 0.1), steps=steps)) == number


def test_a_rule_that_is_off_finds_nothing() -> None:
    model = deep()
    assert found(model, SGD(but(model, "2."), 0.1), rules={"unmoved": False}) == []


def test_frozen_layers_are_meant() -> None:
    model = deep()
    model[2].requires_grad_(False)
    assert found(model, SGD(but(model, "2."), 0.1)) == []


class Frozen(nn.Module):
    """A network whose *layers* are frozen, with a head behind them; *how* they came to be so."""

    def __init__(self, how: str, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        parts: list[nn.Module] = [nn.Linear(4, 64)]
        for _ in range(layers - 1):
            parts += [nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64)]
        self.body, self.head = nn.Sequential(*parts), nn.Linear(64 if how != "target" else 4, 2)
        if "normal" in how:
            for each in self.body:
                if isinstance(each, nn.Linear):
                    nn.init.normal_(each.weight, std=0.02)
                    nn.init.constant_(each.bias, 0.01 if how == "normal with biases" else 0.0)
        if how == "trained":
            with torch.no_grad():
                for parameter in self.body.parameters():
                    parameter.add_(3e-3 * torch.randn(parameter.shape))
        if how == "twin":
            self.learner = nn.Sequential(*[deepcopy(each) for each in parts])
        self.body.requires_grad_(False)
        if how == "between":
            self.body[3].requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.body(x)
        y: Tensor = self.head(x) + seen[:, :2] if self.how == "target" else self.head(seen)
        return y + self.learner(x)[:, :2] if self.how == "twin" else y


@pytest.mark.parametrize(
    ("how", "layers", "severity"),
    [
        ("initialised", 3, "warn"),
        ("normal", 3, "warn"),
        ("normal with biases", 4, None),
        ("trained", 4, None),
        ("initialised", 2, "note"),  # random features may be meant
        ("between", 3, "note"),
        ("twin", 4, "note"),  # a target that another part learns
        ("target", 4, "note"),  # nothing takes what it returns
    ],
)
def test_frozen_layers_that_were_never_trained_are_told_where_a_trained_one_takes_what_they_return(
    how: str, layers: int, severity: str | None
) -> None:
    model = Frozen(how, layers)
    every = [each for each in found(model, SGD(model.parameters(), lr=0.01)) if each.rule == "frozen_raw"]
    assert [each.severity for each in every] == [severity] * (severity is not None)
    assert all(each.site == f"body.{6 if how == 'between' else 0}.weight:param" for each in every)


class Body(nn.Module):
    """Layers that are frozen, with numbers of one kind, and a head that is trained."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.rnn, self.head = how, nn.GRU(4, 32, batch_first=True), nn.Linear(32, 2)
        self.body = nn.Sequential(*[each for _ in range(4) for each in (nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh())])
        self.body.requires_grad_(False)
        for weight in [each for each in self.parameters() if each.dim() > 1 and not each.requires_grad]:
            if how.startswith("normal"):
                nn.init.normal_(weight, std=0.3)
            if how == "scaled":
                weight.data.mul_(0.3)
            if how in ("trained", "normal, trained"):
                weight.data.add_(0.03 * weight.abs().mean() * torch.randn_like(weight))
        if how.startswith("normal"):
            for each in self.body:
                if isinstance(each, nn.Linear):
                    nn.init.zeros_(each.bias)
        if how == "normal, trained":
            self.body[1].weight.data.add_(0.01 * torch.randn(32))
        if how == "recurrent":
            self.rnn.requires_grad_(False).weight_hh_l0.data.mul_(0.05)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.rnn(x[:, None])[0][:, -1]
        made: Tensor = self.head(hidden if self.how == "recurrent" else self.body(hidden))
        return made


@pytest.mark.parametrize(
    ("how", "severity", "site"),
    [
        ("scaled", "warn", "body.0.weight:param"),
        ("normal", "warn", "body.0.weight:param"),
        ("trained", None, ""),
        ("normal, trained", None, ""),
        ("recurrent", "note", "rnn.weight_hh_l0:param"),
    ],
)
def test_frozen_weights_as_drawn_are_told_at_any_scale(how: str, severity: str | None, site: str) -> None:
    model = Body(how)
    if how == "recurrent":
        model.body = nn.Sequential()
    every = [each for each in found(model, SGD(but(model, "body"), lr=0.01)) if each.rule == "frozen_raw"]
    assert [(each.severity, each.site) for each in every] == [(severity, site)] * (severity is not None)


class Lookup(nn.Module):
    """Adds nothing, by way of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        looked_up: Tensor = self.table(torch.zeros(len(x), dtype=torch.long))
        return x + 0 * looked_up[:, : x.shape[1]]


def test_a_frozen_table_as_drawn_says_nothing_of_the_layers_behind_it() -> None:
    """Their weights alone look as drawn, and their biases were trained."""
    model = Frozen("normal with biases", 4)
    model.body = nn.Sequential(Lookup().requires_grad_(False), *model.body)
    assert [each for each in found(model, SGD(but(model, "body"), lr=0.01)) if each.rule == "frozen_raw"] == []


class Factors(nn.Module):
    """Ratings by the products of two tables, and a number for each line of them."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(200, 8), nn.Embedding(200, 8), nn.Embedding(200, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        at = (100 * x.abs()).long() % 200
        made: Tensor = (self.user(at) * self.item(at.flip(1))).sum(-1) + self.bias(at)[..., 0]
        return made


@pytest.mark.parametrize(("frozen", "is_told"), [(("user", "item"), True), (("item",), False)])
def test_frozen_factors_as_drawn_are_told_where_numbers_for_one_index_alone_are_trained(
    frozen: Sequence[str], is_told: bool
) -> None:
    torch.manual_seed(0)
    model = Factors(0.1)
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    told = [each for each in found(model, SGD(but(model, *frozen), lr=0.01)) if each.rule == "frozen_raw"]
    assert [(each.severity, each.places) for each in told] == [("bad", ("user.weight", "item.weight"))] * is_told


def test_of_a_head_that_alone_is_trained_a_note_says_that_the_others_get_gradients() -> None:
    """That may be meant, or the optimizer may have been given the wrong part: the gradients are formed in vain."""
    model = deep()
    (one,) = found(model, SGD(model[-1].parameters(), 0.1))
    assert (one.rule, one.severity, one.site) == ("unmoved", "note", "0.weight:param")
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    assert found(model, SGD(model[-1].parameters(), 0.1)) == []


class Around(nn.Module):
    """A layer beside which its input goes on, too, or alone."""

    def __init__(self, layer: nn.Module, *, is_residual: bool) -> None:
        super().__init__()
        self.layer, self.is_residual = layer, is_residual

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made + x if self.is_residual else made


@pytest.mark.parametrize("is_residual", [False, True])
def test_a_frozen_weight_of_zeros_is_told_where_no_gradient_comes_by(is_residual: bool) -> None:
    layer = nn.Linear(4, 4)
    nn.init.zeros_(layer.weight).requires_grad_(False)
    model = deep(Around(layer, is_residual=is_residual))
    every = found(model, SGD([each for each in model.parameters() if each.requires_grad], 0.1))
    told = [(each.site, each.severity, each.message) for each in every if each.rule == "constant_weight"]
    why = "3.layer.weight: is frozen, and zero throughout: no gradient goes through it"
    assert told == ([] if is_residual else [("3.layer.weight:param", "bad", why)])


class LowRank(nn.Module):
    """A frozen layer with a path of low rank beside it, whose second weight begins at zero, as usual."""

    def __init__(self, layer: nn.Linear, trained: str) -> None:
        super().__init__()
        self.layer, size = layer.requires_grad_(False), layer.in_features
        self.down, self.up = nn.Parameter(torch.randn(2, size)), nn.Parameter(torch.zeros(layer.out_features, 2))
        for name, each in (("down", self.down), ("up", self.up)):
            each.requires_grad_(name in trained)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return made


@pytest.mark.parametrize("trained", ["down", "up", "down, up"])
def test_an_adapter_of_which_the_part_that_is_zero_is_frozen_is_told(trained: str) -> None:
    model = nn.Sequential(*(LowRank(nn.Linear(4, 4), trained) for _ in range(2)), nn.Linear(4, 2).requires_grad_(False))
    every = found(model, SGD([each for each in model.parameters() if each.requires_grad], 0.1))
    told = {each.rule: each.message for each in every if each.rule in ("constant_weight", "gradient_zero")}
    why = "0.up: is frozen, and zero throughout: no gradient goes through it (also 1.up)"
    assert told.get("constant_weight") == (why if trained == "down" else None)


class Tables(nn.Module):
    """A classifier of categories, each with a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables, self.head = nn.ModuleList([nn.Embedding(64, 8) for _ in range(4)]), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(
            torch.cat([table(column.abs().mul(9).long()) for table, column in zip(self.tables, x.T, strict=True)], 1)
        )
        return out


@pytest.mark.parametrize(("trained", "severity"), [(False, "bad"), (True, "note")])
def test_tables_that_nothing_moves_are_more_than_a_note_where_they_were_never_trained(trained: bool, severity: str) -> None:
    model = Tables()
    with torch.no_grad():
        for table in model.tables if trained else ():
            table.weight.add_(torch.rand(8))  # as training leaves them, with features of their own
    every = found(model, SGD(model.head.parameters(), 0.1))
    assert [(each.rule, each.severity) for each in every] == [("unmoved", severity)]


def test_a_second_optimizer_may_step_rarely() -> None:
    model = deep()
    optimizers = SGD(but(model, "2."), 0.1), SGD(model[2].parameters(), 0.1)
    assert found(model, *optimizers, turn=lambda step: (0, 1) if step % 7 == 6 else (0,), steps=14) == []


def test_a_layer_that_the_loop_changes_itself_is_moved() -> None:
    model = deep()

    def change() -> None:
        with torch.no_grad():
            model[2].weight.mul_(0.99)
            model[2].bias.mul_(0.99)

    assert found(model, SGD(but(model, "2."), 0.1), before=change) == []


def test_a_teacher_without_gradients_that_no_optimizer_holds_is_meant() -> None:
    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                aim = self.teacher(x)
            made: Tensor = self.student(x)
            return made - aim

    model = Taught()
    assert found(model, SGD(model.student.parameters(), 0.1)) == []


def test_a_layer_that_never_runs_is_a_note() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.used = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.used(x)
            return made

    model = Spare()
    assert [(each.rule, each.severity) for each in found(model, SGD(model.parameters(), 0.1))] == [("unreached", "note")]


class Heads(nn.Module):
    """Returns two outputs, and holds parts that it does not call; *how* says which of this is a fault."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.body, self.kind = how, nn.Linear(4, 8), nn.Linear(8, 3)
        self.pooler = self.size = nn.Linear(8, 1)
        if how == "pooled":
            del self.size
        else:
            del self.pooler
        if how == "forgotten":
            self.place = nn.Embedding(5, 8)
        if how in ("table", "row"):
            self.positions = nn.Parameter(torch.randn(1, 5 if how == "table" else 1, 8))
        if how == "exits":
            self.exits = nn.ModuleList(nn.Linear(8, 2 + each) for each in range(2))
        if how == "like":
            self.other = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x).relu()
        return {"kind": self.kind(hidden), "size": (self.pooler if self.how == "pooled" else self.size)(hidden).squeeze(-1)}


@pytest.mark.parametrize(
    ("how", "severity", "site", "advice"),
    [
        ("returned", "warn", "size.weight:param", "no loss takes it"),
        ("forgotten", "warn", "place.weight:param", "never calls it"),
        ("table", "warn", "positions:param", "nothing that this parameter takes part in"),
        ("row", "note", "positions:param", ""),
        ("pooled", "note", "pooler.weight:param", ""),
        ("exits", "note", "exits.0.weight:param", ""),
        ("like", "note", "other.weight:param", ""),
        ("both", None, "", ""),
    ],
)
def test_an_output_that_no_loss_takes_and_a_part_that_is_never_called_are_warnings(
    how: str, severity: str | None, site: str, advice: str
) -> None:
    torch.manual_seed(0)
    model = Heads(how)
    optimizer = SGD(model.parameters(), 0.1)
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(12):
            made = model(torch.randn(16, 4))
            loss = made["kind"].square().mean() + (0 if how in ("returned", "pooled") else made["size"].square().mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    every = [each for each in inspector.findings if each.rule == "unreached"]
    assert [(each.severity, each.site) for each in every] == [(severity, site)] * (severity is not None)
    assert all(advice in each.advice for each in every)


class Skips(nn.Module):
    """Reads a token that was put before places; *how* says whether it has been through the body."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.into, self.token = how, nn.Linear(4, 16), nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cat([self.token.expand(len(x), -1, -1), self.into(x)], 1)
        made = hidden if self.how == "not called" else self.body(hidden)
        out: Tensor = self.head((made if self.how == "used" else hidden)[:, 0])
        return out


@pytest.mark.parametrize(
    ("how", "advice"),
    [("called", "the model calls this part"), ("not called", "the model holds this part"), ("used", "")],
)
def test_a_part_that_is_not_used_explains_outputs_that_are_all_alike(how: str, advice: str) -> None:
    torch.manual_seed(0)
    model = Skips(how)
    optimizer = SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(60):
            x = torch.randn(16, 5, 4)
            loss = nn.functional.cross_entropy(model(x), x.mean((1, 2)).sign().long() + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            inspector.push_loss(loss, train=True)
    told = [each for each in inspector.findings if each.severity != "note"]
    assert bool(told) is (how != "used")
    if told:
        assert told[0].rule == "unreached"
        assert told[0].advice.startswith(advice)
        assert ("input_unused", "unreached") in [(each.rule, each.follows) for each in told]


def test_a_loop_that_says_its_steps_itself_has_no_such_findings() -> None:
    model = deep()
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(12):
            model(torch.ones(2, 4)).sum().backward()
            inspector.step()
    assert not {"unmoved", "unreached"} & {each.rule for each in inspector.findings}


@pytest.mark.parametrize("is_held", [False, True])
def test_a_layer_that_is_unfrozen_later_is_unmoved_unless_an_optimizer_holds_it(is_held: bool) -> None:
    model = deep()
    model[2].requires_grad_(False)
    steps = iter(range(100))

    def before() -> None:
        model[2].requires_grad_(next(steps) >= 20)

    optimizer = SGD(model.parameters() if is_held else but(model, "2."), 0.1)
    of = [(each.rule, each.site, each.severity, each.first_step) for each in found(model, optimizer, steps=40, before=before)]
    assert of == ([] if is_held else [("unmoved", "2.weight:param", "bad", 20)])


class Adapted(nn.Module):
    """A frozen layer, and a trained path of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.into, self.out = (nn.Parameter(torch.randn(shape)) for shape in ((2, 4), (4, 2)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + x @ self.into.T @ self.out.T
        return y


def test_adapters_of_no_optimizer_are_unmoved_though_they_are_most_of_what_is_trained() -> None:
    """What is frozen shows that the rest is meant to be trained; where nothing is, a head that is trained alone may be meant."""
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(), nn.Tanh(), Adapted(), nn.Tanh(), nn.Linear(4, 2))
    assert [each.severity for each in found(model, SGD(model[4].parameters(), 0.1)) if each.rule == "unmoved"] == ["bad"]
    model = deep(nn.Linear(4, 4))
    assert [each.severity for each in found(model, SGD(model[-1].parameters(), 0.1)) if each.rule == "unmoved"] == ["note"]


@pytest.mark.parametrize(("place", "was_trained", "severity"), [(2, True, "note"), (2, False, "warn"), (0, True, "bad")])
def test_a_probe_of_one_hidden_layer_is_a_note_where_that_was_trained(place: int, was_trained: bool, severity: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2))
    if was_trained:
        found(model, torch.optim.Adam(model.parameters(), 1e-2))
    assert [(each.rule, each.severity) for each in found(model, SGD(model[place].parameters(), 0.01))] == [("unmoved", severity)]


@pytest.mark.parametrize(
    ("first", "was_trained", "severity"),
    [(True, False, "bad"), (True, True, "note"), (False, True, "note"), (False, False, "warn")],
)
def test_an_optimizer_of_one_layer_leaves_others_that_were_never_trained(first: bool, was_trained: bool, severity: str) -> None:
    """It is meant where a head, or what goes in, is fitted to layers that have been trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def steps(optimizer: torch.optim.Optimizer, count: int) -> Iterator[Tensor]:
        for _ in range(count):
            x = torch.randn(64, 8)
            loss = (model(x) - x[:, :1] * x[:, 1:2]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss

    if was_trained:
        list(steps(torch.optim.Adam(model.parameters(), 1e-2), 100))
    optimizer = torch.optim.Adam(model[0 if first else 4].parameters(), 1e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for loss in steps(optimizer, 14):
            inspector.push_loss(loss, train=True)
    assert [each.severity for each in inspector.findings if each.rule == "unmoved"] == [severity]


@pytest.mark.parametrize(("learns", "severity"), [(False, "warn"), (True, "note")])
def test_few_random_layers_are_a_warning_where_the_loss_stands(learns: bool, severity: str) -> None:
    """Random features that are meant may be so few; a frozen table before them is named with them, whatever its deviation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(60, 16), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    model[0] = nn.Embedding.from_pretrained((1.0 if learns else 1e-3) * torch.randn(60, 16))
    model[2].requires_grad_(False)
    optimizer = torch.optim.Adam(model[4].parameters(), lr=0.03 if learns else 1e-3)
    with sonde.watch(model, optimizer, every=1, to="memory", verbose=False) as inspector:
        for _ in range(200):
            tokens = torch.randint(60, (32, 1)).expand(-1, 4)
            loss = nn.functional.cross_entropy(model(tokens), (tokens[:, 0] > 29).long())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            inspector.push_loss(loss, train=True)
    (raw,) = [each for each in inspector.findings if each.rule == "frozen_raw"]
    assert (raw.severity, raw.places) == (severity, ("2.weight", "0.weight"))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("training", "1: frozen, and in training mode: its statistics move"),
        ("no_grad", "1: frozen, and in training mode: its statistics move"),
        ("dropout", "1: frozen, and in training mode: it drops 50 %"),
        ("eval", ""),
        ("an average", ""),
        ("trained", ""),
    ],
)
def test_what_is_frozen_and_works_as_in_training_is_told(how: str, told: str) -> None:
    """Not what is an average of others, which such a network may well be in training mode."""
    torch.manual_seed(0)
    acting = nn.Dropout(0.5) if how == "dropout" else nn.BatchNorm1d(32)
    backbone, head = nn.Sequential(nn.Linear(4, 32), acting, nn.ReLU()), nn.Linear(32, 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rest, self.head = backbone, head

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(how != "no_grad"):
                made = self.rest(x)
            found: Tensor = self.head(made)
            return found

    model = Model()
    backbone.requires_grad_(how in ("trained", "no_grad"))
    optimizer = SGD(model.parameters() if how == "trained" else head.parameters(), 0.01)
    with sonde.watch(model, every=1, to="memory", verbose=False) as inspector:
        for _ in range(14):
            if how == "eval":
                backbone.eval()
            loss = model(torch.randn(16, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if how == "an average":
                with torch.no_grad():
                    for each in backbone.parameters():
                        each.mul_(0.99)
    messages = [each.message for each in inspector.findings if each.rule == "norm_setting"]
    assert [each.replace("rest.", "") for each in messages] == ([told] if told else [])
