"""What is stored is what hooks by hand see, row for row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.torch_words import words_of
from torch import Tensor, nn

import sonde
from sonde.errors import ArgumentError, ObservationWarning, SelectionError


class Block(nn.Module):
    """Returns what language models return: a tuple with a tensor and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(6, 6)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        return hidden + self.mlp(hidden).tanh(), None


class Text(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(6, 20)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden, _ = layer(hidden, mask=attention_mask)
        return {"logits": self.head(hidden)}


def text() -> Text:
    torch.manual_seed(0)
    return Text().eval()


def ragged(count: int = 6) -> list[dict[str, Tensor]]:
    """Batches of texts of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for number in range(count):
        lengths = torch.randint(2, 6 + number, (4,), generator=generator)
        longest = int(lengths.max())
        mask = (torch.arange(longest) < lengths[:, None]).long()
        ids = torch.randint(1, 20, (4, longest), generator=generator) * mask
        batches.append({"ids": ids, "attention_mask": mask})
    return batches


def by_hand(model: nn.Module, batches: list[Any], *names: str) -> dict[str, list[Any]]:
    """The outputs of modules, by plain hooks."""
    seen: dict[str, list[Any]] = {name: [] for name in names}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: seen[name].append((output[0] if isinstance(output, tuple) else output).clone())
        )
        for name in names
    ]
    with torch.no_grad():
        for batch in batches:
            model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
    for handle in handles:
        handle.remove()
    return seen


def held(store: Any, column: str) -> Tensor:
    return torch.as_tensor(store[column][:])


def test_a_row_is_an_item(tmp_path: Path) -> None:
    """Inputs and outputs, of batches of different sizes, over several shards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 5)).eval()
    batches = [torch.randn(size, 1, 8, 8) for size in (4, 4, 1, 4, 3)]
    store = sonde.extract(model, batches, ["0", "3"], tmp_path / "t", ports=("input", "output"), shard=5_000)
    seen = by_hand(model, batches, "0", "3")
    assert torch.equal(held(store, "0:output"), torch.cat(seen["0"]))
    assert torch.equal(held(store, "3:output"), torch.cat(seen["3"]))
    assert torch.equal(held(store, "0:input[0]"), torch.cat(batches))
    assert torch.equal(held(store, "item"), torch.arange(16))
    assert store.complete
    assert len(list((tmp_path / "t").glob("*.safetensors"))) > 1


def flat(tensors: list[Tensor], masks: list[Tensor]) -> Tensor:
    return torch.cat([tensor[mask] for tensor, mask in zip(tensors, masks, strict=True)])


def last(mask: Tensor) -> Tensor:
    places = torch.arange(mask.shape[1]) == mask.sum(1, keepdim=True) - 1
    return places & mask.bool()


CHOICES: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "key": ("attention_mask", Tensor.bool),
    "all": ("all", Tensor.bool),
    "last": ("last", last),
    "slice": (slice(0, 2), lambda mask: mask.bool() & (mask.cumsum(1) <= 2)),
    "text": ("-2:", lambda mask: mask.bool() & (mask.flip(1).cumsum(1).flip(1) <= 2)),
    "function": (lambda batch: batch["ids"] > 9, lambda mask: mask),
    "indices": (torch.tensor([0, -1]), lambda mask: mask),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_row_is_a_position(tmp_path: Path, choice: str) -> None:
    """Of ragged sequences, chosen in each way, with columns of positions and of items beside."""
    model, batches = text(), ragged()
    positions, of_mask = CHOICES[choice]
    masks = [of_mask(batch["attention_mask"]) for batch in batches]
    if choice == "function":
        masks = [batch["ids"] > 9 for batch in batches]
    if choice == "indices":
        masks = [
            torch.zeros_like(batch["ids"]).index_fill_(1, torch.tensor([0, batch["ids"].shape[1] - 1]), 1).bool()
            for batch in batches
        ]
    columns: dict[str, Any] = {"ids": lambda batch: batch["ids"], "length": lambda batch: batch["attention_mask"].sum(1)}
    store = sonde.extract(
        model, batches, r"^layers\.[02]$|embed", tmp_path / "t", positions=positions, columns=columns, shard=1_000
    )
    seen = by_hand(model, batches, "layers.0", "layers.2", "embed")
    assert torch.equal(held(store, "layers.0:output[0]"), flat(seen["layers.0"], masks))
    assert torch.equal(held(store, "layers.2:output[0]"), flat(seen["layers.2"], masks))
    assert torch.equal(held(store, "embed:output"), flat(seen["embed"], masks))
    assert torch.equal(held(store, "ids"), flat([batch["ids"] for batch in batches], masks))
    at = torch.cat([mask.nonzero() + torch.tensor([4 * number, 0]) for number, mask in enumerate(masks)])
    assert torch.equal(held(store, "item"), at[:, 0])
    assert torch.equal(held(store, "position"), at[:, 1])
    assert torch.equal(held(store, "length"), torch.cat([batch["attention_mask"].sum(1) for batch in batches])[at[:, 0]])


def test_several_models_side_by_side(tmp_path: Path) -> None:
    """One permutation; the sites have the models' names, and keys that a model does not take are not passed."""
    torch.manual_seed(0)
    models = {"one": text(), "two": text()}
    batches = [batch | {"weight": torch.rand(4)} for batch in ragged()]
    given = [{"ids": batch["ids"]} for batch in batches]
    store = sonde.extract(models, batches, "head", tmp_path / "t", positions="all", columns=("weight",))
    masks = [batch["attention_mask"].bool() for batch in batches]
    for name, model in models.items():
        assert torch.equal(held(store, f"{name}/head:output"), flat(by_hand(model, given, "head")["head"], masks))
    assert torch.equal(held(store, "weight"), torch.cat([batch["weight"] for batch in batches])[held(store, "item")])


def test_models_that_share_modules(tmp_path: Path) -> None:
    """A site has what came in the forward of its own model."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    models = {"whole": nn.Sequential(nn.Tanh(), inner).eval(), "part": inner.eval(), "again": inner}
    batches = [torch.randn(4, 3) for _ in range(6)]
    store = sonde.extract(models, batches, nn.Linear, tmp_path / "t")
    assert [column for column in store if ":" in column] == [
        *("whole/1.0:output", "whole/1.1:output", "part/0:output", "part/1:output", "again/0:output", "again/1:output")
    ]
    for name, site in (("whole", "1.0"), ("part", "0"), ("again", "1")):
        seen = by_hand(models[name], batches, site)[site]
        assert torch.equal(held(store, f"{name}/{site}:output"), torch.cat(seen))


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


@pytest.mark.parametrize("kind", ["tuple", "list", "named", "generator", "loader"])
def test_batches_of_every_kind(tmp_path: Path, kind: str) -> None:
    """Labels go into a column where a function passes the rest to the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2)).eval()
    x, y = torch.randn(12, 3), torch.arange(12)
    pairs: Any = list(zip(x.split(4), y.split(4), strict=True))
    if kind == "list":
        pairs = [list(pair) for pair in pairs]
    elif kind == "named":
        pairs = [Pair(*pair) for pair in pairs]
    elif kind == "generator":
        pairs = (pair for pair in pairs)
    elif kind == "loader":
        pairs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    store = sonde.extract(
        model, pairs, "0", tmp_path / "t", columns={"label": lambda batch: batch[1]}, call=lambda model, batch: model(batch[0])
    )
    assert torch.equal(held(store, "0:output"), model(x).detach())
    assert torch.equal(held(store, "label"), y)


class Loop(nn.Module):
    """Calls one layer three times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.cell(x).tanh()
        return x


def test_each_call_has_a_column(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batches = Loop().eval(), [torch.randn(4, 3) for _ in range(5)]
    store = sonde.extract(model, batches, "cell", tmp_path / "t")
    seen = by_hand(model, batches, "cell")["cell"]
    for call, column in enumerate(["cell:output", "cell:output@1", "cell:output@2"]):
        assert torch.equal(held(store, column), torch.cat(seen[call::3]))


def test_forms(tmp_path: Path) -> None:
    """A cast, functions by site, the largest values, and whole numbers with a scale, whose error is measured."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 7)).eval()
    batches = [torch.randn(8, 5) for _ in range(6)]
    seen = {name: torch.cat(tensors) for name, tensors in by_hand(model, batches, "0", "1").items()}
    cast = sonde.extract(model, batches, ["0", "1"], tmp_path / "cast", dtype=torch.bfloat16)
    assert torch.equal(held(cast, "0:output"), seen["0"].bfloat16())
    split = sonde.extract(
        model, batches, ["0", "1"], tmp_path / "split", transform={"^0:": lambda rows: {"mean": rows.mean(1), "top": rows.topk(2)}}
    )
    assert torch.equal(held(split, "0:output['mean']"), seen["0"].mean(1))
    assert torch.equal(held(split, "0:output['top'].indices"), seen["0"].topk(2).indices)
    assert torch.equal(held(split, "1:output"), seen["1"])
    small = sonde.extract(model, batches, ["0", "1"], tmp_path / "small", dtype="int8", shard=500)
    whole = held(small, "0:output")
    assert whole.dtype == torch.int8
    restored = whole * held(small, "0:output.scale")[:, None]
    lost = small.about["lost"]["0:output"]
    assert lost["max_error"] == pytest.approx(float((restored - seen["0"]).abs().max()), rel=1e-5)
    assert lost["relative_rms"] == pytest.approx(float((restored - seen["0"]).norm() / seen["0"].norm()), rel=1e-5)
    assert lost["relative_rms"] < 0.01
    top = sonde.extract(model, batches, ["0"], tmp_path / "top", transform="top-4")
    dense = torch.zeros(48, 16).scatter_(1, held(top, "0:output.indices").long(), held(top, "0:output.values"))
    assert torch.equal(dense != 0, seen["0"].abs() >= seen["0"].abs().topk(4).values[:, -1:])
    assert top.about["lost"]["0:output"]["relative_rms"] == pytest.approx(
        float((dense - seen["0"]).norm() / seen["0"].norm()), rel=1e-5
    )


def test_int8_of_rows_without_numbers(tmp_path: Path) -> None:
    """A row with NaN or infinity reads back as NaN, a row of zeros as zeros, and neither counts in the error."""
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    rows[1, 2], rows[3, 0], rows[4] = torch.nan, torch.inf, 0
    store = sonde.extract(nn.Sequential(nn.Identity()).eval(), [rows], "0", tmp_path / "t", dtype="int8")
    restored = held(store, "0:output") * held(store, "0:output.scale")[:, None]
    assert restored.isnan().all(1).tolist() == [False, True, False, True, False, False]
    assert not restored[4].any()
    assert store.about["lost"]["0:output"]["non_finite"] == 8
    assert store.about["lost"]["0:output"]["max_error"] < 0.02


@pytest.mark.parametrize("name", ["GPT2", "Bert"])
def test_transformers(tmp_path: Path, name: str) -> None:
    """Real models, without the ends of their forwards, equal a whole forward with hidden states."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"vocab_size": 30, "num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16}
    if name == "GPT2":
        small = {"vocab_size": 30, "n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 32}
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**small)).eval()
    batches = [{"input_ids": batch["ids"], "attention_mask": batch["attention_mask"]} for batch in ragged(7)]
    layer = "h.1" if name == "GPT2" else "encoder.layer.1"
    store = sonde.extract(model, batches, [layer], tmp_path / "t", positions="attention_mask", columns=["input_ids"], shard=1_000)
    with torch.no_grad():
        wanted = [model(**batch, output_hidden_states=True).hidden_states[2] for batch in batches]
    masks = [batch["attention_mask"].bool() for batch in batches]
    (column,) = [each for each in store if each.startswith(layer)]
    assert torch.equal(held(store, column), flat(wanted, masks))
    assert torch.equal(held(store, "input_ids"), flat([batch["input_ids"] for batch in batches], masks))


def test_a_compiled_model(tmp_path: Path) -> None:
    """Its hooks are in compiled code; the forwards run whole."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    batches = [torch.randn(4, 3) for _ in range(5)]
    store = sonde.extract(torch.compile(model, backend="eager"), batches, ["0"], tmp_path / "t")
    assert torch.equal(held(store, "0:output"), torch.cat(by_hand(model, batches, "0")["0"]))


def test_an_estimate_writes_nothing(tmp_path: Path) -> None:
    batches = ragged()
    found = sonde.extract(text(), batches, "embed", tmp_path / "t", positions="all", dry_run=True)
    rows = int(batches[0]["attention_mask"].sum())
    assert (found.rows, found.items, found.batches, found.nbytes) == (rows, 4, 6, rows * (6 * 4 + 8 + 8) * 6)
    assert "embed:output" in str(found)
    assert not (tmp_path / "t").exists()


WRONG: Mapping[str, tuple[dict[str, Any], type[Exception], str]] = {
    "ports": ({"ports": "grad_output"}, ArgumentError, "only forwards run"),
    "exists": ({"exists": "append"}, ArgumentError, "it is one of 'resume'"),
    "dtype": ({"dtype": "int4"}, ArgumentError, "floating-point type"),
    "transform": ({"transform": "top"}, ArgumentError, "function from rows"),
    "transform nowhere": ({"transform": {"^9:": abs}}, ArgumentError, "found in no site"),
    "transform with other rows": ({"transform": lambda rows: rows[:1]}, ArgumentError, "return as many rows"),
    "shard": ({"shard": "much"}, ArgumentError, "shard='much'"),
    "shard of any size": ({"shard": None}, ArgumentError, "held in memory"),
    "column": ({"columns": "label"}, ArgumentError, "batch 0: columns: the batch has no key 'label'"),
    "column of the store": ({"columns": {"item": len}}, ArgumentError, "name of the store's own"),
    "column of a site": ({"columns": {"0:output": lambda batch: batch}}, ArgumentError, "two columns"),
    "column of another length": ({"columns": {"y": lambda batch: batch[:1]}}, ArgumentError, "4 items"),
    "positions": ({"positions": "mask"}, ArgumentError, "no such key"),
    "positions of a model without": ({"positions": "last"}, ArgumentError, "0:output has no rows"),
    "mask": ({"positions": lambda batch: batch[:, :, None]}, ArgumentError, "a mask of items × positions"),
    "no row": ({"positions": lambda batch: torch.zeros(4, 5), "include": [""]}, ArgumentError, "has no rows|no row was kept"),
    "batches": ({"batches": torch.ones(4, 3)}, ArgumentError, "any iterable of batches"),
    "no batch": ({"batches": []}, ArgumentError, "there is none"),
    "include": ({"include": "^9"}, SelectionError, "nothing is selected"),
    "order": ({"order": "id"}, ArgumentError, "no such key"),
    "model": ({"model": {}}, ArgumentError, "there is none in the mapping"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(tmp_path: Path, case: str) -> None:
    """With what to do, and nothing is left behind."""
    changed, kind, said = WRONG[case]
    model = nn.Sequential(nn.Linear(3, 5)).eval()
    given: dict[str, Any] = {"model": model, "batches": [torch.randn(4, 3)], "include": "^0$", "to": tmp_path / "t", **changed}
    with pytest.raises(kind, match=said):
        sonde.extract(**given)
    assert not (tmp_path / "t").exists()


class Sometimes(nn.Module):
    """Calls one layer or the other; a sequence comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


def test_a_site_that_does_not_run(tmp_path: Path) -> None:
    """In the first batch it is named before anything is written, later with the batch."""
    model, one = Sometimes().eval(), torch.ones(2, 3)
    with pytest.raises(SelectionError, match=r"b:output: never called"):
        sonde.extract(model, [one], ["a", "b"], tmp_path / "t")
    assert not (tmp_path / "t").exists()
    with pytest.raises(ArgumentError, match=r"batch 1: nothing came of a:output"):
        sonde.extract(model, [one, -one], "a", tmp_path / "t")


def test_a_shape_that_changes(tmp_path: Path) -> None:
    """The site, the batch, both shapes, and the cure are named."""
    model = nn.Sequential(nn.Linear(3, 3)).eval()
    with pytest.raises(ArgumentError, match=r"batch 2: rows of 0:output have the shape 6×3, and had 5×3.*positions="):
        sonde.extract(model, [torch.ones(2, 5, 3), torch.ones(2, 5, 3), torch.ones(2, 6, 3)], "0", tmp_path / "t")


def test_an_axis_0_that_is_not_of_items(tmp_path: Path) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(0, 1)).transpose(0, 1)

    with pytest.raises(ArgumentError, match="no tensor of the batch has 5 items"):
        sonde.extract(Turned().eval(), [torch.ones(2, 5, 3)], "inner", tmp_path / "t")


def test_a_batch_that_the_model_refuses(tmp_path: Path) -> None:
    """The error is the model's, with a note of the batch; whole shards stay, and the next call goes on behind them."""
    model, x = nn.Sequential(nn.Linear(3, 3)).eval(), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match=words_of(lambda: model(torch.ones(4, 2)))) as raised:
        sonde.extract(model, [x, x, x, torch.ones(4, 2)], "0", tmp_path / "t", shard=100)
    assert "batch 3" in raised.value.__notes__[0]
    assert len(list((tmp_path / "t").glob("*.safetensors"))) == 2
    store = sonde.extract(model, [x, x, x, x], "0", tmp_path / "t", shard=100)
    assert torch.equal(held(store, "0:output"), model(torch.cat([x] * 4)).detach())


def test_random_numbers_are_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    with pytest.warns(ObservationWarning, match="draws random numbers"):
        sonde.extract(model, [torch.ones(4, 3)], "1", tmp_path / "t")


def test_a_batch_of_one_item_that_is_a_slice(tmp_path: Path) -> None:
    """Its only element has the stride of the slice."""
    model = nn.Sequential(nn.Embedding(9, 3)).eval()
    store = sonde.extract(model, [torch.arange(9)[::4], torch.arange(9)[8::4]], "0", tmp_path / "t")
    assert torch.equal(held(store, "0:output"), model(torch.tensor([0, 4, 8, 8])).detach())
