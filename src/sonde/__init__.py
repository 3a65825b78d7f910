"""sonde shows what happens inside a neural network while it runs.

Begin with ``track(model)`` for one pass, ``watch(model, optimizer)`` for a training, ``why_nan(model, batch, loss_fn)`` for a NaN:
``help(sonde.track)`` has an example. The names below are loaded when they are first used, so that ``import sonde`` and
``sonde --help`` do not import torch.
"""

from sonde.suggest import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
__version__ = "0.1.0"
