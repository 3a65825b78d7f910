"""What is kept of an observer's failure, and how it is said."""

from __future__ import annotations

import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from sonde.errors import ObservationWarning
from sonde.site import Site

__all__ = ["ProbeError", "name_of", "warn_user"]


@dataclass(frozen=True, slots=True)
class ProbeError:
    """What went wrong in an observer.

    Attributes:
        observer: what was called.
        site: where; None if it was no place of the network.
        error: what it raised, without its traceback, which would keep alive all that the frames held.
        traceback: as text.
    """

    observer: str
    site: Site | None
    error: Exception
    traceback: str

    def __str__(self) -> str:
        return f"{self.observer} at {self.site}: {type(self.error).__name__}: {self.error}"

    @classmethod
    def of(cls, observer: str, site: Site | None, error: Exception) -> ProbeError:
        """The record of *error*, raised by *observer* at *site*."""
        text = "".join(traceback.format_exception(error))
        held: BaseException | None = error
        while held is not None and held.__traceback__ is not None:
            held.__traceback__ = None
            held = held.__cause__ or held.__context__
        return cls(observer, site, error, text)


def warn_user(text: str) -> None:
    """Warn at the line of the user's that led here, so that Python's once-per-place filter tells places apart."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, ObservationWarning, stacklevel=level)


_OURS = tuple(str(Path(module.__file__).parent) for module in (sys.modules["sonde"], torch) if module.__file__)


def name_of(observer: object) -> str:
    """What *observer* is called where it was defined."""
    return getattr(observer, "__qualname__", None) or type(observer).__qualname__
