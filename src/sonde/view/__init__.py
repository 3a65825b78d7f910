"""Tables, pictures and HTML pages of what was recorded. Nothing here imports torch.

The names in ``__init__.pyi`` are loaded when they are first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
