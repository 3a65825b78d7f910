"""``extract``: run models over data, and store what passes at chosen sites, in a store that says what it was made from."""

from types import ModuleType as _Module

# isort: split
from sonde.extraction.estimate import Estimate as Estimate
from sonde.extraction.extract import extract as extract

__all__ = [name for name, value in vars().items() if name[0] != "_" and not isinstance(value, _Module)]
