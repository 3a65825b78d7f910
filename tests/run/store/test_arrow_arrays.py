import subprocess
import sys

import numpy as np
import pyarrow
import pytest
import torch
from tests.processes import on_ranks, values
from torch import nn

import sonde
from sonde.rows import Layout
from sonde.run.folder.duckdb_sql import numbers_of
from sonde.run.store.arrow_arrays import array_of, number_array, text_array
from sonde.run.store.open import start_run


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float64, np.float32, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_numbers_are_those_that_pyarrow_array_makes(dtype, count):
    values = (np.arange(18) % 3).astype(dtype)[::2][:count]
    made = number_array(values)
    made.validate(full=True)
    assert made.equals(pyarrow.array(values))


def test_nan_is_a_number_and_not_null():
    made = number_array(np.array([1.0, np.nan, -np.inf]))
    assert made.null_count == 0
    assert str(made.to_pylist()) == "[1.0, nan, -inf]"


@pytest.mark.parametrize("texts", [[], [""], ["a", "", "ünï"], [None], ["a", None, "", None] * 5])
def test_texts_are_those_that_pyarrow_array_makes(texts):
    made = text_array(texts)
    made.validate(full=True)
    assert made.equals(pyarrow.array(texts, "string"))


def test_a_list_is_an_array_of_the_kind_that_is_asked_for():
    assert array_of([1, 2], "int32").equals(pyarrow.array([1, 2], "int32"))
    assert array_of((None, "b"), "string").equals(pyarrow.array([None, "b"], "string"))
    assert array_of([0.5, float("nan")], "float64").type == pyarrow.float64()


@pytest.mark.slow
def test_recording_a_run_does_not_import_pandas(tmp_path):
    """It takes half a second in the writer thread, with the interpreter's lock held."""
    pytest.importorskip("pandas")
    assert values(on_ranks(1, recorded, tmp_path / "run")) == [(True, False, False)]


def recorded(folder):
    """Return whether a training has recorded rows, and whether pandas was imported before and after."""
    before = "pandas" in sys.modules
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, to=folder, verbose=False) as watching:
        for _ in range(3):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watching.push_loss(loss, train=True)
    rows = sonde.open_run(folder).table("moments").num_rows
    return rows > 0, before, "pandas" in sys.modules


@pytest.mark.parametrize(("kind", "values"), [("int64", [3, None, -1]), ("int32", [None]), ("float64", [2.5, None, 0.5])])
def test_a_number_that_is_none_is_null(kind, values):
    found = array_of(values, kind)
    found.validate(full=True)
    assert found.equals(pyarrow.array(values, kind, from_pandas=False))
    assert found.null_count == 1


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("int64", [3, -1, 2]),
        ("int32", [3, None, 2]),
        ("float64", [0.5, None, float("nan")]),
        ("float32", [0.5, 2.5, -1.0]),
        ("bool", [True, False, True]),
        (pyarrow.list_(pyarrow.float64()), [[1.0], [2.0, 3.0], []]),
    ],
)
def test_the_numbers_of_a_column_are_those_of_to_numpy(kind, numbers):
    """Of a part that begins in the middle of its buffers, and of a column in several parts."""
    column = pyarrow.array(numbers, kind)
    for each in (column, column[1:], column[:0], pyarrow.chunked_array([column, column[2:]]), pyarrow.chunked_array([column[:0]])):
        of_arrow = {"zero_copy_only": False} if isinstance(each, pyarrow.Array) else {}
        assert str(numbers_of(each).tolist()) == str(each.to_numpy(**of_arrow).tolist())


def test_looking_at_the_layers_of_a_run_imports_neither_pandas_nor_torch(tmp_path):
    """The server of the page held 40 MB and half a second of pandas for nothing."""
    pytest.importorskip("pandas")
    with start_run(tmp_path / "run") as writer:
        for step in range(3):
            writer.append("moments", Layout(["0:output"]), {"rms": [1.0]}, step=step)
            writer.scalar("loss", 0.5, step=step)
    asked = """
import sys
from pathlib import Path
from sonde.view.app.answers.questions import answer_text
from sonde.view.app.followed_runs import FollowedRuns
followed = FollowedRuns(Path(sys.argv[1]))
followed.entries()
opened = followed.opened(followed.ids[0])
for name, more in {"overview": (), "numbers": (), "heatmap": [("number", "rms")], "flow": [("number", "rms")], "findings": (),
                   "lines": [("number", "rms"), ("site", "0:output")], "layer": [("layer", "0")]}.items():
    answer_text(name, opened, more)
opened.run.scalar("loss")
print(sorted({"pandas", "torch", "matplotlib"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", asked, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
