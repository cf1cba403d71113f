"""Runs the verb `advise`: measures a model and derives which setting to change first."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.console import say, show
from harness.core.files import cache_dir
from harness.errors import HarnessError, RunInvalid, one_line, type_and_text
from harness.explain.advise import content as advise_content
from harness.explain.advise.answers import answers
from harness.explain.advise.checks import operators, self_checks, storage, weights
from harness.explain.advise.measure import measure
from harness.explain.advise.options import AdviseOptions
from harness.explain.advise.output import apply, page, text
from harness.explain.advise.record import FILE, SCHEMA
from harness.explain.advise.subject import Job, open_job
from harness.explain.report import Content, Report
from harness.explain.subjects import subjects

DERIVED = "advise.json"

PARTS: Mapping[str, Callable[[Job, Path], Any]] = {
    "weights": weights.check,
    "storage": storage.check,
    "operators": operators.check,
    "checks": self_checks.check,
}
"""Measurements that do not depend on the advice. Each function in PARTS takes a folder for temporary files."""


def _document(content: Content) -> advise_content.Content:
    """Returns the content of advise.json. content: the content of measured.json."""
    return {**answers(content), "parts": content.get("parts", {})}


REPORT = Report("advise", FILE, SCHEMA, text.lines, page.write, _document)


def advise(options: AdviseOptions, values: Mapping[str, Any]) -> int:
    """Returns the exit status. values: the parsed options that `advise` shares with a run."""
    folder = options.source or _measure_into_folder(options, values)
    try:
        # The page shows commands that use these files, so they are written first.
        if options.source is None:
            apply.write(_document(REPORT.read(folder)), values, folder)
        advice = REPORT.show_again(folder, as_json=options.json)
        files.write_json(folder / DERIVED, advice)
    except OSError as e:
        raise RunInvalid(
            f"{e.filename or folder} cannot be written ({e.strerror}): copy {folder} elsewhere, and pass it to "
            "advise --from"
        ) from e
    if not options.json and (commands := apply.lines(advice, folder)):
        show("\n".join(commands))
    return 0


def _measure_into_folder(options: AdviseOptions, values: Mapping[str, Any]) -> Path:
    """Measures into a new folder and returns this folder."""
    (subject,) = subjects(values, ExitStack())
    with (
        REPORT.measuring(options.out, "ort", subject.model.name) as new,
        tempfile.TemporaryDirectory(prefix="harness-advise-") as temporary,
    ):
        _measure(open_job(options, subject, Path(temporary), new.path), new.path)
    return new.final


def _measure(job: Job, folder: Path) -> None:
    """Writes measured.json and the answers derived from it. After Ctrl-C, both files cover only the measurements so
    far.
    """
    content: dict[str, Any] = {}
    try:
        int8 = measure(job, job.options.database or cache_dir() / "layers.sqlite", content)
        if int8 is not None:
            shutil.copyfile(int8, folder / apply.INT8_FILE)
        REPORT.save(content, folder)
        content["parts"] = {}
        _measure_parts(job, content["parts"])
        REPORT.save(content, folder)
    except KeyboardInterrupt:
        if (content.get("now_runs") or {}).get("wall_ns"):
            content["stopped"] = True
            REPORT.save(content, folder)
            files.write_json(folder / DERIVED, _document(content))
            REPORT.draw(_document(content), folder)
        say("the next `advise` with this database measures only the missing layers")
        raise


def _measure_parts(job: Job, parts: dict[str, Any]) -> None:
    """Fills in all PARTS. The entry of a skipped or failed part contains the reason."""
    for number, (name, part) in enumerate(PARTS.items(), 1):
        if name in job.options.skip:
            parts[name] = {"failed": "skipped: --skip"}
            continue
        job.report(f"part {number} of {len(PARTS)}: {name}")
        try:
            with tempfile.TemporaryDirectory(prefix="harness-advise-", dir=job.folder) as folder:
                parts[name] = part(job, Path(folder))
        except HarnessError as e:
            parts[name] = {"failed": one_line(e)}
        except Exception as e:  # noqa: BLE001 - of frameworks; the rest is worth having
            parts[name] = {"failed": type_and_text(e)}
