"""What torch itself says about a mistake: its words differ between versions, so that no test and no page quotes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def words_of(mistake: Callable[[], Any]) -> str:
    """Return the message of the error that *mistake*, in plain torch, ends with, as a pattern for ``match=``."""
    try:
        mistake()
    except Exception as error:
        return re.escape(str(error))
    raise AssertionError("torch has found no mistake")
