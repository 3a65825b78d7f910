"""``extract`` and ``stream``: run models over data; what passes at chosen sites goes into a store, or to a trainer at once."""

from types import ModuleType as _Module

# isort: split
from sonde.extraction.estimate import Estimate as Estimate
from sonde.extraction.extract import extract as extract
from sonde.extraction.stream import stream as stream

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]
