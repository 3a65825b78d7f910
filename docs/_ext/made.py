"""Show what the code of a page has made: its pictures and pages, from a run of the page's own blocks.

A line ``<!-- made: flow.png | Gradients through the depth -->`` in a page becomes that picture, and with ``.html`` a frame.
GitHub shows nothing there. The Python blocks above the last such line run in order, in one process and an empty folder. The tests
run all of them.

A page that is one line ``<!-- text: ../CHANGELOG.md -->`` has the text of that file, with its links led to pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"^<!-- made: (\S+)(?: (\d+)px)? \| (.+) -->$", re.MULTILINE)
TEXT = re.compile(r"^<!-- text: (\S+) -->$")
LINK = re.compile(r"\]\(([^)#:\s]+)((?:#[^)]*)?)\)")
FOLDER = "_made"


def run(text: str, folder: Path) -> None:
    """Run the Python blocks of *text* in *folder*, which is emptied first.

    Raises:
        RuntimeError: a block raised; the message ends with its traceback.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "page.py").write_text("\n".join(BLOCK.findall(text)), encoding="utf-8")
    settings = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "page.py"], cwd=folder, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the code of {folder.name}.md: {done.stderr[-4000:]}")


def texts(app: Any, name: str, source: list[str]) -> None:
    """Put in the text of a file from outside of the folder, and lead links to such files to their pages."""
    docs = Path(app.srcdir)
    pages = {page: TEXT.match(page.read_text(encoding="utf-8")) for page in docs.glob("*.md")}
    outside = {(docs / match[1]).resolve(): page for page, match in pages.items() if match}
    here = (docs / name).parent
    folder = here
    if match := TEXT.match(source[0]):
        folder = (docs / match[1]).resolve().parent
        source[0] = (docs / match[1]).read_text(encoding="utf-8")

    def led(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        page = outside.get(target, target)
        return f"]({os.path.relpath(page, here)}{match[2]})" if page.exists() else match[0]

    source[0] = LINK.sub(led, source[0])


def show(app: Any, name: str, source: list[str]) -> None:
    """Put what the page's code makes in the place of its lines ``<!-- made: ... -->``."""
    found = list(MADE.finditer(source[0]))
    if not found:
        return
    folder = Path(app.srcdir) / FOLDER / name
    run(source[0][: found[-1].start()], folder)
    for made in [each[1] for each in found]:
        if not (folder / made).exists():
            raise RuntimeError(f"{name}.md shows {made}, which its code does not make")
    up = "../" * name.count("/")

    def shown(match: re.Match[str]) -> str:
        made, height, words = match.groups()
        if not made.endswith(".html"):
            return f"```{{image}} {up}{FOLDER}/{name}/{made}\n:alt: {words}\n:class: made\n```"
        target = Path(app.outdir) / FOLDER / name / made
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / made, target)
        address = f"{up}{FOLDER}/{name}/{made}"
        words, style = escape(words), f"height:{height or 520}px"
        return (
            f'```{{raw}} html\n<iframe class="made" src="{address}" title="{words}" loading="lazy" style="{style}">'
            f'</iframe>\n<p class="made"><a href="{address}">{words}: open it alone</a></p>\n```'
        )

    source[0] = MADE.sub(shown, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Connect :func:`texts` and :func:`show` to the reading of pages."""
    app.connect("source-read", texts)
    app.connect("source-read", show)
    return {"parallel_read_safe": True}
