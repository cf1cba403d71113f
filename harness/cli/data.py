"""The verbs that do not measure, but list names, check a dataset, write arrivals, or copy the dashboards."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parser import Parser
from harness.cli.start.config_files import presets
from harness.core.config.options import user_path
from harness.core.config.run_config import config_from
from harness.core.console import show
from harness.core.units import counted, show_bytes
from harness.errors import ConfigError, HarnessError, RunInvalid, refuse

if TYPE_CHECKING:
    from harness.models.manifest.model import Model


PARTS = (
    "scenarios",
    "backends",
    "datasets",
    "metrics",
    "meters",
    "benchmarks",
    "models",
    "presets",
)
"""The parts of the list, in the order in which `list` prints them."""

_HEADINGS = {"benchmarks": "benchmarks of `machine`", "presets": "presets for --config"}
"""Headings that differ from the name of the part."""


def list_names(arguments: list[str]) -> int:
    parser = Parser(
        "list",
        "List the names of scenarios, backends, datasets, metrics, meters, benchmarks, models and presets.",
        "[PART]",
        "--nodes ray://127.0.0.1",
    )
    parser.text("part", "PART", f"list only this part: {', '.join(PARTS)}", nargs="?")
    parser.text(
        "--nodes",
        "NODES",
        "list the nodes at these addresses or in this Ray cluster, with their machine, versions and models",
    )
    options = parser.parse_args(arguments)
    if options.nodes is not None:
        if options.part is not None:
            raise ConfigError(f"--nodes lists only nodes: drop {options.part!r}")
        from harness.cluster.node_list import lines as of_nodes

        show("\n".join(of_nodes(options.nodes)))
        return 0
    if options.part not in (None, *PARTS):
        raise ConfigError(f"list {options.part}: choose from {', '.join(PARTS)}")
    parts = PARTS if options.part is None else (options.part,)
    show("\n".join(_in_columns({_HEADINGS.get(part, part): [*_rows(part)] for part in parts})))
    return 0


def _rows(part: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the description of each item in a part of the list. Imports only what this part needs."""
    from harness.core import registry
    from harness.core.extras import how_to_install

    if part == "models":
        from harness.models.manifest.lookup import load_model, named_models

        yield from ((name, _about(load_model(name))) for name in named_models())
    elif part == "presets":
        yield from presets().items()
    elif part == "meters":
        yield from _meters()
    else:
        for name, entry in registry.rows(part.removesuffix("s")):
            why = "" if entry.installed else f"  (not installed: {how_to_install(entry.extra)})"
            yield name, f"{entry.about}{why}"


def _in_columns(groups: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[str]:
    """Yields each group's heading, followed by its names and texts. The column for names is as wide as the longest
    name.
    """
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    for heading, rows in groups.items():
        yield heading
        yield from (f"  {name:<{width}}  {about}" for name, about in rows)


def _about(model: "Model") -> str:
    return f"{model.manifest.description if model.manifest else ''}{_size_and_licence(model)}"


def _size_and_licence(model: "Model") -> str:
    """Returns the known values in parentheses, or '' if neither value is known."""
    try:
        size_bytes = model.file_bytes
    except HarnessError:  # the package that generates the model file is not installed
        size_bytes = None
    known = ["" if size_bytes is None else show_bytes(size_bytes)]
    known += [model.manifest.licence if model.manifest else ""]
    shown = ", ".join(filter(None, known))
    return f"  ({shown})" if shown else ""


def _meters() -> Iterator[tuple[str, str]]:
    """Yields each meter's name and description. If a meter does not work on this machine, its description ends with the
    reason.
    """
    from harness.core import registry
    from harness.machine.power import opening

    reasons = {name: f"  ({reason})" for name, reason in opening.availability() if reason}
    for name, entry in registry.rows("meter"):
        yield name, f"{entry.about}{reasons.get(name, '')}"


def check(arguments: list[str]) -> int:
    parser = Parser(
        "data check",
        "Check a dataset before a long run: read its labels, compute its digest, and decode every sample. The exit "
        "status is 4 if a sample cannot be used.",
        "DATASET [options]",
    )
    parser.text("dataset", "DATASET", "a name from `list`, or file.py:Class")
    parser.text("--data-dir", "PATH", "the dataset's file or folder")
    parser.text("--model", "MODEL", "decode with the preprocessing steps of this model")
    parser.text(
        "--dataset-option",
        "KEY=VALUE",
        "option of the dataset, e.g. format=weka for sessions (repeatable)",
        action="append",
        default=[],
    )
    options = parser.parse_args(arguments)
    problems: list[str] = []
    given = config_from({"dataset_option": options.dataset_option}, "command line", problems)
    refuse(problems)
    from harness.run.supervisor import data_check

    folder = None if options.data_dir is None else user_path(options.data_dir)
    report = data_check.check(options.dataset, folder, options.model, given["dataset_option"])
    show("\n".join([*report.lines, *(f"{'bad':<12}{fault}" for fault in report.faults)]))
    return RunInvalid.exit_status if report.faults else 0


def arrivals(arguments: list[str]) -> int:
    options = _arrivals_parser().parse_args(arguments)
    from harness.core.files import atomic_file
    from harness.loadgen import arrival_profiles

    words = {name: getattr(options, name) for name in arrival_profiles.OPTIONS}
    profile, out = arrival_profiles.from_words(options.kind, words), Path(options.out)
    after_ns = profile.after_ns()
    try:
        with atomic_file(out, new=True) as temporary, temporary.open("w", encoding="ascii") as file:
            lines = arrival_profiles.lines(after_ns, profile.title())
            file.writelines(f"{line}\n" for line in lines)
    except FileExistsError:
        raise ConfigError(
            f"{out} already exists and will not be overwritten: pass a different --out"
        ) from None
    except OSError as e:
        raise ConfigError(f"{out} cannot be written ({e.strerror}): pass a different --out") from e
    show(f"{out}: {counted(len(after_ns), 'arrival')} in {after_ns[-1] / 1e9:,.3f} s")
    return 0


def _arrivals_parser() -> Parser:
    from harness.loadgen.arrival_kinds import KINDS

    parser = Parser(
        "arrivals",
        "Write an arrival schedule to replay with --scenario server --arrivals FILE.",
        "KIND --rate QPS[,QPS...] --out FILE [options]",
        notes="kinds:\n" + "\n".join(f"  {name:<10}{k.about}" for name, k in KINDS.items()),
    )
    parser.text("kind", "KIND", f"kind of schedule, e.g. {next(iter(KINDS))}", choices=tuple(KINDS))
    parser.text(
        "--rate", "QPS[,QPS...]", "rates in queries/s, without thousands separators", required=True
    )
    parser.text("--duration", "TIME", "length of the schedule (default 10s)", default="10s")
    parser.text(
        "--cv",
        "CV",
        "gamma: coefficient of variation of the gaps (standard deviation divided by mean)",
    )
    parser.text("--seed", "N", "seed of the random gaps (default: the seed of the MLPerf round)")
    parser.text("--out", "FILE", "file to write, which must not exist yet", required=True)
    return parser


def dashboards(arguments: list[str]) -> int:
    parser = Parser(
        "dashboards",
        "Write the Grafana dashboard, the Prometheus rules, and a configuration for both into a new folder.",
        "--out DIR",
    )
    parser.text("--out", "DIR", "folder to write, which must not exist yet", required=True)
    options = parser.parse_args(arguments)
    from harness.run.supervisor.metrics import dashboards as files

    out = user_path(options.out)
    show("\n".join(str(out / name) for name in files.copy(out)))
    return 0
