"""Every printed answer about ten models is as its golden file keeps it, and the golden files are right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import unified_diff
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.golden.masking import ROOT
from tests.golden.models import CASES, Case
from tests.golden.questions import FILES, answers

KEPT = sorted(FILES.glob("*/*.txt"))
VOID = {"br", "hr", "img", "input", "link", "meta"}


def forms_of(file: Path) -> dict[str, str]:
    """Return the parts of a golden file."""
    _, *parts = re.split(r"^──── (\w+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def words(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def findings(data: Any) -> Iterator[dict[str, Any]]:
    """Yield all findings in an answer's data, at any depth."""
    if isinstance(data, dict):
        if "message" in data:
            yield data
        data = list(data.values())
    for each in data if isinstance(data, list) else ():
        yield from findings(each)


class Page(HTMLParser):
    """Reads HTML, whose elements must be closed in the order in which they were opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.seen.append(data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_answer_about_a_model_is_as_it_was(case: Case, tmp_path: Path) -> None:
    """Words, order and form of text, HTML and JSON are those of the golden files."""
    asked = list(answers(case, tmp_path))
    changed = []
    for each in asked:
        kept = each.file.read_text(encoding="utf-8") if each.file.exists() else ""
        name = str(each.file.relative_to(ROOT))
        changed += unified_diff(kept.splitlines(), each.masked().splitlines(), name, f"{name} now", lineterm="", n=1)
    if changed:
        shown = "\n".join(line[:400] for line in changed[:200])
        pytest.fail(f"answers have changed; if they should: python -m tests.golden {case.name}\n{shown}", pytrace=False)
    assert {each.file for each in asked} == set((FILES / case.name).glob("*.txt"))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_an_answer_says_the_same_in_all_forms(file: Path) -> None:
    """The findings of the JSON stand in the HTML, whose elements are closed, and the first in the text; JSON holds no NaN."""
    forms = forms_of(file)
    assert all(part.strip() for part in forms.values())
    found = list(findings(json.loads(forms.get("json", "{}"), parse_constant=pytest.fail)))
    html = ""
    if "html" in forms:
        page = Page(forms["html"])
        assert page.open == []
        html = words("".join(page.seen))
    messages = [words(each["message"]).split(": ") for each in found]  # why_nan shows what was made, and why, on two lines
    assert all(part in words(forms["text"]) for message in messages[:1] for part in message)
    assert not html or all(part in html for message in messages for part in message)
    if "page" in forms:
        assert f'"source">sonde.{file.stem.partition("_runs")[0]}<' in forms["page"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_golden_files_are_right(case: Case) -> None:
    """They name the layers of the model, count its parameters, find what was planted, and nothing in what is well."""
    folder = FILES / case.name
    for question, said in case.planted.items():
        if (folder / f"{question}.txt").exists():
            assert said in forms_of(folder / f"{question}.txt")["text"], question
    model = case.build()
    layers = {name or "(root)" for name, _ in model.named_modules(remove_duplicate=False)}
    rows = forms_of(folder / "track.txt")["text"].split("──\n")[1].splitlines()
    assert {row.split()[0] for row in rows} - {"gradient:", "not"} <= layers, "'not seen: ...' and 'gradient: ...' are remarks"
    total = sum(parameter.numel() for parameter in model.parameters())
    assert re.search(rf"^{total:,} parameters? ", forms_of(folder / "summary.txt")["text"], re.MULTILINE)
    compared = json.loads(forms_of(folder / "compare.txt")["json"])
    assert not compared["ok"]
    assert compared["owner"] == case.parts_at
    doctor = json.loads(forms_of(folder / "doctor.txt")["json"])
    assert doctor["ok"], "observing changes nothing"
    found = list(findings(json.loads(forms_of(folder / "check.txt")["json"])))
    assert bool(found) == ("check" in case.planted)
    if case.runs:
        command = forms_of(folder / "check_command.txt")
        assert list(findings(json.loads(command["json"]))) == found
        assert f"exit code {int(bool(found))}" in command["text"]
        listed = json.loads(forms_of(folder / "list.txt")["json"])["runs"]
        assert [each["name"] for each in listed] == [case.name, f"{case.name}-faster"]
        assert (listed[0]["health"] == "ok") == (not found)
