"""Copies of a comparison's tensors: in memory, in files, and what happens where there is no room."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diagnosis.compare.networks import cnn, gpt, images, tokens
from torch import Tensor, nn

import sonde
from sonde.diagnosis.compare.copies import Copies
from sonde.errors import ArgumentError, StoreError

KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128, torch.int64, torch.bool)


@pytest.mark.parametrize("kind", [*KINDS, torch.float8_e4m3fn])
def test_a_copy_in_a_file_has_the_bits_of_the_tensor(kind: torch.dtype) -> None:
    tensor = torch.randn(3, 5, 7).mul(4).to(torch.complex64 if kind.is_complex else torch.float32).to(kind)
    for each in (tensor, tensor.transpose(0, 2), tensor[:, ::2], tensor[:0], tensor[0, 0, 0]):
        copy = Copies(0).copy(each)
        assert (copy.dtype, copy.shape) == (each.dtype, each.shape)
        assert torch.equal(copy.contiguous().view(-1).view(torch.uint8), each.contiguous().view(-1).view(torch.uint8))
        assert not each.numel() or copy.data_ptr() != each.data_ptr()


def test_beyond_the_limit_copies_lie_in_files_and_a_file_leaves_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copies = Copies(4096)
    kept = [copies.copy(torch.full((256,), float(number))) for number in range(10)]
    assert (copies.in_memory, copies.in_files) == (4 * 1024, 6 * 1024)
    assert [float(tensor.mean()) for tensor in kept] == list(map(float, range(10)))
    assert list(tmp_path.iterdir()) == []


def test_layouts_without_plain_memory_are_copied_all_the_same() -> None:
    copies = Copies(0)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(copies.copy(sparse).to_dense(), torch.eye(3))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert [len(part) for part in copies.copy(nested).unbind()] == [2, 3]
    assert copies.copy(torch.ones(2, device="meta")).is_meta


@pytest.mark.parametrize("make", [cnn, gpt])
def test_where_tensors_lie_changes_nothing(make: Any) -> None:
    a, b = make(), make()
    next(each for each in b.modules() if isinstance(each, nn.Linear)).weight.data.mul_(1.5)
    batch = images() if make is cnn else tokens()

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    here = sonde.compare(a, b, batch, optimizer=optimizer)
    there = sonde.compare(a, b, batch, optimizer=optimizer, memory=0)
    assert there.places == here.places
    assert [each.message for each in there.causes] == [each.message for each in here.causes]
    assert here.notes == ()
    assert "of tensors lay in files of" in there.notes[0]


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"no room for .* \(No space left on device\): set TMPDIR to a folder with more room"):
        sonde.compare(cnn(), cnn(), images(), memory=0)


@pytest.mark.parametrize("memory", [-1, 0.5, True, "1 GB"])
def test_a_limit_that_cannot_be_used_says_why(memory: Any) -> None:
    with pytest.raises(ArgumentError, match="memory="):
        sonde.compare(cnn(), cnn(), images(), memory=memory)


def test_parameters_without_numbers_are_named() -> None:
    half = cnn()
    half[3].to("meta")
    with pytest.raises(ArgumentError, match=r"2 of \d+ parameters and buffers of b are on the device 'meta', as 3\.weight"):
        sonde.compare(cnn(), half, images())
    with pytest.raises(ArgumentError, match=r"0\.weight of a is lazy"):
        sonde.compare(nn.Sequential(nn.LazyLinear(3)), cnn(), images())


class Counting:
    """A backend that runs graphs as they are, and counts their calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: Any, inputs: list[Tensor]) -> Any:
        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return run


def in_parts(backend: Any, *, fault: bool = False) -> nn.Module:
    """The network with two compiled parts, one of them in two places."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    if fault:
        block[0].weight.data.mul_(2)
    compiled: Any = torch.compile(block, backend=backend)
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    model = nn.Sequential(compiled, nn.ReLU(), compiled, nn.Sequential(torch.compile(inner, backend=backend)), nn.Linear(4, 2))
    return model.eval()


@pytest.mark.slow
def test_compiled_parts_run_compiled_and_faults_inside_of_them_are_found() -> None:
    x = torch.randn(3, 4)
    counting = Counting()
    found = sonde.compare(in_parts("eager"), in_parts(counting), x)
    assert found.ok
    assert counting.calls == 3
    assert found.notes == ("a: ran with 2 compiled parts", "b: ran with 2 compiled parts")
    found = sonde.compare(in_parts("eager"), in_parts("eager", fault=True), x)
    assert found.culprit is not None
    assert str(found.culprit.site) == "0.0:output"
