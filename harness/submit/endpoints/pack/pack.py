"""Writes a submission tree from finished runs that `witness` has checked."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.core.files import read_json, reading, write_text
from harness.core.shown.private import hide
from harness.errors import ConfigError, one_line, refuse
from harness.submit.endpoints import runs
from harness.submit.endpoints.client.config import Template
from harness.submit.endpoints.pack import texts
from harness.submit.endpoints.pack.description import FILE, Description, template
from harness.submit.endpoints.pack.point_file import DOCS, implementation, point_file
from harness.submit.endpoints.points import Curve, Point
from harness.submit.endpoints.power.descriptor import FILE as POWER
from harness.submit.endpoints.power.descriptor import descriptor
from harness.submit.endpoints.request import Request
from harness.submit.endpoints.rules.layout import MARK
from harness.submit.endpoints.witness.doubts import REFUSED
from harness.submit.endpoints.witness.report import kept_witness

SUBMISSION = "pending-submission-id"
"""Name of the submission's folder until MLCommons assigns one. MLCommons' builder uses the same name."""

_WITNESS_AGAIN = "run `endpoints witness` again"
_INDENT = 2
_SECRET = "(removed)"  # noqa: S105 - a placeholder


class Packed(NamedTuple):
    point: Point
    attempt: runs.Attempt
    witnessed: Mapping[str, Any]
    asked: Mapping[str, Any]


def pack(
    request: Request,
    client_template: Template,
    curve: Curve,
    described: Description,
    work: Path,
    to: Path,
) -> Path:
    """Writes the tree into `to`, which must not exist yet, and returns `to`. Raises a ConfigError if `pack` refuses a
    run.
    """
    if to.exists():
        raise ConfigError(f"{to} already exists: pass a different --to, or remove it")
    refuse(described.unknown_points([point.concurrency for point in curve.points]))
    packed = list(_runs(request, curve, work))
    submitter, system = request.tree_names
    root = to / submitter / SUBMISSION
    try:
        _write(request, client_template, curve, described, packed, root / "results" / system)
        _shared(request, described, packed, work, root)
        if request.rehearsal:
            write_text(root / MARK, texts.REHEARSAL)
    except OSError as e:
        shutil.rmtree(to, ignore_errors=True)
        raise ConfigError(f"{to} cannot be written ({e.strerror or e}): free some space") from e
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)  # an incomplete tree would block the next attempt
        raise
    return to


def _runs(request: Request, curve: Curve, work: Path) -> Iterator[Packed]:
    """Yields the newest run of each point. Raises a single ConfigError that lists every run that cannot be packed."""
    found, problems = [], []
    for point in curve.points:
        attempt = runs.newest(work, point.name)
        if attempt is None:
            problems.append(f"{point.name} has no run: start one with `endpoints run`")
            continue
        state, why = runs.state_of(attempt)
        if state != runs.DONE:
            problems.append(f"{point.name} is {state}: {why}")
            continue
        try:
            witnessed, asked = kept_witness(attempt), attempt.run().get("asked")
            with reading(f"{attempt.folder / runs.WITNESS} has invalid content", _WITNESS_AGAIN):
                problems += _refused(request, point, attempt, witnessed)
        except ConfigError as e:
            problems.append(str(e))
            continue
        if isinstance(asked, Mapping):
            found.append(Packed(point, attempt, witnessed, asked))
        else:
            problems.append(f"{attempt.folder / runs.RUN} has no configuration: repeat the run")
    refuse(problems)
    yield from found


def _refused(
    request: Request, point: Point, attempt: runs.Attempt, witnessed: Mapping[str, Any]
) -> Iterator[str]:
    differing = [
        row["name"]
        for row in witnessed["rows"]
        if not row["agrees"] and row["recomputed"] is not None
    ]
    if differing:
        shown = ", ".join(differing[:3])
        yield f"{point.name}: {len(differing)} numbers differ from the events, e.g. {shown}: repeat the run"
    if witnessed.get("tokens_absent") and not request.rehearsal:
        yield f"the tokens of {point.name} were not recomputed: {witnessed['tokens_absent']}"
    refusing = [one["text"] for one in witnessed["doubts"] if one["code"] in REFUSED]
    if refusing:
        yield f"{point.name}: {'; '.join(refusing)}: repeat the run"
    if point.is_accuracy and not attempt.accuracy.is_file():
        yield f"{point.name} has no accuracy result: repeat the run"


def _write(
    request: Request,
    client_template: Template,
    curve: Curve,
    described: Description,
    packed: Sequence[Packed],
    system: Path,
) -> None:
    rates = {one.point: _tokens_per_s(one.attempt) for one in packed}
    largest = max(rates.values())
    for one in packed:
        folder = system / request.model / one.point.name
        folder.mkdir(parents=True)
        with reading(f"{one.attempt.folder} has a file with invalid content", "repeat the run"):
            content = point_file(
                request,
                client_template,
                described,
                one.point,
                curve.c_max,
                one.asked,
                one.witnessed,
            )
            write_text(folder / "config.yaml", _config(one.attempt))
        write_text(
            folder / "point.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        )
        desc = described.system_desc(request, curve.c_max, one.point.concurrency)
        desc["tps_utilization"] = rates[one.point] / largest if largest else 0.0
        write_text(folder / "system_desc.json", json.dumps(desc, indent=_INDENT))
        summary = read_json(one.attempt.summary)
        write_text(folder / "result_summary.json", json.dumps(summary, indent=_INDENT))
        _copy_optional(one, folder)
        _copy_folder(described["server_configs"], folder / "server_configs")
    _power(request, described, system)


def _tokens_per_s(attempt: runs.Attempt) -> float:
    summary = read_json(attempt.summary)
    tokens = (summary.get("output_sequence_lengths") or {}).get("total") or 0
    duration_ns = summary.get("duration_ns") or 0
    return tokens / (duration_ns / 1e9) if duration_ns else 0.0


def _config(attempt: runs.Attempt) -> str:
    """Returns the configuration that the client used, without private names and secrets."""
    path = attempt.report / "config.yaml"
    path = path if path.is_file() else attempt.folder / runs.CONFIG
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as e:
        raise ConfigError(f"{path} is not valid YAML ({one_line(e)}): repeat the run") from None
    hidden_text: str = yaml.safe_dump(
        _without_secrets(content), sort_keys=False, allow_unicode=True
    )
    return hide(hidden_text)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, inner in value.items():
        is_secret = inner and ("api_key" in str(key) or str(key).rpartition("_")[2] == "token")
        if is_secret and isinstance(inner, str):
            continue
        if key in ("report_dir", "path", "tokenizer_name") and str(inner).startswith("/"):
            found[key] = Path(str(inner)).name  # keeps only the last part of a private path
            continue
        found[key] = _without_secrets(inner)
    return found


def _copy_optional(one: Packed, folder: Path) -> None:
    if one.point.is_accuracy or one.attempt.accuracy.is_file():
        write_text(
            folder / "accuracy_results.json", one.attempt.accuracy.read_text(encoding="utf-8")
        )


def _copy_folder(source: object, to: Path) -> None:
    if source:
        shutil.copytree(str(source), to)


def _power(request: Request, described: Description, system: Path) -> None:
    facts = described["power"]
    if not isinstance(facts, Mapping):
        if request.division == "standardized":
            raise ConfigError(
                "the standardized division requires power data: add the section `power` to the --describe file "
                "(docs/endpoints.md)"
            )
        return
    content, power = descriptor(facts, request.tree_names[1])
    refuse(f"power: {problem}" for problem in power.problems)
    write_text(system / POWER, json.dumps(content, indent=_INDENT))


def _shared(
    request: Request, described: Description, packed: Sequence[Packed], work: Path, root: Path
) -> None:
    """Writes src/ and docs/."""
    proof = read_json(work / "client.json")
    source = root / "src" / implementation(request)
    source.mkdir(parents=True)
    given = described["readme"]
    if given:
        with reading(f"{given} is not a text file"):
            text = Path(given).read_text(encoding="utf-8")
        write_text(source / "README.md", f"{text.rstrip()}\n\n{texts.reproduce(proof)}")
    else:
        write_text(source / "README.md", texts.readme(request, proof))
    docs = root / DOCS
    _copy_folder(described["docs"], docs)
    docs.mkdir(parents=True, exist_ok=True)
    write_text(
        docs / texts.CLIENT, texts.client(proof, [(one.point, one.witnessed) for one in packed])
    )


def describe_hint() -> str:
    """Returns the text that `pack` prints if --describe is missing."""
    return f"write these lines to {FILE}, fill them in, and pass --describe {FILE}:\n\n{template()}"
