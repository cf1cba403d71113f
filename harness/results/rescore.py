"""Scores a finished run's answers again after the user's scoring program failed: `python -m harness score RUN`.

The answers stay as LoadGen logged them. Only files that depend on the score are written: findings.json (with the time
of scoring), accuracy.txt, result.json, the page, and the digests of these files in the seal.
"""

import json
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.core import files, registry
from harness.core.clock import wall_ns
from harness.core.console import say
from harness.core.shown.private import hidden
from harness.core.units import NS_PER_S
from harness.errors import ConfigError, PluginUnavailable, RunInvalid, refuse
from harness.results import database, recheck, records, run_folder
from harness.results.findings import Findings
from harness.results.outcome import Finished
from harness.results.pages.report import report_at_end
from harness.results.result_json import result
from harness.results.run_files import check_shape
from harness.results.seal import digests, signature
from harness.results.verdict import score

_FAILED = "accuracy-failed"


def is_pending(folder: Path) -> bool:
    """Returns whether a run lacks only its score, because a program that the user named failed."""
    path = folder / run_folder.RESULT
    with suppress(ConfigError):
        stored, kept = files.read_json(path), files.read_json(folder / records.FINDINGS)
        check_shape(stored, path)
        only = {reason["code"] for reason in stored["reasons"]} == {_FAILED}
        ended = kept.get("scored") is True and kept.get("stopped") is None
        if only and ended and not folder.name.endswith(files.PARTIAL):
            return not set(registry.BY_PROGRAM).isdisjoint(recheck.untrusted(folder))
    return False


def rescore(folder: Path, trusted: Collection[str] = ()) -> Finished:
    """Scores the answers and writes the result. If scoring fails again, raises RunInvalid and changes nothing.

    trusted: names, as stored in the run, of the datasets whose code may run.
    """
    refuse(_obstacles(folder, trusted))
    findings = recheck.findings(folder, recheck.configuration(folder))
    run, loaded = findings.accuracy, findings.loaded
    if run is None or run.ended is None or loaded is None:
        raise ConfigError(f"{folder} has no complete accuracy run: repeat the run")
    refuse(score.lacking_program(findings.resolved.metric))
    findings.environment = files.read_json(folder / run_folder.RESULT)["environment"]
    findings.scoring = score.judge(
        folder, findings.resolved, loaded, run.ended, findings.compared_run
    )
    failure = findings.scoring.failure
    if failure is not None and failure.code == _FAILED:
        raise RunInvalid(f"{folder} still has no score: {failure.text}")
    now = datetime.fromtimestamp(wall_ns() / NS_PER_S, UTC)
    findings.scored_again = now.isoformat(timespec="milliseconds")
    content: Mapping[str, Any] = hidden(json.loads(json.dumps(result(findings), default=str)))
    _write(folder, findings, content)
    _add_to_database(folder, content)
    status = 0 if content["verdict"] == "VALID" else RunInvalid.exit_status
    return Finished(status, folder, content)


def _obstacles(folder: Path, trusted: Collection[str]) -> list[str]:
    """Returns the reasons why the answers cannot be scored. Contradictory files are also a reason, because the answers
    may belong to another run.
    """
    if not is_pending(folder):
        why = "is not a run in which only the scoring program failed: `check` recomputes the verdict of any run"
        return [f"{folder} {why}"]
    if recheck.is_published(recheck.configuration(folder)):
        return [f"{folder} is a published copy, which cannot be scored: use the original run"]
    return recheck.check(folder) or [
        f"{name} is code that provides the labels: pass --trust {name} to let it run"
        for name in recheck.untrusted(folder, trusted)
        if name not in registry.BY_PROGRAM
    ]


def _write(folder: Path, findings: Findings, content: Mapping[str, Any]) -> None:
    """Writes the files that depend on the score. All other digests in the seal stay unchanged.

    Removes metrics.prom, because only the process that made the run can write it.
    """
    text = run_folder.FOLDERS["accuracy"] + "/" + run_folder.ACCURACY_TEXT
    page = folder / digests.PAGE
    has_page = page.is_file()
    kept = files.read_json(folder / records.FINDINGS)
    try:
        if findings.scoring.score is not None:
            score.write(folder / text, findings.scoring.score)
        page.unlink(missing_ok=True)
        (folder / run_folder.METRICS).unlink(missing_ok=True)
        again = {**kept, "scored_again": findings.scored_again}
        files.write_json(folder / records.FINDINGS, again)
        files.write_json(folder / run_folder.RESULT, content)
        names = [text, records.FINDINGS, run_folder.RESULT, run_folder.METRICS]
        digests.renew(folder, names)
        if findings.config.sign is not None:
            say(signature.sign(folder, findings.config.sign))
        with suppress(PluginUnavailable):
            _ = report_at_end(folder, findings) if has_page else None
    except OSError as e:
        raise ConfigError(f"{folder} cannot be written ({e.strerror}): repeat the run") from e


def _add_to_database(folder: Path, content: Mapping[str, Any]) -> None:
    path = database.path_in(folder.absolute().parent)
    try:
        if path.is_file():
            database.add(path.parent, folder.absolute().name, content)
    except sqlite3.Error as e:
        say(f"{path}: the score was not added ({e}), so `runs` does not list it")
