"""Explain the words of the glossary where a page first uses them: a link to the glossary, with the meaning as its hover.

The meanings are the rows of the table in ``glossary.md``, whose rows become targets; ``llms.txt`` beside the pages lists them all.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes

ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \|$", re.MULTILINE)
WORDS = {
    "stash": r"\bstash(?:es)?\b",
    "lens": r"(?<!logit )\blens(?:es)?\b",
    "port": r"\bports?\b(?! \d)",
    "site": r"\bsites?\b",
    "call": r"\b(?:(?<=each )|(?<=per ))call\b|\bcalls?\b(?= (?:\d|-1|number))",
    "micro-step": r"\bmicro-steps?\b",
    "leaf": r"\bleaf\b",
    "logged step": r"\blogged steps?\b",
    "statistic": r"\bstatistics?\b",
    "probe": r"\bprobes?\b",
    "sink": r"\bsinks?\b",
    "family": r"\bfamil(?:y|ies)\b",
    "coverage": r"\bcoverage\b",
    "finding": r"\bfindings?\b",
}
"""The words that a page explains at first sight, as they are written."""

OTHERS = ("glossary", "results", "changelog", "contributing", "rooms", "engine", "index", "security")
"""Pages that define the words themselves, or are for those who know them."""

PLAIN = (
    *(nodes.title, nodes.caption, nodes.literal, nodes.literal_block, nodes.strong, nodes.reference, nodes.raw, nodes.math),
    nodes.Invisible,
)


def meanings(folder: Path) -> dict[str, str]:
    """Return the meaning of each word of the glossary in *folder*, without marks."""
    page = (folder / "glossary.md").read_text(encoding="utf-8")
    return {word: re.sub(r"[`*]", "", meaning) for word, meaning in ROW.findall(page)}


def target(word: str) -> str:
    """Return the name of the row of *word* in the glossary."""
    return "term-" + word.replace(" ", "-")


def name_rows(app: Any, tree: nodes.document) -> None:
    """Make each row of the glossary a target."""
    if app.env.docname == "glossary":
        for row in tree.findall(nodes.row):
            for strong in list(row.findall(nodes.strong))[:1]:
                row["ids"].append(target(strong.astext()))


def explain(app: Any, tree: nodes.document, name: str) -> None:
    """Make the first use of each word of the glossary on the page *name* a link with its meaning."""
    if app.builder.format != "html" or name in OTHERS:
        return
    known, page = meanings(Path(app.srcdir)), app.builder.get_relative_uri(name, "glossary")
    for word, pattern in WORDS.items():
        for text in list(tree.findall(nodes.Text)):
            if not (match := re.search(pattern, str(text))) or not _is_running_text(text):
                continue
            link = nodes.reference(
                "", match[0], refuri=f"{page}#{target(word)}", reftitle=f"{word}: {known[word]}", internal=True, classes=["term"]
            )
            before, after = str(text)[: match.start()], str(text)[match.end() :]
            text.parent.replace(text, [nodes.Text(before), link, nodes.Text(after)])
            break


def _is_running_text(text: nodes.Text) -> bool:
    place: Any = text.parent
    in_paragraph = False
    while place is not None:
        if isinstance(place, PLAIN) or (type(place).__name__.startswith("desc_") and type(place).__name__ != "desc_content"):
            return False
        in_paragraph |= isinstance(place, nodes.paragraph)
        place = place.parent
    return in_paragraph


def list_pages(app: Any, error: Exception | None) -> None:
    """Write ``llms.txt`` beside the pages: each page with the first sentence of its text, for programs that read."""
    if error is not None or app.builder.format != "html":
        return
    env = app.env
    lines = ["# sonde", "", f"> {_first(env.get_doctree('index'))}", "", "## Pages", ""]
    for name in sorted(env.found_docs - {"index"}):
        tree = env.get_doctree(name)
        lines.append(f"- [{env.titles[name].astext()}]({app.builder.get_target_uri(name)}): {_first(tree)}".rstrip(": "))
    lines += ["", "## Words", "", *(f"- {word}: {meaning}" for word, meaning in meanings(Path(app.srcdir)).items())]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _first(tree: nodes.document) -> str:
    """Return the first sentence of a page."""
    for paragraph in tree.findall(nodes.paragraph):
        if text := " ".join(paragraph.astext().split()):
            return re.split(r"(?<=[.?!]) ", text)[0]
    return ""


def setup(app: Any) -> dict[str, bool]:
    """Connect the above to the reading and writing of pages."""
    app.connect("doctree-read", name_rows)
    app.connect("doctree-resolved", explain)
    app.connect("build-finished", list_pages)
    return {"parallel_read_safe": True}
