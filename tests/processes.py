"""Run a function on several real processes (gloo), as ``torchrun`` would start them.

The first call starts one server process that has imported torch and sonde (2 s), and each process of a test is forked from the
server: two ranks cost 0.1 s and share nothing with the ranks of another test. No test can hang: what is left at the time limit is
killed, and the report shows the stack of every thread of the ranks that were killed.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

IMPORTED = [
    "numpy.testing",
    "pytest",
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "duckdb",
    "pyarrow.parquet",
    "sonde.engine.probes.probe",
    "sonde.inspector",
    "sonde.run",
    "sonde.stats",
]
"""What the server process imports before it forks: whatever is slow, and starts no thread."""

SHOW_STACKS = signal.SIGUSR2
SHOWN, MOST_SHOWN = 500, 6_000
"""Characters of a warning, and of the output of a rank, in the report of a failure."""


@dataclass
class Rank:
    """What became of one process.

    Attributes:
        rank: its number.
        value: what the function returned; None if it did not return.
        error: the traceback of the exception that left the function; None without one.
        warnings: each Python warning, in any thread, as ``"Category: text"``; and each exception that a thread, an exit function or
            a destructor did not handle.
        out: all that the process wrote to its standard output, also from C++.
        err: the same of its standard error; of a rank that was killed at the time limit, the stacks of its threads too.
        code: the exit code; minus the number of the signal that ended the process.
        hung: whether the process was still there at the time limit, and was killed.
        seconds: how long the process lived.
    """

    rank: int
    value: Any = None
    error: str | None = None
    warnings: list[str] = field(default_factory=list)
    out: str = ""
    err: str = ""
    code: int | None = None
    hung: bool = False
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether the function returned and nothing warned."""
        return self.error is None and not self.warnings and not self.hung and self.code == 0

    def __str__(self) -> str:
        how = "killed at the time limit" if self.hung else f"exit code {self.code}"
        warned = [f"{times} x {text[:SHOWN]}" for text, times in Counter(self.warnings).items()]
        written = [text.rstrip()[-MOST_SHOWN:] for text in (self.out, self.err) if text]
        return "\n".join([f"--- rank {self.rank}: {how} after {self.seconds:.1f} s", *warned, *written])


def on_ranks(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    limit: float = 120.0,
    check: bool = True,
    group: bool = True,
    environ: Mapping[str, str] | None = None,
) -> list[Rank]:
    """Run *function* on *n* processes at once; return what became of each.

    In each process the environment is that of ``torchrun`` (``RANK``, ``WORLD_SIZE``, the store of the launching process, ...),
    torch has one thread and the seed 0, and the folder is the one of this process.

    Args:
        n: the number of ranks.
        function: a function at the top of a module. It finds its rank with ``torch.distributed.get_rank()``.
        args: arguments of the function, the same for each rank; they are pickled, as the returned value is.
        limit: seconds after which ranks that are left are killed.
        check: whether a rank that raises, warns, dies or hangs is an error that shows the outputs of all ranks.
        group: whether a gloo process group is made before the function, and destroyed after a function that returned.
        environ: environment variables to add.

    Raises:
        AssertionError: with *check*, if any rank did not return a value without a warning.
    """
    __tracebackhide__ = True
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = contextlib.nullcontext() if function.__module__ == "__main__" else without_own_main()
    with tempfile.TemporaryDirectory(prefix="ranks-") as name, own:
        folder, begin = Path(name), time.monotonic()
        processes = []
        try:
            for rank in range(n):
                variables = {**_torchrun(rank, n, store.port), **(environ or {})}
                process = context.Process(target=_child, args=(rank, function, args, folder, limit, group, variables))
                process.start()
                processes.append(process)
            lived, hung = _join(processes, begin, limit)
        finally:
            for process in processes:
                process.kill()
        ranks = [
            _read(Rank(rank, code=process.exitcode, hung=rank in hung, seconds=lived[rank]), folder)
            for rank, process in enumerate(processes)
        ]
    del store
    if check and not all(rank.is_clean for rank in ranks):
        raise AssertionError("\n".join(["not every rank returned without a warning", *map(str, ranks)]))
    return ranks


def values(ranks: list[Rank]) -> list[Any]:
    """Return what the function returned on each rank."""
    return [rank.value for rank in ranks]


def torchrun(n: int, script: str, *args: object, folder: Path, max_restarts: int = 0, limit: float = 120.0) -> Launch:
    """Run *script*, the text of a program, on *n* ranks with ``torchrun`` itself, which takes 10 s; return what it left.

    Args:
        n: the number of ranks.
        script: the text.
        args: the arguments of the script.
        folder: an existing folder, in which the ranks run.
        max_restarts: how often all ranks are started again after one fails.
        limit: seconds after which everything is killed.
    """
    (folder / "train.py").write_text(script)
    options = ["--standalone", f"--nproc-per-node={n}", f"--max-restarts={max_restarts}", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "train.py", *map(str, args)]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Else the store of torchrun keeps the addresses of ranks that died, and gloo now and then tries to connect with these.
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"torchrun was killed after {limit} s\n{out}\n{err}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return Launch(process.returncode, out, err)


@dataclass
class Launch:
    """What ``torchrun`` left: its exit code, and all that it and its ranks wrote."""

    code: int
    out: str
    err: str


def _torchrun(rank: int, n: int, port: int) -> dict[str, str]:
    """Return the environment variables that ``torchrun --standalone --nproc-per-node n`` sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _join(processes: list[Any], begin: float, limit: float) -> tuple[list[float], set[int]]:
    """Wait for the processes, and kill those that are left at the limit; return how long each lived, and who was killed."""
    lived = [0.0] * len(processes)
    waiting = {process.sentinel: rank for rank, process in enumerate(processes)}
    while waiting and (left := begin + limit - time.monotonic()) > 0:
        for sentinel in connection.wait(list(waiting), timeout=left):
            lived[waiting.pop(sentinel)] = time.monotonic() - begin
    for rank in waiting.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes[rank].pid, SHOW_STACKS)
    if waiting:
        connection.wait(list(waiting), timeout=1.0)
    for rank in waiting.values():
        processes[rank].kill()  # a stopped process, too
        lived[rank] = time.monotonic() - begin
    for process in processes:
        process.join()
    return lived, set(waiting.values())


def _read(rank: Rank, folder: Path) -> Rank:
    """Fill in what the process left in the folder; nothing of one that had not begun when it was ended."""
    for kind in ("out", "err"):
        with contextlib.suppress(FileNotFoundError):
            setattr(rank, kind, (folder / f"{rank.rank}.{kind}").read_text(errors="replace"))
    for kind in ("value", "error"):
        with contextlib.suppress(FileNotFoundError):
            setattr(rank, kind, pickle.loads((folder / f"{rank.rank}.{kind}").read_bytes()))
    with contextlib.suppress(FileNotFoundError):
        rank.warnings = (folder / f"{rank.rank}.warnings").read_text().split("\0")[:-1]
    return rank


@contextlib.contextmanager
def without_own_main() -> Iterator[None]:
    """Let new processes leave the ``__main__`` of this one (pytest) alone."""
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        main.__dict__.pop("__file__", None)
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


def _child(
    rank: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    folder: Path,
    limit: float,
    group: bool,
    environ: dict[str, str],
) -> None:
    """Run in the new process: call the function, and leave value, error, warnings and output in the folder."""
    signal.alarm(int(limit) + 10)  # should the tests' process be gone by then
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    faulthandler.enable(sys.stderr)
    faulthandler.register(SHOW_STACKS, sys.stderr, all_threads=True)
    os.environ.update(environ)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with (folder / f"{rank}.warnings").open("a") as noted:

        def note(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            noted.write(f"{category.__name__}: {message}\0")
            noted.flush()

        def unhandled(caught: Any) -> None:
            error = caught.exc_value
            note(f"{error!r} in {getattr(caught, 'thread', None) or caught.object!r}", type(error))
            traceback.print_exception(error)

        sys.unraisablehook = threading.excepthook = unhandled
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.showwarning = note
        try:
            if group:
                distributed.init_process_group("gloo", timeout=timedelta(seconds=limit))
                distributed.barrier()  # else a rank may end while another one still connects
            _leave(folder / f"{rank}.value", function(*args))
            if group and distributed.is_initialized():
                distributed.destroy_process_group()
        except BaseException as error:
            _leave(folder / f"{rank}.error", "".join(traceback.format_exception(error)))
            raise  # the exit code, and the traceback on standard error, as in a script
        finally:  # what the interpreter does at its end, and forked processes leave out
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()


def _leave(path: Path, value: Any) -> None:
    part = path.with_suffix(".part" + path.suffix)
    part.write_bytes(pickle.dumps(value))
    part.rename(path)
