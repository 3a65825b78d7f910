"""Checks for any model, in two lines, and a zoo of small models for which ordinary tools record the wrong things.

>>> import torch
>>> from sonde import testing
>>> model, batch = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()), torch.randn(8, 4)
>>> testing.assert_undisturbed(model, batch)  # observing changes nothing
>>> testing.assert_complete(model, batch)  # and misses nothing
>>> testing.assert_healthy(model, batch, lambda output: output.square().mean())
"""

from sonde.checkup import mean_square, same_bits
from sonde.testing import networks, values  # noqa: F401  # they fill the zoo
from sonde.testing.checks import assert_healthy, assert_no_hooks_left
from sonde.testing.complete import assert_complete
from sonde.testing.laws import assert_laws, assert_traceable, members
from sonde.testing.oracle import Oracle, assert_oracle, situations
from sonde.testing.report import zoo_report
from sonde.testing.same import assert_same
from sonde.testing.undisturbed import PROBES, MakeProbe, assert_undisturbed
from sonde.testing.zoo import ZOO, Entry

__all__ = [
    "PROBES",
    "ZOO",
    "Entry",
    "MakeProbe",
    "Oracle",
    "assert_complete",
    "assert_healthy",
    "assert_laws",
    "assert_no_hooks_left",
    "assert_oracle",
    "assert_same",
    "assert_traceable",
    "assert_undisturbed",
    "mean_square",
    "members",
    "same_bits",
    "situations",
    "zoo_report",
]
