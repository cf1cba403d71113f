"""Writes the text files in a submission: README files, commands that repeat a run, and user.conf."""

import shlex
from pathlib import Path

from harness import __version__
from harness.core.config.run_config import to_plain
from harness.models.manifest.lookup import is_path
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import PERFORMANCE
from harness.submit.plan.network import NETWORK
from harness.submit.plan.request import Request

REHEARSAL = """\
# Rehearsal

This folder was made by `submit pack --rehearsal`. It is not a submission, and no number in it is a
result: its runs may be short and may use any data and any model. It only shows that the steps from
runs to a folder work. Only MLCommons can call a result an MLPerf result.
"""


def reproduce(request: Request, run: FinishedRun, audits: list[str]) -> str:
    environment = run.result["environment"]
    harness = environment["harness"]
    commit = f", commit {harness['commit']}" if harness.get("commit") else ""
    config = run.config
    model = Path(config.model).name if is_path(config.model) else config.model
    facts = [
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in run.backend.items()
        # The URL is left out, because the URL usually contains a private address.
        if key != "url"
    ]
    software = f"LoadGen {config.loadgen_version}, Python {environment['system']['python']}"
    plan = f"{config.instances} instances of {config.threads} threads, batches of at most {config.max_batch}"
    if config.url:
        client = run.result["client"]
        plan = f"{len(client['peers'])}, {client['connections']} connections to each"
        if config.qdl:
            plan += f": {client['sut_name']}"
    lines = [
        f"# {request.called}, {run.scenario}",
        "",
        *([REHEARSAL.partition("\n")[2].strip(), ""] if request.rehearsal else []),
        f"Run with mlperf-harness {harness.get('version', __version__)}{commit}, {software}.",
        "",
        "| part | value |",
        "|---|---|",
        f"| model | {model}, SHA-256 {config.model_sha256 or 'unknown'} |",
        f"| data | {_dataset(run)} |",
        f"| backend | {_named(config.backend)}: {', '.join(facts)} |",
        f"| {'servers' if config.url else 'instances'} | {plan} |",
        "",
        f"To repeat the runs, install that version of the harness, and run these commands from `{'/'.join(('..',) * 4)}`:",
        "",
        *(f"    {command(request, run, kind)}" for kind in ("performance", "accuracy", *audits)),
        "",
    ]
    moved = [
        k for k, v in to_plain(config).items() if k not in _ARGUMENTS and str(v).startswith("/")
    ]
    if moved:
        lines += [
            f"First correct {', '.join(moved)} in these files: these are paths on the original machine.",
            "",
        ]
    return "\n".join(lines)


_ARGUMENTS = ("data_dir", "hook", "user_conf", "audit", "meter")
"""Options that the commands set themselves, so the paths in the stored settings do not matter."""


def command(request: Request, run: FinishedRun, kind: str) -> str:
    """Returns the command that repeats a run from its settings file, which contains every option."""
    config, sources = run.config, f"src/{request.called}"
    _, system = request.tree_names
    words = [f"python -m harness --config {sources}/{run.scenario}-{kind}.yaml"]
    if config.data_dir is not None:
        words.append("--data-dir DATA")
    words += ["--url http://SERVER:PORT"] * len(config.url)
    if config.hook is not None:
        words.append(f"--hook {shlex.quote(f'{sources}/{packed_name(config.hook)}')}")
    if config.user_conf is not None:
        scenario = f"results/{system}/{request.called}/{run.scenario}"
        words.append(f"--user-conf {scenario}/user.conf")
    if kind == PERFORMANCE and config.meter:
        words.append("--meter ptdaemon=POWER_DEV,director=HOST,ntp=HOST")
    if kind in request.audits:
        words.append(f"--audit {sources}/{kind}.config")
    return " ".join(words)


def packed_name(path: Path) -> str:
    """Returns the file's name in src/, where names must not contain spaces."""
    return path.name.replace(" ", "_")


def _named(name: str) -> str:
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).name}:{attribute}" if colon and "/" in file else name


def _dataset(run: FinishedRun) -> str:
    about = run.result.get("dataset_description") or {}
    digest = about.get("digest", "unknown")
    return f"{_named(str(run.result['dataset']))}, {about.get('count')} samples, digest {digest}"


def user_conf(run: FinishedRun) -> str:
    """Returns the user.conf that LoadGen read, or a note that LoadGen read none because the run was quick."""
    path = run.logs / "user.conf"
    if path.is_file() and path.stat().st_size:
        return path.read_text(encoding="utf-8")
    lines = ["# LoadGen read no user.conf in this run: its settings are in mlperf_log_detail.txt"]
    if run.config.target_qps is not None:
        lines.append(f"*.Server.target_qps = {run.config.target_qps:.6f}")
    return "\n".join(lines) + "\n"


_QDL = """
`qdl/` is the source of the query dispatch library (QDL), above the sockets of the operating system.
`client/` issues LoadGen's queries and completes them. `wire/` writes and reads HTTP/1.1 on connections
that stay open, with one request at a time on each. The backend encodes a sample into one request and
decodes its reply. In KServe v2 (Open Inference Protocol), a request is `POST /v2/models/MODEL/infer`
with the tensors of one sample, as JSON or as bytes after the JSON. The reply has the answer in the
same form. `GET /v2` returns a server's name. The QDL does not batch, pad, compress, cache, preprocess or
postprocess.
"""


def sources(request: Request) -> str:
    return (
        f"# Sources of {request.called}\n\n"
        f"The implementation is mlperf-harness {__version__}. This folder has the settings of every run, "
        "audit.config of each audit, the model's manifest, and the plug-ins that are files.\n"
        + (_QDL if request.division == NETWORK else "")
    )
