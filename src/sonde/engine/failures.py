"""The record of an observer's exception, and the exceptions that are no observer's."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType

from sonde.site import Site


@dataclass(frozen=True, slots=True)
class ProbeError:
    """An exception of an observer.

    >>> import sonde
    >>> from sonde.types import ProbeError
    >>> known = ProbeError.of("print_it", sonde.Site("fc"), ValueError("no colour"))
    >>> known.observer, str(known.site), known.error
    ('print_it', 'fc:output', ValueError('no colour'))

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


def raise_if_foreign(error: BaseException) -> None:
    """Raise *error*, or the cause of it, if a signal handler or a trace function of the program has raised it: it is no observer's.

    Python calls them between any two instructions, so also within a hook; what they raise is meant for the program (a watchdog's
    ``TimeoutError``, the notice that a job is preempted). The function is recognised by its argument, the frame that it has
    interrupted.
    """
    held: BaseException | None = error
    while held is not None:
        if _is_of_handler(held.__traceback__):
            raise held
        held = held.__cause__


def _is_of_handler(step: TracebackType | None) -> bool:
    while step is not None:
        frame, step = step.tb_frame, step.tb_next
        if frame.f_back is not None and any(given is frame.f_back for given in _arguments(frame)):
            return True
    return False


def _arguments(frame: FrameType) -> list[object]:
    """Return the positional arguments of the call that runs in *frame*, as far as their names still hold them."""
    code = frame.f_code
    is_variadic = bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: code.co_argcount]
    given: list[object] = [frame.f_locals.get(name) for name in names]
    if is_variadic:
        given += frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return given
