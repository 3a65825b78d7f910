"""Access to torch's registry of containers (pytree nodes)."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree


def registered(kind: type) -> Any:
    """Return the pytree node (``flatten_fn``, ``unflatten_fn``, ``flatten_with_keys_fn``) of *kind*; None if it has none."""
    return _pytree.SUPPORTED_NODES.get(kind)


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of *value* in order, and its structure, which compares equal to that of a value built alike."""
    return _pytree.tree_flatten(value)
