"""Open a page that follows all runs below a folder, those that are being trained and those that have ended, until Ctrl-C.

The page is served to this machine alone. With --host it is served to others, too, which need the token in the printed address.
"""

from __future__ import annotations

import argparse
import webbrowser

from sonde.cli.completers import complete_folders, completes
from sonde.words import many

EXAMPLES = """
sonde ui                          all runs in the folder "runs"
sonde ui runs/quiet-otter         one run
sonde ui --no-open --port 9000    behind ssh -L 9000:localhost:9000 MACHINE
"""
_LAST_PORT = 65535
EXIT = "0 ended by Ctrl-C, 2 no page could be served"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    folder = "the folder that holds the runs, or one run (default: runs)"
    completes(parser.add_argument("runs", metavar="FOLDER", nargs="?", default="runs", help=folder), complete_folders)
    parser.add_argument("--port", type=_port, help="the port (default: 8420, or the next free one)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1, this machine alone)")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")


def run(options: argparse.Namespace) -> int:
    """Serve the page until the command is interrupted."""
    from sonde.paths import absolute_path
    from sonde.view import PORT, LivePage, has_screen

    page = LivePage(absolute_path(options.runs), host=options.host, port=options.port)
    found = len(page.followed)
    more = "" if found else "; those to come appear by themselves"
    print(f"{page.followed.shown}: {many(found, 'run') if found else 'no runs'}{more}")
    port = page.address.split("/")[2].rpartition(":")[2]
    print(page.address + (f"   (port {PORT} is taken)" if options.port is None and port != str(PORT) else ""), flush=True)
    if "?token=" in page.address:
        print("Other machines can read these runs with this address; the token is new at each start.", flush=True)
    if not options.no_open and has_screen():
        webbrowser.open(page.address)
    print("Ctrl-C ends it.", flush=True)
    page.serve()
    return 0


def _port(text: str) -> int:
    """Return the port *text*; 0 is any free one."""
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to {_LAST_PORT}")
    return int(text)
