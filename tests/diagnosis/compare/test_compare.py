"""Two sides are aligned and compared; healthy pairs do not part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diagnosis.compare.networks import cnn, gpt, images, tokens
from torch import Tensor, nn

import sonde
from sonde.cli import main
from sonde.diagnosis.compare.names import Names
from sonde.errors import ArgumentError, ModelError, StoreError
from sonde.testing import ZOO, assert_same


def doubled(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def halved(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).bfloat16()


PAIRS: dict[str, Any] = {
    "the same model": (gpt, copy.deepcopy, tokens),
    "float64": (gpt, doubled, tokens),
    "float64, convolutions": (cnn, doubled, images),
    "bfloat16": (gpt, halved, tokens),
    "dropout on both sides, from one random state": (lambda: gpt().train(), copy.deepcopy, tokens),
    "batch statistics": (lambda: cnn().train(), doubled, images),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_healthy_pairs_do_not_part(pair: Any) -> None:
    make, change, batch = pair
    a = make()
    found = sonde.compare(a, change(a), batch())
    assert found.ok, found
    assert found.cause is None
    assert {place.stage for place in found.places} - {"update"} == {"forward", "backward"}
    assert all(".running_" in place.site.path for place in found.places if place.stage == "update")


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("lazy", "meta_device")])
def test_no_model_of_the_zoo_parts_from_itself_or_from_its_wider_type(name: str) -> None:
    entry = ZOO[name]
    args, kwargs = entry.batch()
    if args and kwargs:
        pytest.skip("both positional and keyword arguments")
    model = entry.build()
    assert sonde.compare(model, model, args or kwargs, backward=name != "nested_strided").ok  # torch has no loss for it
    if name not in ("returns_scalar", "ignores_input") and not name.startswith("nested"):  # these make tensors in float32
        assert sonde.compare(model, doubled(model), args or kwargs).ok


def test_a_coarser_type_is_named_where_it_makes_no_difference_beyond_its_rounding() -> None:
    found = sonde.compare(gpt(), halved(gpt()), tokens())
    assert [hint.message.split(" from ")[0] for hint in found.hints if hint.rule == "dtype"] == ["float32 in a, bfloat16 in b"]


def test_numbers_of_a_place_are_those_of_plain_torch() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    batch = torch.randn(5, 3)
    place = sonde.compare(a, b, batch, backward=False)["(root):output"][0]
    x, y = a(batch).detach().double(), b(batch).detach().double()
    assert place.relative == pytest.approx(float((x - y).norm() / max(x.norm(), y.norm())))
    assert place.cosine == pytest.approx(float(nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0)))
    assert place.largest == pytest.approx(float((x - y).abs().max()))


def renamed() -> nn.Module:
    """The convolutional network with other names."""
    model = nn.Sequential()
    names = ("stem", "norm", "act", "conv", "norm2", "act2", "pool", "flat", "head")
    for name, layer in zip(names, cnn(), strict=True):
        model.add_module(name, layer)
    return model.eval()


def test_other_names_are_matched_by_order_and_shape_with_a_notice() -> None:
    found = sonde.compare(cnn(), renamed(), images())
    assert found.ok
    assert (found.match["0"], found.match["4"], found.match["8"]) == ("stem", "norm2", "head")
    assert "match=" in found.notes[0]
    assert found.only_a == found.only_b == ()


def test_patterns_rename_what_they_stand_for() -> None:
    names = Names(
        {"layers.*.mlp": "blocks.*.ff", "layers.*": "blocks.*", "*": "model.*"}, [], ["blocks.1.ff", "blocks.1", "model.out"]
    )
    assert [names.of_b(name) for name in ("layers.1.mlp", "layers.1", "out", "other")] == [
        "blocks.1.ff",
        "blocks.1",
        "model.out",
        None,
    ]


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ({"8": "nothing"}, "'nothing' fits no module or parameter of b"),
        ({"0.*": "stem"}, "0.*' has 1 times \\*"),
        ("0", "give a dict"),
    ],
)
def test_a_pattern_that_cannot_be_used_says_why(match: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        sonde.compare(cnn(), renamed(), images(), match=match)


def kept(model: nn.Module, path: Path) -> Path:
    """The folder in which the tensors of one pass are kept."""
    with sonde.track(model) as tracker:
        model(tokens()).square().mean().backward()
    return tracker.save(path)


def test_saved_sides_are_compared_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, same, other = gpt(), gpt(), gpt()
    other.blocks[1].norm2.eps = 0.1
    one, two, three = (str(kept(model, tmp_path / name)) for model, name in ((a, "a"), (same, "b"), (other, "c")))
    assert sonde.compare(one, two).ok
    assert str(sonde.compare(one, sonde.open_tensors(three)).culprit.site) == "blocks.1.norm2:output"  # type: ignore[union-attr]
    assert main(["compare", one, two]) == 0
    page = tmp_path / "page.html"
    assert main(["compare", one, three, "--html", str(page)]) == 1
    assert "parts here" in capsys.readouterr().out
    assert "blocks.1.norm2:output" in page.read_text()


@pytest.mark.parametrize("layer", [0, 2])
def test_a_saved_weight_that_differs_is_stated_if_the_input_of_its_layer_is_saved_and_else_a_hint(
    layer: int, tmp_path: Path
) -> None:
    """The output of the module before is the input of the second linear layer; that of the first is the batch."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8))
    b = copy.deepcopy(a)
    b[layer].weight.data *= 1.02
    x = torch.randn(5, 6)
    for ports in (("output",), ("input", "output")):
        for name, model in (("a", a), ("b", b)):
            with sonde.track(model, ports=ports) as tracker:
                model(x).sum().backward()
            tracker.save(tmp_path / "-".join((*ports, name)), parameters=True)
        found = sonde.compare(*(tmp_path / "-".join((*ports, name)) for name in "ab"))
        words = f"b's {layer}.weight equals a's {layer}.weight times 1.02"
        if layer or "input" in ports:
            assert [(cause.rule, cause.message) for cause in found.causes] == [("weight_scaled", words)]
            assert found.hints == ()
        else:
            assert found.causes == ()
            (hint,) = found.hints
            assert hint.message.startswith(f"{words}; ")
            assert 'save inputs too: sonde.track(model, ports=("input", ' in hint.message


class Patches(nn.Module):
    """Patches of an image with positions: by a convolution, or of the same parameters by a linear layer of each patch."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4) if side == "a" else nn.Linear(48, 16)
        self.positions = nn.Parameter(torch.randn(16, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.patch, nn.Conv2d):
            h = self.patch(x).flatten(2).mT
        else:
            h = self.patch(nn.functional.unfold(x, 4, stride=4).mT)
        made: Tensor = self.head(h + self.positions)
        return made


def patches() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    a, b = Patches("a"), Patches("b")
    b.load_state_dict({name: held.flatten(1) if name == "patch.weight" else held for name, held in a.state_dict().items()})
    return a, b


@pytest.mark.parametrize("count", [1, 3])
def test_equal_tensors_whose_axes_have_another_order_and_are_joined_do_not_part(count: int) -> None:
    """16 features of 4 x 4 positions are (16, 4, 4) in one side and (16, 16) in the other."""
    a, b = patches()
    x = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for one, other, named in ((a, b, "a"), (b, a, "b")):
        found = sonde.compare(one, other, x)
        assert found.ok, found
        order = "0, (2, 3), 1" if count > 1 else "(2, 3), 1"
        assert found["patch:output"][0].remark == f"another layout, axes of {named} in the order {order}"
        assert "agrees in another layout" in str(found)


def test_values_that_are_not_those_of_another_layout_part() -> None:
    a, b = patches()
    b.patch.bias.data[3] += 1  # type: ignore[union-attr, operator]  # a linear layer
    found = sonde.compare(a, b, torch.randn(3, 3, 16, 16))
    assert found.culprit is not None
    assert str(found.culprit.site) == "patch:output"
    assert found.culprit.remark == "shape 3×16×4×4 in a, 3×16×16 in b; nearest with axes of a in the order 0, (2, 3), 1"


class Heads(nn.Module):
    """Queries and keys of as many heads as positions, normalised before or behind the exchange of both axes."""

    def __init__(self, *, early: bool, turns: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(2)
        self._early, self._turns = early, turns

    def forward(self, x: Tensor) -> Tensor:
        q, k = (layer(x).unflatten(-1, (4, 2)) for layer in (self.q, self.k))
        q, k = (self.norm(h.transpose(1, 2)) if self._early else self.norm(h).transpose(1, 2) for h in (q, k))
        q = q if self._turns else q.transpose(1, 2)
        made: Tensor = self.out((q @ k.mT).softmax(-1).transpose(1, 2).flatten(2)[..., :8])
        return made


def test_axes_of_one_length_in_another_order_do_not_part_if_all_behind_agrees() -> None:
    torch.manual_seed(0)
    a, b, wrong = Heads(early=True), Heads(early=False), Heads(early=False, turns=False)
    b.load_state_dict(a.state_dict())
    wrong.load_state_dict(a.state_dict())
    x = torch.randn(3, 4, 8)
    found = sonde.compare(a, b, x)
    assert found.ok, found
    assert {place.remark for place in found["norm:output"]} == {"another layout, axes of b in the order 0, 2, 1, 3"}
    assert not sonde.compare(a, wrong, x).ok


class Raising(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                raise ValueError("no further")
        return x


def test_a_side_that_raises_is_compared_up_to_there() -> None:
    layers = cnn()
    found = sonde.compare(layers, Raising(*layers).eval(), images())
    assert found.culprit is None
    assert not found.ok
    assert found.errors == ("b raised in the forward, and was compared up to there: ValueError: no further",)
    assert str(found.places[-1].site) == "2:output"
    assert found[-1] is found.places[-1]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda m: sonde.compare(m, m), ArgumentError, "on a batch"),
        (lambda m: sonde.compare(m, "folder"), ArgumentError, "models are compared on a batch"),
        (lambda m: sonde.compare("here", "there"), StoreError, "is not a folder of tensors"),
        (lambda m: sonde.compare(m, m, images(), noise=-1.0), ArgumentError, "noise=-1.0"),
        (lambda m: sonde.compare(m, m, images(), optimizer=3), ArgumentError, "optimizer=3"),
        (lambda m: sonde.compare(m, m, images(), loss_fn=nn.CrossEntropyLoss()), ArgumentError, "output alone"),
        (lambda m: sonde.compare(m, m, images(), loss_fn=lambda y: y), ArgumentError, "one element"),
        (lambda m: sonde.compare(m, type(m), images()), (ArgumentError, ModelError), "model"),
    ],
)
def test_an_argument_that_cannot_be_used_says_why(call: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        call(cnn())


def test_updates_are_compared() -> None:
    a, b = cnn(), cnn()
    found = sonde.compare(
        a, b, images(), optimizer=(torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.2))
    )
    assert found.culprit is not None
    assert found.cause is not None
    assert (found.culprit.stage, found.cause.message) == ("update", "lr is 0.1 in the optimizer of a and 0.2 in that of b")
    assert found.cause.evidence == {"lr_a": 0.1, "lr_b": 0.2}


class Pooled(nn.Module):
    """Returns several tensors, of which the last is *pooled*, in a structure of its own."""

    def __init__(self, made: Callable[[Tensor, Tensor, Tensor], Any], pooled: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.pool = nn.Linear(8, 8), nn.Linear(8, 8)
        self.made, self.pooled = made, pooled

    def forward(self, x: Tensor) -> Any:
        hidden = self.fc(x)
        return self.made(hidden, hidden.exp(), self.pooled(self.pool(hidden)))


def mapping(hidden: Tensor, other: Tensor, pooled: Tensor) -> dict[str, Tensor]:
    return {"hidden": hidden, "other": other, "pooled": pooled}


def test_outputs_of_another_structure_are_compared_each_with_the_nearest() -> None:
    """Before, all but the first were left out without a word."""
    batch = torch.randn(4, 8)
    assert sonde.compare(Pooled(mapping), Pooled(lambda *each: (each[0], each[2], each[1])), batch).ok
    found = sonde.compare(Pooled(mapping), Pooled(lambda *each: (each[0], each[2], each[1]), torch.sin), batch)
    assert found.culprit is not None
    assert (str(found.culprit.site), found.culprit.leaf) == ("(root):output", "['pooled']")


def test_outputs_that_the_other_side_does_not_return_are_named() -> None:
    found = sonde.compare(Pooled(mapping), Pooled(lambda *each: (each[0], each[2][:, :3])), torch.randn(4, 8))
    assert found.notes == (
        "not compared, since the other side returns no such: ['other'], ['pooled'] of a",
        "not compared, since the other side returns no such: [1] of b",
    )


def test_assert_same_raises_with_the_ladder() -> None:
    a, b = cnn(), cnn()
    assert_same(a, b, images())
    b[0].bias.data += 1
    with pytest.raises(AssertionError, match=r"(?s)models are not the same.*0:output"):
        assert_same(a, b, images())


@pytest.mark.slow
def test_compiled_code_is_compared_with_eager_code() -> None:
    a = cnn()
    found = sonde.compare(a, torch.compile(cnn()), images())
    assert found.ok
    assert found.notes == ("b: ran compiled",)
    changed = cnn()
    changed[1].eps = 1e-3
    assert str(sonde.compare(a, torch.compile(changed), images()).culprit.site) == "1:output"  # type: ignore[union-attr]
