"""Check that observing changes nothing: compare a model with and without a probe to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from torch import nn

from sonde.checkup import changes, facts_of_passes
from sonde.engine import observe
from sonde.keep import track
from sonde.stats import Moments
from sonde.testing.trial import Loss, Trial, listed, same_chance

MakeProbe: TypeAlias = Callable[[nn.Module], AbstractContextManager[Any]]
"""Attaches an observer to a model and returns a context whose end removes the observer."""

_PASSES = 2  # some changes appear only at the second forward


def _ignore(event: object) -> None:
    """Do nothing with *event*."""


PROBES: Mapping[str, MakeProbe] = {
    "observe, outputs": lambda model: observe(model, _ignore, strict=True),
    "observe, every port": lambda model: observe(
        model, _ignore, ports=("input", "output", "grad_output", "grad"), strict=True
    ),
    "observe with Moments": lambda model: observe(
        model, Moments(), ports=("input", "output", "grad_output", "grad"), strict=True
    ),
    "track": lambda model: track(model, strict=True),
}  # fmt: skip
"""The kinds of probe, by name. None has the port ``grad_input``, which adds a node to the graph."""


def assert_undisturbed(
    model: nn.Module,
    /,
    *args: Any,
    loss_fn: Loss | None = None,
    probes: Mapping[str, MakeProbe] | None = None,
    factory: Callable[[], nn.Module] | None = None,
    **kwargs: Any,
) -> None:
    """Assert that observing *model* changes nothing in its forward and backward passes.

    Two passes of a copy without a probe are compared with two passes of a copy under each kind of probe: the output (values,
    types, strides, the graph behind it), the loss, gradients of parameters and of argument leaves, buffers and
    ``state_dict``, training flags, attributes and hooks of every module, the state of all random generators. Floating-point
    numbers are compared bit by bit; any NaN equals any other. *model*, the arguments and the random generators do not
    change.

    >>> import torch
    >>> from sonde.testing import assert_undisturbed
    >>> assert_undisturbed(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout()), torch.ones(2, 4))

    Args:
        model: any model in eager mode, in training or evaluation.
        args, kwargs: the arguments of the call.
        loss_fn: maps the output to a scalar; the default is the sum of the mean squares of all tensors that need a gradient.
        probes: the probes to attach, by name, in place of :data:`PROBES`.
        factory: makes the same model again, for a model that cannot be deep-copied.

    Raises:
        AssertionError: something differs; the message names the probe, the value and the place. Also if the model gives
            different results in two unobserved runs.
        ArgumentError: the model cannot be copied and there is no *factory*.
    """
    trial = Trial(model, args, kwargs, loss_fn, factory)
    with same_chance() as rewind:
        rewind()
        plain = _facts(trial, None)
        for name, make in (PROBES if probes is None else probes).items():
            rewind()
            try:
                observed = _facts(trial, make)
            except Exception as error:
                raise AssertionError(f"under the probe {name!r} the model raised {type(error).__name__}: {error}") from error
            changed = _changed(plain, observed)
            if not changed:
                continue
            rewind()
            unsteady = _changed(plain, _facts(trial, None))
            if unsteady:
                raise AssertionError(
                    listed(f"{type(model).__name__} gives other results when it is run again unobserved", unsteady)
                )
            raise AssertionError(listed(f"the probe {name!r} changes {type(model).__name__}", changed))


def _facts(trial: Trial, make: MakeProbe | None) -> dict[str, Any]:
    """Return all observable facts of two passes of a fresh copy of the model, under the probe that *make* attaches."""
    return facts_of_passes(trial.fresh_model(), trial.fresh_batch, trial.loss, passes=_PASSES, make=make)


def _changed(plain: dict[str, Any], observed: dict[str, Any]) -> list[str]:
    return [str(each) for each in changes(plain, observed)]
