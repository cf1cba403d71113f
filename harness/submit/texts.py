"""What a person reads in a submission: how to repeat a result, what the tree is."""

import shlex
from pathlib import Path
from typing import Any

from harness import __version__
from harness.config import to_plain
from harness.manifest import is_path
from harness.submit.made import Made
from harness.submit.request import Request

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
        f"| backend | {_named(config.backend)}, {made.result['backend_description']} |",
        f"| answered by | {plan}, batches of at most {config.max_batch} |",
        "",
        "To run it again, with the model's file and the data in place:",
        "",
        "    pip install mlperf-harness",
        *(f"    {command(made, kind)}" for kind in ("performance", "accuracy", *audits)),
    ]
    lines += ["", "The settings of every run are in `src/`, one YAML file each.", ""]
    return "\n".join(lines)


def command(made: Made, kind: str) -> str:
    """The run as it was asked for; paths as they were on the machine it ran on, but for their folder."""
    wanted: dict[str, Any] = {
        "scenario": made.config.scenario,
        "model": _model(made.config.model),
        "backend": _named(made.config.backend),
        "dataset": _named(str(made.result["dataset"])),
        "mode": kind if kind == "accuracy" else "performance",
    }
    if kind == "performance" and made.config.meter:
        wanted["meter"] = "ptdaemon=POWER_DEV,director=HOST,ntp=HOST"
    plain = to_plain(made.config)
    for key in ("device", "instances", "threads", "max_batch", "target_qps", "queries"):
        if plain.get(key) is not None:
            wanted[key] = plain[key]
    if made.config.data_dir is not None:
        wanted["data_dir"] = "DATA"
    words = ["python -m harness"]
    words += [f"--{k.replace('_', '-')} {shlex.quote(str(v))}" for k, v in wanted.items()]
    if made.config.mlperf:
        words.append("--mlperf --user-conf user.conf")
    if kind.startswith("TEST"):
        words.append(f"--audit {kind}.config")
    return " ".join(words)


def _model(name: str) -> str:
    return Path(name).name if is_path(name) else name


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
        f"The implementation is mlperf-harness {__version__}. Here are the settings of every run, "
        "the model's manifest, and the plug-ins that were named by file.\n"
    )
