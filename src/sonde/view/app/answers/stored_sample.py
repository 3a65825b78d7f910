"""Answer what values a tensor had that was kept beside the run: the one of a site at a step, or the last before it."""

from __future__ import annotations

from typing import Any

from sonde.errors import StoreError
from sonde.site import Site
from sonde.suggest import unknown_name
from sonde.view.app.answers.opened_run import OpenedRun, scale_data
from sonde.view.app.answers.reduction import marks_of, packed
from sonde.view.scales import scale_for


def sample(opened: OpenedRun, site: str, *, step: int | None = None) -> dict[str, Any]:
    """Return a few values of the tensor of a site that was kept at a step, or last before it; else of the first one kept.

    Args:
        opened: the run.
        site: the site, as ``blocks.0.fc:output``.
        step: None: the last.

    Returns:
        ``site``; ``step`` (None: the store does not say), ``steps``: all at which one was kept, and ``of``: how many were kept at
        this one; the first is shown; ``shape``, ``dtype``; ``values`` (float32) and ``marks`` (uint8) as base64, row by
        row, of the last two axes at the first place of all others; ``rows`` and ``columns``: their places; the ``scale``; and of
        all values ``low``, ``high``, ``nan``, ``inf``: see :meth:`sonde.run.TensorStore.sample`.

    Raises:
        UnknownSiteError: no tensor was kept there; the message names the nearest.
        StoreError: the tensors cannot be read; the message says why.
    """
    tensors, asked = opened.tensors, str(Site.parse(site))
    kept = {} if tensors is None else tensors.kept
    if tensors is None or asked not in kept:
        raise unknown_name("site", asked, kept, f"the tensors of run {opened.name}")
    steps = sorted({at for at, _ in kept[asked] if at is not None})
    shown = next((at for at in reversed(steps) if step is None or at <= step), next(iter(steps), None))
    keys = [key for at, key in kept[asked] if at == shown]
    found = tensors.sample(keys[0])
    scale = scale_data(scale_for(found["values"], "signed", "signed"), found["low"], found["high"])
    return {
        **found,
        "site": asked,
        "step": shown,
        "steps": steps,
        "of": len(keys),
        "values": packed(found["values"], "f4"),
        "marks": packed(marks_of(found["values"]), "u1"),
        "scale": scale,
    }


def kept_sites(opened: OpenedRun) -> tuple[list[str], str]:
    """Return the sites that have a tensor, and why none can be read, in words; ``""`` where nothing prevents it."""
    try:
        return [] if opened.tensors is None else list(opened.tensors.kept), ""
    except StoreError as error:
        return [], str(error)
