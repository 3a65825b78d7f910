"""SQL in sonde: no text from a file gets into a query as SQL, and a query reads a run and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import sonde
from sonde.errors import ArgumentError, ObservationWarning, UnknownSiteError
from sonde.rows import Layout
from sonde.run.folder import duckdb_sql
from sonde.run.folder.duckdb_sql import condition, literal, quoted
from sonde.run.run import Run
from sonde.run.store.open import start_run
from sonde.run.store.writer import RunWriter

SOURCE = Path(sonde.__file__).parent
SQL = re.compile(r"\b(SELECT|FROM|WHERE|COPY|DESCRIBE|CREATE|DROP|INSERT|UNION|GROUP BY|ORDER BY|BETWEEN|SET)\b|\bAND \(?$")
WRITES_SQL = {"quoted", "literal", "condition", "of_rank", "first_rank", "rows_of", "joined_rows_of", "_files"}
CHECKED = {  # texts that are SQL already; each was made from the functions above
    ("run/folder/duckdb_sql.py", "where"): "the caller's own condition, parsed to be one condition",
    ("run/comparison/side_by_side.py", "axis.column"): "made by Axis.column",
    ("run/comparison/side_by_side.py", "axis.condition"): "made by Axis.condition",
    ("run/exporting.py", "where"): "made by _condition()",
    ("run/heatmap.py", "condition"): "made by condition()",
    ("run/recorded_findings.py", "self._rows"): "made by of_rank()",
    ("view/plots/table.py", "cells"): "made by _cells()",
    ("view/plots/table.py", "self._where.get(family, 'false')"): "made by _moment() and _one_step()",
}


def is_constant_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()


def is_whole(part: ast.FormattedValue) -> bool:
    """Whether *part* has the format ``d``, which no text can have."""
    return part.format_spec is not None and ast.unparse(part.format_spec) == "f'd'"


class Safe:
    """Whether an expression in one function can only give SQL that was written by sonde."""

    def __init__(self, file: str, function: ast.AST) -> None:
        self.file = file
        self.given: dict[str, list[ast.expr]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    pairs = [(target, node.value)]
                    if isinstance(target, ast.Tuple):
                        several = node.value.elts if isinstance(node.value, ast.Tuple) else ()
                        same = len(several) == len(target.elts)  # else each name may hold any part of the value
                        pairs = list(zip(target.elts, several if same else [node.value] * len(target.elts), strict=True))
                    for name, value in pairs:
                        if isinstance(name, ast.Name):
                            self.given.setdefault(name.id, []).append(value)

    def __call__(self, node: ast.expr) -> bool:
        if (self.file, ast.unparse(node)) in CHECKED:
            return True
        match node:
            case ast.Constant():
                return True
            case ast.JoinedStr(values=parts):
                return all(is_whole(part) or self(part.value) for part in parts if isinstance(part, ast.FormattedValue))
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, op=ast.Add(), right=other):
                return self(one) and self(other)
            case ast.BoolOp(values=values):
                return all(map(self, values))
            case ast.Call(func=ast.Name(id=name)) if name in WRITES_SQL:
                return True
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.GeneratorExp(elt=each) | ast.ListComp(elt=each)]
            ):
                return self(each)
            case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.Name(id=name)]):
                return all(isinstance(each, ast.ListComp) and self(each.elt) for each in self.given.get(name, [node]))
            case ast.Call(func=ast.Name(id="next"), args=[ast.GeneratorExp(elt=each), ast.Constant()]):
                return self(each)
            case ast.Subscript(value=table):
                return is_constant_name(table)
            case ast.Name(id=name):
                return all(map(self, self.given.get(name, [ast.Call(node, [], [])])))
        return False


def queries(file: str, tree: ast.Module) -> Iterator[tuple[ast.JoinedStr, Safe]]:
    """Every f-string in *tree* that has SQL in it, with the judge of its function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen = set()
    for function in sorted(functions, key=lambda each: each.lineno, reverse=True):  # inner ones first
        found = [node for node in ast.walk(function) if isinstance(node, ast.JoinedStr) and id(node) not in seen and has_sql(node)]
        if found:
            safe = Safe(file, function)
            raised = {id(part) for node in ast.walk(function) if isinstance(node, ast.Raise) for part in ast.walk(node)}
            for node in found:
                if id(node) not in raised:
                    seen.add(id(node))
                    yield node, safe


def has_sql(text: ast.JoinedStr) -> bool:
    return any(isinstance(part, ast.Constant) and SQL.search(str(part.value)) for part in text.values)


def test_every_query_is_made_of_quoted_names_literals_and_constant_text() -> None:
    found, wrong = 0, []
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        for query, safe in queries(file, ast.parse(path.read_text())):
            found += 1
            wrong += [f"{file}:{query.lineno}: {ast.unparse(query)}"] if not safe(query) else []
    assert wrong == []
    assert found > 30


@pytest.mark.parametrize(
    "code",
    [
        "def f(step): return f'SELECT 1 WHERE step < {step}'",
        "def f(family): return f'SELECT * FROM \"{family}\"'",
        "def f(names):\n listed = ', '.join(name for name in names)\n return f'SELECT * FROM {listed}'",
        "def f(a, name):\n where = f'site = {a}' if a else ''\n return f'SELECT * FROM {quoted(name)} WHERE {where}'",
    ],
)
def test_a_text_from_elsewhere_in_a_query_is_noticed(code: str) -> None:
    ((query, safe),) = queries("x.py", ast.parse(code))
    assert not safe(query)


@pytest.mark.parametrize("text", ["a", "it's", "''; DROP VIEW x; --", 'q"q', "\\'", "$1 ?", "é\n\t"])
def test_names_and_literals_come_back_whatever_they_hold(text: str) -> None:
    assert duckdb.sql(f"SELECT {literal(text)} AS {quoted(text)}").to_arrow_table().to_pylist() == [{text: text}]
    with pytest.raises(ArgumentError, match="NUL"):
        literal(text + "\0")


@pytest.fixture
def run(writer: RunWriter) -> Run:
    layout = Layout(["fc:output", "head:output"])
    for step in range(3):
        writer.append("moments", layout, {"rms": [1.0, float(step)]}, step=step)
    writer.scalar("loss", 0.5, step=0)
    return writer.run()


READING = {
    "FROM moments": 6,
    "WITH top AS (SELECT max(rms) AS rms FROM moments) SELECT * FROM top JOIN moments USING (rms)": 1,
    "PIVOT (SELECT step, site, rms FROM moments) ON site USING avg(rms)": 3,
    "EXPLAIN SELECT * FROM moments": 1,
    "explain analyze FROM moments": 1,
    "DESCRIBE moments": 14,
    "SUMMARIZE moments": 14,
    "SHOW TABLES": 2,
    "VALUES (1), (2)": 2,
    "-- a comment\nSELECT 1": 1,
}


@pytest.mark.parametrize("query", READING)
def test_a_query_that_reads_is_answered(run: Run, query: str) -> None:
    assert len(run.sql(query).fetchall()) == READING[query]


def test_a_run_is_only_read(tmp_path: Path, run: Run) -> None:
    """No statement writes a file, a table or a setting; no other file is read, also not through the run's own folder."""
    secret, written = tmp_path / "secret.csv", tmp_path / "written"
    secret.write_text("word\nhidden\n")
    inside = run.path or tmp_path
    (inside / "link.csv").symlink_to(secret)
    before = sorted(path for path in tmp_path.rglob("*") if path.suffix != ".json")
    refused = [
        f"COPY moments TO '{written}'",
        f"COPY moments TO '{inside}/moments/x.parquet'",
        f"EXPLAIN ANALYZE COPY moments TO '{inside}/x.parquet'",
        f"COPY (PIVOT moments ON site) TO '{inside}/x.parquet'",
        f"ATTACH '{written}' AS other",
        f"EXPORT DATABASE '{written}'",
        "CREATE TABLE x AS FROM moments",
        "INSERT INTO moments VALUES (1)",
        "DROP VIEW moments",
        "SET threads = 1",
        "INSTALL httpfs",
        "CALL enable_logging(storage = 'file')",
        "FROM moments; FROM moments",
        "",
    ]
    for query in refused:
        with pytest.raises(ArgumentError, match=r"A run is only read.*run\.connection\(\)"):
            run.sql(query)
    for path in (secret, inside / "link.csv", inside / ".." / secret.name, "/etc/hostname", "*"):
        for read in ("read_csv", "read_text", "glob"):
            with pytest.raises(duckdb.PermissionException):
                run.sql(f"SELECT * FROM {read}('{path}')")
    assert sorted(path for path in tmp_path.rglob("*") if path.suffix != ".json") == before
    assert run.sql("SELECT count(*) FROM moments").fetchall() == [(6,)]


@pytest.mark.parametrize("where", ["true); DROP VIEW moments; --", "true) UNION (SELECT 1, 2", "step = 0; SELECT 1"])
def test_a_condition_is_one_condition(run: Run, where: str) -> None:
    for ask in (lambda: run.series("fc", "rms", where=where), lambda: run.heatmap("rms", where=where)):
        with pytest.raises((ArgumentError, duckdb.Error)):
            ask()
    assert run.series("fc", "rms", where="step > 0 -- and no more")[0].tolist() == [1, 2]
    assert condition(None) == condition("") == ""


def test_a_connection_of_ones_own_does_all_that_duckdb_does(tmp_path: Path, run: Run) -> None:
    with run.connection() as connection:
        connection.execute(f"COPY (SELECT site, rms FROM moments WHERE step = 2 ORDER BY site) TO '{tmp_path}/two.csv'")
        connection.execute("DROP VIEW moments")
    assert (tmp_path / "two.csv").read_text() == "site,rms\nfc:output,1.0\nhead:output,2.0\n"
    assert run.sql("SELECT count(*) FROM moments").fetchall() == [(6,)]


def test_an_answer_stays_as_it_is_beside_later_ones_and_can_be_written_to_a_file(tmp_path: Path, run: Run) -> None:
    first, second = (run.sql("SELECT site, rms FROM moments WHERE step = $step ORDER BY site", {"step": step}) for step in (1, 2))
    assert [each.query("own", "SELECT max(rms) FROM own").fetchall() for each in (first, second)] == [[(1.0,)], [(2.0,)]]
    second.write_csv(str(tmp_path / "two.csv"))
    assert (tmp_path / "two.csv").read_text() == "site,rms\nfc:output,1.0\nhead:output,2.0\n"
    assert first.fetchall() == [("fc:output", 1.0), ("head:output", 1.0)]


def test_rows_that_come_later_are_followed_by_the_locked_connection(tmp_path: Path) -> None:
    """New parts, a new family and the merged parts of the end."""
    with start_run(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, step=0)
        run = writer.run()
        assert run.sql("SELECT count(*) FROM scalars").fetchall() == [(1,)]
        with pytest.raises(UnknownSiteError, match=r"'moments' is no family .* There are 1: scalars"):
            run.sql("SELECT rms FROM moments")
        writer.scalar("loss", 1.0, step=1)
        writer.append("moments", Layout(["fc:output"]), {"rms": 1.0}, step=1)
        writer.flush()
        assert run.sql("SELECT count(*) FROM scalars, moments").fetchall() == [(2,)]
    assert run.sql("SELECT count(*) FROM scalars, moments").fetchall() == [(2,)]


def test_before_the_first_rows_the_error_says_when_they_come(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        run = writer.run()
        for ask in (lambda: run.table("moments"), lambda: run.sql("FROM moments"), lambda: run.scalar("loss")):
            with pytest.raises(
                UnknownSiteError, match=r"nothing is recorded there yet\. The first rows can be read a second after"
            ):
                ask()


def test_when_all_parts_of_a_family_are_damaged_the_error_says_so(tmp_path: Path) -> None:
    with start_run(tmp_path / "run") as writer:
        writer.append("moments", Layout(["fc:output"]), {"rms": 1.0}, step=1)
        writer.scalar("loss", 1.0, step=0)
    (part,) = (tmp_path / "run" / "moments").iterdir()
    part.write_bytes(part.read_bytes()[:-20])
    run = sonde.open_run(tmp_path / "run")
    with pytest.warns(ObservationWarning, match="damaged"), pytest.raises(UnknownSiteError, match="no part of it is left"):
        run.sql("SELECT rms FROM moments")
    with pytest.raises(UnknownSiteError, match=f"moments cannot be read from .*no part of it is left.*{part.name}"):
        run.table("moments")
    assert run.scalar("loss")[0].tolist() == [0]


def test_after_an_answer_that_took_long_the_database_is_closed_and_the_next_answer_is_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB keeps the memory of an answer for as long as it is open."""
    monkeypatch.setattr(duckdb_sql, "_LONG", 600.0)
    expected = run.sql("SELECT site, rms FROM moments ORDER BY site, step").fetchall()
    assert run._database._connection is not None
    monkeypatch.setattr(duckdb_sql, "_LONG", -1.0)
    for _ in range(2):
        assert run.sql("SELECT site, rms FROM moments ORDER BY site, step").fetchall() == expected
        assert run._database._connection is None
