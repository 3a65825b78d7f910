"""The sink of ``on_alert=``: tell a function, a webhook or a command of each finding while the training goes on."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias
from urllib.request import Request, urlopen

from sonde.errors import ArgumentError
from sonde.escape import with_null
from sonde.inspector.sinks.base import Sink
from sonde.rules import Finding

OnAlert: TypeAlias = Callable[[Finding], Any] | str | Sequence[str] | None
"""What is done about a finding: a function, the URL of a webhook, or a command."""

_SECONDS = 20.0  # that a webhook or a command may take
SCHEMA = 1
"""The version of what a webhook and a command are given."""


class AlertSink(Sink):
    """Passes each finding that is ``warn`` or ``bad`` on, once.

    A webhook is sent, and a command has as its standard input, one JSON object: ``text``, a line for people; ``schema``, 1;
    ``run``, the folder of the run or None; and ``finding``, the fields of the :class:`~sonde.types.Finding`. What raises, answers
    with an error or ends with an exit code other than 0 is tried again, as any sink is.

    Args:
        target: what is done.

    Raises:
        ArgumentError: *target* is none of these, or there is no such command.
    """

    may_block = True
    timeout = 60.0

    def __init__(self, target: OnAlert) -> None:
        self._function = target if callable(target) else None
        self._url = target if isinstance(target, str) and target.startswith(("http://", "https://")) else None
        self._command: list[str] = []
        self._path: str | None = None
        if self._function is None and self._url is None:
            given: Any = shlex.split(target) if isinstance(target, str) else target
            if not isinstance(given, Sequence) or not given or not all(isinstance(each, str) for each in given):
                raise ArgumentError(
                    f"on_alert={target!r}: give a function that takes a Finding, the URL of a webhook (https://...), or a command "
                    "as a text or a list of texts"
                )
            if shutil.which(given[0]) is None:
                raise ArgumentError(f"on_alert={target!r}: there is no command {given[0]!r}; a webhook begins with https://")
            self._command = list(given)

    def open(self, description: Mapping[str, Any]) -> None:
        self._path = description.get("path")

    def alert(self, finding: Finding) -> None:
        if finding.severity == "note":
            return
        if self._function is not None:
            self._function(finding)
            return
        text = f"sonde: step {finding.step:,}: {finding.message} ({finding.rule})"
        held = {"text": text, "schema": SCHEMA, "run": self._path, "finding": with_null(asdict(finding))}
        sent = json.dumps(held, allow_nan=False).encode()
        if self._url is not None:
            with urlopen(Request(self._url, sent, {"Content-Type": "application/json"}), timeout=_SECONDS):
                return
        subprocess.run(self._command, input=sent, timeout=_SECONDS, check=True, stdout=subprocess.DEVNULL)
