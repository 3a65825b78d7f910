"""What is public stays public, and importing it stays light."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing

import sonde

PUBLIC = {
    "Checkup",
    "Comparison",
    "Coverage",
    "Event",
    "Inspector",
    "ModuleCall",
    "ModuleTracker",
    "NonFinite",
    "Preflight",
    "Probe",
    "PyTorchInspector",
    "Run",
    "Runs",
    "Site",
    "Stash",
    "StashFn",
    "StashValueFn",
    "Summary",
    "SummaryRow",
    "TensorStore",
    "Tick",
    "Tracker",
    "Whereabouts",
    "check",
    "compare",
    "default_stash",
    "default_stash_value",
    "doctor",
    "errors",
    "get_stash_fn",
    "graph",
    "integrations",
    "lens",
    "observe",
    "open_run",
    "open_runs",
    "open_tensors",
    "play",
    "quiet",
    "preflight",
    "preprocessor",
    "recorders",
    "replay",
    "rmap_tensor",
    "rule",
    "sites",
    "stats",
    "summary",
    "testing",
    "track",
    "watch",
    "where",
    "why_nan",
}


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after *statement*."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_public_names_are_pinned() -> None:
    """A name that comes or goes must come or go here as well, and every one of them can be had."""
    assert set(sonde.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(sonde, name) is not None


def test_importing_sonde_does_not_import_torch() -> None:
    """``import sonde`` and ``sonde --help`` load neither torch nor numpy nor rich."""
    for statement in ("import sonde", "import sonde.cli\ntry: sonde.cli.main(['--help'])\nexcept SystemExit: pass"):
        assert not {"torch", "numpy", "rich", "pandas"} & loaded(statement)


def test_the_check_for_light_imports_can_fail() -> None:
    """The tests beside this one see what a statement loads: ``sonde.errors`` loads no numpy, numpy does."""
    assert "numpy" in loaded("import sonde.errors, numpy")


def test_reading_tensors_does_not_load_the_engine() -> None:
    """A folder of tensors is opened without torch; only reading a tensor needs it."""
    assert not {"torch", "sonde.engine"} & loaded("import sonde; sonde.open_tensors")


def test_annotations_of_public_functions_can_be_evaluated() -> None:
    """As programs do that make a command line or a configuration of a function's arguments."""
    functions = [getattr(sonde, name) for name in sonde.__all__ if inspect.isfunction(getattr(sonde, name))]
    assert sonde.watch in functions
    for function in [*functions, sonde.Inspector.__init__]:
        assert "return" in typing.get_type_hints(function)
