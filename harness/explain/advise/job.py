"""Runs the verb `advise`: measures a model and derives which setting to change first."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.console import say, show
from harness.core.files import cache_dir
from harness.errors import (
    ConfigError,
    HarnessError,
    PluginUnavailable,
    RunInvalid,
    one_line,
    type_and_text,
)
from harness.explain.advise.answers import answers
from harness.explain.advise.checks import operators, self_checks, storage, weights
from harness.explain.advise.measure import measure
from harness.explain.advise.options import AdviseOptions
from harness.explain.advise.output import apply, page, text
from harness.explain.advise.record import FILE
from harness.explain.advise.subject import Job, open_job
from harness.explain.subjects import subjects
from harness.results import run_folder

DERIVED = "advise.json"

PARTS: Mapping[str, Callable[[Job, Path], Any]] = {
    "weights": weights.check,
    "storage": storage.check,
    "operators": operators.check,
    "checks": self_checks.check,
}
"""Each takes a folder for temporary files."""


def advise(options: AdviseOptions, values: Mapping[str, Any]) -> int:
    """Returns the exit status. values: the options shared with a run, parsed as a run's are."""
    folder = options.source or _measure_into_folder(options, values)
    try:
        advice = derive(folder)
    except OSError as e:
        raise ConfigError(f"{folder} cannot be written: {e.strerror}: copy it elsewhere") from e
    if options.source is None:
        apply.write(advice, values, folder)
    if options.json:
        show(json.dumps(advice, indent=2))
    else:
        show("\n".join(text.lines(advice)))
        show("\n".join(["", *apply.lines(advice, folder), f"{'results':<12}{folder}"]))
    return 0


def derive(folder: Path) -> dict[str, Any]:
    """Writes advise.json and the page from measured.json alone; returns the content of
    advise.json.
    """
    content = files.read_json(folder / FILE, "advise")
    with files.reading(f"{folder / FILE} is not what advise writes"):
        advice = {**answers(content), "parts": content.get("parts", {})}
        tuple(text.lines(advice))
        files.write_json(folder / DERIVED, advice)
        try:
            page.write(advice, folder)
        except PluginUnavailable as e:
            say(f"no page was made: {e}")
    return advice


def _measure_into_folder(options: AdviseOptions, values: Mapping[str, Any]) -> Path:
    """Measures into a new folder and returns it. After an error the earlier measurements stay."""
    (subject,) = subjects(values, ExitStack())
    folder = run_folder.new_folder(options.out, "advise", "ort", subject.model.name)
    try:
        with tempfile.TemporaryDirectory(prefix="harness-advise-") as temporary:
            _measure(open_job(options, subject, Path(temporary)), folder.path)
    except OSError as e:
        where = e.filename or folder.path
        raise RunInvalid(f"{where} cannot be written: {e.strerror}: make room there") from e
    finally:
        with suppress(OSError):  # not empty: it holds measurements
            folder.path.rmdir()
    return folder.finish(newest=False)


def _measure(job: Job, folder: Path) -> None:
    """Writes measured.json; after Ctrl-C with the measurements so far."""
    content: dict[str, Any] = {}
    try:
        int8 = measure(job, job.options.database or cache_dir() / "layers.sqlite", content)
        if int8 is not None:
            shutil.copyfile(int8, folder / apply.INT8_FILE)
        files.write_json(folder / FILE, content)
        content["parts"] = {}
        _measure_parts(job, content["parts"])
        files.write_json(folder / FILE, content)
    except KeyboardInterrupt:
        if (content.get("now_runs") or {}).get("wall_ns"):
            files.write_json(folder / FILE, {**content, "stopped": True})
            derive(folder)
            say(f"stopped: advise --from {folder} shows the results so far")
        say("the next `advise` with this database measures only the missing layers")
        raise


def _measure_parts(job: Job, parts: dict[str, Any]) -> None:
    """Fills in all PARTS; a skipped or failed part gets its reason."""
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
