"""What a person reads in a submission: how to repeat a result, what the tree is."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import __version__
from harness.core.config.run_config import to_plain
from harness.models.manifest.lookup import is_path
from harness.submit.pack.finished_run import Made
from harness.submit.plan.matrix import PERFORMANCE
from harness.submit.plan.request import Request

REHEARSAL = """\
# Rehearsal

This folder was made by `submit pack --rehearsal`. It is not a submission, and no number in it is a
result: runs may be shortened, on other data than the benchmark's, with any model. It only shows that
the way from runs to a folder works. Nobody but MLCommons can call a result an MLPerf result.
"""


def reproduce(request: Request, made: Made, audits: list[str]) -> str:
    """README.md of a scenario."""
    environment = made.result["environment"]
    harness = environment["harness"]
    commit = f", commit {harness['commit']}" if harness.get("commit") else ""
    config = made.config
    software = f"LoadGen {config.loadgen_version}, Python {environment['system']['python']}"
    plan = f"{config.instances} instances of {config.threads} threads"
    lines = [
        f"# {request.called}, {made.scenario}",
        "",
        *([REHEARSAL.partition("\n")[2].strip(), ""] if request.rehearsal else []),
        f"Made with mlperf-harness {harness.get('version', __version__)}{commit}, {software}.",
        "",
        "| what | which |",
        "|---|---|",
        f"| model | {_model(config.model)}, SHA-256 {config.model_sha256 or 'unknown'} |",
        f"| data | {_of_dataset(made)} |",
        f"| backend | {_named(config.backend)}: {', '.join(_told(made.about().backend))} |",
        f"| answered by | {plan}, batches of at most {config.max_batch} |",
        "",
        f"To run it again, where that harness is installed, from `{'/'.join(('..',) * 4)}`:",
        "",
        *(f"    {command(request, made, kind)}" for kind in ("performance", "accuracy", *audits)),
        "",
    ]
    moved = [k for k, v in to_plain(config).items() if k not in _GIVEN and str(v).startswith("/")]
    if moved:
        told = f"{', '.join(moved)} in these files name files of the machine it ran on"
        lines += [f"Before that, correct them: {told}.", ""]
    return "\n".join(lines)


_GIVEN = ("data_dir", "hook", "user_conf", "audit", "meter")
"""Options that the commands give, so that their paths in the settings do not matter."""


def command(request: Request, made: Made, kind: str) -> str:
    """The run by its settings, which hold every option and pin model, data and LoadGen."""
    config, sources = made.config, f"src/{request.called}"
    _, system = request.tree_names
    words = [f"python -m harness --config {sources}/{made.scenario}-{kind}.yaml"]
    if config.data_dir is not None:
        words.append("--data-dir DATA")
    if config.hook is not None:
        words.append(f"--hook {shlex.quote(f'{sources}/{packed_name(config.hook)}')}")
    if config.user_conf is not None:
        scenario = f"results/{system}/{request.called}/{made.scenario}"
        words.append(f"--user-conf {scenario}/user.conf")
    if kind == PERFORMANCE and config.meter:
        words.append("--meter ptdaemon=POWER_DEV,director=HOST,ntp=HOST")
    if kind in request.audits:
        words.append(f"--audit {sources}/{kind}.config")
    return " ".join(words)


def packed_name(path: Path) -> str:
    """Of a file in src/, where names have no spaces."""
    return path.name.replace(" ", "_")


def _model(name: str) -> str:
    return Path(name).name if is_path(name) else name


def _told(description: Mapping[str, Any]) -> Iterator[str]:
    for key, value in description.items():
        yield f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"


def _named(name: str) -> str:
    """A plug-in without the folder its file lies in."""
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).name}:{attribute}" if colon and "/" in file else name


def _of_dataset(made: Made) -> str:
    about = made.result.get("dataset_description") or {}
    digest = about.get("digest", "unknown")
    return f"{_named(str(made.result['dataset']))}, {about.get('count')} samples, digest {digest}"


def user_conf(made: Made) -> str:
    """As LoadGen read it; a quick run reads none, which the text says."""
    path = made.logs / "user.conf"
    if path.is_file() and path.stat().st_size:
        return path.read_text(encoding="utf-8")
    lines = ["# LoadGen read no user.conf in this run: its settings are in mlperf_log_detail.txt"]
    if made.config.target_qps is not None:
        lines.append(f"*.Server.target_qps = {made.config.target_qps:.6f}")
    return "\n".join(lines) + "\n"


def sources(request: Request) -> str:
    """src/README.md."""
    return (
        f"# Sources of {request.called}\n\n"
        f"The implementation is mlperf-harness {__version__}. Here are the settings of every run, the "
        "audits' audit.config, the model's manifest, and the plug-ins that were named by file.\n"
    )
