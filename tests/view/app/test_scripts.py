"""The scripts of the page: modules in a form that a report can join into one script."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import sonde.answer
import sonde.view

ASSETS = Path(sonde.view.__file__).parent / "assets"
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ASSETS / "app").glob("*.js"))}
IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./([\w]+\.js)";$', re.MULTILINE)
DEFINED = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", re.MULTILINE)


def test_imports_stand_on_one_line_and_name_what_the_other_module_exports() -> None:
    for name, text in SCRIPTS.items():
        assert len(re.findall(r"^\s*import\b", text, re.MULTILINE)) == len(IMPORT.findall(text)), name
        for names, other in IMPORT.findall(text):
            exported = re.findall(r"^export (?:async )?(?:const|let|function|class) (\w+)", SCRIPTS[other], re.MULTILINE)
            assert set(names.split(", ")) <= set(exported), (name, other)
            assert all(re.search(rf"\b{each}\b", IMPORT.sub("", text)) for each in names.split(", ")), (name, names)


def test_no_name_is_defined_twice_over_all_modules() -> None:
    """Also none that the script of the kit defines, which stands before them in a report."""
    kit = (Path(sonde.answer.__file__).parent / "assets" / "page.js").read_text(encoding="utf-8")
    count = Counter(name for text in (kit, *SCRIPTS.values()) for name in DEFINED.findall(text))
    assert [name for name, times in count.items() if times > 1] == []


def test_no_text_of_a_run_is_read_as_markup_or_code() -> None:
    for name, text in SCRIPTS.items():
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.srcdoc\b", text)
        assert set(found) == ({".srcdoc"} if name == "graph.js" else set()), (
            name
        )  # the graph's own page, in a frame that reaches nothing
