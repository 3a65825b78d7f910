"""Write the golden files anew: ``python -m tests.golden``, or those of some models, ``python -m tests.golden mlp gpt``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read while torch is imported

from tests.golden.models import CASES
from tests.golden.questions import FILES, answers


def main(names: list[str]) -> None:
    """Ask all questions, and write a file for each answer."""
    for case in CASES:
        if names and case.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            printed = list(answers(case, Path(folder)))
        shutil.rmtree(FILES / case.name, ignore_errors=True)
        (FILES / case.name).mkdir(parents=True)
        for each in printed:
            each.file.write_text(each.masked(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
