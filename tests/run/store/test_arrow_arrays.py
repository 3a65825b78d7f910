import sys

import numpy as np
import pyarrow
import pytest
import torch
from tests.processes import on_ranks, values
from torch import nn

import sonde
from sonde.run.store.arrow_arrays import array_of, number_array, text_array


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
