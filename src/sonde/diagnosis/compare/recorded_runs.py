"""Compare two recorded runs, given as runs or as their folders: find the names that belong together, and call ``compare_runs``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sonde.diagnosis.compare.names import Names, check_match
from sonde.errors import ArgumentError
from sonde.paths import absolute_path
from sonde.run import Run, RunFolder, open_run
from sonde.site import PARAMETER_PORTS, Site
from sonde.view import RunComparison, compare_runs


def is_recorded(side: Any) -> bool:
    """Return whether *side* is a run, or the path of a folder with one."""
    return isinstance(side, Run) or (isinstance(side, str | os.PathLike) and RunFolder(absolute_path(side)).is_run)


def compare_recorded(
    a: Any, b: Any, match: Mapping[str, str] | None, baseline: Sequence[Any], others: Mapping[str, bool]
) -> RunComparison:
    """Compare two runs.

    Args:
        a, b: runs or their folders.
        match: patterns of names, see :func:`sonde.compare`.
        baseline: repeats of *a*, runs or their folders.
        others: arguments of ``compare`` that say nothing of runs, and whether each was given.

    Raises:
        ArgumentError: one side is no run, an argument is for models, or the runs have nothing in common.
        StoreError: a run cannot be read.
    """
    for name, side in (("a", a), ("b", b)):
        if not is_recorded(side):
            raise ArgumentError(
                f"{name}={side!s:.80} is no run, and the other side is one: give two runs, or the folders of two runs"
            )
    if given := [name for name, is_given in others.items() if is_given]:
        raise ArgumentError(f"{given[0]}= is for models and saved tensors; two runs are compared by what they have recorded")
    one, other = _opened(a), _opened(b)
    return compare_runs(one, other, baseline=[_opened(each) for each in baseline], rename=_rename(one, other, match))


def _opened(side: Any) -> Run:
    return side if isinstance(side, Run) else open_run(side)


def _rename(a: Run, b: Run, match: Mapping[str, str] | None) -> Any:
    """Return the function from sites of *a* to those of *b*; None where names stay."""
    if match is None:
        return None
    sites = [[Site.parse(text) for text in run.sites] for run in (a, b)]
    layers, parameters = ([_paths(each, of_parameters=kind) for each in sites] for kind in (False, True))
    check_match(match, *([*layers[side], *parameters[side]] for side in (0, 1)))
    names = Names(match, *layers)

    def renamed(site: Site) -> Site | None:
        is_parameter = site.port in PARAMETER_PORTS
        path = names.parameter_of_b(site.path, parameters[1]) if is_parameter else names.of_b(site.path)
        return None if path is None else replace(site, path=path)

    return renamed


def _paths(sites: Iterable[Site], *, of_parameters: bool) -> list[str]:
    """Return the paths of parameters, or of modules: also those that are known from their parameters alone."""
    if of_parameters:
        return list(dict.fromkeys(site.path for site in sites if site.port in PARAMETER_PORTS))
    return list(dict.fromkeys(site.owner.path for site in sites))
