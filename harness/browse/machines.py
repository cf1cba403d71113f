"""Makes the page of machines: the environments of runs, side by side."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from harness.browse import studies
from harness.browse.index import Entry, Index
from harness.browse.selection import Selection
from harness.browse.texts import render
from harness.errors import HarnessError, one_line
from harness.results import run_folder
from harness.results.pages.words import groups

MOST_MACHINES = 6
"""Maximum number of machines shown side by side if no run is picked."""

MOST_FINGERPRINTS = 500
"""Only this many of the newest runs are grouped by machine."""

_OF_THE_RUN = frozenset(
    (
        "backend",
        "code",
        "dataset",
        "judge",
        "loadgen",
        "manifest_sha256",
        "model_sha256",
        "postprocess",
    )
)
"""Keys of environment.json that describe a run and not its machine."""


class Machine(NamedTuple):
    """A column of the page of machines. path: a run; runs: number of runs on its machine."""

    path: str
    runs: int
    settings: Mapping[tuple[str, str], str]
    """Values by group and name of the setting."""
    peaks: str = ""
    """Tiles of the rates that `machine` measured; "" if the folder has no measurement of this machine."""
    study: Entry | None = None
    """This measurement."""

    @property
    def name(self) -> str:
        return self.settings.get(("Machine", "host"), "-")

    @property
    def about(self) -> str:
        """Processor, cores and memory."""
        cores, memory = (self._of(name) for name in ("cores usable", "memory"))
        parts = (self._of("CPU"), cores and f"{cores} usable cores", memory and f"{memory} memory")
        return ", ".join(filter(None, parts))

    @property
    def fingerprint(self) -> str:
        """The machine's fingerprint; the run's path if environment.json contains none."""
        return self._of("fingerprint") or self.path

    def _of(self, name: str) -> str:
        return self.settings.get(("Machine", name), "")


class Setting(NamedTuple):
    """A row of the page. group: heading of the settings that describe the same part of the machine; values: by column."""

    group: str
    name: str
    values: Sequence[str | None]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


class Machines:
    """Any thread may call any method."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._root = index.root
        self._fingerprint = lru_cache(maxsize=MOST_FINGERPRINTS)(self._read_fingerprint)

    def page(self, selection: Selection, *, all_settings: bool) -> str:
        """Shows the environments of the picked runs, or of the newest run on each machine."""
        problems: list[str] = []
        columns: list[Machine] = []
        picked = [path for path in selection.run if path in self._index.entries()]
        for path, count in dict.fromkeys(picked, 1).items() or self._newest().items():
            try:
                columns.append(Machine(path, count, self._environment(path, is_run=bool(picked))))
            except (OSError, HarnessError) as e:
                problems.append(f"{path}: {one_line(e)}")
        peaks = studies.peaks(self._root, self._index.entries().values())
        columns = [
            one._replace(peaks=shown, study=study)
            for one in columns
            for shown, study in [peaks.get(one.fingerprint, ("", None))]
        ]
        only_differences = len(columns) > 1 and not all_settings
        keys = dict.fromkeys(key for column in columns for key in column.settings)
        compared = [Setting(*key, [column.settings.get(key) for column in columns]) for key in keys]
        shown = [one for one in compared if one.differs or not only_differences]
        return render(
            "machines.html",
            title="Machines",
            selection=selection,
            only_differences=only_differences,
            columns=columns,
            machines=list({one.fingerprint: one for one in columns}.values()),
            groups={one.group: [row for row in shown if row.group == one.group] for one in shown},
            problems=problems,
        )

    def _newest(self) -> dict[str, int]:
        """Maps the newest run on each machine to the number of runs there, for the newest runs of the folder."""
        counts: dict[str, tuple[str, int]] = {}
        # A run in progress has not written its environment yet.
        with_row = [
            e for e in self._index.entries().values() if e.row is not None and not e.notes_endpoint
        ]
        for entry in with_row[:MOST_FINGERPRINTS]:
            try:
                machine = self._fingerprint(entry.path, entry.at)
            except (OSError, HarnessError):
                machine = entry.path  # not cached, because the file may become readable
            path, count = counts.get(machine, (entry.path, 0))
            counts[machine] = (path, count + 1)
        return dict(list(counts.values())[:MOST_MACHINES])

    def _read_fingerprint(self, path: str, _at: str) -> str:
        """Returns the fingerprint of a run's machine. Raises OSError or ConfigError if environment.json cannot be read."""
        machine = studies.read(self._root, f"{path}/{run_folder.ENVIRONMENT}").get("machine")
        known = machine if isinstance(machine, dict) else {}
        return str(known.get("fingerprint") or known.get("host") or "-")

    def _environment(self, path: str, *, is_run: bool) -> dict[tuple[str, str], str]:
        """Returns the settings as texts. is_run: includes the settings that belong to the run, e.g. its seeds."""
        content = studies.read(self._root, f"{path}/{run_folder.ENVIRONMENT}")
        kept = {k: v for k, v in content.items() if is_run or k not in _OF_THE_RUN}
        return {(head, name): text for head, pairs in groups(kept).items() for name, text in pairs}
