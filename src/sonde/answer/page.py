"""The kit of every HTML page: shell, theme, content security policy, escaping. A page is one file that loads nothing."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from sonde.errors import ArgumentError
from sonde.escape import embed_json, escape_html
from sonde.paths import absolute_path

KIT = Path(__file__).parent / "assets"
"""The folder of the assets that every page has."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "(\.[^"]*\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_DIGEST = re.compile(r"script-src '(sha256-[A-Za-z0-9+/=]+)'")


def html_page(
    title: str,
    template: str = "",
    *,
    texts: Mapping[str, str] | None = None,
    parts: Mapping[str, str] | None = None,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    libraries: Mapping[str, str] | None = None,
    body: str = "",
    module: str = "",
    compressed: Mapping[str, bytes] | None = None,
    framed: Sequence[str] = (),
    assets: Path = KIT,
) -> str:
    """Return a self-contained page. Nothing in *title*, *texts* and *data* can run code or leave its element.

    The policy in the page allows its own script by its hash and, with *libraries*, workers that the script makes and WebAssembly;
    no other script, and no network. The page is light or dark as the system is; a button with the id ``theme`` changes it.

    Args:
        title: the page's title.
        template: name of the asset that holds the body; ``$name`` in it stands for the text of that name.
        texts: texts for the template, escaped here.
        parts: HTML for the template, made by functions that escape every text in it.
        styles, scripts: names of assets, put after the kit's own in this order.
        data: read in the script by ``JSON.parse(document.getElementById(name).textContent)``; NaN and infinities are texts.
        libraries: script texts of installed packages, for a worker that the page's script makes.
        body: HTML in place of the template.
        module: name of the asset, a module, that runs behind *scripts*, with all modules that it imports.
        compressed: by name data as gzip, which stand in the page as base64.
        framed: pages of this kit that the page shows in frames by ``srcdoc``; they may do what they may do on their own.
        assets: the folder with the template, *styles* and *scripts*; those that it lacks are the kit's.

    Raises:
        ArgumentError: a library cannot stand in a page.
    """
    for name, library in (libraries or {}).items():
        if "</script" in library.lower():
            raise ArgumentError(f"the library {name!r} cannot stand in a page: it holds the end of a script element")
    held = [f'<script id="{name}" type="application/json">{embed_json(part)}</script>\n' for name, part in (data or {}).items()]
    held += [f'<script id="{name}" type="text/plain">{library}</script>\n' for name, library in (libraries or {}).items()]
    held += [
        f'<script id="{name}" type="application/gzip;base64">{base64.b64encode(part).decode()}</script>\n'
        for name, part in (compressed or {}).items()
    ]
    joined = [joined_modules(assets / module)] if module else []
    script = "\n".join([asset("page.js"), *(asset(name, assets) for name in scripts), *joined])
    digests = [found for page in framed for found in _DIGEST.findall(page)[:1]]
    return Template(asset("page.html")).substitute(
        title=escape_html(title),
        policy=_policy(script, with_workers=bool(libraries or framed), others=digests),
        style="".join([asset("page.css"), *(asset(name, assets) for name in styles)]),
        body=body
        or Template(asset(template, assets)).substitute(
            {name: escape_html(text) for name, text in (texts or {}).items()}, **(parts or {})
        ),
        held="".join(held),
        script=script,
    )


def in_frame(page: str, title: str, height: int) -> str:
    """Return HTML that shows *page* in a frame of its own in a notebook; its scripts and styles cannot touch the notebook."""
    frame = "width:100%;border:1px solid rgba(128,128,128,.35);border-radius:8px"
    return (
        f'<iframe title="{escape_html(title)}" sandbox="allow-scripts allow-downloads" loading="lazy" '
        f'style="{frame};height:{height}px" srcdoc="{escape_html(page)}"></iframe>'
    )


@functools.lru_cache(64)
def asset(name: str, assets: Path = KIT) -> str:
    """Return the text of the file *name* in the folder *assets*, or else in the kit."""
    file = assets / name
    return (file if file.is_file() else KIT / name).read_text(encoding="utf-8")


@functools.lru_cache(8)
def joined_modules(main: Path) -> str:
    """Return the module in the file *main* and all that it imports, directly or not, as one script, each behind what it imports.

    A policy allows such a script by its hash, also in a page that is opened as a file, where no module may be loaded. All modules
    share one scope, so that a name that is exported and set anew is seen by those that import it. They keep to a form that allows
    this: names that are unique over all of them, no ``import * as`` and no ``as``, exports where a name is defined.
    """
    found: dict[Path, str] = {}

    def add(file: Path) -> None:
        if file not in found:
            found[file] = ""
            text = file.read_text(encoding="utf-8")
            for imported in _IMPORT.findall(text):
                add((file.parent / imported).resolve())
            del found[file]  # behind what it imports
            found[file] = _EXPORT.sub("", _IMPORT.sub("", text)).strip()

    add(main.resolve())
    return "(async () => {\n" + "\n".join(found.values()) + "\n})();"


def _policy(script: str, *, with_workers: bool, others: Sequence[str] = ()) -> str:
    """Return the content security policy of a page whose only script is *script*, which may make workers from held libraries."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "".join(f" '{each}'" for each in others)
    allowed += " 'wasm-unsafe-eval' blob:; worker-src blob:" if with_workers else ""
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'{allowed}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def page_file(path: str | os.PathLike[str], what: str) -> Path:
    """Return *path*, to which *what* is written, as an absolute path.

    Raises:
        ArgumentError: *path* does not end in ``.html``, or cannot be a path.
    """
    file = absolute_path(path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"{file.name!r}: {what} is written as .html")
    return file


def write_page(html: str, path: str | os.PathLike[str], what: str = "a page") -> Path:
    """Write a page to *path*, whose folder is made if it does not exist, and return the path.

    Raises:
        ArgumentError: *path* does not end in ``.html``, or cannot be a path; the message says *what* should be written.
    """
    file = page_file(path, what)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html, encoding="utf-8")
    return file
