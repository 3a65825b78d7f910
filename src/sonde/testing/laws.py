"""Check that a statistic obeys the laws on which sonde relies: ``assert_laws(MyStatistic())``."""

from __future__ import annotations

import copy
import importlib
import io
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sonde.engine import compiler_state
from sonde.errors import ArgumentError, MissingExtraError
from sonde.stats import Accumulator, PairStatistic, RowStatistic, Statistic, reduce

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_SPECIAL = (0.0, -0.0, 1e-20, -1e-30, float("nan"), float("inf"), float("-inf"))
_LENGTH = 12  # samples of a tensor, at most
_POOL = 8  # different elements of a tensor, at most

Law = Callable[[Any, Callable[[], Tensor]], None]
"""Raises if a statistic breaks the law; the second argument draws a tensor."""

Laws = dict[str, Law]

ROW_LAWS: Laws = {}
"""Laws of every statistic."""

MERGE_LAWS: Laws = {}
"""Laws of a ``Statistic``."""

PAIR_LAWS: Laws = {}
"""Laws of a ``PairStatistic``."""


def assert_laws(statistic: RowStatistic, *, sample: Sequence[int] = (), examples: int = 50) -> None:
    """Assert that *statistic* obeys the laws on which sonde relies wherever it adds up rows.

    >>> import sonde
    >>> from sonde import testing
    >>> testing.assert_laws(sonde.stats.Norm(), examples=2)

    Laws of a ``Statistic``: an empty row changes nothing; merging is commutative and associative; chunks, their order and
    their strides make no difference (beyond the rounding of float64, and for fields per element); rows reduce as they merge,
    by one reduction of minima and one of sums, as ranks merge theirs.
    Laws of a ``PairStatistic``: merging and reducing raise; kept and given predecessors agree; tensors of different shapes
    are counted as skipped. Laws of both: the statistic is a value; its layout fits the measured row; a state round trip loses
    nothing; nothing but the row changes; ``reset`` clears everything; rows made under ``inference_mode`` accept tensors
    later; many rows finish as one does; nothing warns.

    Args:
        statistic: an instance.
        sample: the shape of one sample. Each law sees tensors of shape ``(n, *sample)`` with n from 0 to 12: float32, between
            -100 and 100, with zeros of both signs, tiny values, NaN and infinities among them.
        examples: the number of random examples for each law; the same ones each time.

    Raises:
        AssertionError: the statistic breaks a law; the message names the law and the tensors.
        MissingExtraError: the package ``hypothesis`` is not installed.
    """
    for name, law in (ROW_LAWS | (MERGE_LAWS if isinstance(statistic, Statistic) else PAIR_LAWS)).items():
        _try(statistic, name, law, sample, examples)


def _try(statistic: RowStatistic, name: str, law: Law, sample: Sequence[int], examples: int) -> None:
    try:
        import hypothesis
        from hypothesis import strategies
    except ImportError:
        raise MissingExtraError.of("assert_laws", "hypothesis", "testing") from None
    tensors = _tensors(sample)

    @hypothesis.settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @hypothesis.given(strategies.data())
    def tried(data: Any) -> None:
        with _no_warning(), _named(statistic, name):
            law(statistic, lambda: data.draw(tensors, label="tensor"))

    tried()


def assert_traceable(statistic: RowStatistic, *tensors: Tensor) -> None:
    """Assert that ``measure``, traced by ``torch.compile`` without a graph break, returns the same row as in eager mode.

    Args:
        statistic: an instance.
        tensors: the measured tensors, one after the other. A ``PairStatistic`` measures each with its predecessor of the same
            shape.

    Raises:
        AssertionError: ``measure`` cannot be traced, or the traced row differs by more than the rounding of float64.
    """
    torch.compiler.reset()
    try:
        measure = torch.compile(_measured, backend="aot_eager", fullgraph=True, dynamic=False)
        for given in _given(statistic, tensors):
            try:
                traced = measure(statistic, *given)
            except compiler_state.compile_error() as error:
                raise AssertionError(f"{statistic} cannot be traced: {error}") from error
            torch.testing.assert_close(
                traced,
                _measured(statistic, *given),
                rtol=1e-12,
                atol=1e-12,
                equal_nan=True,
                msg=lambda text: f"{statistic} measures something else when traced: {text}",
            )
    finally:
        torch.compiler.reset()


def _given(statistic: RowStatistic, tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    if not isinstance(statistic, PairStatistic):
        return [(tensor,) for tensor in tensors]
    return [pair for pair in zip(tensors[1:], tensors, strict=False) if pair[0].shape == pair[1].shape]


def _measured(statistic: Any, *given: Tensor) -> Tensor:
    return statistic.measure(*given)  # type: ignore[no-any-return]


def members(package: ModuleType) -> set[type[RowStatistic]]:
    """Return all concrete statistics that *package* or a module below it defines, exported or not, but none with a private name.

    >>> from sonde import stats, testing
    >>> stats.Norm in testing.members(stats)
    True
    """
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
    known: set[type[RowStatistic]] = set()
    pending: list[type[RowStatistic]] = RowStatistic.__subclasses__()
    while pending:
        kind = pending.pop()
        is_there = f"{kind.__module__}.".startswith(f"{package.__name__}.") and not kind.__name__.startswith("_")
        if is_there and not kind.__abstractmethods__:
            known.add(kind)
        pending += kind.__subclasses__()
    return known


# ---------------------------------------------------------------------------------------------------------------- examples


def _tensors(sample: Sequence[int]) -> SearchStrategy[Tensor]:
    """Return a strategy for tensors of samples: a few drawn elements in a drawn order, which is quicker than drawing each."""
    from hypothesis import strategies

    elements = strategies.one_of(strategies.floats(-100, 100, width=32), strategies.sampled_from(_SPECIAL))

    def filled(length: int, pool: list[float], order: int) -> Tensor:
        places = torch.randint(len(pool), (length, *sample), generator=torch.Generator().manual_seed(order), device="cpu")
        return torch.tensor(pool, dtype=torch.float32, device="cpu")[places]

    pools = strategies.lists(elements, min_size=1, max_size=_POOL)
    return strategies.builds(filled, strategies.integers(0, _LENGTH), pools, strategies.integers(0, 999))


@contextmanager
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def _named(statistic: RowStatistic, law: str) -> Iterator[None]:
    """Name the broken law in an error."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("hypothesis"):
            raise
        raise AssertionError(f"{statistic} breaks the law that {law}: {error}") from error


def law(name: str, laws: Laws) -> Callable[[Law], None]:
    """Return a decorator that adds a function to *laws* under *name*."""

    def register(function: Law) -> None:
        laws[name] = function

    return register


def seen(statistic: Any, *tensors: Tensor) -> Accumulator[Any]:
    """Return an accumulator to which *tensors* were added."""
    made = Accumulator(statistic)
    for tensor in tensors:
        made.update(tensor)
    return made


def row(accumulator: Accumulator[Any]) -> Tensor:
    """Return a copy of the accumulator's row, of shape ``(width,)``."""
    return accumulator.state_dict()["row"][0]  # type: ignore[no-any-return]


def assert_identical(one: Accumulator[Any], other: Accumulator[Any]) -> None:
    """Assert that two rows have the same bits."""
    assert torch.equal(row(one), row(other)), f"{row(one).tolist()} is not {row(other).tolist()}"


def assert_close(statistic: Statistic, one: Tensor, other: Tensor) -> None:
    """Assert that two rows, once aligned, hold the same sums up to the rounding of float64, which depends on the order of terms."""
    _assert_close(statistic, one, other, slice(None))


def assert_close_per_element(statistic: Statistic, one: Tensor, other: Tensor) -> None:
    """Assert the same of the fields that do not depend on how elements are divided into tensors."""
    _assert_close(statistic, one, other, per_element(statistic))


def _assert_close(statistic: Statistic, one: Tensor, other: Tensor, compared: slice | Tensor) -> None:
    sums, minima = statistic._cuts()
    lows = torch.minimum(one, other)[sums:minima]
    left, right = (torch.cat([statistic.aligned(row, lows), row[sums:]]) for row in (one, other))
    allowed = torch.minimum(statistic.rounding(left), statistic.rounding(right))
    near = (left == right) | ((left - right).abs() <= allowed) | (left.isnan() & right.isnan())
    assert near[compared].all(), f"{left[compared].tolist()} is not {right[compared].tolist()}"


def per_element(statistic: Statistic) -> Tensor:
    """Return a mask of the numbers of a row that do not depend on how elements are divided into tensors."""
    return torch.tensor([item.per == "element" for item in statistic.fields for _ in range(item.size)], device="cpu")


# ----------------------------------------------------------------------------------------------------- laws of every statistic


@law("it is a value, equal to its copy and with a repr of its own", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    assert copy.deepcopy(statistic) == statistic, "make it a frozen dataclass"
    assert hash(copy.deepcopy(statistic)) == hash(statistic), "make it a frozen dataclass"
    assert " at 0x" not in repr(statistic), "its state says by repr what it is of"


@law("its layout is that of the row it measures", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    names = [name for name, _ in statistic.layout()]
    assert len(set(names)) == len(names), f"two fields have one name: {names}"
    empty = statistic.empty(2)
    assert (empty.shape, empty.dtype) == ((2, statistic.width), torch.float64)
    tensor = draw()
    if isinstance(statistic, Statistic):
        measure, width = statistic.measure(tensor), statistic.width
    else:
        measure, width = statistic.measure(tensor, tensor), len(statistic.sums)
    assert (measure.shape, measure.dtype) == ((width,), torch.float64), f"{measure.shape} of {measure.dtype}"
    assert not measure.requires_grad


@law("many rows finish as each one does", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    shape = draw()
    kept = [seen(statistic), seen(statistic, shape), seen(statistic, shape, shape.neg()), seen(statistic, shape, shape.square())]
    together = statistic.finish(statistic.columns(torch.stack([row(item) for item in kept])))
    for index, item in enumerate(kept):
        alone = item.compute().as_dict()
        assert list(alone) == list(together), f"{list(alone)} is not {list(together)}"
        for name, number in alone.items():
            np.testing.assert_allclose(together[name][index], number, rtol=1e-6, atol=1e-6, err_msg=name)


@law("a state round trip loses nothing", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    first, later = draw(), draw()
    before = seen(statistic, first)
    state = before.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    after = Accumulator(statistic).load_state_dict(torch.load(file, weights_only=True))
    assert_identical(after, before)
    assert_identical(after.update(later), before.update(later))
    assert_identical(Accumulator(statistic).load_state_dict(state), seen(statistic, first))  # a copy, not a view


@law("nothing but the row changes", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    tensor = draw()
    bits = tensor.clone().view(torch.int32)
    one = seen(statistic, tensor, tensor)
    assert torch.equal(tensor.view(torch.int32), bits), "the tensor was changed"
    assert repr(one.compute().as_dict()) == repr(one.compute().as_dict()), "reading changed it"
    columns = one.columns()
    statistic.finish(columns)
    for name, column in one.columns().items():
        np.testing.assert_array_equal(columns[name], column, err_msg=f"finishing changed the column {name}")


@law("reset forgets everything", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    tensor = draw()
    assert_identical(seen(statistic, tensor, tensor).reset(), seen(statistic))
    assert_identical(seen(statistic, tensor, tensor).reset().update(tensor), seen(statistic, tensor))


@law("rows made under inference_mode can be added to later", ROW_LAWS)
def _(statistic: Any, draw: Callable[[], Tensor]) -> None:
    first, later = draw(), draw()
    with torch.inference_mode():
        touched = seen(statistic, first)
        restored = Accumulator(statistic).load_state_dict(touched.state_dict())
        forgotten = seen(statistic, first).reset()
    expected = seen(statistic, first, later)
    assert_identical(touched.update(later), expected)
    assert_identical(restored.update(later), expected)
    assert_identical(forgotten.update(later), seen(statistic, later))


# ---------------------------------------------------------------------------------------------------------- laws of merging


@law("an empty row changes nothing", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    tensor = draw()
    assert_identical(seen(statistic, tensor).merge(seen(statistic)), seen(statistic, tensor))
    assert_identical(seen(statistic).merge(seen(statistic, tensor)), seen(statistic, tensor))


@law("merging is commutative", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    one, other = draw(), draw()
    assert_identical(seen(statistic, one).merge(seen(statistic, other)), seen(statistic, other).merge(seen(statistic, one)))


@law("merging is associative", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    x, y, z = draw(), draw(), draw()
    left = seen(statistic, x).merge(seen(statistic, y)).merge(seen(statistic, z))
    right = seen(statistic, x).merge(seen(statistic, y).merge(seen(statistic, z)))
    assert_close(statistic, row(left), row(right))
    rows = torch.stack([row(seen(statistic, item)) for item in (x, y, z)])
    assert_close(statistic, reduce(statistic, rows), row(left))


@law("updating is merging", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    one, other = draw(), draw()
    merged, second = seen(statistic, one), seen(statistic, other)
    kept = row(second)
    assert_close(statistic, row(merged.merge(second)), row(seen(statistic, one, other)))
    assert torch.equal(row(second), kept), "merging changed what was merged in"
    assert_close(statistic, row(merged.merge(merged)), row(seen(statistic, one, other, one, other)))


@law("chunks give what the whole gives", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    whole = draw()
    for cut in range(len(whole) + 1):
        pieces = whole[:cut], whole[cut:]
        assert_close_per_element(statistic, row(seen(statistic, *pieces)), row(seen(statistic, whole)))
    merged = seen(statistic)
    for index in range(len(whole)):
        merged.merge(seen(statistic, whole[index : index + 1]))
    assert_close_per_element(statistic, row(merged), row(seen(statistic, whole)))


@law("rows merge by one reduction of minima and one of sums", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    one, other = row(seen(statistic, draw())), row(seen(statistic, draw()))
    sums, minima = statistic._cuts()
    assert torch.equal(statistic.aligned(one, one[sums:minima]), one[:sums])
    lows = torch.minimum(one, other)[sums:minima]
    moved = torch.stack([one, other])
    moved[:, :sums], moved[:, sums:minima] = statistic.aligned(moved, lows), lows
    assert torch.equal(statistic.aligned(moved, lows), moved[:, :sums])
    assert torch.equal(moved.sum(0)[:sums], statistic.merged(one, other)[:sums])


@law("neither the order of samples nor their strides matter", MERGE_LAWS)
def _(statistic: Statistic, draw: Callable[[], Tensor]) -> None:
    tensor = draw()
    expected = row(seen(statistic, tensor))
    assert_close(statistic, row(seen(statistic, tensor.flip(0))), expected)
    strided = torch.zeros(len(tensor), 3, *tensor.shape[1:], device="cpu")
    strided[:, 1] = tensor
    assert_close(statistic, row(seen(statistic, strided[:, 1])), expected)


# ------------------------------------------------------------------------------------------------------------ laws of pairs


@law("rows of different sequences do not merge", PAIR_LAWS)
def _(statistic: PairStatistic, draw: Callable[[], Tensor]) -> None:
    one: Any = seen(statistic, draw())
    _assert_refused(lambda: one.merge(one))
    refused: Any = statistic
    _assert_refused(lambda: reduce(refused, refused.empty(2)))


def _assert_refused(call: Callable[[], object]) -> None:
    try:
        call()
    except ArgumentError:
        return
    raise AssertionError("it merged without an error")


@law("a predecessor kept and one given make the same pair", PAIR_LAWS)
def _(statistic: PairStatistic, draw: Callable[[], Tensor]) -> None:
    tensors = [draw(), draw(), draw()]
    given = Accumulator(statistic)
    for tensor, previous in zip(tensors[1:], tensors, strict=False):
        given.update(tensor, previous)
    assert_identical(seen(statistic, *tensors), given)


@law("a pair of different shapes is counted and skipped", PAIR_LAWS)
def _(statistic: PairStatistic, draw: Callable[[], Tensor]) -> None:
    tensor = draw()
    columns = seen(statistic, tensor, torch.zeros(1, *tensor.shape, device="cpu"), tensor, tensor).columns()
    assert (columns["pairs"].item(), columns["skipped"].item()) == (1, 2)


@law("what is kept is a copy", PAIR_LAWS)
def _(statistic: PairStatistic, draw: Callable[[], Tensor]) -> None:
    tensor = draw()
    buffer = tensor.clone()
    reused = seen(statistic, buffer)
    buffer.zero_()
    assert_identical(reused.update(tensor), seen(statistic, tensor, tensor))
