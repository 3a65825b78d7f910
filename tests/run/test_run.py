"""What is written is read: the same from a folder and from memory, from plain files by others, and by nobody's fault less."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from sonde.cli import main
from sonde.errors import ArgumentError, ObservationWarning, SiteError, StoreError, UnknownSiteError
from sonde.rows import KEY_COLUMNS, KEYS, Layout
from sonde.rules import Finding
from sonde.run.folder.source import DiskSource
from sonde.run.run import Run, open_run
from sonde.run.store.memory_writer import memory_run
from sonde.run.store.open import start_run
from sonde.run.store.run_names import ADJECTIVES, ANIMALS
from sonde.run.store.writer import RunWriter
from sonde.site import Site
from sonde.view import plots

LAYOUT = Layout(["fc:output", "fc:grad_output", "head:output"])


def fill(writer: RunWriter, steps: range = range(4)) -> None:
    for step in steps:
        writer.append("moments", LAYOUT, {"mean": np.array([1.0, 2.0, 3.0]) * step, "count": [4, 5, 6]}, step=step)
        writer.scalar("loss", 1 / (step + 1), step=step)


def test_a_table_has_the_keys_then_the_numbers_in_order_of_step(writer: RunWriter) -> None:
    fill(writer)
    table = writer.run().table("moments")
    assert table.column_names == [*KEYS, "mean", "count"]
    assert table["step"].to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert table["site"].to_pylist() == ["fc:output", "fc:grad_output", "head:output"] * 4
    assert table["order"].to_pylist() == [0, 1, 2] * 4
    assert table["mean"].to_pylist() == [0, 0, 0, 1, 2, 3, 2, 4, 6, 3, 6, 9]
    assert table["count"].to_pylist() == [4, 5, 6] * 4
    assert table["rank"].to_pylist() == table["call"].to_pylist() == table["epoch"].to_pylist() == [0] * 12


def test_every_row_says_where_it_is_from_in_columns(writer: RunWriter) -> None:
    """Model, layer, port and leaf of each site; the layer of a parameter is the module that holds it, by its own name."""
    sites = ["(root):output.logits", "G/enc.0:grad_output[0]", "head.weight:grad", "%5Bodd%3A%5D:output"]
    writer.append("moments", Layout(sites), {"rms": [1.0, 2.0, 3.0, 4.0]}, step=0)
    run = writer.run()
    rows = run.table("moments").select(["site", "model", "layer", "port", "leaf"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("(root):output.logits", "", "", "output", ".logits"),
        ("G/enc.0:grad_output[0]", "G", "enc.0", "grad_output", "[0]"),
        ("head.weight:grad", "", "head", "grad", ""),
        ("%5Bodd%3A%5D:output", "", "[odd:]", "output", ""),
    ]
    assert run.sql("SELECT max(rms) FROM moments WHERE port = 'grad'").fetchall() == [(3.0,)]
    with pytest.raises(SiteError, match="not the name of a site"):
        Layout(["fc:outptu"])


def test_texts_of_keys_are_dictionaries_in_the_file(tmp_path: Path) -> None:
    """Before and after compaction, so that a column costs hardly anything."""

    def encodings() -> set[str]:
        (file,) = (tmp_path / "run/moments").glob("*.parquet")
        group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
        texts = [column for number in range(group.num_columns) if (column := group.column(number)).physical_type == "BYTE_ARRAY"]
        assert [column.path_in_schema for column in texts] == [key.name for key in KEY_COLUMNS if key.kind == "string"]
        return {encoding for column in texts for encoding in column.encodings if "DICTIONARY" in encoding}

    with start_run(tmp_path / "run") as writer:
        fill(writer, range(50))
        writer.flush()
        assert encodings()
    assert encodings()


def test_what_was_read_while_writing_is_read_again_after_closing(writer: RunWriter) -> None:
    fill(writer)
    run = writer.run()
    before = run.table("moments"), run.table("scalars")
    writer.close()
    assert (run.table("moments"), run.table("scalars")) == before


def test_series_scalar_and_heatmap(writer: RunWriter) -> None:
    fill(writer)
    run = writer.run()
    steps, values = run.series("head:output", "mean")
    assert steps.tolist() == [0, 1, 2, 3]
    assert values.tolist() == [0.0, 3.0, 6.0, 9.0]
    assert run.series("head", "mean")[1].tolist() == values.tolist()
    assert run.scalar("loss")[1].tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    picture = run.heatmap("mean")
    assert picture.sites == ("fc:output", "head:output")
    assert picture.steps.tolist() == [0, 1, 2, 3]
    assert picture.values.tolist() == [[0, 1, 2, 3], [0, 3, 6, 9]]
    assert run.heatmap("mean", "grad_output").values.tolist() == [[0, 2, 4, 6]]
    assert repr(picture) == "Heatmap of mean at output in moments: 2 sites x 4 steps"


def test_a_large_heatmap_has_seven_digits_where_their_range_holds_every_value(writer: RunWriter) -> None:
    """NaN, infinities, zeros and cells without a row stay as they are; two rows of a cell are one value."""
    places = Layout([f"{place}:output" for place in range(5)])
    held = np.array([[1 / 3, np.nan, np.inf, 0.0, -1e-30], [1e38, -np.inf, -1e-37, 7.0, 2 / 3]])
    for step, values in enumerate(held):
        writer.append("moments", places, {"rms": values}, step=step, rows=[True, True, True, True, step == 0])
    run = writer.run()
    exact, single = run.heatmap("rms", exact=10).values, run.heatmap("rms", exact=9).values
    assert (exact.dtype, single.dtype) == (np.float64, np.float32)
    assert np.array_equal(single, exact.astype(np.float32), equal_nan=True)
    writer.append("moments", places, {"rms": 3 * held[0]}, step=0)  # the mean, or of magnitudes the greater, is one value
    again = writer.run()
    assert np.array_equal(again.heatmap("rms", exact=0).values, again.heatmap("rms").values.astype(np.float32), equal_nan=True)
    for beyond in (1e39, 1e-39, -1e300):
        writer.append("moments", Layout(["0:output"]), {"rms": [beyond]}, step=2)
        found = writer.run().heatmap("rms", exact=0).values
        assert found.dtype == np.float64
        assert np.array_equal(found, writer.run().heatmap("rms").values, equal_nan=True)


def test_a_heatmap_is_in_execution_order_and_empty_where_nothing_was_seen(writer: RunWriter) -> None:
    """Sites neither in alphabetical order nor in that of their rows; a site that is seen in some steps alone."""
    layout = Layout(["z:output", "a:output", "m:output"], order=[1, 2, 0])
    writer.append("moments", layout, {"rms": [1.0, 2.0, 3.0]}, step=10)
    writer.append("moments", layout, {"rms": [4.0, 5.0, 6.0]}, step=30, rows=[True, False, True])
    picture = writer.run().heatmap("rms")
    assert picture.sites == ("m:output", "z:output", "a:output") == writer.run().sites
    assert picture.steps.tolist() == [10, 30]
    np.testing.assert_array_equal(picture.values, [[3, 6], [1, 4], [2, np.nan]])


@pytest.mark.parametrize(("reduce", "expected"), [("mean", 3.0), ("min", 1.0), ("max", 5.0), ("sum", 6.0)])
def test_several_calls_in_a_step_share_a_cell_and_are_all_in_the_series(writer: RunWriter, reduce: Any, expected: float) -> None:
    twice = Layout(["rnn:output"] * 2, call=[0, 1], order=[0, 0])
    writer.append("moments", twice, {"rms": [1.0, 5.0]}, step=7)
    run = writer.run()
    assert run.heatmap("rms", reduce=reduce).values.tolist() == [[expected]]
    assert [part.tolist() for part in run.series("rnn", "rms")] == [[7, 7], [1.0, 5.0]]
    assert run.series("rnn", "rms", where="call = 1")[1].tolist() == [5.0]
    assert run.heatmap("rms", where="call = 0").values.tolist() == [[1.0]]


def test_values_that_are_not_finite_come_back(writer: RunWriter) -> None:
    odd = [np.nan, np.inf, -np.inf]
    writer.append("moments", LAYOUT, {"max": np.array(odd), "tiny": np.array([5e-324, 1e-320, 1.7e308])}, step=0)
    table = writer.run().table("moments")
    np.testing.assert_array_equal(table["max"].to_numpy(), odd)
    assert table["tiny"].to_pylist() == [5e-324, 1e-320, 1.7e308]
    assert np.isnan(writer.run().heatmap("max").values[0, 0])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", ">f4", ">i8"]
)
def test_every_dtype_keeps_its_values(writer: RunWriter, dtype: str) -> None:
    values = np.array([0, 1, 100]).astype(dtype)
    writer.append("moments", LAYOUT, {"x": values}, step=0)
    assert writer.run().table("moments")["x"].to_pylist() == values.tolist()


def test_a_row_may_hold_a_list_or_a_text(writer: RunWriter) -> None:
    counts = np.arange(6).reshape(3, 2)
    for step in range(2):
        writer.append("exponents", LAYOUT, {"counts": counts + step, "mode": "train", "type": ["A", "B", "C"]}, step=step)
    run = writer.run()
    steps, values = run.series("head", "counts")
    assert steps.tolist() == [0, 1]
    assert values.tolist() == [[4, 5], [5, 6]]
    assert run.table("exponents")["type"].to_pylist() == ["A", "B", "C"] * 2
    assert run.numbers == {"exponents": ("counts",)}
    assert run.series("head", "counts", where="mode = 'eval'")[1].tolist() == []
    with pytest.raises(ArgumentError, match="list in each row"):
        run.heatmap("counts")


def test_numbers_may_come_and_go(writer: RunWriter) -> None:
    """Another list of lenses half-way: the column is empty where it was not recorded."""
    writer.append("moments", LAYOUT, {"rms": [1.0, 2.0, 3.0]}, step=0)
    writer.append("moments", LAYOUT, {"rms": [1, 2, 3], "norm": np.float32(0.5)}, step=1)
    run = writer.run()
    assert run.table("moments")["norm"].to_pylist() == [None] * 3 + [0.5] * 3
    assert run.series("fc", "norm")[0].tolist() == [1]
    assert run.heatmap("norm").steps.tolist() == [1]


def test_the_arrays_are_copied(writer: RunWriter) -> None:
    values, picked = np.ones(3), np.array([0, 2])
    writer.append("moments", LAYOUT, {"rms": values}, step=0)
    writer.append("moments", LAYOUT, {"rms": values}, step=1, rows=picked)
    values[:] = picked[:] = 1_000
    assert writer.run().table("moments")["rms"].to_pylist() == [1.0] * 5


def test_several_moments_at_once_are_the_same_as_one_after_the_other(writer: RunWriter) -> None:
    """Numbers, lists, texts, one number for all rows; moments with all rows, some, one and none."""
    draw = np.random.default_rng(0)
    given = [(0, 3, 0, [0, 1, 2]), (0, 3, 1, [2, 0]), (1, 4, 0, []), (1, 5, 0, [1])]
    rows = np.array([row for *_, picked in given for row in picked])
    columns = {"mean": draw.random(6), "half": draw.random(6).astype(np.float16), "counts": np.arange(12).reshape(6, 2)}
    columns["sort"] = np.array(list("abcdef"))
    moments, lengths = [moment[:3] for moment in given], [len(moment[3]) for moment in given]
    writer.extend("bulk", LAYOUT, {**columns, "one": 1.0}, moments=moments, lengths=lengths, rows=rows)
    start = 0
    for epoch, step, micro_step, picked in given:
        whole = {name: np.zeros((3, *column.shape[1:]), column.dtype) for name, column in columns.items()}
        for name, column in columns.items():
            whole[name][picked] = column[start : start + len(picked)]
        start += len(picked)
        writer.append(
            "single", LAYOUT, {**whole, "one": 1.0}, step=step, epoch=epoch, micro_step=micro_step, rows=np.array(picked, int)
        )
    bulk, single = (writer.run().table(family) for family in ("bulk", "single"))
    assert bulk.num_rows == 6
    assert bulk.schema == single.schema
    assert bulk.to_pylist() == single.to_pylist()


def test_the_arrays_of_several_moments_are_copied(writer: RunWriter) -> None:
    values, rows, moments, lengths = np.arange(3.0), np.array([0, 1, 1]), np.array([[0, 0, 0], [0, 1, 0]]), np.array([2, 1])
    writer.extend("moments", LAYOUT, {"rms": values}, moments=moments, lengths=lengths, rows=rows)
    for array in (values, rows, moments, lengths):
        array[:] = 2
    table = writer.run().table("moments")
    assert table["rms"].to_pylist() == [0.0, 1.0, 2.0]
    assert table["step"].to_pylist() == [0, 0, 1]
    assert table["site"].to_pylist() == ["fc:output", "fc:grad_output", "fc:grad_output"]


BULK = {
    "family": "moments",
    "layout": LAYOUT,
    "columns": {"rms": [1.0, 2.0]},
    "moments": [(0, 1, 0)],
    "lengths": [2],
    "rows": [0, 1],
}
BAD_BULK: dict[str, tuple[dict[str, Any], str]] = {
    "a moment without a micro-step": ({"moments": [(0, 1)]}, "epoch, step and micro-step"),
    "a step below 0": ({"moments": [(0, -1, 0)]}, "whole numbers from 0"),
    "a step that is no whole number": ({"moments": [(0, 1.5, 0)]}, "whole numbers from 0"),
    "lengths for more moments": ({"lengths": [1, 1]}, "each of 1 moments has"),
    "lengths that do not add up": ({"lengths": [3]}, "how many of 2 rows"),
    "a length below 0": ({"moments": [(0, 1, 0)] * 2, "lengths": [3, -1]}, "lengths"),
    "too few values": ({"columns": {"rms": [1.0]}}, r"2 rows take \(2,\)"),
    "an index beyond": ({"rows": [0, 3]}, "indices"),
    "a mask": ({"rows": [True, False]}, "indices"),
    "a family of ours": ({"family": "scalars"}, "something else"),
}


@pytest.mark.parametrize("case", BAD_BULK)
def test_several_moments_that_do_not_fit_are_refused_at_once(writer: RunWriter, case: str) -> None:
    wrong, message = BAD_BULK[case]
    with pytest.raises(ArgumentError, match=message):
        writer.extend(**(BULK | wrong))
    assert writer.run().families == ()
    writer.extend(**BULK)
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.extend(**BULK)


def test_several_scalars_are_added_or_none(writer: RunWriter) -> None:
    with pytest.raises(ArgumentError, match="'lr' is a number, not 'low'"):
        writer.scalars([("loss", 0.5, 1, 0), ("lr", "low", 1, 0)])  # type: ignore[list-item]
    writer.scalars(())
    assert writer.run().families == ()
    writer.scalars(("loss", 0.5 * step, step, 0) for step in range(3))
    assert [values.tolist() for values in writer.run().scalar("loss")] == [[0, 1, 2], [0.0, 0.5, 1.0]]


def test_what_a_reader_changes_in_what_a_run_says_changes_no_run(writer: RunWriter) -> None:
    writer.describe(config={"lr": 0.1, "betas": [0.9, 0.99]}, model=[{"type": "Net"}])
    writer.document("coverage", {"missing": ["fc:output"]})
    run = writer.run()
    for held in (run.info["config"], run.config, run.description.about["config"]):
        held["betas"].append(1)
        held["lr"] = 7
    run.info["model"][0]["type"] = "another"
    run.document("coverage")["missing"].clear()
    assert run.info == {"config": {"lr": 0.1, "betas": [0.9, 0.99]}, "model": [{"type": "Net"}]}
    assert run.settings == {"lr": 0.1, "betas": [0.9, 0.99]}
    assert run.document("coverage") == {"missing": ["fc:output"]}


def test_alerts_documents_and_description(writer: RunWriter) -> None:
    writer.describe(model=[{"site": "fc", "type": "Linear"}], environment={"torch": "2.13"})
    writer.describe(environment={"torch": "2.14"})
    writer.alert("12 % dead", step=3, rule="dead", site="fc:output", value=0.12)
    writer.alert("loss is NaN", step=1, severity="error")
    writer.document("graph", {"nodes": [1, 2]})
    run = writer.run()
    assert run.info == {"model": [{"site": "fc", "type": "Linear"}], "environment": {"torch": "2.14"}}
    assert [replace(each, value=0.0) for each in run.findings] == [
        Finding("", "loss is NaN", step=1, value=0.0, severity="bad", opened=1),
        Finding("dead", "12 % dead", "fc:output", 0, 3, 0.0, "warn", opened=3),
    ]
    assert math.isnan(run.findings[0].value)
    assert run.findings[1].value == 0.12
    assert run.document("graph") == {"nodes": [1, 2]}
    assert run.coverage is None


def test_an_empty_run(writer: RunWriter) -> None:
    run = writer.run()
    assert run.families == run.sites == ()
    assert (run.findings, run.verdict, run.shortfalls) == ([], "unknown", [])
    assert run.last_step == -1
    assert "nothing recorded yet" in repr(run)
    with pytest.raises(UnknownSiteError, match="nothing is recorded there yet"):
        run.table("moments")
    with pytest.raises(UnknownSiteError, match="nothing is recorded there yet"):
        run.scalar("loss")


def test_pandas_gets_the_same(writer: RunWriter) -> None:
    fill(writer)
    frame = writer.run().to_pandas("moments")
    assert isinstance(frame, pd.DataFrame)
    assert frame.groupby("site")["mean"].max().to_dict() == {"fc:grad_output": 6, "fc:output": 3, "head:output": 9}


def test_sql_sees_each_family_as_a_table_and_no_variable_of_ours(writer: RunWriter) -> None:
    fill(writer)
    run = writer.run()
    answer = run.sql("SELECT site, max(mean) AS top FROM moments JOIN scalars USING (step) GROUP BY site ORDER BY top")
    assert answer.fetchall() == [("fc:output", 3.0), ("fc:grad_output", 6.0), ("head:output", 9.0)]
    assert "head:output" in str(answer)
    with pytest.raises(UnknownSiteError, match="Nearest: moments"):
        run.sql("SELECT * FROM momentz")
    with pytest.raises(UnknownSiteError):
        run.sql("SELECT * FROM families")
    with pytest.raises(duckdb.BinderException):
        run.sql("SELECT rmz FROM moments")
    with pytest.raises(ArgumentError, match="only read"):
        run.sql("-- nothing")


def test_names_that_are_not_there_get_the_nearest(writer: RunWriter) -> None:
    fill(writer)
    writer.append("updates", LAYOUT, {"mean": 1.0, "ratio": 2.0}, step=0)
    run = writer.run()
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: run.table("moment"), "no family of .* Nearest: moments"),
        (lambda: run.series("haed:output", "count"), "no site of moments .* Nearest: head:output"),
        (lambda: run.series("fc:input", "ratio"), "no site of updates .* Nearest: fc:output"),
        (lambda: run.series("fc", "coutn"), "no number of .* Nearest: count"),
        (lambda: run.heatmap("ratoi"), "no number of .* Nearest: ratio"),
        (lambda: run.heatmap("ratio", "outptu"), "no port of updates .* Nearest: output"),
        (lambda: run.heatmap("count", family="updates"), "no number of updates in .*"),
        (lambda: run.scalar("los"), "no scalar of .* Nearest: loss"),
    ]
    for ask, message in asked:
        with pytest.raises(UnknownSiteError, match=message):
            ask()
    with pytest.raises(ArgumentError, match="moments and updates each have a number 'mean': say which with family="):
        run.series("fc", "mean")
    assert run.series("fc", "mean", family="updates")[1].tolist() == [1.0]
    with pytest.raises(ArgumentError, match="'mean', 'min'"):
        run.heatmap("ratio", reduce="median")  # type: ignore[arg-type]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a family with a capital": ({"family": "Moments"}, "small letters"),
    "a family that is a path": ({"family": "../moments"}, "small letters"),
    "a family of ours": ({"family": "scalars"}, "something else"),
    "a key as a number": ({"columns": {"Step": 1.0}}, "every family has a column 'step'"),
    "a number that needs quotes": ({"columns": {"a b": 1.0}}, "identifier|quotes"),
    "no numbers": ({"columns": {}}, "at least one"),
    "two numbers alike": ({"columns": {"max": 1.0, "Max": 2.0}}, "only in case"),
    "too few values": ({"columns": {"rms": [1.0, 2.0]}}, r"shape \(2,\)"),
    "too deep": ({"columns": {"rms": np.zeros((3, 2, 2))}}, "shape"),
    "complex": ({"columns": {"rms": np.zeros(3, complex)}}, "complex"),
    "objects": ({"columns": {"rms": [None, 1, 2]}}, "object"),
    "a step that is no number": ({"step": "3"}, "whole number"),
    "a step below 0": ({"step": -1}, "from 0"),
    "a mask of another length": ({"rows": [True, False]}, "mask"),
    "an index beyond": ({"rows": [3]}, "indices"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_written_is_refused_at_once(writer: RunWriter, case: str) -> None:
    wrong, message = BAD[case]
    given = {"family": "moments", "layout": LAYOUT, "columns": {"rms": 1.0}, "step": 0} | wrong
    with pytest.raises(ArgumentError, match=message):
        writer.append(**given)
    assert writer.run().families == ()


def test_other_things_that_are_refused(writer: RunWriter) -> None:
    writer.append("moments", LAYOUT, {"rms": 1.0}, step=0)
    with pytest.raises(ArgumentError, match="held a number in each row before, and now a text"):
        writer.append("moments", LAYOUT, {"rms": "big"}, step=1)
    with pytest.raises(ArgumentError, match="is a number, not 'low'"):
        writer.scalar("loss", "low", step=0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="graph and coverage"):
        writer.document("diary", {})
    with pytest.raises(ArgumentError, match="plain data"):
        writer.document("graph", {"x": float("nan")})
    with pytest.raises(ArgumentError, match="plain data"):
        writer.describe(model=object())
    with pytest.raises(ArgumentError, match="sonde writes"):
        writer.describe(version=3)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.append("moments", LAYOUT, {"rms": 1.0}, step=1)
    with pytest.raises(ArgumentError, match="3 sites has 2 of 'order'"):
        Layout(["a", "b", "c"], order=[1, 2])
    with pytest.raises(ArgumentError, match="sequence of sites"):
        Layout("fc:output")


def test_how_a_run_shows_itself(tmp_path: Path) -> None:
    with start_run(tmp_path / "quiet-otter") as writer:
        fill(writer, range(0, 1200, 10))
        writer.alert("<dead>", step=3)
        run = writer.run()
        assert repr(run).splitlines()[0] == f"Run quiet-otter · running · {tmp_path}/quiet-otter"
    assert repr(run).splitlines() == [
        f"Run quiet-otter · ended · {tmp_path}/quiet-otter",
        "moments  360 rows  3 sites × 120 steps (0 to 1,190)  mean, count",
        "scalars  120 rows  120 steps (0 to 1,190)            loss",
        "1 finding: “<dead>”",
    ]
    assert "&lt;dead&gt;" in run._repr_html_()
    assert repr(memory_run().run()).startswith("Run in memory · running\n")


def test_other_programs_read_the_bare_files(tmp_path: Path) -> None:
    """Before and after compaction, DuckDB and pyarrow with nothing but a pattern or a folder."""
    with start_run(tmp_path / "run") as writer:
        for step in range(3):
            fill(writer, range(step, step + 1))
            writer.flush()
        assert len(list((tmp_path / "run/moments").glob("*.parquet"))) == 3
        question = f"SELECT site, sum(mean) FROM '{tmp_path}/run/moments/*.parquet' GROUP BY site ORDER BY site"
        before = duckdb.sql(question).fetchall()
        kinds = pyarrow.parquet.read_table(tmp_path / "run/moments").schema.types
    assert len(list((tmp_path / "run/moments").iterdir())) == 1
    assert before == [("fc:grad_output", 6.0), ("fc:output", 3.0), ("head:output", 9.0)] == duckdb.sql(question).fetchall()
    after = pyarrow.parquet.read_table(tmp_path / "run/moments")
    assert after.schema.types == kinds
    assert after["site"].to_pylist() == sorted(after["site"].to_pylist())
    assert after["step"].to_pylist() == [0, 1, 2] * 3


@pytest.mark.parametrize("name", ["lr=0.1", "a b", "x[1]*", "x[1]?a", "x*", "x[[]1] a", "it's", 'q"q', "ünïcode"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    """A name with = is no partition, one with [ or * is no pattern: another run that it would match is not read."""
    for folder, start in (("x1 a", 50), (name, 0)):
        with start_run(tmp_path / folder / "run") as writer:
            fill(writer, range(start, start + 1))
            writer.flush()
            fill(writer, range(start + 1, start + 2))
    run = open_run(tmp_path / name / "run")
    assert run.table("moments").column_names == [*KEYS, "mean", "count"]
    assert run.series("head", "mean")[1].tolist() == [0.0, 3.0]


ATTEMPT = '{"format": "sonde-run", "version": 6, "attempts": [{"attempt": 1, "first_step": %s, "started": 0.0}]}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run: it has no run.json"),
        ("{", "cannot be read"),
        ("[]", "another kind"),
        ('{"format": "sonde-tensors", "version": 1}', "another kind"),
        ('{"format": "sonde-run"}', "does not say in which version"),
        ('{"format": "sonde-run", "version": 6}', "no usable list of attempts"),
        ('{"format": "sonde-run", "version": 6, "attempts": 7}', "no usable list of attempts"),
        ('{"format": "sonde-run", "version": 6, "attempts": [{"attempt": 1}]}', "no usable list of attempts"),
        (ATTEMPT % '"0 OR true"', "no usable list of attempts .*first_step is .*, not a whole number from 0"),
        (ATTEMPT % "-1", "no usable list of attempts .*first_step is -1, not a whole number from 0"),
        (ATTEMPT % "true", "no usable list of attempts .*first_step is .*, not a whole number from 0"),
        ('{"format": "sonde-run", "version": 5, "attempts": []}', "version 5 .*, before .* reads version 6: record it again"),
        ('{"format": "sonde-run", "version": 7, "shape": "new"}', "version 7 .* reads version 6: update sonde"),
    ],
)
def test_what_is_no_run_is_said_to_be_none(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(StoreError, match=message):
        open_run(tmp_path)


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file"):
        open_run(tmp_path / "file")


def damaged_run(tmp_path: Path, abandon: Callable[[RunWriter], None], spoil: Callable[[Path], object]) -> Run:
    writer = start_run(tmp_path / "run")
    for step in range(3):
        fill(writer, range(step, step + 1))
        writer.flush()
    abandon(writer)
    spoil(sorted((tmp_path / "run/moments").iterdir())[1])
    return open_run(tmp_path / "run")


def spoil_middle(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[4:900] = bytes(reversed(whole[4:900]))
    path.write_bytes(whole)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-7]),
        lambda path: path.write_bytes(b"no parquet at all, just text"),
        spoil_middle,
    ],
    ids=["empty", "cut off", "another file", "pages overwritten"],
)
def test_a_damaged_part_is_named_once_and_the_rest_is_read(
    tmp_path: Path, abandon: Callable[[RunWriter], None], spoil: Callable[[Path], object]
) -> None:
    run = damaged_run(tmp_path, abandon, spoil)
    with pytest.warns(
        ObservationWarning, match=r"part-r0000-a001-g00-000002-000002-\w{8}.parquet is damaged .* the rest is read"
    ) as said:
        assert run.series("head", "mean")[0].tolist() == [0, 2]
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.heatmap("mean").steps.tolist() == [0, 2]
        assert run.scalar("loss")[0].tolist() == [0, 1, 2]


def test_a_damaged_part_survives_compaction_untouched(tmp_path: Path, abandon: Callable[[RunWriter], None]) -> None:
    """It may hold what somebody can still rescue; what is around it is merged."""
    damaged_run(tmp_path, abandon, spoil_middle)
    with start_run(tmp_path / "run", exists="resume", step=3) as writer:
        fill(writer, range(3, 5))
    names = sorted(path.name for path in (tmp_path / "run/moments").iterdir())
    assert [name[: -len("-12345678.parquet")] for name in names] == [
        "part-r0000-a001-g00-000002-000002",
        "part-r0000-a002-g01-000001-000001",
        "part-r0000-a002-g01-000003-000004",
    ]
    with pytest.warns(ObservationWarning, match="damaged"):
        assert open_run(tmp_path / "run").series("head", "mean")[0].tolist() == [0, 2, 3, 4]


def test_parts_that_are_merged_under_a_query_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer closes, and with that replaces all files, between the reader's list of them and its query."""
    writer = start_run(tmp_path / "run")
    for step in range(3):
        fill(writer, range(step, step + 1))
        writer.flush()
    run = open_run(tmp_path / "run")
    files = DiskSource.files

    def overtaken(source: DiskSource, only: Any = None) -> Any:
        found = files(source, only)
        writer.close()
        return found

    monkeypatch.setattr(DiskSource, "files", overtaken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.series("head", "mean")[0].tolist() == [0, 1, 2]


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        fill(writer)
        writer.flush()
        (tmp_path / "run/moments/notes.parquet").write_text("mine")
        (tmp_path / "run/checkpoints").mkdir()
    assert open_run(tmp_path / "run").families == ("moments", "scalars")
    assert (tmp_path / "run/moments/notes.parquet").read_text() == "mine"


def test_reading_and_writing_need_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from sonde.run.store.open import start_run
from sonde.run.run import open_run
from sonde.rows import Layout
assert not {{"pyarrow.parquet", "duckdb", "pandas"}} & set(sys.modules), "imported before it is used"
with start_run({str(tmp_path / "run")!r}) as writer:
    writer.append("moments", Layout(["fc:output"]), {{"rms": [1.5]}}, step=0)
print(open_run({str(tmp_path / "run")!r}).series("fc", "rms")[1].tolist(), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[1.5] False\n"


def test_names_of_runs_are_words_and_drawing_one_leaves_random_state_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    monkeypatch.chdir(tmp_path)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    with start_run() as writer:
        adjective, animal = writer.path.name.split("-")
    assert (adjective in ADJECTIVES, animal in ANIMALS, writer.path.parent) == (True, True, tmp_path / "runs")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index, union-attr]


def test_run_json_is_plain(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", about={"lenses": {"moments": "heatmap"}}) as writer:
        pass
    written = json.loads((tmp_path / "run/run.json").read_text())
    assert (written["format"], written["version"], written["lenses"]) == ("sonde-run", 6, {"moments": "heatmap"})
    assert writer.lost == 0
    assert written["attempts"][0]["ended"] >= written["attempts"][0]["started"]


ODD_NAMES = ["a\x1b[31mred", "n\0ul", "sur\udc80rogate", "half \ud83d", "a/b", "a/b c:d[0]", "tab\t\n", "é", "(root)", "100%"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_module_may_have_any_name(writer: RunWriter, name: str) -> None:
    """Its rows are kept beside all others, and found by the name as the model has it, or by the text of the site."""
    layout = Layout([Site(name), Site("fc"), Site(name, "grad_output")])
    writer.append("moments", layout, {"rms": [1.0, 2.0, 3.0]}, step=0)
    run = writer.run()
    assert run.series("fc", "rms")[1].tolist() == [2.0]
    assert run.series(str(Site(name)), "rms")[1].tolist() == [1.0]
    if name != "(root)":  # which is the model itself
        assert run.series(name, "rms")[1].tolist() == [1.0]
        assert run.series(f"{name}:grad_output", "rms")[1].tolist() == [3.0]
    assert Site.parse(run.sites[0]) == Site(name)


def test_texts_with_half_a_character_do_not_keep_other_rows_from_the_disk(writer: RunWriter) -> None:
    """Names of scalars, leaves, findings, columns of text."""
    text = "half \ud83d"
    writer.scalar(text, 1.0, step=0)
    writer.scalar("loss", 2.0, step=0)
    writer.alert(text, step=0, rule=text, site=text)
    writer.append("moments", Layout([Site("fc", "output", f"['{text}']")]), {"rms": 1.0, "mode": text}, step=0)
    writer.describe(note=text)
    writer.document("coverage", {text: text})
    run = writer.run()
    assert run.scalar("loss")[1].tolist() == [2.0]
    assert run.scalar(text)[1].tolist() == [1.0]
    assert run.sql("SELECT count(*) FROM scalars").fetchall() == [(2,)]
    assert run.findings[0].message == "half \\ud83d"
    assert run.table("moments")["mode"].to_pylist() == ["half \\ud83d"]
    assert run.info["note"] == text
    assert run.coverage == {text: text}


@pytest.mark.parametrize(
    "about",
    [
        {"model": ["layers.0", "head"]},
        {"model": 5, "lenses": 3, "environment": "old"},
        {"lenses": [{"family": ["x"], "show": 3, "numbers": "x"}, 7], "model": [[1]]},
        {"lenses": [{"family": "moments", "numbers": [{"name": 3}], "show": {"picture": 7}}]},
    ],
)
def test_a_description_of_ones_own_breaks_nothing(tmp_path: Path, about: dict[str, Any]) -> None:
    """As in the documentation of the format: what sonde itself writes there has another form."""
    with start_run(tmp_path / "run", about=about) as writer:
        fill(writer)
    run = open_run(tmp_path / "run")
    assert run.info == about
    assert "loss" in str(plots.table(run))
    assert list(plots.plan(run))
    assert main(["show", str(tmp_path / "run")]) == 0
