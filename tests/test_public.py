"""What is public stays public, and importing it stays light."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import sonde

PUBLIC = {
    "Answer",
    "BadSteps",
    "Inspector",
    "Limits",
    "ModuleTracker",
    "Proof",
    "Ranks",
    "Run",
    "Site",
    "Tracker",
    "Warmup",
    "capture",
    "check",
    "compare",
    "doctor",
    "errors",
    "extract",
    "graph",
    "integrations",
    "lens",
    "observe",
    "open_run",
    "open_runs",
    "open_tensors",
    "preflight",
    "preprocessor",
    "quiet",
    "recorders",
    "replay",
    "rule",
    "sites",
    "stats",
    "stream",
    "summary",
    "testing",
    "track",
    "types",
    "watch",
    "where",
    "why_nan",
}
"""What a program calls, the nouns of a training, the values that ``watch`` takes, and the modules."""

TYPES = {
    "Checked",
    "Checkup",
    "Comparison",
    "Coverage",
    "Event",
    "Finding",
    "ModuleCall",
    "NonFinite",
    "Phase",
    "Port",
    "Preflight",
    "Probe",
    "ProbeError",
    "RunComparison",
    "Runs",
    "Stash",
    "StashFn",
    "StashValueFn",
    "Summary",
    "SummaryRow",
    "TensorStore",
    "Tick",
    "Tried",
    "Whereabouts",
}
"""What annotations name, in ``sonde.types``."""

SEEDS = ("tensor_tracker", "torchfunc", "module_tracker", "torchrecorder", "monitorch")
"""The projects that sonde continues."""


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after *statement*."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_public_names_are_pinned() -> None:
    """A name that comes or goes must come or go here as well, and every one of them can be had."""
    assert set(dir(sonde)) == set(sonde.__all__) == PUBLIC
    assert set(dir(sonde.types)) == set(sonde.types.__all__) == TYPES
    for name in PUBLIC:
        assert getattr(sonde, name) is not None
    for name in TYPES:
        assert getattr(sonde.types, name) is not None
    with pytest.raises(AttributeError, match="Evnet"):
        sonde.types.Evnet  # noqa: B018  # type: ignore[attr-defined]  # misspelt


@pytest.mark.parametrize("seed", SEEDS)
def test_names_of_the_seeds_are_where_the_pages_say(seed: str) -> None:
    """Each page says how to import them, in one statement or several."""
    page = (Path(__file__).parents[1] / "docs" / f"coming-from-{seed}.md").read_text(encoding="utf-8")
    said = re.findall(r"^(?:`|)(from sonde[\w.]* import [\w, ]+)", page, re.MULTILINE)
    assert said
    for statement in said:
        exec(statement, {})


def test_the_batch_comes_right_after_the_models() -> None:
    """In every verb that runs them."""
    verbs = [getattr(sonde, name) for name in dir(sonde) if inspect.isfunction(getattr(sonde, name))]
    asked = {verb.__name__: list(inspect.signature(verb).parameters) for verb in [*verbs, sonde.testing.assert_healthy]}
    of_batch = {name: given for name, given in asked.items() if {"batch", "args"} & set(given)}
    assert set(of_batch) == {"assert_healthy", "capture", "compare", "doctor", "preflight", "summary", "why_nan"}
    for name, given in of_batch.items():
        assert given[2 if name == "compare" else 1] in ("batch", "args")


def test_every_verb_shows_an_example_of_itself() -> None:
    """Which doctest runs; a rule would stay listed, and a step that is run again must have failed before."""
    verbs = {name: getattr(sonde, name) for name in dir(sonde) if inspect.isfunction(getattr(sonde, name))}
    assert {name for name, verb in verbs.items() if ">>>" not in (verb.__doc__ or "")} == {"replay", "rule"}


def test_help_shows_no_address() -> None:
    """What stands for an argument that is not given says so: an address says nothing to a reader, and differs at each start."""
    for name in ("compare", "watch", "track", "observe", "summary", "why_nan", "preflight", "extract", "Inspector", "Tracker"):
        value = getattr(sonde, name)
        members = [value, *filter(inspect.isfunction, vars(value).values())] if inspect.isclass(value) else [value]
        for each in members:
            assert " at 0x" not in str(inspect.signature(each)), f"{name}: {each}"
    assert "batch: 'Any' = <not given>" in str(inspect.signature(sonde.compare))


def test_importing_sonde_does_not_import_torch() -> None:
    """``import sonde`` and ``sonde --help`` load neither torch nor numpy nor rich."""
    for statement in ("import sonde", "import sonde.cli\ntry: sonde.cli.main(['--help'])\nexcept SystemExit: pass"):
        assert not {"torch", "numpy", "rich", "pandas"} & loaded(statement)


def test_the_check_for_light_imports_can_fail() -> None:
    """The tests beside this one see what a statement loads: ``sonde.errors`` loads no numpy, numpy does."""
    assert "numpy" in loaded("import sonde.errors, numpy")


@pytest.mark.slow
def test_track_does_not_load_the_compiler() -> None:
    """``sonde.track`` costs a quarter of a second after ``import torch``: Dynamo and the distributed tensors take a whole one."""
    assert not {"torch._dynamo", "torch.distributed.pipelining"} & loaded("import sonde; sonde.track")


def test_reading_tensors_does_not_load_the_engine() -> None:
    """A folder of tensors is opened without torch; only reading a tensor needs it."""
    assert not {"torch", "sonde.engine"} & loaded("import sonde; sonde.open_tensors")


@pytest.mark.slow
def test_naming_a_type_loads_its_room_alone() -> None:
    """An annotation as ``sonde.types.Event`` loads neither the diagnoses nor the inspector."""
    assert not {"sonde.diagnosis", "sonde.inspector", "sonde.keep"} & loaded("import sonde; sonde.types.Event")


def test_annotations_of_public_functions_can_be_evaluated() -> None:
    """As programs do that make a command line or a configuration of a function's arguments."""
    functions = [getattr(sonde, name) for name in sonde.__all__ if inspect.isfunction(getattr(sonde, name))]
    assert sonde.watch in functions
    for function in [*functions, sonde.Inspector.__init__]:
        assert "return" in typing.get_type_hints(function)
