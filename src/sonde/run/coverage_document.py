"""Join the coverages that the ranks of a run have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sonde.site import Site


def is_coverage(part: Any) -> bool:
    """Return whether *part*, a document that may come from elsewhere, has the lines of a coverage."""
    return isinstance(part, Mapping) and _has_lines(part.get("missing"), "reason") and _has_lines(part.get("notes"), "note")


def _has_lines(lines: Any, said: str) -> bool:
    return isinstance(lines, list) and all(
        isinstance(line, Mapping) and isinstance(line.get("site"), str) and isinstance(line.get(said), str) for line in lines
    )


def joined(parts: Sequence[Mapping[str, Any]], sites: Sequence[str]) -> dict[str, Any]:
    """Return one coverage of those of several ranks; *sites* are those that have rows of any rank."""
    seen = {str(Site.parse(site).at("")) for site in sites}
    missing = {line["site"]: line for part in parts for line in part["missing"] if line["site"] not in seen}
    notes: dict[str, list[str]] = {}
    for line in (line for part in parts for line in part["notes"]):
        notes.setdefault(line["site"], []).append(line["note"])
    said = [{"site": site, "note": "; ".join(dict.fromkeys(texts))} for site, texts in notes.items()]
    return {"sites": len(seen | missing.keys()), "observed": len(seen), "missing": list(missing.values()), "notes": said}
