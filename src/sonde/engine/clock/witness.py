"""Recognise steps that are not announced, as those of a compiled optimizer: a parameter has changed between two forwards."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import nn

from sonde.engine.torch_api.torch_tensors import version_of


class Witness:
    """A parameter that steps change, held weakly, and its version at the last call."""

    def __init__(self) -> None:
        self._parameter: weakref.ref[nn.Parameter] | None = None
        self._version = 0

    def choose(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the first of *parameters* that has a gradient, unless there is a witness."""
        if self._parameter is None or self._parameter() is None:
            found = next((parameter for parameter in parameters if parameter.grad is not None), None)
            self._parameter = None if found is None else weakref.ref(found)
            self.has_changed()

    def has_changed(self) -> bool:
        """Return whether the parameter was written into since the last call."""
        parameter = self._parameter() if self._parameter is not None else None
        if parameter is None:
            return False
        former, self._version = self._version, version_of(parameter)
        return former != self._version
