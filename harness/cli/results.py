"""The verbs that read finished runs: check, score, publish, export and report."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parser import Parser
from harness.cli.run_options import RUN_FOLDER, add_trust
from harness.core.console import say, show
from harness.errors import ConfigError, RunInvalid, refuse

if TYPE_CHECKING:
    from harness.results.recheck import CheckedFolder


def check(arguments: list[str]) -> int:
    parser = Parser(
        "check",
        "Recompute the verdict and every number of a run from its files, and compare them with result.json. Report "
        "which files have changed since the run, and who signed it. For a study, e.g. the folder of `sweep`, check "
        "its seal and each run in it. The exit status is 4 if something differs.",
        "RUN [options]",
    )
    parser.text("folder", "RUN", f"{RUN_FOLDER}, or of a study")
    add_trust(
        parser,
        "allow the code of this dataset or metric to run, to recompute the score",
    )
    parser.text(
        "--allowed-signers",
        "FILE",
        "OpenSSH's file of allowed signers; a run without a signature from one of these signers counts as different",
    )
    parser.flag("--details", "also print every number of the run and the full text of every doubt")
    parser.flag("--json", "print JSON: the differences, verdict and codes of each folder")
    options = parser.parse_args(arguments)
    folder, trusted = Path(options.folder), options.trust or ()
    signers = None if options.allowed_signers is None else Path(options.allowed_signers)
    from harness.results import recheck
    from harness.results.seal import signature

    problems = (
        ["--details and --json: pass one of them"] if options.details and options.json else []
    )
    if signers is not None and (problem := signature.names_no_signers(signers)):
        problems.append(f"--allowed-signers {signers}: {problem}")
    refuse(problems)
    checked = recheck.checked(folder, trusted, signers)
    if options.json:
        show(json.dumps([one.to_json() for one in checked], indent=2))
    else:
        _show_checked(checked, details=options.details)
    notes: list[str] = []
    for one in checked:
        with suppress(ConfigError):  # the run's differences already say that the run cannot be read
            notes += recheck.notes(one.folder, trusted)
    say("\n".join(dict.fromkeys(notes)))
    return RunInvalid.exit_status if any(one.differences for one in checked) else 0


def _show_checked(checked: "Sequence[CheckedFolder]", *, details: bool) -> None:
    from harness.core import files
    from harness.results import run_folder
    from harness.results.outcome import show_screen

    shown: set[str] = set()
    for one in checked:
        for line in one.lines():
            if line not in shown:  # a study and its runs may report the same file
                show(line)
            shown.add(line)
        result_file = one.folder / run_folder.RESULT
        if details and result_file.is_file():
            show("")
            show_screen(files.read_json(result_file), one.folder, details=True)


def score(arguments: list[str]) -> int:
    parser = Parser(
        "score",
        "Score the answers of a finished run again after its scoring program, named in IMAGE_SCORER or another "
        "variable, has failed. The answers do not change; result.json, accuracy.txt and SHA256SUMS receive the score "
        "and its time.",
        "RUN [options]",
    )
    parser.text("folder", "RUN", RUN_FOLDER)
    add_trust(parser, "allow the code of this dataset, which has the labels, to run")
    parser.flag("--json", "print result.json instead of a table")
    options = parser.parse_args(arguments)
    from harness.results.rescore import rescore

    finished = rescore(Path(options.folder), options.trust or ())
    finished.show(as_json=options.json)
    return finished.status


def publish(arguments: list[str]) -> int:
    parser = Parser(
        "publish",
        "Copy the folder of one or several runs so that you can share it. The copy omits home folders, paths of data "
        "and plug-ins, user and host names, and meter arguments. `check` accepts the copy.",
        "RUN OUT",
    )
    parser.text("folder", "RUN", RUN_FOLDER)
    parser.text("out", "OUT", "folder of the copy, which must not exist yet")
    options = parser.parse_args(arguments)
    from harness.core.config.options import user_path
    from harness.results.publish.copy import publish as publish_folder

    folder, out = Path(options.folder), user_path(options.out)
    lines = publish_folder(folder, out)
    show("\n".join([*lines, f"{folder} is published as {out}: look at it before you share it"]))
    return 0


def export(arguments: list[str]) -> int:
    from harness.results.export.formats import FORMATS
    from harness.results.export.formats import export as write

    parser = Parser(
        "export",
        "Write a finished run in a format for other tools: its samples for pandas and spreadsheets, or its "
        "numbers and verdict for CI, MLflow and Prometheus. docs/export.md describes each format.",
        "RUN --format FORMAT [options]",
    )
    parser.text("folder", "RUN", RUN_FOLDER)
    about = "; ".join(f"{name}: {format_.about}" for name, format_ in FORMATS.items())
    parser.text("--format", "FORMAT", about, choices=tuple(FORMATS), required=True)
    parser.text(
        "--out",
        "FILE",
        "file to write (mlflow: folder), which must not exist yet (default: stdout)",
    )
    parser.text(
        "--to",
        "URL",
        "mlflow: tracking server that gets the run; otlp: collector, e.g. http://127.0.0.1:4318",
    )
    options = parser.parse_args(arguments)
    from harness.core.config.options import user_path
    from harness.core.config.parse import parse_http_url

    out = user_path(options.out) if options.out else None
    server = None
    if options.to is not None:
        try:
            server = parse_http_url(options.to, "a server", "http://127.0.0.1:5000")
        except ValueError as e:
            raise ConfigError(f"--to: {e}") from None
    verdict = write(user_path(options.folder), options.format, out, server)
    if verdict != "VALID":
        say(f"{options.folder} is {verdict}: its numbers must not be quoted")
    return 0


def report(arguments: list[str]) -> int:
    parser = Parser(
        "report",
        "Write an HTML page with plots of a finished run. For several runs, write a page that compares each "
        "run with the first.",
        "RUN... [options]",
    )
    parser.text("runs", "RUN", RUN_FOLDER, nargs="+")
    parser.text("--out", "FILE", "file to write (default report.html in the run's folder)")
    parser.flag("--standalone", "embed the plotting script in the page")
    options = parser.parse_args(arguments)
    folders = [Path(run) for run in options.runs]
    out = Path(options.out) if options.out else None
    if len(folders) == 1:
        from harness.results.pages.report import report as write_page

        show(str(write_page(folders[0], out, standalone=options.standalone)))
        return 0
    if out is None:
        raise ConfigError("a report of several runs has no default place: pass --out FILE")
    from harness.results.compare.page import write as write_comparison

    show(str(write_comparison(options.runs, out, standalone=options.standalone)))
    return 0
