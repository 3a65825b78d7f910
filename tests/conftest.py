"""Run each process on one thread, remove what a test leaves behind, give a browser, and count the skipped tests by reason."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import weakref
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

# Read while torch is imported, here and in the processes that tests start. The tests themselves run on all cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ["COLUMNS"] = "80"  # of what is printed, whatever the terminal
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # set in many containers, where each process would compile sonde again

import hypothesis
import pytest
import torch
from torch.utils.hooks import RemovableHandle

from sonde.engine.torch_api import hooks
from sonde.inspector.sentinel.training_passes import _Arrives

sys.dont_write_bytecode = False  # else each process that collects tests would compile all of them again

# The same examples on every machine, however slow. pytest --hypothesis-profile=search looks for others.
_repeatable = hypothesis.settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("repeatable", _repeatable)
hypothesis.settings.register_profile("search", _repeatable, derandomize=False)
hypothesis.settings.load_profile("repeatable")

# No test loses power: what is written to the disk need not be there at once. A test may wait a tenth of a second for each file.
os.fsync = lambda descriptor: None

if not torch.accelerator.is_available():
    # Else each seed is noted for three kinds of devices that are not there, each time with the stack: half a millisecond.
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = torch.mtia.manual_seed_all = lambda seed: None

TURN = os.environ.get("TURN", "")
"""Which of the slow tests run, as ``1/3``: of three turns the second."""

_registered: list[tuple[weakref.ref[Any], int]] = []
_register = RemovableHandle.__init__


def _remember(handle: RemovableHandle, hooks_dict: Any, **extra: Any) -> None:
    _register(handle, hooks_dict, **extra)
    _registered.append((handle.hooks_dict_ref, handle.id))
    if len(_registered) > 1_000:
        _registered[:] = [(dictionary, key) for dictionary, key in _registered if key in (dictionary() or ())]


RemovableHandle.__init__ = _remember  # type: ignore[method-assign]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core, but not more than eight: each needs memory and seconds for torch."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported and tests are found: all of that stays, and it takes a fifth of the time.

    Behind that it is looked for less often than usual: tests make many objects, few of them in cycles.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(5_000, 20, 50)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Look for no doctests in the files of tests, which have none: a second each time, in each process."""
    collectors = yield
    return [each for each in collectors if type(each).__name__ != "DoctestModule"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow all but the first case of each test of a file marked ``first_is_quick``: each case trains, or starts ranks.

    With ``TURN=1/3`` in the environment leave out slow tests whose turn it is not: each has one of three, by its name alone.
    """
    seen: set[tuple[object, str]] = set()
    for item in items:
        test = item.path, getattr(item, "originalname", item.name)
        if item.get_closest_marker("first_is_quick") and test in seen:
            item.add_marker(pytest.mark.slow)
        seen.add(test)
    turn, _, turns = os.environ.pop("TURN", "").partition("/")  # what tests start runs all that it is asked for
    if turns:
        waits = {item for item in items if item.get_closest_marker("slow") and not has_turn(item.nodeid, int(turn), int(turns))}
        config.hook.pytest_deselected(items=[item for item in items if item in waits])
        items[:] = [item for item in items if item not in waits]


def has_turn(name: str, turn: int, turns: int) -> bool:
    """Return whether the slow test of that *name* runs in this one of so many *turns*."""
    return zlib.crc32(name.encode()) % turns == turn % turns


_files: list[object] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the tests of a file let the collector leave out all that is there: modules, tests, what other files imported.

    Tests that collect or count objects then take milliseconds, not seconds.
    """
    if _files[-1:] != [item.path]:
        _files.append(item.path)
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Give frozen objects back to the collector: DuckDB lists at exit all its functions that were not freed."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write one line: how many tests were skipped, why, and what lets them run."""
    reasons = Counter(
        re.sub(r"^Skipped: ", "", report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr))
        for report in terminalreporter.stats.get("skipped", [])
    )
    parts = [f"{count} ({reason})" for reason, count in reasons.most_common()]
    if config.option.markexpr == "not slow":
        parts.append("all slow ones (make test-all)")
    elif TURN:
        parts.append(f"slow ones of other turns than {TURN} (make test-all)")
    terminalreporter.write_line(f"skipped: {', '.join(parts) or 'none'}")


def our_hooks() -> list[str]:
    """Every hook of ours that was registered since the last test and is still in its dictionary."""
    left = []
    for dictionary, key in _registered:
        held = dictionary()
        hook = None if held is None else held.get(key)
        if isinstance(hook, hooks.GradientHooks | _Arrives) or type(hook) is hooks.Bound:
            continue  # on a tensor of a graph, with which it goes
        if isinstance(hook, hooks.Hook) or (getattr(hook, "__module__", None) or "").startswith("sonde."):
            left.append(str(hook))
    return left


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    """After each test, no module, parameter, living leaf or optimizer holds a hook of ours."""
    _registered.clear()
    yield
    if our_hooks():
        gc.collect()  # a probe in a reference cycle of the test's own
    assert our_hooks() == []


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """A compiler that has seen nothing, with its settings restored afterwards."""
    import torch._dynamo

    torch._dynamo.reset()
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    torch._dynamo.config.skip_nnmodule_hook_guards = True
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.config.skip_nnmodule_hook_guards = before


# Pages and notebook tables

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real chromium; skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
