"""A run at rest: plain data that needs no model and no torch to be written or read.

The names in ``__init__.pyi`` are loaded when they are first used.
"""

from sonde.suggest import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
