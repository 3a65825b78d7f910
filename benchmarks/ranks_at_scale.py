"""Measure what a run of many ranks costs: hundreds of processes without a network, and what 1,024 and 16,384 would meet.

Run alone, as ``python benchmarks/ranks_at_scale.py --ranks 2,8,32,128 --sites 100,1000 --shape ddp,fsdp,pipeline``.

Each rank is a process that was forked from one that has imported everything. It calls ``sonde.watch`` on modules that hand on one
small tensor, so that the way to the run is the real one: meeting, connections, merging, writer. The process group is torch's
``"fake"``, which connects nobody, beside a real TCPStore that rank 0 holds: what connects, sonde has asked for.

Requests to the store are counted where they leave Python, in the methods of torch's ``Store``, and those of gloo by a store in
Python that is put between the two; so it does not matter which part of sonde asks. The system counts the bytes and messages of
each connection (``TCP_INFO``), the memory and the processor time.

On a few cores the seconds of N processes are N times the processor time of one: they are shown, and nothing is concluded from
them. The model of cost takes counts, bytes and processor times, each as a function of ranks and sites that is fitted to what was
measured, and the assumptions that are printed with it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import select
import signal
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import duckdb  # noqa: F401 (imported before processes are forked)
import numpy as np
import pyarrow.parquet  # noqa: F401 (as duckdb)
import torch
import torch._dynamo  # as duckdb: for DTensor
from torch import distributed, nn
from torch.distributed.tensor import DeviceMesh, DTensor, Shard
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

import sonde
from sonde import lens
from sonde.inspector import Ranks

SHAPES = ("ddp", "fsdp", "pipeline")
BLOCK = 10  # modules of a layer
STAGES = 16  # of a pipeline, at most
ROUNDS = 3  # whose mean is taken
LIMIT = 150.0  # seconds that the ranks may take to come to the end of a phase
LATENCY, BANDWIDTH = 50e-6, 10e9 / 8  # seconds of a message; bytes per second
OF_ALL = ("in all", "all requests", "the store")
PROJECTED = (1_024, 16_384)
PROJECTED_SITES = 10_000
ASKING, REQUESTS = 8, 2_000  # processes that ask a store at once, and how often each does
RING = 2  # messages one after the other, for each other rank, in an all_reduce of gloo's; a round has two
GOALS = {"seconds of attaching": "<= 5", "requests in all at the start, by rank": "O(1)", "seconds of the end": "<= 5"}

Figures = dict[str, float]

# Counting


class Counts:
    """What this process has asked of a store so far.

    Attributes:
        of: by kind, how often; ``keys`` are the keys in all requests, ``bytes`` what was sent and received in keys and values.
    """

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, arguments: Sequence[Any], found: Any) -> None:
        texts = list(_texts(arguments))
        keys = len(arguments[0]) if arguments and isinstance(arguments[0], list) else 1
        with self._lock:
            self.of.update({"requests": 1, kind: 1, "keys": keys, "bytes": sum(texts) + sum(_texts([found]))})


def _texts(values: Sequence[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, str | bytes):
            yield len(value)
        elif isinstance(value, list):
            yield from _texts(value)
        else:
            yield 8


COUNTS = Counts()
ASKED = ("set", "get", "add", "check", "compare_set", "wait", "multi_get", "multi_set", "append", "delete_key", "num_keys")


class Counted(distributed.Store):
    """A store whose methods lead through Python, for what asks from C++."""

    kept: ClassVar[list[Counted]] = []  # torch holds the part in C++ alone

    def __init__(self, store: distributed.Store) -> None:
        super().__init__()
        self._store = store
        Counted.kept.append(self)

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def wait(self, keys: list[str], timeout: timedelta = timedelta(minutes=5)) -> None:
        self._store.wait(keys, timeout)


def _passed(name: str) -> Callable[..., Any]:
    return lambda self, *given: getattr(self._store, name)(*given)


def count_requests() -> None:
    """Count all requests of this process and of those that it is forked into."""
    for name in ASKED:
        if name != "wait":
            setattr(Counted, name, _passed(name))
    for name in ASKED:
        plain = getattr(distributed.Store, name)

        def counted(self: Any, *given: Any, _plain: Any = plain, _name: str = name) -> Any:
            found = _plain(self, *given)
            COUNTS.add(_name, given, found)
            return found

        setattr(distributed.Store, name, counted)
    begin, connect = distributed.ProcessGroupGloo.__init__, socket.create_connection

    def begun(self: Any, store: Any, *given: Any, **named: Any) -> None:
        begin(self, Counted(store), *given, **named)

    def connected(*given: Any, **named: Any) -> Any:
        COUNTS.add("connections", (), None)
        return connect(*given, **named)

    distributed.ProcessGroupGloo.__init__ = begun
    socket.create_connection = connected


def figures(port: int) -> Figures:
    """Return what this process has used so far; *port*: of the store."""
    found: Figures = {name: float(number) for name, number in COUNTS.of.items()}
    found |= dict.fromkeys(("sockets", "sent", "messages", "served"), 0.0)
    for path in Path("/proc/self/fd").iterdir():
        try:
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as each:
                if each.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                found["sockets"] += 1
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                (sent,), (messages,) = struct.unpack_from("<Q", info, 200), struct.unpack_from("<I", info, 156)
                mine, theirs = each.getsockname()[1], each.getpeername()[1]
        except OSError:  # closed meanwhile, or not connected
            continue
        if mine == port:
            found["served"] += sent
        elif theirs != port:
            found["sent"] += sent
            found["messages"] += messages
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    smaps = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    found["threads"] = float(status["Threads"])
    found["private"] = 1024.0 * (int(smaps["Private_Clean"].split()[0]) + int(smaps["Private_Dirty"].split()[0]))
    found["resident"], found["most"] = (1024.0 * int(status[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    store = sum(_thread_seconds(Path(task)) for task in Path("/proc/self/task").iterdir() if _is_store(task))
    found["store"], found["processor"] = store, time.process_time() - store
    return found


def _is_store(task: Path) -> bool:
    try:
        return "tcpstore" in (task / "comm").read_text()
    except OSError:
        return False


def _thread_seconds(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9


# One rank


class Site(nn.Module):
    """Hands on its tensor."""

    def __init__(self, parameter: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = parameter

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def model(shape: str, rank: int, ranks: int, sites: int) -> nn.Module:
    """Return modules with so many sites in all, of outputs and parameters: those of this rank.

    With ``"ddp"`` all ranks have the same, with ``"fsdp"`` each a piece of every parameter, and with ``"pipeline"`` a stage of its
    own, or one of 16.
    """
    torch.manual_seed(0)
    inner = sites // 2
    if shape == "pipeline":
        stages = min(ranks, STAGES)
        stage = rank * stages // ranks
        inner, prefix = max(inner // stages, 1), f"stage{stage}_"
    else:
        prefix = "layer"
    mesh = DeviceMesh("cpu", list(range(ranks))) if shape == "fsdp" else None
    found = nn.Module()
    for number in range(inner):
        values = torch.rand(4)
        whole = values if mesh is None else DTensor.from_local(values + rank, mesh, [Shard(0)], run_check=False)
        if number % BLOCK == 0:
            block = nn.Sequential()
            found.add_module(f"{prefix}{number // BLOCK}", block)
        block.append(Site(nn.Parameter(whole, requires_grad=False)))
    found.forward = lambda tensor: [each(tensor) for each in found.children()]
    return found


class Rank:
    """One process of the job, which waits at each phase until the parent lets it go on."""

    def __init__(self, rank: int, ranks: int, port: int, ready: int, go: tuple[int, int]) -> None:
        self.rank, self.port = rank, port
        self._ready, self._go = ready, itertools.cycle(go)
        self.found: dict[str, Figures] = {}
        self._store = distributed.TCPStore("127.0.0.1", port, ranks, rank == 0, wait_for_workers=False)
        distributed.init_process_group("fake", store=self._store, rank=rank, world_size=ranks)

    def come(self) -> None:
        """Wait until all have come here."""
        os.write(self._ready, b".")
        if not os.read(next(self._go), 1):
            raise EOFError("the parent has ended")

    def phase(self, name: str, do: Callable[[], Any]) -> Any:
        """Return what *do* returns, which all ranks call at once; keep what it used."""
        self.come()
        before, begin = figures(self.port), time.perf_counter()
        made = do()
        seconds = time.perf_counter() - begin
        self.come()  # what the others still ask belongs to this phase, too
        after = figures(self.port)
        still = ("sockets", "threads", "private", "resident", "most")
        used = {key: after[key] - (0.0 if key in still else before.get(key, 0.0)) for key in after}
        self.found[name] = {"seconds": seconds, **used, "resident before": before["resident"]}
        return made


def lead(rank: Rank, shape: str, ranks: int, sites: int, folder: Path, lost: str) -> None:
    """Do what a training does that watches itself."""
    network, tensor = model(shape, rank.rank, ranks, sites), torch.rand(4)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here
    looked_at = [lens.Lens("moments", sonde.stats.Moments(), ("output", "param"), None, nn.Sequential)]
    batches = DeviceMesh("cpu", list(range(ranks))) if shape == "fsdp" else None  # which fully_shard would tell
    how = Ranks(group=batches, wait=LIMIT / 3, timeout=LIMIT / 3, exit_timeout=LIMIT / 3)
    named = {"every": 1, "to": folder, "lenses": looked_at, "ranks": how, "verbose": False, "rules": False, "bad_steps": None}
    watching = rank.phase("attach", lambda: sonde.watch(network, **named))

    def step(times: int = 1) -> None:
        for _ in range(times):
            network(tensor)
            watching.step()
            watching.findings  # noqa: B018 (waits until the rows are with the sinks)

    rank.phase("first", step)
    rank.phase("rounds", lambda: step(ROUNDS))
    if lost:
        rank.phase("lost", step)  # the parent has ended a rank before it lets the others go on
        rank.phase("after", lambda: step(ROUNDS))
    rank.phase("end", watching.detach)


def main_of_rank(
    number: int, given: tuple[str, int, int, Path, str], port: int, pipes: tuple[int, tuple[int, int]], out: Path
) -> None:
    """Run one rank to its end, in the process that was forked for it."""
    shape, ranks, sites, folder, lost = given
    status = 1
    try:
        with (out / f"{number}.err").open("w") as errors:
            os.dup2(errors.fileno(), 2)
        rank = Rank(number, ranks, port, *pipes)
        lead(rank, shape, ranks, sites, folder, lost)
        (out / f"{number}.json").write_text(json.dumps(rank.found))
        rank.come()  # the store stays until all have ended
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


# The job


class Job:
    """The processes of one configuration."""

    def __init__(self, given: tuple[str, int, int, Path, str], out: Path) -> None:
        ranks = given[1]
        ready, even, odd = os.pipe(), os.pipe(), os.pipe()  # two in turn: who is quick would take what lets another go on
        self._ready, self._let = ready[0], itertools.cycle([even[1], odd[1]])
        self._pipes = ready[0], even[1], odd[1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._lives: dict[int, int] = {}
        for number in range(ranks):
            process = os.fork()
            if process == 0:
                for each in self._pipes:  # so that this process hears of the parent's end
                    os.close(each)
                main_of_rank(number, given, port, (ready[1], (even[0], odd[0])), out)
            self._lives[number] = process
        for each in (ready[1], even[0], odd[0]):
            os.close(each)

    def together(self) -> float:
        """Let all ranks go on once all have come; return the seconds that the last one came after the call."""
        begin, came = time.perf_counter(), 0
        while came < len(self._lives):
            left = LIMIT - (time.perf_counter() - begin)
            if left <= 0 or not select.select([self._ready], [], [], left)[0]:
                raise TimeoutError(f"{len(self._lives) - came} of {len(self._lives)} ranks did not come within {LIMIT:.0f} s")
            got = os.read(self._ready, len(self._lives) - came)
            if not got:
                raise TimeoutError("all ranks have ended")
            came += len(got)
        seconds = time.perf_counter() - begin
        os.write(next(self._let), b"." * came)
        return seconds

    def lose(self, number: int) -> None:
        """Kill one rank: called after :meth:`together` would have let it come to a phase."""
        process = self._lives.pop(number)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)

    def end(self) -> None:
        """Kill what is left."""
        for process in self._lives.values():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._lives.values():
            os.waitpid(process, 0)
        self._lives.clear()
        for each in self._pipes:
            os.close(each)


def measured(shape: str, ranks: int, sites: int, lost: str = "") -> dict[str, Any]:
    """Return what each rank has used in each phase; *lost*: the rank that is killed, ``"last"`` or ``"first"``."""
    phases = ["attach", "first", "rounds", *(["lost", "after"] if lost else []), "end"]
    with tempfile.TemporaryDirectory() as place:
        out, folder = Path(place), Path(place) / "run"
        job = Job((shape, ranks, sites, folder, lost), out)
        wall: Figures = {}
        try:
            for name in phases:
                if name == "lost":
                    job.lose(0 if lost == "first" else ranks - 1)
                job.together()
                wall[name] = job.together()
            job.together()
        except TimeoutError as error:
            said = [path.read_text().strip().splitlines() for path in sorted(out.glob("*.err"))]
            last = Counter(lines[-1][:300] for lines in said if lines)
            return {"failed": f"{error} in {name!r}: {dict(last.most_common(3))}"}
        finally:
            job.end()
        each = {int(path.stem): json.loads(path.read_text()) for path in out.glob("*.json")}
        said = Counter(line[:300] for path in out.glob("*.err") for line in path.read_text().splitlines() if "Warning: " in line)
        files = Counter(_kind(path) for path in folder.rglob("*") if path.is_file())
        if apart := [line for line in said if "could not connect" in line or "rows of its own" in line]:
            return {"failed": f"the ranks were not joined: {apart[0]}"}
        return {"wall": wall, "ranks": each, "files": dict(files), "rows": rows_in(folder)}


def _kind(path: Path) -> str:
    name = path.name
    return "locks" if ".lock" in name else "written" if name.startswith("written") else "parts" if "part-" in name else "other"


def rows_in(folder: Path) -> dict[str, int]:
    """Return by step how many rows a run has, read in a process of its own: what reads starts threads."""
    here, there = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            table = sonde.open_run(folder).table("moments")
            found = Counter(table.column("step").to_pylist())
            os.write(there, json.dumps({str(step): number for step, number in sorted(found.items())}).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(there)
    text = b"".join(iter(lambda: os.read(here, 1 << 16), b""))
    os.close(here)
    os.waitpid(process, 0)
    return json.loads(text) if text else {}


# What is told of a configuration


def summary(found: Mapping[str, Any], ranks: int) -> Figures:
    """Return the figures of a configuration: of rank 0, of the median of the others, and of all."""
    each: dict[int, dict[str, Figures]] = found["ranks"]
    others = [rank for rank in each if rank] or list(each)

    def of_others(phase: str, name: str) -> float:
        return statistics.median(each[rank][phase].get(name, 0.0) for rank in others)

    def of_all(phase: str, name: str) -> float:
        return sum(one[phase].get(name, 0.0) for one in each.values())

    def most(phase: str, name: str) -> float:
        return max(one[phase].get(name, 0.0) for one in each.values())

    told: Figures = {}
    for phase, title in (("attach", "start"), ("first", "first round"), ("end", "end")):
        told[f"{title}: requests of rank 0"] = each[0][phase].get("requests", 0.0) if 0 in each else 0.0
        told[f"{title}: requests of another"] = of_others(phase, "requests")
        told[f"{title}: requests in all"] = of_all(phase, "requests")
        told[f"{title}: keys in all requests"] = of_all(phase, "keys")
        told[f"{title}: bytes of all requests"] = of_all(phase, "bytes")
        told[f"{title}: processor seconds of a rank"] = of_others(phase, "processor")
        told[f"{title}: processor seconds of the store"] = of_all(phase, "store")
        told[f"{title}: seconds here"] = found["wall"][phase]
    told["first round: bytes sent by a rank"] = of_others("first", "sent")
    for name, title in (
        ("requests", "requests of a rank"),
        ("sent", "bytes sent by a rank"),
        ("messages", "messages of a rank"),
        ("processor", "processor seconds of a rank"),
    ):
        told[f"round: {title}"] = of_others("rounds", name) / ROUNDS
    told["round: seconds here"] = found["wall"]["rounds"] / ROUNDS
    told["sockets of a rank"] = of_others("rounds", "sockets")
    told["sockets of rank 0"] = each[0]["rounds"]["sockets"] if 0 in each else 0.0
    told["threads of a rank"] = of_others("rounds", "threads")
    told["bytes of memory of a rank"] = of_others("first", "most") - of_others("attach", "resident before")
    for kind in ("locks", "written", "parts", "other"):
        told[f"files: {kind} of the run"] = found["files"].get(kind, 0)
    if "lost" in found["wall"]:
        told = {
            "lost: seconds until all go on here": found["wall"]["lost"],
            "lost: requests of another": of_others("lost", "requests"),
            "lost: requests in all": of_all("lost", "requests"),
            "lost: keys in all requests": of_all("lost", "keys"),
            "lost: processor seconds of a rank": of_others("lost", "processor"),
            "lost: seconds of a step after here": found["wall"]["after"] / ROUNDS,
            "lost: most seconds of a rank here": most("lost", "seconds"),
            "lost: rows of a step before": found["rows"].get("1", 0),
            "lost: rows of a step after": found["rows"].get(str(1 + ROUNDS + 2), 0),
            "lost: seconds of the end here": found["wall"]["end"],
        }
    return told


# The model of cost

TERMS: tuple[tuple[str, Callable[[float, float], float]], ...] = (
    ("", lambda others, s: 1.0),
    ("R", lambda others, s: others),
    ("log2 N", lambda others, s: math.log2(others + 1)),
    ("S", lambda others, s: s),
    ("S R/N", lambda others, s: s * others / (others + 1)),
)
"""Of a figure of one rank: R other ranks, S sites; R/N is a ring's, log2 N a tree's. What all have in all is N times such a figure.

R S is none of them, though a table of ranks and keys may be made: in this range it cannot be told from noise.
"""


class Fit:
    """A figure as a sum of terms of ranks and sites, none below zero: the fewest terms that fit nearly as well as all would.

    Args:
        points: ranks, sites and the figure, for each configuration.
        of_all: the figure is of all ranks together: its share of one rank is fitted.
    """

    def __init__(self, points: Sequence[tuple[int, int, float]], *, of_all: bool) -> None:
        many_sites, many_ranks = len({s for _, s, _ in points}) > 1, len({n for n, _, _ in points})
        usable = [each for each in TERMS if many_sites or "S" not in each[0]]
        self._of_all = of_all
        values = np.array([value / n if of_all else value for n, _, value in points])
        scale = np.maximum(np.abs(values), 0.05 * max(np.abs(values).max(initial=0.0), 1e-12))
        best: tuple[float, tuple[tuple[str, Any], ...], Any] = (math.inf, (), np.zeros(0))
        for number in range(1, min(len(usable), len(points), many_ranks + many_sites) + 1):
            for chosen in itertools.combinations(usable, number):
                matrix = np.array([[term(n - 1, s) for _, term in chosen] for n, s, _ in points])
                found, *_ = np.linalg.lstsq(matrix / scale[:, None], values / scale, rcond=None)
                if (found < 0).any():
                    continue
                error = float(np.sqrt(np.mean(((matrix @ found - values) / scale) ** 2)))
                if error < 0.7 * best[0] - 1e-3:
                    best = error, chosen, found
        self.error, self._terms, self._weights = best

    def at(self, ranks: float, sites: float) -> float:
        return (ranks if self._of_all else 1) * float(
            sum(weight * term(ranks - 1, sites) for weight, (_, term) in zip(self._weights, self._terms, strict=True))
        )

    def __str__(self) -> str:
        terms = " + ".join(f"{weight:.3g} {name}".strip() for weight, (name, _) in zip(self._weights, self._terms, strict=True))
        return f"N ({terms or 0})" if self._of_all else terms or "0"


def seconds_of_a_request() -> float:
    """Return the processor seconds that a TCPStore takes for one request, of 8 processes that ask at once."""
    (here, there), (begin, begins) = os.pipe(), os.pipe()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asking = []
    for number in range(ASKING):  # before there is a store: what a process with threads is forked into may hang
        process = os.fork()
        if process == 0:
            os.read(begin, 1)
            store = distributed.TCPStore("127.0.0.1", port, 1, False, wait_for_workers=False)
            for each in range(REQUESTS):
                store.add(f"{number}/{each % 64}", 1)
            os._exit(0)
        asking.append(process)
    holder = os.fork()
    if holder == 0:
        held = distributed.TCPStore("127.0.0.1", port, 1, True, wait_for_workers=False)  # noqa: F841 (until the end)
        os.write(begins, b"." * ASKING)
        while any(_lives(each) for each in asking):
            time.sleep(0.01)
        store = [Path(task) for task in Path("/proc/self/task").iterdir() if _is_store(task)]
        os.write(there, str(sum(map(_thread_seconds, store)) / (ASKING * REQUESTS)).encode())
        os._exit(0)
    for process in asking:
        os.waitpid(process, 0)
    text = os.read(here, 100)
    os.waitpid(holder, 0)
    for each in (here, there, begin, begins):
        os.close(each)
    return float(text)


def _lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def modelled(fits: Mapping[str, Fit], ranks: int, sites: int, request: float) -> Figures:
    """Return seconds at so many ranks, each with a processor of its own."""

    def at(name: str) -> float:
        return max(fits[name].at(ranks, sites), 0.0) if name in fits else 0.0

    def phase(name: str) -> float:
        served = max(at(f"{name}: requests in all") * request, at(f"{name}: processor seconds of the store"))
        carried = at(f"{name}: bytes of all requests") / BANDWIDTH
        own = max(at(f"{name}: requests of rank 0"), at(f"{name}: requests of another")) * LATENCY
        return at(f"{name}: processor seconds of a rank") + max(served, carried) + own

    return {
        "seconds of attaching": phase("start"),
        "seconds of the first round": phase("first round") + at("first round: bytes sent by a rank") / BANDWIDTH,
        "seconds of a round": at("round: processor seconds of a rank")
        + 2 * RING * (ranks - 1) * LATENCY
        + at("round: bytes sent by a rank") / BANDWIDTH,
        "seconds of the end": phase("end"),
    }


# Tables


def short(number: float) -> str:
    """Return *number* in a few characters."""
    size = abs(number)
    if size >= 1e15:
        return f"{number:.1e}"
    for above, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= above:
            return f"{number / above:,.3g} {unit}" if size < 1e3 * above else f"{number / above:,.0f} {unit}"
    return f"{number:,.0f}" if size >= 100 or number == int(number) else f"{number:.3g}"


def show(shape: str, results: Mapping[tuple[int, int], Figures], request: float) -> dict[str, Any]:
    """Print the figures of one shape, and what they come to; return the latter."""
    configurations = sorted(results)
    names = list(dict.fromkeys(name for each in results.values() for name in each))
    fits = {name: Fit([(n, s, results[n, s][name]) for n, s in configurations], of_all=name.endswith(OF_ALL)) for name in names}
    heads = [f"{n} x {s:,}" for n, s in configurations]
    print(
        f"\n{shape}: ranks x sites\n{'':<44}" + "".join(f"{head:>13}" for head in heads) + "".join(f"{n:>11,}" for n in PROJECTED)
    )
    made: dict[str, Any] = {}
    for name in names:
        given = "".join(f"{short(results[each][name]) if name in results[each] else '':>13}" for each in configurations)
        far = [fits[name].at(n, PROJECTED_SITES) for n in PROJECTED]
        has_far = "here" not in name and len({n for n, _ in configurations}) > 2
        shown = "".join(f"{short(value):>11}" for value in far) + f"   {fits[name]}" if has_far else ""
        print(f"  {name:<42}{given}{shown}")
        if has_far:
            made[name] = far
    if len({n for n, _ in configurations}) > 2 and any(name.startswith("start") for name in names):
        print(f"\n  modelled, with {PROJECTED_SITES:,} sites" + " " * 18 + "".join(f"{n:>11,}" for n in PROJECTED) + "   goal")
        seconds = [modelled(fits, n, PROJECTED_SITES, request) for n in PROJECTED]
        for name in seconds[0]:
            print(f"  {name:<42}" + "".join(f"{short(each[name]):>11}" for each in seconds) + f"   {GOALS.get(name, '')}")
            made[name] = [each[name] for each in seconds]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,8,32,64")
    parser.add_argument("--sites", default="100,1000")
    parser.add_argument("--shape", default="ddp,fsdp,pipeline")
    parser.add_argument("--lost", default="last", help="which rank is killed: last, first, both as last,first; or none")
    given = parser.parse_args()
    every_ranks, every_sites = ([int(text) for text in each.split(",")] for each in (given.ranks, given.sites))
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    count_requests()
    request = seconds_of_a_request()
    print(f"torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores for all ranks")
    print(
        f"assumed: a request to the store takes it {1e6 * request:.0f} us of a processor (measured); "
        f"a message {1e6 * LATENCY:.0f} us; {BANDWIDTH / 1e9:.2f} GB/s; a processor for each rank"
    )
    raw: dict[str, Any] = {"request": request}
    for shape in given.shape.split(","):
        results: dict[tuple[int, int], Figures] = {}
        for ranks, sites in itertools.product(every_ranks, every_sites):
            begin = time.perf_counter()
            found = measured(shape, ranks, sites)
            print(
                f"{shape} {ranks} x {sites}: {time.perf_counter() - begin:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            if "failed" in found:
                print(f"{shape}, {ranks} ranks x {sites} sites: {found['failed']}")
                continue
            results[ranks, sites] = summary(found, ranks)
        if results:
            projected = show(shape, results, request)
            raw[shape] = {"measured": {f"{n} x {s}": each for (n, s), each in results.items()}, "projected": projected}
    for which in given.lost.split(",") if given.lost != "none" else ():
        results = {}
        for ranks in every_ranks:
            found = measured("ddp", ranks, every_sites[0], which)
            if "failed" in found:
                print(f"the {which} rank lost, {ranks} ranks: {found['failed']}")
            else:
                results[ranks, every_sites[0]] = summary(found, ranks)
        if results:
            raw[f"lost {which}"] = {"measured": {f"{n} x {s}": each for (n, s), each in results.items()}}
            show(f"the {which} rank is killed", results, request)
    print("\n" + json.dumps(raw))


if __name__ == "__main__":
    main()
