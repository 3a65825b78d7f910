"""Tables of layers show the first of blocks that are alike, and one row for the others, and never fold a block that differs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn

import sonde
from sonde.answer import Grid
from sonde.run import Layout, memory_run
from sonde.view import plots
from sonde.view.layer_table import LayerRow, Note, Quantity, layer_table

PARTS = ("", ".norm", ".attn", ".attn.out", ".mlp")


def rows(
    count: int, values: Mapping[str, float] | None = None, notes: Mapping[str, Note] | None = None, parts: tuple[str, ...] = PARTS
) -> list[LayerRow]:
    """Return rows of *count* blocks between an embedding and a head, with other *values* and *notes* at some."""
    names = ["embed", *(f"h.{block}{part}" for block in range(count) for part in parts), "head"]
    return [
        LayerRow(
            name,
            name.rpartition(".")[2],
            {"output": "2×4"},
            {"rms": Quantity((values or {}).get(name, 1.0))},
            [note] if (note := (notes or {}).get(name)) else [],
        )
        if not name.rpartition(".")[2].isdecimal()
        else LayerRow(name, "Block", {"output": "2×4"}, {"rms": Quantity((values or {}).get(name, 1.0))})
        for name in names
    ]


def names(grid: Grid) -> list[str]:
    """Return the first cell of each row, and behind it what an other block it stands for."""
    return [f"{row[0].text}{f' = {row[-1].text}' if row[-1].text.startswith('alike') else ''}" for row in grid.rows]


def block(number: int) -> list[str]:
    return [f"h.{number}{part}" for part in PARTS]


def test_the_first_block_is_shown_and_the_others_are_one_row() -> None:
    grid = layer_table("t", rows(12))
    assert names(grid) == ["embed", *block(0), "h.1 to 11 = alike h.0", "head"]
    assert grid.footer == ["alike: the same parts, sizes within a factor of 2, shares within 10 %, and nothing found in any"]


def test_blocks_after_their_parts_as_they_run_are_folded_too() -> None:
    """A tracker lists what is inside before what is around it."""
    table = rows(4)
    table[1:-1] = [each for start in range(1, len(table) - 1, 5) for each in (*table[start + 1 : start + 5], table[start])]
    assert names(layer_table("t", table))[5:] == ["h.0", "h.1 to 3 = alike h.0", "head"]


def test_a_block_with_a_finding_is_shown_and_those_around_it_are_folded() -> None:
    found = layer_table("t", rows(9, notes={"h.4.mlp": ("100 % dead", "bad")}))
    assert names(found) == ["embed", *block(0), "h.1 to 3 = alike h.0", *block(4), "h.5 to 8 = alike h.0", "head"]


def test_a_block_whose_numbers_part_is_shown_and_the_next_ones_are_compared_with_it() -> None:
    grid = layer_table("t", rows(9, values=dict.fromkeys([each for number in range(4, 9) for each in block(number)], 2.5)))
    assert names(grid) == ["embed", *block(0), "h.1 to 3 = alike h.0", *block(4), "h.5 to 8 = alike h.4", "head"]


def test_one_block_of_other_parts_ends_the_fold() -> None:
    table = [row for row in rows(8) if row.name != "h.3.attn.out"]
    shown = names(layer_table("t", table))
    assert shown[6:] == [
        "h.1 to 2 = alike h.0",
        "h.3",
        "h.3.norm",
        "h.3.attn",
        "h.3.mlp",
        *block(4),
        "h.5 to 7 = alike h.4",
        "head",
    ]


def test_a_fold_that_saves_few_rows_is_none() -> None:
    assert names(layer_table("t", rows(2))) == ["embed", *block(0), *block(1), "head"]
    assert layer_table("t", rows(2)).footer == []


def test_layers_that_are_named_and_not_numbered_are_never_folded() -> None:
    table = [LayerRow(f"{name}.{part}", part) for name in ("q", "k", "v") for part in "abcdefgh"]
    assert len(layer_table("t", table).rows) == 24


def test_a_repeated_group_of_siblings_is_folded() -> None:
    table = [LayerRow(str(at), kind) for at, kind in enumerate(["Conv", "Norm", "ReLU"] * 6)]
    assert names(layer_table("t", table)) == ["0", "1", "2", "3 to 17 = alike 0 to 2"]


def test_tracker_summary_and_run_fold_the_same_blocks_and_keep_all_rows_as_data() -> None:
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Identity(), nn.Tanh(), nn.Linear(8, 8)) for _ in range(5)]
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ModuleDict({"h": nn.Sequential(*inner)})["h"]), torch.randn(64, 4)
    with sonde.track(model) as tracker:
        model(x).sum().backward()
    summary = sonde.summary(model, x)
    outputs = sonde.lens.Lens("moments", sonde.stats.Moments(), ("output",))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, every=1, to="memory", lenses=outputs, verbose=False) as inspector:
        model(x).sum().backward()
        optimizer.step()
    for shown in (repr(tracker), repr(summary), plots.table(inspector.run).to_text()):
        assert re.search(r"\b1\.?\d? to \d+ .*alike", shown), shown
    assert len(tracker.to_frame()) == 2 * len(list(model.modules()))
    assert len(summary.rows) == len(list(model.modules()))
    assert len(plots.table_data(inspector.run)["layers"]) == len(list(model.modules()))


def test_the_footer_of_a_run_has_the_loss_first_six_scalars_and_one_of_equal_rates() -> None:
    with memory_run() as writer:
        writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=0)
        values = {"accuracy": 0.5, "grad_norm": 2.0, "lr": 0.1, "lr/1": 0.1, "lr/2": 0.3, "lr_1": 0.1, "loss": 4.0, "val_loss": 5.0}
        writer.scalars([(name, value, 0, 0, "global", 1) for name, value in {**values, "z": 1.0}.items()])
    line = plots.table(writer.run()).footer[-1]
    assert line == "loss 4 · val_loss 5 · accuracy 0.5 · lr 0.1 · lr/2 0.3 · z 1 · and 1 more: sonde show --scalars"


def test_the_slots_of_a_recorder_are_folded_as_layers_are() -> None:
    """The number of a slot is its place, in which blocks that are alike differ as in their names."""
    model = nn.Sequential(*(nn.Sequential(nn.Identity(), nn.Identity()) for _ in range(4)))
    with sonde.recorders.ForwardOutput().modules(model) as recorder:
        model(torch.ones(2, 3))
    assert "0.1 to 3" not in str(recorder)
    assert [line.split()[0] for line in str(recorder).splitlines() if "alike 0" in line] == ["1"]
