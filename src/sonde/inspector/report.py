"""The reports of an inspector: the description in run.json, the coverage, and the closing lines."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import sonde
from sonde.diagnosis import written_at
from sonde.engine import Coverage, Covered, ProbeError, class_of, members, parameters_of
from sonde.inspector.measurement.measurement import Measurement
from sonde.lens import Lens, LossMetrics
from sonde.paths import short_path
from sonde.rules import Finding
from sonde.run import counted, lines_of
from sonde.site import PARAMETER_PORTS, Site
from sonde.stats import Piece, Table
from sonde.words import many, percent

_SHOWN = 3


# The description in run.json


def described(models: Mapping[str, nn.Module], lenses: Iterable[Lens | LossMetrics]) -> dict[str, Any]:
    """Return plain data: ``model`` (its modules, in the order of ``named_modules()``), ``environment``, ``lenses``."""
    modules = [line for name, model in models.items() for line in _modules(model, name)]
    return {"model": modules, "environment": _environment(), "lenses": [lens.described() for lens in lenses]}


def _modules(model: nn.Module, name: str) -> list[dict[str, Any]]:
    lines = []
    for item in members(model):
        held = parameters_of(item.module)
        own = [parameter for parameter in held.values() if parameter is not None and not is_lazy(parameter)]
        line: dict[str, Any] = {
            "name": item.name,
            "type": class_of(item.module).__name__,
            "parameters": sum(parameter.numel() for parameter in own),
            "trainable": sum(parameter.numel() for parameter in own if parameter.requires_grad),
        }
        ready = {name: parameter for name, parameter in held.items() if parameter is not None and not is_lazy(parameter)}
        kinds = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in ready.items()}
        more: dict[str, Any] = {
            "code": written_at(getattr(class_of(item.module), "forward", None)),
            "shapes": {name: _shape(parameter) for name, parameter in ready.items()},
            "frozen": [name for name, parameter in ready.items() if not parameter.requires_grad],
            "dtypes": {name: kind for name, kind in kinds.items() if kind != "float32"},
        }
        line |= {name: value for name, value in more.items() if value}
        rate = getattr(item.module, "p", None) if line["type"].startswith("Dropout") else None
        if isinstance(rate, int | float):
            line["rate"] = float(rate)
        for setting in ("eps", "momentum") if "Norm" in line["type"] else ():
            if isinstance(given := getattr(item.module, setting, None), int | float):
                line[setting] = float(given)
        lines.append({"model": name, **line} if name else line)
    return lines


def _shape(parameter: nn.Parameter) -> list[int]:
    return [parameter.size(0)] if parameter.is_nested else list(parameter.shape)


def _environment() -> dict[str, str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {
        "sonde": sonde.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "accelerator": str(accelerator or "none"),
    }


# The coverage


def coverage_of(
    measurements: Iterable[Measurement],
    seen: Mapping[tuple[str, str], int],
    lost: Mapping[str | tuple[str, Site], str],
    *,
    attached: bool,
    joins: bool = False,
    apart: Mapping[tuple[str, Site], str] | None = None,
    between: Mapping[int, str] | None = None,
) -> Coverage:
    """Return the coverage of all measurements as one, with a line for each site, whatever its number of families.

    Args:
        measurements: what was attached.
        seen: by family and site, how often something was added in the logged steps.
        lost: by family, or family and site, why its rows could not be finished.
        attached: whether the hooks are in.
        joins: whether rows join those of other ranks: then a row of a parameter is of all its parts.
        apart: by family and site, why rows that join those of other ranks have not joined them.
        between: by the id of a measurement, what is to be said of updates: that parameters change between steps, too.
    """
    lines: dict[Site, Covered] = {}
    events: dict[tuple[str, Site], int] = {}  # of a site with several leaves: those of the leaf that was there most often
    for (family, text), times in seen.items():
        whole = family, Site.parse(text).at("")
        events[whole] = max(events.get(whole, 0), times)
    shown = [measurement for measurement in measurements if not measurement.hidden]
    added = Table.additions([measurement.table for measurement in shown])
    for measurement in shown:
        notes = measurement.attachment.delivery.notes
        for line in measurement.coverage(added):
            count = events.get((measurement.family, line.site), 0) + line.count
            why = None if measurement.keys is None else measurement.keys.reasons.get((measurement.family, line.site))
            why = why or (apart or {}).get((measurement.family, line.site))
            noted = measurement.attachment.delivery.why_stopped(line.site) or notes.get(line.site, "")
            reason = noted if count and not line.count else line.reason
            if joins and why is None and line.site.port in PARAMETER_PORTS and Piece.is_in_words(reason):
                reason = ""
            reason = reason if count else lost.get(measurement.family, reason)
            reason = lost.get((measurement.family, line.site), reason)
            known = lines.get(line.site)
            if known is None or known.count < count:
                lines[line.site] = Covered(line.site, count, reason)
            moved = (between or {}).get(id(measurement), "")
            if moved and line.site.port == "update" and count and moved not in lines[line.site].reason:
                both = filter(None, [moved, lines[line.site].reason])
                lines[line.site] = replace(lines[line.site], reason="; ".join(both))
            if why is not None:
                so_far = lines[line.site]
                both = filter(None, [so_far.reason, f"{measurement.family}: {why}"])
                lines[line.site] = replace(so_far, reason="; ".join(both))
    return Coverage(list(lines.values()), attached=attached)


def coverage_data(coverage: Coverage) -> dict[str, Any]:
    """Return a coverage as plain data, for the run."""
    missing = [{"site": str(line.site), "reason": line.reason} for line in coverage.missing]
    noted = [{"site": str(line.site), "note": line.reason} for line in coverage if line.count and line.reason]
    return {"sites": len(coverage), "observed": len(coverage.observed), "missing": missing, "notes": noted}


# The closing lines


def closing_lines(
    path: Path | None,
    steps: tuple[int, int],
    lost: tuple[int, int],
    findings: Sequence[Finding],
    errors: Sequence[ProbeError],
    overhead: float | None,
    *,
    ended: Sequence[str] = (),
    is_empty: bool = False,
    ranks: int = 1,
) -> list[str]:
    """Return the three lines that an inspector prints when it is detached: the run, the findings, the overhead.

    Args:
        path: the folder of the run; None if there is none on disk.
        steps: how many steps were logged, and how many there were.
        lost: how many logged steps and how many rows could not be written.
        findings: what the rules found.
        errors: the errors of observers and sinks.
        overhead: the share of training time that observing took; None if it is not known.
        ended: the families and sinks that got no more rows after an error.
        is_empty: no row of any family was recorded.
        ranks: how many processes recorded the run.
    """
    logged, every = steps
    missing = [f" · {number:,} {what} lost" for number, what in zip(lost, ("of these", "rows"), strict=True) if number]
    where = short_path(path) if path is not None else "not on disk"
    return [
        f"run {where} · {f'{ranks:,} ranks · ' if ranks > 1 else ''}{logged:,} of {every:,} steps logged{''.join(missing)}",
        _found(findings, errors, ended, is_empty=is_empty and logged > 0),
        _cost(overhead, *steps),
    ]


def _cost(overhead: float | None, logged: int, every: int) -> str:
    if overhead is not None:
        return f"overhead {percent(overhead, 1)}"
    if 0 < every == logged:
        return "overhead not measured: every step is logged, so there is none to compare with"
    return "overhead not measured: too few steps"


def _found(findings: Sequence[Finding], errors: Sequence[ProbeError], ended: Sequence[str], *, is_empty: bool) -> str:
    failed = f" · after an error nothing more of {', '.join(ended)}" if ended else ""
    if errors:
        failed += f" · {many(len(errors), 'error')}, in .errors: {errors[0].observer}: {type(errors[0].error).__name__}"
    if not findings:
        nothing = "nothing to judge: no lens has recorded anything"
        return f"{nothing if is_empty else 'no findings'}{failed}"
    told = lines_of(findings)
    shown = " · ".join(told[:_SHOWN])
    rest = f" · {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return f"{counted(findings)}: {shown}{rest}{failed}"
