"""``RunFolder``: a folder that may hold a run, seen from outside: whose it is, how it stands, and how large, without a row read."""

from __future__ import annotations

from pathlib import Path

from sonde.errors import StoreError
from sonde.run.folder.end import State
from sonde.run.folder.files import FILE, folder_size
from sonde.run.folder.json_file import parse_json, read_bytes
from sonde.run.folder.run_json import Description
from sonde.run.folder.source import DiskSource
from sonde.run.run import Run
from sonde.run.run_state import changed_at, is_written, state_by
from sonde.run.run_summary import RunSummary, kept_summary
from sonde.run.schema import VERSION


class RunFolder:
    """A folder that may hold a run: nothing is raised where it holds none, one that is damaged, or one of another version.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sonde.run import RunFolder, runs_below, start_run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     start_run(f"{folder}/a").close()
    ...     run = RunFolder(Path(folder) / "a")
    ...     run.open().families, run.state(run.kept_summary), [path.name for path in runs_below(Path(folder))]
    ((), 'ended', ['a'])

    Attributes:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_run(self) -> bool:
        """Whether there is a ``run.json``, readable or not."""
        return (self.path / FILE).is_file()

    @property
    def description(self) -> Description | None:
        """The attempts that wrote the run and what they said of it; None where this version of sonde cannot read it."""
        try:
            return Description.read(self.path)
        except StoreError:
            return None

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of the format is written there."""
        try:
            version = parse_json(read_bytes(self.path / FILE), FILE)[0].get("version")
        except (FileNotFoundError, StoreError):
            return False
        return isinstance(version, int) and version > VERSION

    @property
    def is_written(self) -> bool:
        """Whether a process writes to the run; where locks are not known, whether it was written a minute ago."""
        return is_written(self.path)

    @property
    def is_empty(self) -> bool:
        """Whether the run has ended, and holds nothing beside what was said of it: it was begun in vain."""
        return not self.is_written and not any(each.is_dir() for each in self.path.iterdir())

    @property
    def kept_summary(self) -> RunSummary | None:
        """What a list shows of the run, as it was kept with it; None where it was not, or is older than the files."""
        return kept_summary(self.path)

    def state(self, summary: RunSummary) -> State:
        """Return the state of the run whose *summary* was kept."""
        return state_by(summary.ended, summary.end, self.path)

    @property
    def changed(self) -> float:
        """When its files were last written, in seconds since 1970."""
        return changed_at(self.path)

    @property
    def version(self) -> str:
        """A text that changes whenever there is something new to read; the sizes and times of files are enough."""
        return DiskSource(self.path).version

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return folder_size(self.path)

    def open(self, *, threads: int | None = None) -> Run:
        """Return the run, open for reading; *threads* work on one question, by default one for each core.

        Raises:
            StoreError: there is no run that this version of sonde reads.
        """
        return Run(DiskSource(self.path), threads=threads)
