"""Find out whether a model's modules or parameters have changed, and decide when to look."""

from __future__ import annotations

from torch import nn

from sonde.engine.torch_api.modules import children_of, parameters_of

__all__ = ["fingerprint", "is_time_to_look"]


def fingerprint(model: nn.Module) -> int:
    """Return a number that changes when a module or parameter comes, goes, or is frozen or unfrozen. Cheaper than a selection."""
    found: list[int] = []
    pending: list[nn.Module] = [model]
    seen: set[nn.Module] = set()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        found.append(id(module))
        for parameter in parameters_of(module).values():
            if parameter is not None:
                found.append(id(parameter) + parameter.requires_grad)
        children = children_of(module) or dict(module.named_children())  # TorchScript keeps its modules elsewhere
        pending += [child for child in children.values() if child is not None]
    return hash(tuple(found))


def is_time_to_look(count: int, every: int) -> bool:
    """Return whether to look for changes at the event number *count* (from 1): at 1, 2, 4, 8, ..., and at each *every*-th.

    A look costs a walk over the model.
    """
    return count & (count - 1) == 0 or count % every == 0
