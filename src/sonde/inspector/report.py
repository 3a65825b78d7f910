"""What an inspector really observed, and why not the rest: the receipts of all its measurings as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sonde.engine.probes.coverage import Coverage, Covered
from sonde.inspector.measurement.measurement import Measurement
from sonde.site import Site

__all__ = ["coverage_of", "plain"]


def coverage_of(measurings: Iterable[Measurement], seen: Mapping[tuple[str, str], int], *, attached: bool) -> Coverage:
    """One line for each site, whatever the number of families that it is in.

    Args:
        measurings: what was attached.
        seen: by family and site, how often something was added in the logged steps.
        attached: whether the hooks are in.
    """
    lines: dict[Site, Covered] = {}
    for measuring in measurings:
        if measuring.hidden:
            continue
        notes = measuring.attachment.delivery.notes
        for line in measuring.coverage():
            count = seen.get((measuring.family, str(line.site)), 0) + line.count
            reason = notes.get(line.site, "") if count and not line.count else line.reason
            known = lines.get(line.site)
            if known is None or known.count < count:
                lines[line.site] = Covered(line.site, count, reason)
    return Coverage(list(lines.values()), attached=attached)


def plain(coverage: Coverage) -> dict[str, Any]:
    """A coverage as plain data, for the run."""
    missing = [{"site": str(line.site), "reason": line.reason} for line in coverage.missing]
    noted = [{"site": str(line.site), "note": line.reason} for line in coverage if line.count and line.reason]
    return {"sites": len(coverage), "observed": len(coverage.observed), "missing": missing, "notes": noted}
