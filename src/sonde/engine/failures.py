"""What is kept of an observer's failure, and how it is said."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from sonde.site import Site
from sonde.warn import warn_user

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


def name_of(observer: object) -> str:
    """What *observer* is called where it was defined."""
    return getattr(observer, "__qualname__", None) or type(observer).__qualname__
