"""sonde shows what happens inside a neural network while it runs.

The names below are loaded when they are first used, so that ``import sonde`` and ``sonde --help`` do not import torch.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__version__ = "0.1.0"
