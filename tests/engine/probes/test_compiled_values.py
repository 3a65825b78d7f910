"""Structured values and a real transformer inside compiled code: the same events as in eager code."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@dataclasses.dataclass
class Out:
    a: Tensor
    b: tuple[Any, ...]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = self.linear(x)
        out, (last, _) = self.lstm(h)
        return {"h": h, "out": Out(out, (last, None, "text"))}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        return found["h"].sum() + found["out"].a.sum()


def kept(model: nn.Module, call: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    model.zero_grad()
    with sonde.track(model, strict=True) as tracker:
        result = call(*args, **kwargs)
        (result if isinstance(result, Tensor) else result.loss).backward()
    assert len({(str(stash.site), stash.call) for stash in tracker}) == len(tracker)
    return {str(stash.site): stash for stash in tracker}


def test_dicts_dataclasses_and_tuples_come_out_of_compiled_code_whole() -> None:
    """Types, leaf paths and numbers are those of the eager run, forward and backward."""
    model, x = Outer(), torch.randn(3, 2, 4)
    eager = kept(model, model, x)
    compiled = kept(model, torch.compile(model, backend="aot_eager"), x)
    assert compiled.keys() == eager.keys()
    for site, stash in eager.items():
        assert list(compiled[site].leaves) == list(stash.leaves), site
        assert all(map(torch.equal, compiled[site].leaves.values(), stash.leaves.values())), site
    value = compiled["inner:output"].value
    assert isinstance(value["out"], Out)
    assert value["out"].b[1:] == (None, "text")


@pytest.mark.slow
def test_a_compiled_gpt2_gives_the_events_of_the_eager_one() -> None:
    """31 outputs and 31 gradients, each as in eager code, and parameter gradients bit-equal to those without sonde."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    ids = torch.randint(0, 100, (2, 16))
    given = {"input_ids": ids, "labels": ids, "use_cache": False}
    model(**given).loss.backward()
    alone = [parameter.grad.clone() for parameter in model.parameters()]
    eager = kept(model, model, **given)
    compiled = kept(model, torch.compile(model, backend="aot_eager"), **given)
    assert all(map(torch.equal, alone, [parameter.grad for parameter in model.parameters()]))
    assert sum(stash.grad for stash in compiled.values()) == 31
    assert compiled.keys() == eager.keys()
    assert len(compiled) == 62
    for site, stash in eager.items():
        for path, tensor in compiled[site].leaves.items():
            torch.testing.assert_close(tensor, stash.leaves[path], rtol=1e-5, atol=1e-6)


def test_tensors_that_an_export_puts_in_are_no_new_parameters() -> None:
    """The look for changes comes with the second forward, which is that of the export; a warning would be an error."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.observe(model, sonde.stats.Moments(), ports=("grad", "update"), every=2) as probe:
        for _ in range(4):
            model(x).square().mean().backward()
            optimizer.step()
            torch.export.export(model, (x,), strict=False)
        probe.coverage()
