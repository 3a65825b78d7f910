"""Whatever the moment at which a process is killed, no item of its store is wrong, and the store is not mixed with another."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.extraction.kills import tried


@pytest.mark.slow
def test_no_item_is_wrong_whenever_a_process_is_killed(tmp_path: Path) -> None:
    """With another seed each time, which a failure shows; ``python -m tests.extraction.kills 200`` takes longer."""
    seed = random.SystemRandom().randrange(2**31)
    count = tried(12, seed, tmp_path)
    assert (count.wrong, count.mixed) == (0, []), seed
    assert count.whole, seed
    assert count.items > 100, seed
    assert len({*count.refused.values()}) == 1, seed
    assert count.refused["weights"], seed
