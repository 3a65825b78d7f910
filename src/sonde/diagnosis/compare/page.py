"""Show a comparison as HTML."""

from __future__ import annotations

from sonde.diagnosis.compare.facts import Facts
from sonde.diagnosis.compare.ladder import ladder

__all__ = ["page_of"]


def page_of(comparison: Facts) -> str:
    """Return the ladder as HTML."""
    return ladder(comparison).to_html()
