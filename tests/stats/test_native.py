"""Which tensors the compiled kernels take and which they leave to the reference, and who chooses the kernel."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sonde.errors import ArgumentError
from sonde.stats import Accumulator, Activation, ExponentHistogram, Moments, Norm, Statistic
from sonde.stats.kernels import EXPONENTS, MOMENTS, native

COMPILED = pytest.mark.skipif(not native.kernel_status().levels, reason="this installation has no compiled kernels")
STATISTICS = [Moments(), ExponentHistogram(), Norm(), Activation()]
EACH = pytest.mark.parametrize("statistic", STATISTICS, ids=[type(statistic).__name__ for statistic in STATISTICS])


@pytest.fixture(params=["by the exchange", "from Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to find out what a tensor is, in turn."""
    if request.param == "from Python":
        monkeypatch.setattr(native._state, "exchange", False)
    elif native.kernel_status().levels and not native.kernel_status().exchange:
        pytest.skip("this torch has no exchange")
    return str(request.param)


def by_kernel(statistic: Statistic, tensor: Tensor) -> Tensor:
    """The row that the compiled kernel leaves; fails if the kernel leaves the tensor alone."""
    assert statistic.kernel is not None
    row = statistic.empty(1)[0]
    assert statistic.kernel.add(row, tensor)
    return row


def distributed(tensor: Tensor) -> Tensor:
    """*tensor* as the only rank's shard."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return DTensor.from_local(tensor, init_device_mesh("cpu", (1,)))
    finally:
        dist.destroy_process_group()


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
    "negated when read, and dense": lambda: torch._neg_view(torch.ones(5)),
    "negated when read, beyond its strides": lambda: torch.ones(5, dtype=torch.complex64).conj().imag.as_strided((5,), (1,)),
    "oneDNN's": lambda: torch.ones(3, 3).to_mkldnn(),
}


def released() -> Tensor:
    """A tensor whose memory was given back, as FSDP does between uses."""
    made = torch.ones(5)
    made.untyped_storage().resize_(0)
    return made


def quietly(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Without what torch says about prototypes and what it will remove."""

    def made() -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return made


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(5)


WITHOUT_VALUES: dict[str, Callable[[], Tensor]] = {
    "no memory": released,
    "meta": lambda: torch.ones(5, device="meta"),
    "meta parameter": lambda: nn.Parameter(torch.ones(5, device="meta")),
    "fake": fake,
    "not yet made": nn.UninitializedParameter,
    "nested": quietly(lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])),
    "nested, ragged": quietly(lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)),
    "wrapped to be made functional": lambda: torch._to_functional_tensor(torch.ones(5)),
    "quantized": quietly(lambda: torch.quantize_per_tensor(torch.ones(5), 0.1, 0, torch.quint8)),
    "distributed": lambda: distributed(torch.ones(5)),
}


@COMPILED
@EACH
@pytest.mark.parametrize("make", TAKEN.values(), ids=TAKEN)
def test_plain_tensors_are_taken(way: str, statistic: Statistic, make: Callable[[], Tensor]) -> None:
    """In training, in inference mode, and with rows that were made outside of it."""
    x = make()
    expected = statistic.measure(x)
    assert torch.equal(by_kernel(statistic, x), expected)
    with torch.inference_mode():
        assert torch.equal(by_kernel(statistic, x), expected)
        inside = torch.ones(4)
        assert torch.equal(by_kernel(statistic, inside), statistic.measure(inside))


@EACH
@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_everything_else_is_left_to_the_reference(way: str, statistic: Statistic, make: Callable[[], Tensor]) -> None:
    """The kernel says no and writes nothing; the statistic is right all the same."""
    x = make()
    row = statistic.empty(1)[0]
    assert statistic.kernel is not None
    assert not statistic.kernel.add(row, x)
    assert torch.equal(row, statistic.empty(1)[0])
    statistic.add(row, x)
    torch.testing.assert_close(row, statistic.measure(x.to_dense() if x.layout is not torch.strided else x))


@EACH
@pytest.mark.parametrize("make", WITHOUT_VALUES.values(), ids=WITHOUT_VALUES)
def test_what_has_no_values_to_read_is_refused(way: str, statistic: Statistic, make: Callable[[], Tensor]) -> None:
    """The kernel says no, raises nothing and writes nothing: alone, among others, as what is subtracted and subtracted from."""
    x, plain = make(), torch.ones(5)
    row = statistic.empty(1)[0]
    assert statistic.kernel is not None
    assert not statistic.kernel.add(row, x)
    for minus in (None, [plain], [x]):
        assert statistic.kernel.add_each([row.data_ptr()], [x], minus, led=0) == [0]
    assert statistic.kernel.add_each([row.data_ptr()], [plain], [x], led=0) == [0]
    assert torch.equal(row, statistic.empty(1)[0])


@pytest.mark.parametrize("given", [None, 3, "x", [1.0], pytest.param(torch.ones, id="torch.ones")], ids=str)
def test_what_is_no_tensor_is_refused(way: str, given: object) -> None:
    """As it is by the type of it, nothing is asked of it."""
    row = Moments().empty(1)[0]
    assert not MOMENTS.add(row, given)  # type: ignore[arg-type]
    assert MOMENTS.add_each([row.data_ptr()], [given], led=0) == [0]  # type: ignore[list-item]
    assert torch.equal(row, Moments().empty(1)[0])


@COMPILED
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # raised where torch imports jvp
def test_nothing_is_taken_where_torch_traces_or_transforms(way: str) -> None:
    """Inside vmap, grad, forward-mode derivatives and functionalization, and under a mode that wants to see every operation."""
    from torch.utils._python_dispatch import TorchDispatchMode

    taken: list[object] = []
    outside = Moments().empty(1)[0]

    def sees(x: Tensor) -> Tensor:
        taken.append(MOMENTS.add(Moments().empty(1)[0], x))
        taken.append(MOMENTS.add_at(outside.data_ptr(), x))
        taken.append(MOMENTS.add_each([outside.data_ptr()], [x], led=0) == [])
        return x.sum()

    torch.vmap(sees)(torch.ones(3, 4))
    torch.func.grad(sees)(torch.ones(4))
    torch.func.jvp(sees, (torch.ones(4),), (torch.ones(4),))
    torch.func.functionalize(sees)(torch.ones(4))

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    with Watching():
        sees(torch.ones(4))
    assert taken == [False] * 15
    assert torch.equal(outside, Moments().empty(1)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU")
@COMPILED
def test_tensors_on_an_accelerator_are_refused(way: str) -> None:
    """Their addresses are not those of this memory; a pinned tensor on the CPU is one like others."""
    row = Moments().empty(1)[0]
    x = torch.ones(3, device=torch.accelerator.current_accelerator())
    assert not MOMENTS.add(row, x)
    assert MOMENTS.add_each([row.data_ptr()] * 2, [x, torch.ones(3)], [x, x], led=0) == [0, 1]
    assert torch.equal(row, Moments().empty(1)[0])
    assert MOMENTS.add(row, torch.ones(3).pin_memory())
    assert row[0] == 3


@COMPILED
def test_batched_gradients_are_refused(way: str) -> None:
    """What a hook sees under ``is_grads_batched`` looks like a tensor of one of the gradients and has no memory of its own."""
    seen: list[bool] = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(MOMENTS.add(Moments().empty(1)[0], gradient)))
    torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    assert seen == [False]


@COMPILED
def test_nothing_is_taken_while_a_program_is_exported(way: str) -> None:
    """Export without Dynamo runs the code: real tensors among it, constants of the model, are left alone then."""
    seen: list[object] = []
    constant, row = torch.ones(3), Moments().empty(1)[0]

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(MOMENTS.add_at(row.data_ptr(), constant))
            seen.append(MOMENTS.add_each([row.data_ptr()], [constant], led=0) == [])
            return x + 1

    torch.export.export(Looks(), (torch.ones(3),), strict=False)
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_adds_without_a_break(backend: str, fresh_compiler: None) -> None:
    """The kernel steps aside while torch traces, so that ``add`` becomes part of the graph."""
    statistic, row, x = Moments(), Moments().empty(1)[0], torch.randn(10)
    torch.compile(lambda tensor: statistic.add(row, tensor), fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(row, statistic.measure(x))


@pytest.mark.parametrize("statistic", STATISTICS, ids=[type(statistic).__name__ for statistic in STATISTICS])
def test_compiled_code_has_no_place_for_many_at_once(statistic: Statistic, fresh_compiler: None) -> None:
    """While torch traces all are refused, by every kernel, and nothing breaks the graph."""
    refused: list[list[int]] = []

    def body(x: Tensor) -> Tensor:
        assert statistic.kernel is not None
        refused.append(statistic.kernel.add_each([1, 1], [x, x], [x, x]))
        return x + 1

    torch.compile(body, fullgraph=True, backend="eager")(torch.ones(3))
    assert refused == [[0, 1]]


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
    row = torch.zeros(MOMENTS.width, dtype=torch.float64)
    at = row.data_ptr()
    unusable: list[tuple[object, ...]] = [
        (0, 0, 0, at, 0, 0, (8,), (1,), 1, ()),  # no row
        (0, 0, at, 0, 0, 0, (8,), (1,), 1, ()),  # no data
        (0, 0, at, at, 0, 4, (8,), (1,), 1, ()),  # no such kind
        (0, 0, at, at, 0, 0, (8, 0), (1, 1), 1, ()),  # no element
        (0, 0, at, at, 0, 0, (8,), (1, 1), 1, ()),  # not as many strides
        (0, 0, at, at, 0, 0, (8,), (1,), 0, ()),  # no thread
    ]
    for arguments in unusable:
        with pytest.raises(ValueError, match="cannot be used"):
            module.add_memory(*arguments)
    with pytest.raises(ValueError, match="at most 64"):
        module.add_memory(0, 0, at, at, 0, 0, (1,) * 65, (1,) * 65, 1, ())
    for number, led in ((4, 0), (-1, 0), (0, 2)):
        with pytest.raises(ValueError, match="no such reduction"):
            module.add(number, led, at, row, ())
        with pytest.raises(ValueError, match="no such reduction"):
            module.add_each(number, led, [at], [row], None, ())
    for function in (module.add, module.add_each, module.add_memory, module.connect, module.merge):
        with pytest.raises(TypeError, match="expected"):
            function(1, 2)
    with pytest.raises(TypeError, match="expected"):
        module.add_each(0, 0, (at,), [row], None, ())
    with pytest.raises(ValueError, match="as many"):
        module.add_each(0, 0, [at], [row, row], None, ())
    with pytest.raises(TypeError):
        module.add_each(0, 0, ["here"], [row], None, ())
    with pytest.raises(TypeError):
        module.add(3, 0, at, row, ())  # Activation needs to know its arguments
    with pytest.raises(ValueError, match="no such instruction set"):
        module.use_level("mmx")
    with pytest.raises(ValueError, match="no address"):
        module.merge(0, 0, 1, 0, 0, -1)
    for sums, number in ((8, 4), (8, -2), (7, 0), (14, 0)):  # no such reduction; too few or too many sums for Moments
        with pytest.raises(ValueError, match="no such row"):
            module.merge(at, at, sums, 2, 1, number)
    assert not row.any()


# How tensors are looked at


class Header(ctypes.Structure):
    """What an exchange begins with."""


Header._fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p)]


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3."""

    _fields_ = [("header", Header), ("functions", ctypes.c_void_p * 5)]


def capsule(exchange: Exchange, name: bytes = b"dlpack_exchange_api") -> object:
    """As a framework hands out its exchange. The structure, and *name*, must outlive it."""
    made = ctypes.pythonapi.PyCapsule_New
    made.restype, made.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return made(ctypes.addressof(exchange), name, None)


def torchs() -> Exchange:
    """A copy of torch's own."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = address(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    return Exchange.from_buffer_copy(Exchange.from_address(found))


@pytest.mark.skipif(not native.kernel_status().exchange, reason="neither compiled kernels nor an exchange")
def test_only_an_exchange_that_is_understood_is_used() -> None:
    """Of major version 1, also behind a newer one; none at all, another name or a missing function is no failure."""
    module = native.module()
    assert module is not None
    name = b"another"
    newer, without, behind = torchs(), torchs(), torchs()
    newer.header.major = 2
    without.functions[3] = None
    behind.header.major, behind.header.previous = 2, ctypes.addressof(current := torchs())
    types, asked = (Tensor, nn.Parameter), (Tensor.is_neg, native.threads)
    for unusable in (None, 3, capsule(newer), capsule(without), capsule(torchs(), name)):
        assert module.connect(unusable, types, *asked) is False
    assert module.connect(capsule(current), (Tensor,), *asked) is False
    row = Moments().empty(1)[0]
    assert MOMENTS.add(row, torch.ones(3))  # the connection that was there is as it was
    assert module.connect(capsule(behind), types, *asked) is True
    assert MOMENTS.add(row, torch.ones(3))
    assert row[0] == 6


@pytest.mark.slow
@COMPILED
def test_a_torch_without_an_exchange_has_kernels_all_the_same() -> None:
    """The same numbers, and the status says that it is so."""
    code = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
from sonde.stats import Moments
from sonde.stats.kernels import MOMENTS, native

rows, x = Moments().empty(3), torch.arange(6.0).reshape(2, 3)
added = MOMENTS.add(rows[0], x.t()), MOMENTS.add_each([row.data_ptr() for row in rows[1:]], [x, x[:, :2]], [x, x[:, :2]], led=0)
print(native.kernel_status().exchange, bool(native.kernel_status().level), added, rows[:2, 4].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout == "False True (True, [1]) [15.0, 0.0]\n"


# Which kernel


@COMPILED
def test_the_reference_can_be_asked_for() -> None:
    """And everything works without the kernels."""
    before = native.kernel_status().level
    try:
        native.use("reference", because="a test")
        assert native.kernel_status().level == ""
        assert native.kernel_status().reason == "a test"
        assert not EXPONENTS.add(ExponentHistogram().empty(1)[0], torch.ones(3))
        assert MOMENTS.add_each([1, 2], [torch.ones(3), torch.ones(3)]) == [0, 1]
        assert Accumulator(Moments()).update(torch.ones(3)).compute().count == 3
    finally:
        native.use(before)
    assert native.kernel_status().level == before


def test_an_unknown_kernel_is_refused_by_name() -> None:
    """The message names those that there are."""
    with pytest.raises(ArgumentError, match=r"no kernel 'mmx' here .* reference"):
        native.use("mmx")


@pytest.mark.parametrize(
    ("choice", "printed"),
    [("reference", "'' SONDE_KERNEL=reference"), pytest.param("baseline", "'baseline' ", marks=pytest.mark.slow)],
)
@COMPILED
def test_the_environment_chooses_the_kernel(choice: str, printed: str) -> None:
    """SONDE_KERNEL is read when sonde is imported."""
    code = "from sonde.stats.kernels import native; print(repr(native.kernel_status().level), native.kernel_status().reason)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SONDE_KERNEL": choice},
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == printed + "\n"


@pytest.mark.slow
def test_kernels_of_another_version_are_not_used() -> None:
    """A compiled module from before an update would write rows of another layout: the reference is used, and the reason said."""
    program = """
import sys, types
sys.modules["sonde.stats.kernels._native"] = types.SimpleNamespace(openmp=1, revision=1)
import torch
from sonde.stats import Accumulator, Moments
from sonde.stats.kernels import native
print(native.kernel_status().reason, Accumulator(Moments()).update(torch.ones(4)).compute().norm)
"""
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert made.stdout.startswith("the compiled kernels were built for another version of sonde: install it again 2.0")


@COMPILED
def test_numbers_that_are_not_finite_are_counted_over_all_tensors_and_others_are_named(way: str) -> None:
    spoiled = torch.tensor([1.0, float("nan"), float("-inf")])
    huge = torch.full((3,), 1e200, dtype=torch.float64)  # whose squares overflow
    tensors = [spoiled, torch.ones(2, dtype=torch.int64), huge, spoiled.bfloat16(), torch.ones(2).to_sparse()]
    assert native.nonfinite_in(tensors) == (4, [1, 4])
    assert native.nonfinite_in([huge, torch.ones(3).half()]) == (0, [])
    assert native.nonfinite_in([]) == (0, [])


def test_without_kernels_every_tensor_is_named_whose_numbers_were_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native._state, "module", None)
    assert native.nonfinite_in([torch.ones(1), torch.ones(2)]) == (0, [0, 1])
