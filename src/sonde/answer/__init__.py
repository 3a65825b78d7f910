"""Say what was found: the answer to a question, and the tables, charts, code and pages that answers are made of.

Every result that judges is an :class:`Answer`; one that only shows numbers is a table (``ShownAsTable``). Nothing here needs torch.
"""

from sonde.suggest import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
