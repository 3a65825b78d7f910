"""Which tensors the compiled kernels take and which they leave to the reference, and who chooses the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, ExponentHistogram, Moments, Statistic
from sonde.stats.kernels import EXPONENTS, MOMENTS, native

COMPILED = pytest.mark.skipif(not native.status().levels, reason="this installation has no compiled kernels")
STATISTICS = [Moments(), ExponentHistogram()]
BOTH = pytest.mark.parametrize("statistic", STATISTICS, ids=["Moments", "ExponentHistogram"])


def by_kernel(statistic: Statistic, tensor: Tensor) -> Tensor:
    """The row that the compiled kernel leaves; fails if the kernel leaves the tensor alone."""
    assert statistic.kernel is not None
    row = statistic.empty(1)[0]
    assert statistic.kernel.add(row, tensor)
    return row


class Logged(Tensor):
    """A subclass that torch makes no promises about."""


TAKEN: dict[str, Callable[[], Tensor]] = {
    "a parameter": lambda: nn.Parameter(torch.ones(5)),
    "one that requires a gradient": lambda: torch.ones(5, requires_grad=True),
    "one within a graph": lambda: torch.ones(5, requires_grad=True) * 2,
    "a scalar": lambda: torch.tensor(3.0),
    "a detached view": lambda: torch.ones(5, 2).t().detach(),
}

LEFT: dict[str, Callable[[], Tensor]] = {
    "integers": lambda: torch.arange(5),
    "bools": lambda: torch.ones(5, dtype=torch.bool),
    "complex": lambda: torch.ones(5, dtype=torch.complex64),
    "float8": lambda: torch.ones(5).to(torch.float8_e4m3fn),
    "empty": lambda: torch.ones(0),
    "an empty dimension": lambda: torch.ones(4, 0),
    "a subclass": lambda: torch.ones(5).as_subclass(Logged),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_coo().coalesce(),
    "negated when read": lambda: torch.ones(5, dtype=torch.complex64).conj().imag,
    "zeros that were never written": lambda: torch._efficientzerotensor((5,)),
}


@COMPILED
@BOTH
@pytest.mark.parametrize("make", TAKEN.values(), ids=TAKEN)
def test_plain_tensors_are_taken(statistic: Statistic, make: Callable[[], Tensor]) -> None:
    """In training, in inference mode, and with rows that were made outside of it."""
    x = make()
    expected = statistic.measure(x)
    assert torch.equal(by_kernel(statistic, x), expected)
    with torch.inference_mode():
        assert torch.equal(by_kernel(statistic, x), expected)
        inside = torch.ones(4)
        assert torch.equal(by_kernel(statistic, inside), statistic.measure(inside))


@BOTH
@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_everything_else_is_left_to_the_reference(statistic: Statistic, make: Callable[[], Tensor]) -> None:
    """The kernel says no and writes nothing; the statistic is right all the same."""
    x = make()
    row = statistic.empty(1)[0]
    assert statistic.kernel is not None
    assert not statistic.kernel.add(row, x)
    assert torch.equal(row, statistic.empty(1)[0])
    statistic.add(row, x)
    torch.testing.assert_close(row, statistic.measure(x.to_dense() if x.layout is not torch.strided else x))


@COMPILED
def test_nothing_is_taken_where_torch_traces_or_transforms() -> None:
    """Inside vmap and grad, under a mode that wants to see every operation, and in compiled code."""
    from torch.utils._python_dispatch import TorchDispatchMode

    taken: list[bool] = []

    def sees(x: Tensor) -> Tensor:
        taken.append(MOMENTS.add(Moments().empty(1)[0], x))
        return x.sum()

    torch.vmap(sees)(torch.ones(3, 4))
    torch.func.grad(sees)(torch.ones(4))

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    with Watching():
        sees(torch.ones(4))
    assert taken == [False, False, False]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_adds_without_a_break(backend: str, fresh_compiler: None) -> None:
    """The kernel steps aside while torch traces, so that ``add`` becomes part of the graph."""
    statistic, row, x = Moments(), Moments().empty(1)[0], torch.randn(10)
    torch.compile(lambda tensor: statistic.add(row, tensor), fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(row, statistic.measure(x))


@COMPILED
@pytest.mark.parametrize(
    "row",
    [torch.zeros(9), torch.zeros(7, dtype=torch.float64), torch.zeros(8), torch.zeros(16, dtype=torch.float64)[::2]],
    ids=["led unasked", "too short", "float32", "strided"],
)
def test_a_row_of_another_form_is_not_written(row: Tensor) -> None:
    """An address says nothing about what lies there."""
    assert not MOMENTS.add(row, torch.ones(3))
    assert not row.any()


@COMPILED
def test_the_compiled_module_refuses_what_it_cannot_use() -> None:
    """Null addresses, unknown kinds, wrong numbers of arguments: an exception, not a crash."""
    module = native.module()
    assert module is not None
    row = torch.zeros(8, dtype=torch.float64)
    with pytest.raises(ValueError, match="cannot be used"):
        module.moments(0, 0, row.data_ptr(), 0, 8, 1)
    with pytest.raises(ValueError, match="cannot be used"):
        module.moments(row.data_ptr(), 0, row.data_ptr(), 4, 8, 1)
    with pytest.raises(TypeError, match="expected"):
        module.moments(1, 2)
    with pytest.raises(ValueError, match="one length"):
        module.exponents(row.data_ptr(), 0, row.data_ptr(), 0, 8, 1, (8,), (1, 1))
    with pytest.raises(ValueError, match="no such instruction set"):
        module.use_level("mmx")
    with pytest.raises(ValueError, match="no address"):
        module.merge(0, 0, 1, 0, 0)
    with pytest.raises(TypeError, match="a span is"):
        module.norms(row.data_ptr(), [(1, 2)], 1)
    assert not row.any()


# Which kernel


@COMPILED
def test_the_reference_can_be_asked_for() -> None:
    """And everything works without the kernels."""
    before = native.status().level
    try:
        native.use("reference", because="a test")
        assert native.status().level == ""
        assert native.status().reason == "a test"
        assert not EXPONENTS.add(ExponentHistogram().empty(1)[0], torch.ones(3))
        assert Accumulator(Moments()).update(torch.ones(3)).compute().count == 3
    finally:
        native.use(before)
    assert native.status().level == before


def test_an_unknown_kernel_is_refused_by_name() -> None:
    """The message names those that there are."""
    with pytest.raises(ArgumentError, match=r"no kernel 'mmx' here .* reference"):
        native.use("mmx")


@pytest.mark.parametrize(("choice", "printed"), [("reference", "'' SONDE_KERNEL=reference"), ("baseline", "'baseline' ")])
@COMPILED
def test_the_environment_chooses_the_kernel(choice: str, printed: str) -> None:
    """SONDE_KERNEL is read when sonde is imported."""
    code = "from sonde.stats.kernels import native; print(repr(native.status().level), native.status().reason)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SONDE_KERNEL": choice},
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == printed + "\n"
