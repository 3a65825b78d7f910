"""What tests of experiment trackers share: a training with many layers, and a reader of W&B's offline files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sonde.inspector import Inspector


def deep(layers: int = 12) -> nn.Sequential:
    """Return a network of linear layers and ReLUs, the second of which is dead."""
    model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(6, 6), nn.ReLU())), nn.Linear(6, 2))
    nn.init.constant_(model[2].bias, -100.0)  # type: ignore[arg-type]
    return model


def learn(model: nn.Module, inspector: Inspector, steps: int) -> Iterator[int]:
    """Train, and yield after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = model(torch.randn(16, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        inspector.push_loss(loss, train=True)
        yield step


@dataclass
class Offline:
    """The content of an offline run of W&B.

    Attributes:
        rows: of the history, without W&B's own names but ``_step``.
        axes: by name of a metric, that of its x-axis.
        alerts: title, text and level of each.
        artifacts: type and file names of each.
        config: the last value of each name.
        files: that were saved, media too.
        exit_code: None while the run goes on.
        resumes: whether a run of this id is continued.
        id: of the run.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    alerts: list[tuple[str, str, str]] = field(default_factory=list)
    artifacts: list[tuple[str, list[str]]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    exit_code: int | None = None
    id: str = ""

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (``sonde/step``, value) of each row that has *name*."""
        return [(row["sonde/step"], float(row[name])) for row in self.rows if name in row]


def offline_runs(folder: Path) -> list[Offline]:
    """Read every offline run below *folder*, in the order in which they were begun. W&B's own process has to end before that."""
    import wandb

    wandb.teardown()
    return [_read(file) for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_ctime_ns)]


def _read(file: Path) -> Offline:
    from wandb.proto.wandb_internal_pb2 import Record

    found = Offline()
    for data in _records(file.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found.rows.append({name: value for name, value in items.items() if name == "_step" or name[0] != "_"})
        elif kind == "metric" and record.metric.step_metric:
            found.axes[record.metric.name] = record.metric.step_metric
        elif kind == "alert":
            found.alerts.append((record.alert.title, record.alert.text, record.alert.level))
        elif kind == "artifact":
            found.artifacts.append((record.artifact.type, [entry.path for entry in record.artifact.manifest.contents]))
        elif kind in ("run", "config"):
            config = record.run.config if kind == "run" else record.config
            found.id = record.run.run_id if kind == "run" else found.id
            found.config |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in config.update}
        elif kind == "files":
            found.files += [each.path for each in record.files.files]
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format: blocks of 32 kB, each piece with checksum, length and kind before it."""
    place, record = 7, b""  # after the header of the file
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""
