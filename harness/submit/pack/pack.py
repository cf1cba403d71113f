"""Packs the finished runs into a tree that contains exactly the files that the round requires."""

import errno
import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.console import say, show
from harness.core.files import reading
from harness.core.formats.video import video_of
from harness.errors import ConfigError, refuse
from harness.loadgen.logs import DETAIL, SUMMARY, read_answers
from harness.loadgen.user_conf import AUDIT
from harness.models.manifest.lookup import is_path
from harness.models.manifest.model import MODELS_DIR
from harness.models.opened.loading import missing_data
from harness.results.publish.replacements import Replacements
from harness.results.run_folder import CONFIG
from harness.submit.pack import texts
from harness.submit.pack.audit import pack_audit
from harness.submit.pack.describe import DIAGRAM, FILE, Described, describe, template
from harness.submit.pack.power import missing_files, pack_power
from harness.submit.pack.qdl import copy_qdl
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import ACCURACY, DONE, FAILED, PERFORMANCE, PlannedRun
from harness.submit.plan.request import Request
from harness.submit.rules.layout import MARK
from harness.submit.rules.rows import CUT
from harness.submit.rules.tree.lengths import TEST09
from harness.submit.rules.tree.rounds import Round
from harness.submit.rules.tree.submission import MAPPING

NO_SCORE = "not measured"


class Packed(NamedTuple):
    tree: Path
    raw: Path
    """Folder next to the tree that stores the untruncated accuracy logs."""


def finished_runs(
    request: Request, rows: list[PlannedRun], *, accelerated: bool, quiet: bool = False
) -> dict[tuple[str, str], FinishedRun]:
    """Returns all runs that the submission needs, by scenario and kind. Raises a ConfigError that lists everything that
    prevents packing.

    accelerated: whether the user's description lists an accelerator. In a rehearsal, accepts INVALID runs, which the
    check reports later. quiet: whether to rescore runs without a message.
    """
    refuse(f"{one}: restore it" for row in rows for one in missing_data(row.config.data_dir))
    problems, runs = [], {}
    for row in rows:
        usable = row.state == DONE or (request.rehearsal and row.state == FAILED)
        if row.folder is None or not usable:
            why = f": {row.why}" if row.why else ""
            problems.append(f"{row.name} is {row.state}{why}: start it with `submit run`")
            continue
        run = FinishedRun(row.scenario, row.kind, row.folder)
        runs[row.scenario, row.kind] = run
        if row.config.meter:
            lost = missing_files(run, request.rules)
            hint = f"restore it, or remove {run.folder} and repeat `submit run`"
            problems += [f"{row.name}: {path} is missing: {hint}" for path in lost]
        problems += [f"{row.name}: {why}" for why in run.unscorable()]
    refuse(problems)  # problems are reported before scoring, because scoring may take minutes
    if not quiet:
        say("each run is checked and scored again, which takes minutes with a slow metric")
    for row, run in zip(rows, runs.values(), strict=True):
        own = [name for name in (row.config.dataset, row.config.metric) if name is not None]
        problems += [
            f"{row.name}: {one}: restore the file, or remove {run.folder} and repeat `submit run`"
            # This code is trusted, because the submitter named it.
            for one in run.differences(trusted=own)
        ]
        if not request.rehearsal:
            found = run.forbidden(request, accelerated=accelerated)
            problems += [f"{row.name}: {why}" for why in found]
    refuse(problems)
    return runs


@reading(
    "some files do not belong to a run",
    "the files were changed, or a different version of the harness wrote them",
)
def pack(
    request: Request,
    rows: list[PlannedRun],
    answers: Mapping[str, Any],
    out: Path,
    official: Path | None,
    *,
    quiet: bool = False,
) -> Packed:
    """Writes the tree to `out` + `.partial`. The caller checks the tree and renames it.

    answers: values from the --describe file. official: a checkout of mlcommons/inference, whose scripts verify the
    audits. quiet: as in `finished_runs`.
    """
    accelerators = str(answers.get("accelerators_per_node", "0")).strip()
    accelerated = accelerators not in ("", "0", "N/A")
    runs = finished_runs(request, rows, accelerated=accelerated, quiet=quiet)
    try:
        described = describe(request, runs[request.chosen_scenarios[0], PERFORMANCE], answers)
    except ConfigError:
        say(f"pass a --describe file; here is a {FILE} to fill in:")
        show(template())
        raise
    out = out.absolute()
    tree, raw = (out.parent / f"{out.name}{end}" for end in (".partial", "-raw"))
    for path in (out, tree, raw):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} already exists: pass a different --to, or remove it")
    try:
        _Packer(request, runs, tree, raw, official).write(described)
    except BaseException as e:
        for path in (tree, raw):
            shutil.rmtree(path, ignore_errors=True)  # a partial tree would block the next attempt
        if not isinstance(e, OSError):
            raise
        path = e.filename2 or e.filename or tree
        is_full = e.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space" if is_full else "correct its permissions"
        hint += ", or pass a different --to"
        raise ConfigError(f"{path} cannot be read or written ({e.strerror}): {hint}") from e
    return Packed(tree, raw)


class _Packer:
    """Writes a tree, folder by folder."""

    def __init__(
        self,
        request: Request,
        runs: Mapping[tuple[str, str], FinishedRun],
        tree: Path,
        raw: Path,
        official: Path | None,
    ) -> None:
        self._request, self._runs = request, runs
        self._root, self._raw_root, self._official = tree, raw, official
        submitter, system = request.tree_names
        self._top = Path(request.division) / submitter
        self._results = self._top / "results" / system / request.called
        self._system = system
        self._replacements = Replacements([run.folder for run in runs.values()])

    def write(self, described: Described) -> None:
        request, top = self._request, self._root / self._top
        if request.rehearsal:
            _write(self._root / MARK, texts.REHEARSAL)
        _write_json(top / "systems" / f"{self._system}.json", described.system)
        if request.division == "open" and request.called != request.benchmark:
            _write_json(top / MAPPING, {request.called: request.benchmark})
        if request.division != "open":
            _write(top / "calibration.md", f"# Calibration\n\n{described.calibration}\n")
        self._sources(top / "src" / request.called)
        if described.diagram:
            diagram = Path(described.diagram)
            target = top / "documentation" / f"{DIAGRAM}{diagram.suffix.lower()}"
            target.parent.mkdir()
            shutil.copyfile(diagram, target)
        for scenario in request.chosen_scenarios:
            self._scenario(scenario, described)

    def _scenario(self, scenario: str, described: Described) -> None:
        request, path = self._request, self._results / scenario
        folder = self._root / path
        performance, accuracy = (self._runs[scenario, k] for k in (PERFORMANCE, ACCURACY))
        _write_json(folder / "measurements.json", described.measurements)
        _write(folder / "user.conf", texts.user_conf(performance))
        _write(folder / "README.md", texts.reproduce(request, performance, list(request.audits)))
        copy_logs(performance, folder / "performance" / "run_1")
        if described.power:
            pack_power(performance, folder, described.power, request.rules)
        copy_logs(accuracy, folder / "accuracy")
        copy_videos(accuracy, request.of_round.accuracy_videos, folder / "accuracy" / "videos")
        score = accuracy.score_text.strip() or NO_SCORE
        self._truncated(accuracy.accuracy_log, path / "accuracy", score)
        for name in request.audits:
            audit = self._runs[scenario, name]
            if request.rules.audits[name].runs or name == TEST09:
                copy_logs(audit, folder / name / "performance" / "run_1")
            packed = pack_audit(name, performance, accuracy, audit, self._official, request)
            for file, text in packed.texts.items():
                _write(folder / name / file, text)
            for file, text in packed.accuracy_texts.items():
                _write(folder / name / "accuracy" / file, text)
            if packed.score_text:
                inside = path / name / "accuracy"
                self._truncated(audit.accuracy_log, inside, packed.score_text)

    def _truncated(self, log: Path, inside: Path, score: str) -> None:
        """Writes the truncated accuracy log with its score and hash, and stores the whole log in the folder of raw
        logs.
        """
        name = log.name
        for root in (self._root, self._raw_root):
            (root / inside).mkdir(parents=True, exist_ok=True)
        digest = truncate(log, self._root / inside / name, self._request.rules)
        shutil.copyfile(log, self._raw_root / inside / name)
        _write(self._root / inside / "accuracy.txt", f"{score}\n\nhash={digest}\n")

    def _sources(self, folder: Path) -> None:
        _write(folder / "README.md", texts.sources(self._request))
        for (scenario, kind), run in self._runs.items():
            self._copy_text(run.folder / CONFIG, folder / f"{scenario}-{kind}.yaml")
            if kind in self._request.audits:
                shutil.copyfile(run.logs / AUDIT, folder / f"{kind}.config")
        for path in dict.fromkeys(_own_files(next(iter(self._runs.values())))):
            if path.is_file():
                self._copy_text(path, folder / texts.packed_name(path))
        if next(iter(self._runs.values())).config.qdl:
            copy_qdl(next(iter(self._runs.values())).config.backend, folder / "qdl")

    def _copy_text(self, path: Path, target: Path) -> None:
        """Copies a file, and removes home folders, private paths, user and host names, and meters' arguments."""
        content, _ = self._replacements.file(path.read_bytes(), path.name)
        target.write_bytes(content)


def _own_files(run: FinishedRun) -> Iterator[Path]:
    config = run.config
    if config.model.endswith((".yaml", ".yml")):
        yield Path(config.model)
    elif not is_path(config.model):
        yield MODELS_DIR / f"{config.model}.yaml"
    if config.hook is not None:
        yield config.hook
    for name in (config.backend, config.dataset, config.metric):
        file, colon, _ = (name or "").rpartition(":")
        if colon and file.endswith(".py"):
            yield Path(file)


def truncate(log: Path, target: Path, rules: Round) -> str:
    """Writes the beginning and the end of `log` to `target`, or the whole log if it is short. Returns the SHA-256 of
    the whole log.

    Source: mlcommons/inference, truncate_accuracy_log.py.
    """
    digest, size = hashlib.sha256(), log.stat().st_size
    end = rules.shown_accuracy_log_bytes
    with log.open("rb") as f:
        head = f.read(end)
        digest.update(head)
        while chunk := f.read(1 << 20):
            digest.update(chunk)
        f.seek(max(0, size - end))
        tail = f.read(end)
    is_short = size <= rules.largest_accuracy_log_bytes
    target.write_bytes(log.read_bytes() if is_short else head + CUT + tail)
    return digest.hexdigest()


def copy_logs(run: FinishedRun, folder: Path) -> None:
    """Copies LoadGen's detail log and summary, but not the harness's files."""
    folder.mkdir(parents=True)
    for name in (DETAIL, SUMMARY):
        if (run.logs / name).is_file():
            shutil.copyfile(run.logs / name, folder / name)


def copy_videos(run: FinishedRun, samples: Collection[int], folder: Path) -> None:
    """Writes the answers to these samples as video files, which the round requires for some benchmarks."""
    for sample, payload in read_answers(run.accuracy_log) if samples else ():
        if sample not in samples or not payload:
            continue
        try:
            content = video_of(payload)
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"{run.scenario}-{run.kind}: the answer to sample {sample} is not a video: {e}"
            ) from e
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{sample}.mp4").write_bytes(content)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write(path, json.dumps(content, indent=2, ensure_ascii=True) + "\n")
