"""The page of the format says what the schema is."""

from __future__ import annotations

import re
from pathlib import Path

from sonde.rows import KEY_COLUMNS, KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "run-format.md").read_text(encoding="utf-8")


def test_the_page_of_the_format_lists_every_column_with_its_type() -> None:
    """In the order in which they lead a family of numbers."""
    families = PAGE.partition("\n## Families\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", families, re.MULTILINE)
    names = [name for given, _ in rows for name in re.findall("`(.*?)`", given)]
    kinds = [kind for given, of in rows for kind in (of.split(", ") * given.count("`"))[: given.count("`") // 2]]
    assert names == list(KEYS)
    assert kinds == [key.kind.replace("string", "text") for key in KEY_COLUMNS]
