"""The verdicts on an examination: what changes, which paths are taken, what is read, what it costs, what is not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from sonde.answer import Check
from sonde.checkup.examination import Examination
from sonde.checkup.operator_log import OperatorLog
from sonde.checkup.pass_facts import Change
from sonde.checkup.timing import Difference
from sonde.rules import Finding, Severity
from sonde.words import many, names_text, percent, size_text, time_text

_SHOWN = 3


def unchanged(examined: Examination) -> Check:
    """Judge whether observing changes anything, apart from what differs between two unobserved runs."""
    unsteady, changed, count, unread = examined.changes
    known = {each.name for each in unsteady}
    new = [each for each in changed if each.name not in known]
    findings = []
    if new:
        first, other_path = new[0], not examined.raised and bool(_paths_apart(examined.steps.bare, examined.steps.logged))
        tiny = other_path and all(_is_rounding(each) for each in new)
        severity: Severity = "warn" if tiny else "bad"
        why = " in the last bits, since torch takes another path (see paths)" if tiny else ""
        message = f"{many(len(new), 'fact')} of {count:,} differ{'s' if len(new) == 1 else ''} under watch{why}; first {first}"
        findings.append(Finding("changed", message, severity=severity, evidence=_largest(new), advice=_CHANGED[tiny]))
    if unsteady:
        message = (
            f"the model itself is not repeatable: {many(len(unsteady), 'fact')} differ between two unobserved runs from one random "
            f"state, by {_by(unsteady)}; under watch by {_by([each for each in changed if each.name in known])}"
        )
        findings.append(Finding("not_repeatable", message, severity="note", evidence=_largest(unsteady)))
    what = (
        "outputs, loss, gradients, updated parameters, buffers and random state"
        if examined.trains
        else "outputs, buffers and random state"
    )
    left_out = f", and {names_text(unread, _SHOWN)} cannot be read" if unread else ""
    words = f"{what} have the same bits in {examined.passes}: {count:,} facts compared{left_out}"
    return Check("unchanged", "" if findings else words, tuple(findings))


_CHANGED = {
    True: "compare with a model whose layers have an empty hook: that changes the same bits",
    False: "this should never be: report it, with the model",
}


def _is_rounding(change: Change) -> bool:
    return change.largest is not None and change.largest < 1e-3


def _largest(found: Iterable[Change]) -> dict[str, float]:
    sizes = [each.largest for each in found if each.largest is not None]
    return {"largest": max(sizes)} if sizes else {}


def _by(found: list[Change]) -> str:
    if not found:
        return "nothing"
    worst = max(found, key=lambda each: -1.0 if each.largest is None else each.largest)
    return f"up to {worst.largest:.2g} ({worst.name})" if worst.largest is not None else str(found[0])


def paths(examined: Examination) -> Check:
    """Judge whether torch takes the same paths: the operators of the model in one step."""
    steps = examined.steps
    total = sum(steps.bare.model.values())
    found = []
    for state, log in (("logged", steps.logged), ("not logged", steps.plain)):
        apart = _paths_apart(steps.bare, log)
        if apart:
            gone = Counter(name for (_, name), number in apart.items() if number < 0 for _ in range(-number))
            come = Counter(name for (_, name), number in apart.items() if number > 0 for _ in range(number))
            layers = list(dict.fromkeys(layer or "(root)" for layer, _ in apart))
            left_out, instead = _operators(gone) or "nothing", _operators(come) or "nothing"
            message = f"in a step that is {state}, {left_out} does not run, and {instead} runs instead: in {names_text(layers)}"
            advice = "torch keeps fused paths off while a module in them has hooks: leave these layers out with exclude="
            site = f"{layers[0]}:output" if layers[0] != "(root)" else ":output"
            found.append(Finding("other_path", message, site, severity="warn", advice=advice))
    plain = "; compiled modules ran as plain Python here" if examined.is_compiled else ""
    same = "differ" if found else "are the same"
    return Check("paths", f"the {total:,} operators of a step {same}{plain}", tuple(found))


def _paths_apart(bare: OperatorLog, observed: OperatorLog) -> dict[tuple[str, str], int]:
    """Return how much more often each operator of each layer ran under observation."""
    keys = dict.fromkeys([*bare.model, *observed.model])
    return {key: number for key in keys if (number := observed.model[key] - bare.model[key])}


def _operators(found: Counter[str]) -> str:
    names = [f"{name} x {number}" if number > 1 else name for name, number in found.most_common(_SHOWN)]
    return ", ".join([*names, *([f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])])


def compiled(examined: Examination) -> Check:
    """Judge whether observing breaks graphs, or compiles more of them than one for each state of the observer."""
    if not examined.compiles:
        why = "compile=False" if examined.is_compiled else "no part of the model is compiled; compile=True compiles copies"
        return Check("compiled", why, judged=False)
    bare, watched = examined.compilations
    states = 2 if examined.trains else 1
    graphs, expected = watched.graphs[-1], states * bare.graphs[-1]
    later = watched.graphs[-1] - watched.graphs[states - 1]
    found = []
    if watched.breaks > bare.breaks * states:
        message = f"{many(watched.breaks, 'graph break')} under watch, {bare.breaks} without"
        found.append(Finding("graph_break", message, severity="bad", evidence={"watched": watched.breaks, "bare": bare.breaks}))
    if graphs > expected or later > bare.graphs[-1] - bare.graphs[0]:
        message = f"{many(graphs, 'graph')} under watch, {later} of them after both states were compiled; {expected} are expected"
        found.append(Finding("recompiled", message, severity="warn", evidence={"watched": graphs, "expected": expected}))
    words = (
        f"{many(bare.graphs[-1], 'graph')} without an observer, {graphs} under watch (logged steps, and all others); graph breaks: "
        f"{bare.breaks}, {watched.breaks}; the first step takes {time_text(bare.first)}, {time_text(watched.first)}"
    )
    return Check("compiled", words, tuple(found))


def reads(examined: Examination) -> Check:
    """Judge whether the host waits for a device because of sonde."""
    steps = examined.steps
    found, said = [], []
    for state, log, allowed in (("logged", steps.logged, examined.devices), ("not logged", steps.plain, 0)):
        ours = [read for read in log.reads if read.by_sonde]
        waiting = [read for read in ours if read.waits]
        said.append(f"{many(len(ours), 'value')} in a step that is {state}")
        if len(waiting) > allowed:
            places = Counter(f"{read.operator} in {read.by}" for read in waiting)
            message = f"in a step that is {state} the host waits {len(waiting)} times for a device: {_operators(places)}"
            found.append(Finding("host_waits", message, severity="warn", evidence={"waits": len(waiting), "allowed": allowed}))
    own = len(steps.bare.reads)
    on_cpu = "" if examined.devices else "; on the CPU that waits for nothing"
    words = f"sonde reads {' and '.join(said)}{on_cpu}; the model, the loss and the optimizer {own:,}"
    return Check("reads", words, tuple(found))


def time(examined: Examination) -> Check:
    """Say how long steps take."""
    times = examined.times
    if times is None:
        return Check("time", f"a few rounds take longer than {examined.seconds:g} s: give more seconds=", judged=False)
    bare = times.median("bare")
    plain, logged = times.difference("plain", "bare"), times.difference("logged", "bare")
    extra = [0.0 if each.is_noise else each.seconds for each in (logged, plain)]
    mean = (extra[0] + (examined.every - 1) * extra[1]) / examined.every
    what = "step" if examined.trains else "forward"
    share, writing = percent(mean / (bare + mean), 1), time_text(times.writing["logged"])
    if not mean:
        noise = (logged.noise + (examined.every - 1) * plain.noise) / examined.every
        share = f"less than {percent(noise / bare, 1)}, the noise,"
    words = (
        f"a {what} takes {time_text(bare)}; not logged {_ratio(plain, bare)}, logged {_ratio(logged, bare)}; "
        f"with every={examined.every} observing takes {share} of the time; writing a logged {what} takes {writing}, in a "
        f"thread of its own ({len(times.rounds['bare'])} rounds)"
    )
    return Check("time", words)


def _ratio(apart: Difference, bare: float) -> str:
    if apart.is_noise:
        return f"no difference above the noise ({percent(apart.noise / bare, 1)})"
    return f"{1 + apart.seconds / bare:.3g} x as long (± {apart.noise / bare:.2g})"


def memory(examined: Examination) -> Check:
    """Say how much memory is in use."""
    steps = examined.steps
    tables = sum(cost.bytes for cost in steps.costs)
    bare, plain, logged = (size_text(log.peak) for log in (steps.bare, steps.plain, steps.logged))
    words = f"rows {size_text(tables)}; tensors made in a step, at their peak: {bare}, not logged {plain}, logged at most {logged}"
    return Check("memory", words)


def coverage(examined: Examination) -> Check:
    """Judge what was not observed, and say why."""
    steps = examined.steps
    lines = [line for line in steps.coverage if examined.trains or line.site.port in ("input", "output")]
    seen = sum(line.count > 0 for line in lines)
    reasons: dict[tuple[str, bool], list[str]] = {}
    for line in lines:
        if line.reason or not line.count:
            reasons.setdefault((line.reason, line.count > 0), []).append(str(line.site))
    found = []
    for error in steps.errors:
        found.append(Finding("observer_failed", str(error), severity="bad"))
    for (reason, delivered), sites in reasons.items():
        severity: Severity = "warn" if reason.startswith("compiled before") else "note"
        more = f" and {many(len(sites) - 1, 'more site', 'more sites')}" if len(sites) > 1 else ""
        message = f"{'delivered, but ' if delivered else ''}{reason}"
        found.append(Finding("not_covered", f"{message}{f': this{more}' if more else ''}", sites[0], severity=severity))
    return Check("coverage", f"{seen:,} of {len(lines):,} sites delivered", tuple(found))


def torch(examined: Examination) -> Check:
    """Judge whether the private parts of torch are there that sonde uses."""
    count, missing = examined.private_parts
    found = tuple(Finding("missing_part", f"{name} is missing: {without}", severity="warn") for name, without in missing.items())
    return Check("torch", f"{count - len(missing)} of {count} private parts of torch are there", found)


def numbers_of(examined: Examination) -> dict[str, Mapping[str, float]]:
    """Return what was measured, by check: seconds per step, bytes, counts."""
    steps, times = examined.steps, examined.times
    logs = {"bare": steps.bare, "plain": steps.plain, "logged": steps.logged}
    found: dict[str, Mapping[str, float]] = {
        "unchanged": {"facts": examined.changes[2], "unsteady": len(examined.changes[0]), "changed": len(examined.changes[1])},
        "paths": {f"operators_{name}": sum(log.model.values()) for name, log in logs.items()},
        "reads": {f"reads_{name}": sum(read.by_sonde for read in log.reads) for name, log in logs.items()}
        | {f"waits_{name}": sum(read.by_sonde and read.waits for read in log.reads) for name, log in logs.items()},
        "memory": {f"peak_{name}": log.peak for name, log in logs.items()} | {"rows": sum(cost.bytes for cost in steps.costs)},
        "coverage": {"sites": len(steps.coverage), "delivered": len(steps.coverage.observed)},
    }
    if times is not None:
        apart = {name: times.difference(name, "bare") for name in ("plain", "logged")}
        found["time"] = {
            "bare": times.median("bare"),
            "rounds": len(times.rounds["bare"]),
            "writing": times.writing["logged"],
            **{f"{name}_extra": each.seconds for name, each in apart.items()},
            **{f"{name}_noise": each.noise for name, each in apart.items()},
        }
    return found


CHECKS: dict[str, Callable[[Examination], Check]] = {
    each.__name__: each for each in (unchanged, paths, compiled, reads, time, memory, coverage, torch)
}
"""Every check by its name, in the order in which they are shown."""
