"""Trainers and loggers of other projects: one class for each, to be given to the trainer or to the inspector.

The names in ``__init__.pyi`` are loaded when they are first used, and the other project with them.
"""

from sonde.suggest import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
