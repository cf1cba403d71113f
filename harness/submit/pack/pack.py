"""`submit pack`: the round's tree out of the finished runs. Nothing goes in that is not asked for."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.console import say
from harness.core.files import reading
from harness.errors import ConfigError
from harness.loadgen.logs import DETAIL, SUMMARY
from harness.models.manifest.lookup import is_path
from harness.models.manifest.model import MODELS_DIR
from harness.results.run_folder import CONFIG
from harness.submit.pack import texts
from harness.submit.pack.audit import pack_audit
from harness.submit.pack.describe import FILE, Described, describe, template
from harness.submit.pack.finished_run import Made
from harness.submit.pack.power import missing_files, pack_power
from harness.submit.pack.truncate import truncate
from harness.submit.plan.matrix import ACCURACY, DONE, FAILED, PERFORMANCE, PlannedRun
from harness.submit.plan.request import Request
from harness.submit.rules.layout import MARK
from harness.submit.rules.tree.rounds import Round
from harness.submit.rules.tree.submission import MAPPING

NO_SCORE = "not measured"


class Packed(NamedTuple):
    """tree: its root. raw: a folder beside it with the untruncated accuracy logs."""

    tree: Path
    raw: Path


def made_runs(
    request: Request, rows: list[PlannedRun], *, accelerated: bool
) -> dict[tuple[str, str], Made]:
    """All runs of the matrix by scenario and kind; a ConfigError with everything that is in the way.

    accelerated: the user's description names an accelerator. A rehearsal takes INVALID runs, too:
    the check then says so.
    """
    problems, made = [], {}
    for row in rows:
        usable = row.state == DONE or (request.rehearsal and row.state == FAILED)
        if row.folder is None or not usable:
            why = f": {row.why}" if row.why else ""
            problems.append(f"{row.name} is {row.state}{why}: `submit run` makes it")
            continue
        run = Made(row.scenario, row.kind, row.folder)
        made[row.scenario, row.kind] = run
        if row.config.meter:
            lost = missing_files(run, request.rules)
            mend = f"put it back, or remove {run.folder} and `submit run`"
            problems += [f"{row.name}: {path} is not there any more: {mend}" for path in lost]
        if not request.rehearsal:
            problems += run.forbidden(request.of_round, accelerated=accelerated)
    if problems:
        raise ConfigError("\n".join(problems))
    return made


def pack(
    request: Request,
    rows: list[PlannedRun],
    answers: Mapping[str, Any],
    out: Path,
    official: Path | None,
) -> Packed:
    """Write the tree to `out` + `.partial`; the caller checks it and gives it its name.

    answers: of the --describe file. official: a checkout whose scripts verify the audits.
    """
    hint = "they were changed, or another version of the harness wrote them"
    with reading("the runs' files are not what runs write", hint):
        return _packed(request, rows, answers, out, official)


def _packed(
    request: Request,
    rows: list[PlannedRun],
    answers: Mapping[str, Any],
    out: Path,
    official: Path | None,
) -> Packed:
    accelerators = str(answers.get("accelerators_per_node", "0")).strip()
    made = made_runs(request, rows, accelerated=accelerators not in ("", "0", "N/A"))
    described = _described(request, made, answers)
    out = out.absolute()
    tree, raw = (out.parent / f"{out.name}{end}" for end in (".partial", "-raw"))
    for path in (out, tree, raw):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists: pass another --to, or remove it")
    try:
        _Packer(request, made, tree, raw, official).write(described)
    except BaseException as e:
        for path in (tree, raw):
            shutil.rmtree(path, ignore_errors=True)  # half of it would be in the way of the next
        if not isinstance(e, OSError):
            raise
        what = f"{e.filename2 or e.filename or tree} cannot be read or written: {e.strerror}"
        raise ConfigError(f"{what}: mend it, or pass another --to") from e
    return Packed(tree, raw)


def _described(
    request: Request, made: Mapping[tuple[str, str], Made], answers: Mapping[str, Any]
) -> Described:
    submitter, system = request.tree_names
    fixed = {
        "division": request.division,
        "submitter": submitter,
        "system_name": str(answers.get("system_name") or system),
        "system_type": request.category,
    }
    first = made[request.wanted_scenarios[0], PERFORMANCE]
    try:
        return describe(
            *(request.rules, first.about(), fixed, answers),
            rehearsal=request.rehearsal,
            power=bool(request.meters),
        )
    except ConfigError as e:
        say(f"--describe FILE has what cannot be read; {FILE} begins like this:")
        say(template())
        raise ConfigError(str(e)) from None


class _Packer:
    """One tree, folder by folder."""

    def __init__(
        self,
        request: Request,
        made: Mapping[tuple[str, str], Made],
        tree: Path,
        raw: Path,
        official: Path | None,
    ) -> None:
        self._request, self._made = request, made
        self._root, self._raw_root, self._official = tree, raw, official
        submitter, system = request.tree_names
        self._top = Path(request.division) / submitter
        self._results = self._top / "results" / system / request.called
        self._system = system

    @property
    def _rules(self) -> Round:
        return self._request.rules

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
        for scenario in request.wanted_scenarios:
            self._scenario(scenario, described)

    def _scenario(self, scenario: str, described: Described) -> None:
        request, path = self._request, self._results / scenario
        folder = self._root / path
        performance, accuracy = (self._made[scenario, k] for k in (PERFORMANCE, ACCURACY))
        _write_json(folder / "measurements.json", described.measurements)
        _write(folder / "user.conf", texts.user_conf(performance))
        _write(folder / "README.md", texts.reproduce(request, performance, list(request.audits)))
        copy_logs(performance, folder / "performance" / "run_1")
        if described.power:
            pack_power(performance, folder, described.power, self._rules)
        copy_logs(accuracy, folder / "accuracy")
        score = accuracy.score_text.strip() or NO_SCORE
        self._truncated(accuracy.accuracy_log, path / "accuracy", score)
        for name in request.audits:
            audit = self._made[scenario, name]
            copy_logs(audit, folder / name / "performance" / "run_1")
            found = pack_audit(name, performance, accuracy, audit, self._official)
            for file, text in found.texts.items():
                _write(folder / name / file, text)
            for file, text in found.accuracy_texts.items():
                _write(folder / name / "accuracy" / file, text)
            if found.score_text:
                inside = path / name / "accuracy"
                self._truncated(audit.accuracy_log, inside, found.score_text)

    def _truncated(self, log: Path, inside: Path, score: str) -> None:
        """What may be shown of an accuracy log, its score and its hash; the whole goes to raw."""
        name = log.name
        for root in (self._root, self._raw_root):
            (root / inside).mkdir(parents=True, exist_ok=True)
        digest = truncate(log, self._root / inside / name, self._rules)
        shutil.copyfile(log, self._raw_root / inside / name)
        _write(self._root / inside / "accuracy.txt", f"{score}\n\nhash={digest}\n")

    def _sources(self, folder: Path) -> None:
        _write(folder / "README.md", texts.sources(self._request))
        for (scenario, kind), made in self._made.items():
            shutil.copyfile(made.folder / CONFIG, folder / f"{scenario}-{kind}.yaml")
        first = next(iter(self._made.values()))
        audits = [made.config.audit for made in self._made.values() if made.config.audit]
        for path in dict.fromkeys([*_own_files(first), *audits]):
            if path.is_file():
                shutil.copyfile(path, folder / texts.packed_name(path))


def _own_files(made: Made) -> Iterator[Path]:
    """The manifest, the hook, and the plug-ins that are files."""
    config = made.config
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


def copy_logs(made: Made, folder: Path) -> None:
    """LoadGen's own two, and none of ours."""
    folder.mkdir(parents=True)
    for name in (DETAIL, SUMMARY):
        if (made.logs / name).is_file():
            shutil.copyfile(made.logs / name, folder / name)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write(path, json.dumps(content, indent=2, ensure_ascii=True) + "\n")
