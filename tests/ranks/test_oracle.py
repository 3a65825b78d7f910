"""The oracle of one process says what hooks of plain torch see on several ranks."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.processes import on_ranks, values
from tests.ranks.oracle import PARAMETER_PORTS, TOLERANCE, expected
from tests.ranks.trainings import STEPS, TRAININGS
from torch import Tensor, nn

WRAPPERS = ("_checkpoint_wrapped_module.", "module.")


def hooked(name: str) -> list[dict[str, list[Tensor]]]:
    """Train on this rank; return of each step the tensors of this rank by site, those of parameters whole."""
    training = TRAININGS[name][1]()
    steps, seen = [], {}

    def keep(site: str, tensor: Any) -> None:
        local = getattr(tensor, "to_local", lambda: tensor)()
        local = getattr(local, "wait", lambda: local)()
        seen.setdefault(site, []).append(local.detach().clone())

    def hook(layer: str) -> Callable[..., None]:
        def forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if any(frame.name == "_forward_metadata_inference" for frame in traceback.extract_stack(limit=60)):
                return  # the schedule of a pipeline, at its first step
            if not module.training:
                return
            if torch._C._current_graph_task_id() == -1:  # else a checkpoint repeats the forward
                keep(f"{layer}:input", args[0])
                keep(f"{layer}:output", output)
            if output.requires_grad:
                output.register_hook(lambda gradient: keep(f"{layer}:grad_output", gradient))

        return forward

    def plain(path: str) -> str:
        for wrapper in WRAPPERS:
            path = path.replace(wrapper, "")
        return path

    modules = [(path, module) for path, module in training.model.named_modules() if type(module) is not nn.ModuleDict]
    layers = {plain(f"{path}.").strip("."): module for path, module in modules}  # of a wrapper and its module, the module
    for layer, module in layers.items():
        module.register_forward_hook(hook(layer or "(root)"))

    def whole(tensor: Any) -> Tensor:
        return getattr(tensor, "full_tensor", lambda: tensor)().detach().clone()

    before: dict[str, Tensor] = {}

    def about_to_step(*_: object) -> None:
        for path, parameter in training.model.named_parameters():
            seen[f"{plain(path)}:grad"] = [whole(parameter.grad)]
            before[path] = whole(parameter)

    training.optimizer.register_step_pre_hook(about_to_step)
    for step in range(STEPS):
        training.step(step)
        for path, parameter in training.model.named_parameters():
            seen[f"{plain(path)}:param"] = [whole(parameter)]
            seen[f"{plain(path)}:update"] = [whole(parameter) - before[path]]
        steps.append(dict(seen))
        seen.clear()
    return steps


HOOKED = [name for name in TRAININGS if "compiled" not in name]  # plain hooks would break the graphs of torch.compile


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "FSDP2" else pytest.mark.slow) for name in HOOKED])
def test_the_oracle_agrees_with_hooks_on_every_rank(name: str) -> None:
    ranks = TRAININGS[name][0]
    each: list[list[dict[str, list[Tensor]]]] = values(on_ranks(ranks, hooked, name))
    for step, sites in enumerate(expected(name, ranks).rows):
        assert {site for one in each for site in one[step]} == set(sites)
        for site, rows in sites.items():
            is_whole = site.rpartition(":")[2] in PARAMETER_PORTS
            for row in rows:
                members = [row.rank] if is_whole else range(row.rank, ranks, ranks // row.ranks)
                there = torch.cat([tensor.double().flatten() for rank in members for tensor in each[rank][step][site]])
                norm = row.numbers()["norm"]
                assert len(there) == row.numbers()["count"], site
                assert abs(there.norm().item() - norm) <= TOLERANCE[name] * norm, site
