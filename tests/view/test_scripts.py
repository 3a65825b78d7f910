"""The scripts of the live page and of the graph's page: modules in a form in which they can be joined into one script."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import sonde.answer
import sonde.view
from sonde.answer.page import joined_modules

ASSETS = Path(sonde.view.__file__).parent / "assets"
SCRIPTS = {path: path.read_text(encoding="utf-8") for path in sorted(ASSETS.glob("*/*.js"))}
MAINS = [ASSETS / "app" / "main.js", ASSETS / "graph" / "main.js"]
IMPORT = re.compile(r'^import \{\s*([\w,\s]+?),?\s*\} from "(\.[\w./]+\.js)";$', re.MULTILINE)
DEFINED = re.compile(r"^(?:export )?(?:async )?(?:const|let|function|class) (?:(\w+)|[\[{]([^\]}=]*)[\]}] =)", re.MULTILINE)
EXPORTED = re.compile(DEFINED.pattern.replace("(?:export )?", "export "), re.MULTILINE)


def names(pattern: re.Pattern[str], text: str) -> list[str]:
    return [name for one, several in pattern.findall(text) for name in ([one] if one else re.findall(r"\w+", several))]


def imported(path: Path) -> list[tuple[list[str], Path]]:
    return [(re.findall(r"\w+", held), (path.parent / other).resolve()) for held, other in IMPORT.findall(SCRIPTS[path])]


def test_imports_name_what_the_other_module_exports_and_are_used() -> None:
    for path, text in SCRIPTS.items():
        assert len(re.findall(r"^\s*import\b", text, re.MULTILINE)) == len(IMPORT.findall(text)), path
        for held, other in imported(path):
            assert set(held) <= set(names(EXPORTED, SCRIPTS[other])), (path, other)
            assert all(re.search(rf"\b{each}\b", IMPORT.sub("", text)) for each in held), (path, held)


@pytest.mark.parametrize("main", MAINS, ids=lambda main: main.parent.name)
def test_no_name_is_defined_twice_over_all_modules_of_a_page(main: Path) -> None:
    """Also none that the script of the kit defines, which stands before them."""
    kit = (Path(sonde.answer.__file__).parent / "assets" / "page.js").read_text(encoding="utf-8")
    count = Counter(names(DEFINED, kit + joined_modules(main)))
    assert len(count) > 100
    assert [name for name, times in count.items() if times > 1] == []


@pytest.mark.parametrize("main", MAINS, ids=lambda main: main.parent.name)
def test_each_module_of_a_page_is_joined_once_and_stands_behind_what_it_imports(main: Path) -> None:
    joined = joined_modules(main)
    assert not re.search(r"^(import|export)\b", joined, re.MULTILINE)
    at = {
        path: joined.find(re.split(r"^import .*?;\n|^export ", text, flags=re.MULTILINE | re.DOTALL)[0])
        for path, text in SCRIPTS.items()
    }
    for path in SCRIPTS:
        if path.parent == main.parent:
            assert at[path] >= 0, path
            assert all(at[other] < at[path] for _, other in imported(path)), path


def test_no_text_of_a_run_is_read_as_markup_or_code() -> None:
    for path, text in SCRIPTS.items():
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.srcdoc\b", text)
        is_frame = path == ASSETS / "app" / "graph.js"  # the graph's own page, in a frame that reaches nothing
        assert set(found) == ({".srcdoc"} if is_frame else set()), path
