"""The record of an observer's exception."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from sonde.site import Site

__all__ = ["ProbeError", "name_of"]


@dataclass(frozen=True, slots=True)
class ProbeError:
    """An exception of an observer.

    Attributes:
        observer: the name of the called function.
        site: the place in the network; None outside of any.
        error: the exception, without its traceback, which would keep alive everything that its frames hold.
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
        """Return the record of *error*, raised by *observer* at *site*."""
        text = "".join(traceback.format_exception(error))
        held: BaseException | None = error
        while held is not None and held.__traceback__ is not None:
            held.__traceback__ = None
            held = held.__cause__ or held.__context__
        return cls(observer, site, error, text)


def name_of(observer: object) -> str:
    """Return the name of *observer*, as in its definition."""
    return getattr(observer, "__qualname__", None) or type(observer).__qualname__
