"""Ways to break an MLPerf Endpoints tree, with our rules that find each break and the verdict of MLCommons' checker.

Source of the verdicts: MLCommons' checker 1.5.3.0, run on each change. E: error; W: warning; P: the checker passes the
tree.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.submit.endpoints.pack.pack import SUBMISSION
from tests.builders.submit.endpoints import MODEL, SAMPLES, point_path

Change = Callable[[Path], None]
EVERY = (1, 4, 8, 16, 32, 48, 64)


class Break(NamedTuple):
    name: str
    change: Change
    rules: tuple[str, ...]
    """Our rules; at least one of these rules must find the break; () if the rules allow the break.
    """
    official: str


def root(tree: Path) -> Path:
    return tree / "LabOrg" / SUBMISSION


def merged(content: Any, changes: Mapping[str, Any]) -> Any:
    """Returns the content with changes; a value of None drops its key, and mappings are merged."""
    found = dict(content)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), dict):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return found


def edit(file: str, changes: Mapping[str, Any], at: tuple[int, ...] = (16,)) -> Change:
    """Changes keys in a file of the points."""

    def change(tree: Path) -> None:
        for concurrency in at:
            path = point_path(tree, concurrency) / file
            text = path.read_text()
            if path.suffix == ".yaml":
                path.write_text(
                    yaml.safe_dump(merged(yaml.safe_load(text), changes), sort_keys=False)
                )
            else:
                path.write_text(json.dumps(merged(json.loads(text), changes)))

    return change


def point(at: tuple[int, ...] = (16,), /, **changes: Any) -> Change:
    return edit("point.yaml", changes, at)


def system(at: tuple[int, ...] = (16,), /, **changes: Any) -> Change:
    return edit("system_desc.json", changes, at)


def result(at: tuple[int, ...] = (16,), /, **changes: Any) -> Change:
    return edit("result_summary.json", changes, at)


def config(at: tuple[int, ...] = (16,), /, **changes: Any) -> Change:
    return edit("config.yaml", changes, at)


def power(**changes: Any) -> Change:
    def change(tree: Path) -> None:
        path = root(tree) / "results/box/system_power.json"
        content = json.loads(path.read_text())
        content.pop("provisioned_power_kw", None)
        path.write_text(json.dumps(merged(content, changes)))

    return change


def power_part(part: str, **changes: Any) -> Change:
    def change(tree: Path) -> None:
        path = root(tree) / "results/box/system_power.json"
        content = json.loads(path.read_text())
        parts = content["node_sets"][0]["components"]
        parts[part] = merged(parts[part], changes)
        path.write_text(json.dumps(content))

    return change


def score(at: int = 64, /, **changes: Any) -> Change:
    """Changes the only entry of an accuracy result."""

    def change(tree: Path) -> None:
        path = point_path(tree, at) / "accuracy_results.json"
        content = json.loads(path.read_text())
        entry = content["accuracy_scores"][0]
        for key, value in changes.items():
            if value is None:
                entry.pop(key)
            else:
                entry[key] = value
        path.write_text(json.dumps(content))

    return change


def metric(**changes: Any) -> Change:
    def change(tree: Path) -> None:
        path = point_path(tree, 64) / "accuracy_results.json"
        content = json.loads(path.read_text())
        entry = content["accuracy_scores"][0]
        entry["score"] = merged(entry["score"], changes)
        path.write_text(json.dumps(content))

    return change


def remove(path: str) -> Change:
    def change(tree: Path) -> None:
        place = root(tree) / path
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()

    return change


def in_point(name: str, at: int = 16) -> str:
    return f"results/box/llama3_1-8b/r{at}/{name}".rstrip("/")


def put(path: str, text: str = "text\n") -> Change:
    def change(tree: Path) -> None:
        place = root(tree) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return change


def rename(old: str, new: str) -> Change:
    def change(tree: Path) -> None:
        (root(tree) / old).rename(root(tree) / new)

    return change


def emptied(path: str) -> Change:
    def change(tree: Path) -> None:
        shutil.rmtree(root(tree) / path)
        (root(tree) / path).mkdir()

    return change


def linked(tree: Path) -> None:
    (point_path(tree, 16) / "server_configs").symlink_to("/etc")


def all_of(*changes: Change) -> Change:
    def change(tree: Path) -> None:
        for one in changes:
            one(tree)

    return change


def moved(old: int, new: int) -> Change:
    """Changes a point's concurrency, and renames its folder to match."""
    return all_of(
        point((old,), concurrency=new),
        rename(in_point("", old), in_point("", new)),
    )


def copied_score(tree: Path) -> None:
    source, to = point_path(tree, 64), point_path(tree, 48)
    shutil.copy(source / "accuracy_results.json", to)


def percentile(series: str, **changes: Any) -> Change:
    return result(**{series: {"percentiles": changes}})


def inverted(tree: Path) -> None:
    path = point_path(tree, 16) / "result_summary.json"
    content = json.loads(path.read_text())
    found = content["tpot"]["percentiles"]
    found["90"], found["50"] = found["50"], found["90"]
    path.write_text(json.dumps(content))


def more_tokens(tree: Path) -> None:
    path = point_path(tree, 64) / "result_summary.json"
    content = json.loads(path.read_text())
    content["output_sequence_lengths"]["total"] *= 10
    path.write_text(json.dumps(content))


WITHOUT_UTILISATION = system(EVERY, tps_utilization=None)
"""Removes `tps_utilization`, because the checker checks the utilisation only in trees that contain this key."""


def stored(key: str, factor: float) -> Change:
    def change(tree: Path) -> None:
        path = point_path(tree, 16) / "result_summary.json"
        content = json.loads(path.read_text())
        tokens_per_s = content["output_sequence_lengths"]["total"] / (content["duration_ns"] / 1e9)
        own = {
            "system_tps": tokens_per_s,
            "tps_per_user": 1e9 / content["tpot"]["percentiles"]["90"],
        }
        path.write_text(json.dumps({**content, key: own[key] * factor}))

    return change


def counted(key: str, factor: float = 1.0, plus: int = 0) -> Change:
    def change(tree: Path) -> None:
        path = point_path(tree, 16) / "result_summary.json"
        content = json.loads(path.read_text())
        content[key] = int(content[key] * factor) + plus
        path.write_text(json.dumps(content))

    return change


def issued_odd(tree: Path) -> None:
    path = point_path(tree, 16) / "result_summary.json"
    content = json.loads(path.read_text())
    for key in ("n_samples_issued", "n_samples_completed"):
        content[key] -= 100
    path.write_text(json.dumps(content))


def swapped(tree: Path) -> None:
    """Exchanges the results of two points, including the concurrency that the client recorded."""
    places = [point_path(tree, at) / "result_summary.json" for at in (16, 48)]
    first, second = (json.loads(path.read_text()) for path in places)
    first["run_config"], second["run_config"] = second["run_config"], first["run_config"]
    for path, content in zip(places, (second, first), strict=True):
        path.write_text(json.dumps(content))


def copied_result(tree: Path) -> None:
    """Copies another point's result, with tokens for twice the concurrency."""
    content = json.loads((point_path(tree, 32) / "result_summary.json").read_text())
    place = point_path(tree, 48) / "result_summary.json"
    old = json.loads(place.read_text())
    kept = ("run_config", "n_samples_issued", "n_samples_completed")
    place.write_text(json.dumps({**content, **{key: old[key] for key in kept}}))


def scaled(series: str, factor: float, *keys: str) -> Change:
    """Multiplies the numbers at `keys` in a series (all its numbers if `keys` is empty); leaves the histogram
    unchanged.
    """

    def change(tree: Path) -> None:
        path = point_path(tree, 16) / "result_summary.json"
        content = json.loads(path.read_text())
        block = content[series]
        for key in keys or ("total", "min", "max", "avg", "median"):
            block[key] *= factor
        if not keys:
            found = block["percentiles"]
            block["percentiles"] = {key: value * factor for key, value in found.items()}
        path.write_text(json.dumps(content))

    return change


def shared_score(tree: Path) -> None:
    """Replaces the accuracy result of a point with another point's result."""
    shutil.copy(point_path(tree, 64) / "accuracy_results.json", point_path(tree, 16))


def better_score(tree: Path) -> None:
    """Adds a second, better score for the same data set, so that the mean reaches the target."""
    path = point_path(tree, 64) / "accuracy_results.json"
    content = json.loads(path.read_text())
    (entry,) = content["accuracy_scores"]
    worse, better = ({**entry["score"], "rouge1": value} for value in ("30.0", "47.6"))
    entries = [{**entry, "score": worse}, {**entry, "score": better}]
    path.write_text(json.dumps({"accuracy_scores": entries}))


def repeated_key(file: str, line: str) -> Change:
    """Adds a key a second time: at the end of YAML, at the start of JSON."""

    def change(tree: Path) -> None:
        path = point_path(tree, 16) / file
        text = path.read_text()
        is_yaml = path.suffix == ".yaml"
        path.write_text(f"{text}{line}\n" if is_yaml else "{" + line + "," + text[1:])

    return change


def fewer_samples(tree: Path) -> None:
    """Declares a small data set at every point, and removes two thirds of the requests."""
    point(EVERY, dataset="math500")(tree)
    all_of(counted("n_samples_completed", 0, 5000), counted("n_samples_issued", 0, 5000))(tree)


def one_node_less(tree: Path) -> None:
    system(EVERY, node_types=[{**node, "number_of_nodes": 2} for node in nodes(tree)])(tree)


def nodes(tree: Path) -> list[dict[str, Any]]:
    content = json.loads((point_path(tree, 16) / "system_desc.json").read_text())
    found: list[dict[str, Any]] = content["node_types"]
    return found


def as_model(part: str, model: str, value_w: float, kind: str, source: str) -> Change:
    """Sets a part's model in the power description, and the TDP stated for this model."""
    stated = {"value_w": value_w, "source_type": kind, "source": source}
    changed = power_part(part, model=model, tdp_per_unit=stated)
    return all_of(power(), changed)


STEADY = {"super_pass_start": 2, "super_pass_end": 4}
WARM_UP = {"duration_s": 60.0, "requests_issued": 100, "requests_completed": 100, "concurrency": 16}

BREAKS = (
    # Breaks of folders and files.
    Break("docs/ missing", remove("docs"), ("missing-folder",), "E"),
    Break("docs/ empty", emptied("docs"), ("empty-docs",), "P"),
    Break("src/ missing", remove("src"), ("missing-folder",), "E"),
    Break("README.md missing", remove("src/box/README.md"), ("missing-readme",), "E"),
    Break("shared_src names no folder", point(shared_src="src/other"), ("shared-path",), "E"),
    Break("shared_docs leaves the tree", point(shared_docs="../docs"), ("shared-path",), "E"),
    Break("config.yaml missing", remove(in_point("config.yaml")), ("missing-file",), "E"),
    Break("config.yaml is a list", put(in_point("config.yaml"), "[1]\n"), ("bad-file",), "E"),
    Break("result missing", remove(in_point("result_summary.json")), ("missing-file",), "E"),
    Break("result is not JSON", put(in_point("result_summary.json"), "{"), ("bad-file",), "E"),
    Break("power missing", remove("results/box/system_power.json"), ("missing-file",), "E"),
    Break("a point removed", remove(in_point("", 48)), ("point-count",), "E"),
    Break("the lowest point removed", remove(in_point("", 1)), ("point-count",), "E"),
    Break("the medium region empty", all_of(remove(in_point("", 8)), remove(in_point("", 16))), ("coverage",), "E"),
    Break("r16 has concurrency 20", point(concurrency=20), ("point-folder",), "E"),
    Break("folder p16", rename(in_point("", 16), in_point("", 16).replace("r16", "p16")), ("point-folder",), "E"),
    Break("above the margin", moved(64, 72), ("out-of-range",), "E"),
    Break("C_max's point in the margin", moved(64, 70), ("offline",), "E"),
    Break("extra file", put(in_point("notes.txt")), ("stray-file",), "P"),
    Break("extra file at the root", put("notes.txt"), ("stray-file",), "P"),
    Break("a list of processes", put(in_point("server_configs/pstree")), ("private-file",), "P"),
    Break("the client's events", put(in_point("events.jsonl")), ("private-file", "stray-file"), "P"),
    Break("an API key", config(endpoint_config={"api_key": "k-1"}), ("private-file",), "P"),
    Break("symbolic link", linked, ("special-file",), "P"),
    Break("empty second model", put("results/box/kimi-k3/note", ""), ("no-points",), "E"),
    Break("model folder renamed", rename("results/box/llama3_1-8b", "results/box/llama"), ("model-name",), "E"),
    # Breaks of point.yaml.
    Break("C_max 32", system(EVERY, max_supported_concurrency=32), ("c-max",), "E"),
    Break("C_max differs in one point", point(max_supported_concurrency=128), ("points-differ",), "P"),
    Break("Offline missing", point((64,), offline=None), ("offline",), "E"),
    Break("Offline elected below C_max", all_of(point((64,), offline=None), point((48,), offline="elected")), ("offline",), "E"),
    Break("dedicated with seven points", point((64,), offline="dedicated"), ("point-count",), "E"),
    Break("model name with a dot", point(EVERY, model_name="llama3.1-8b"), ("model-name",), "E"),
    Break("another model at one point", point(model_name="gpt-oss-120b"), ("model-name",), "E"),
    Break("division differs at one point", point(division="RDI"), ("points-differ",), "P"),
    Break("unknown division", system(EVERY, division="Open"), ("system-value", "points-differ"), "E"),
    Break("dataset_type in lower case", point(dataset_type="performance"), ("dataset-type",), "P"),
    Break("dataset_type unknown", point(dataset_type="Speed"), ("dataset-type",), "P"),
    Break("one seed differs", point(runtime_settings={"runtime": {"model_seed": 1}}), ("seeds",), "E"),
    Break("unknown seed set", point(EVERY, seed_set="Z"), ("seed-set",), "E"),
    Break("seed set missing", point(seed_set=None), ("point-key",), "E"),
    Break("seed set too old", point(EVERY, target_cohort="2027-03-C1"), ("seed-set",), "E"),
    Break("cohort C2", point(EVERY, target_cohort="2026-10-C2"), ("cohort",), "E"),
    Break("Poisson arrivals", point(runtime_settings={"load_pattern": "poisson"}), ("load-pattern",), "E"),
    Break("min_duration_ms of a second", point(runtime_settings={"min_duration_ms": 1000}), ("min-duration",), "P"),
    Break("chunks are not forwarded", point(runtime_settings={"stream_all_chunks": False}), (), "P"),
    Break("warm-up missing", point(warmup=None), ("point-key",), "E"),
    Break("warm-up at concurrency 0", point(warmup={**WARM_UP, "concurrency": 0}), ("warm-up",), "E"),
    Break("warm-up of 25 hours", point(warmup={**WARM_UP, "duration_s": 90000.0, "logs_retained": True}), ("warm-up",), "E"),
    Break("warm-up without logs", point(warmup={**WARM_UP, "data_source": "other"}), ("warm-up",), "W"),
    Break("warm-up from the performance data", point(warmup={**WARM_UP, "data_source": "cnn_dailymail", "logs_retained": True}), ("warm-up",), "P"),
    Break("more completed than issued in the warm-up", point(warmup={**WARM_UP, "requests_issued": 9, "logs_retained": True}), ("warm-up",), "E"),
    Break("steady_state missing", point(steady_state=None), ("point-key",), "W"),
    Break("not windowable", point(steady_state={"status": "insufficient_duration"}), ("steady-state",), "W"),
    Break("verdict drifting", point(steady_state={"verdict": "drifting_up"}), ("steady-state",), "W"),
    Break("verdict not found", point(steady_state={"verdict": "not found"}), ("steady-state",), "P"),
    Break("drifting beside windowable", point(steady_state={"state": {"tpot_p90": "Drifting Up"}}), ("steady-state",), "E"),
    Break("window of three passes", point(steady_state={"window": STEADY}), ("steady-state",), "E"),
    Break("window of 500 s", point(steady_state={"window": {"duration_s": 500.0}}), ("too-short",), "W"),
    Break("window of 900 s above 32", point((48,), steady_state={"window": {"duration_s": 900.0}}), ("too-short",), "W"),
    Break("window longer than the run", point(steady_state={"window": {"duration_s": 1e7}}), ("steady-state",), "P"),
    Break("window with more samples than the run", point(steady_state={"window": {"n_samples": 10**9}}), ("steady-state",), "P"),
    Break("unknown key", point(seed_sett="A"), ("unknown-key",), "P"),
    Break("unknown region", point(region="middle"), ("region",), "E"),
    Break("speculative decoding", point(EVERY, speculative_decoding={"model_id": "x", "weight_checksum": "sha256:0"}), ("drafter",), "E"),
    # Breaks of the results.
    Break("not a multiple of the data set", issued_odd, ("whole-passes",), "P"),
    Break("5,000 completed", all_of(counted("n_samples_completed", 0, 5000), counted("n_samples_issued", 0, 5000)), ("too-few-queries",), "E"),
    Break("failed beside completed", result(n_samples_failed=10), ("counts",), "E"),
    Break("completed below issued", counted("n_samples_completed", 0.99), ("counts",), "E"),
    Break("stored system_tps", stored("system_tps", 1.02), ("stored-metric",), "E"),
    Break("stored tps_per_user", stored("tps_per_user", 1.02), ("stored-metric",), "E"),
    Break("TPOT without percentiles", result(tpot={"percentiles": None}), ("result-key",), "E"),
    Break("TPOT of 0", percentile("tpot", **{"90": 0}), ("result-key",), "E"),
    Break("TTFT missing", result(ttft=None), ("result-key",), "P"),
    Break("tokens missing", result(output_sequence_lengths=None), ("result-key",), "P"),
    Break("p90 below p50", inverted, ("numbers-disagree",), "P"),
    Break("interrupted", result(state="interrupted"), ("not-complete",), "P"),
    Break("the run had another seed", result(run_config={"dataloader_random_seed": 42}), ("run-differs",), "P"),
    Break("the run had another concurrency", result(run_config={"load_pattern": {"target_concurrency": 64}}), ("run-differs",), "P"),
    Break("ten times the tokens", all_of(more_tokens, WITHOUT_UTILISATION), ("token-times",), "P"),
    Break("the duration halved", counted("duration_ns", 0.5), ("in-flight", "utilisation"), "E"),
    Break("content filter", result(finish_reason_counts={"content_filter": 7}), ("failed-requests",), "P"),
    # Breaks of config.yaml, which the checker does not read.
    Break("configuration with another seed", config(settings={"runtime": {"dataloader_random_seed": 42}}), ("config-differs",), "P"),
    Break("configuration with Poisson", config(settings={"load_pattern": {"type": "poisson"}}), ("config-differs",), "P"),
    Break("configuration with another concurrency", config(settings={"load_pattern": {"target_concurrency": 99}}), ("config-differs",), "P"),
    Break("configuration without streaming", config(model_params={"streaming": "off"}), ("config-differs",), "P"),
    # Breaks of the accuracy results.
    Break("accuracy missing in a region", remove(in_point("accuracy_results.json", 16)), ("accuracy-coverage",), "E"),
    Break("a second accuracy run", copied_score, ("accuracy-coverage",), "P"),
    Break("rouge1 too low", metric(rouge1="38.0"), ("accuracy-target",), "E"),
    Break("gen_len too large", metric(gen_len="9900000"), ("accuracy-target",), "E"),
    Break("rouge1 missing", metric(rouge1=None), ("accuracy-missing",), "P"),
    Break("an empty score", score(score={}), ("accuracy-missing",), "P"),
    Break("another data set", score(dataset_name="other"), ("accuracy-set",), "P"),
    Break("1,000 scored", score(unit_samples=1000), ("accuracy-samples",), "E"),
    Break("an incomplete score", score(complete=False), ("accuracy-missing",), "P"),
    # Breaks of the system and power descriptions.
    Break("another system at one point", system(system_name="other"), ("systems-differ",), "E"),
    Break("another batch at one point", system(batch=8), (), "P"),
    Break("no kinds of nodes", system(EVERY, node_types=[]), ("system-value",), "P"),
    Break("no availability_url", system(EVERY, availability_url=None), ("system-key",), "E"),
    Break("a preview without a date", system(EVERY, system_availability_status="preview"), ("system-value",), "E"),
    Break("a short name of 21 characters", system(EVERY, shortened_system_name="x" * 21), ("system-value",), "E"),
    Break("an empty config_summary", system(EVERY, config_summary=""), ("system-value",), "E"),
    Break("two of four replicas", system(EVERY, data_parallel=2), ("engagement",), "E"),
    Break("no replicas declared", system(EVERY, data_parallel=None), ("engagement",), "E"),
    Break("utilisation off", system(tps_utilization=0.99), ("utilisation",), "E"),
    Break("c_min_override without its point", system(EVERY, c_min_override=5), ("c-min",), "E"),
    Break("c_min_override at one point", system(c_min_override=4), ("c-min",), "E"),
    Break("a guessed power", power_part("cpu", tdp_per_unit={"source_type": "guess"}), ("power",), "E"),
    Break("a power without a URL", power_part("cpu", tdp_per_unit={"source": "a friend"}), ("power",), "E"),
    Break("cooling by steam", power(cooling="steam"), ("power",), "E"),
    Break("no accelerator in the power", power_part("accelerator", count_per_node=None, tdp_per_unit=None), ("power",), "E"),
    Break("another kW than the formula", power(provisioned_power_kw=1.0), ("power",), "E"),
    # Breaks that edit several numbers together.
    Break("the results of two points exchanged", all_of(swapped, WITHOUT_UTILISATION), ("in-flight",), "P"),
    Break("a result made from another point", all_of(copied_result, WITHOUT_UTILISATION), ("copied-result", "in-flight"), "P"),
    Break("TPOT scaled without its histogram", scaled("tpot", 0.9), ("numbers-disagree",), "P"),
    Break("a total that is not the mean times the count", scaled("latency", 0.97, "avg"), ("numbers-disagree",), "P"),
    Break("the latency and the record removed", result(latency=None, run_config=None), ("result-key",), "P"),
    Break("a rate that is not the count over the duration", result(qps=1e6), ("numbers-disagree",), "P"),
    Break("tokens/s that are not the tokens over the duration", result(tps=1e6), ("numbers-disagree",), "P"),
    Break("counts that are not whole numbers", result(n_samples_issued=66840.0, n_samples_completed=66840.0), ("result-key",), "P"),
    Break("more ended answers than requests", result(finish_reason_counts={"stop": 9}), ("numbers-disagree",), "P"),
    Break("shorter prompts at one point", result(input_sequence_lengths={"avg": 400, "total": 0}), ("points-differ", "numbers-disagree"), "P"),
    Break("answers cut off at one point", all_of(scaled("output_sequence_lengths", 0.5, "avg", "total"), WITHOUT_UTILISATION), ("points-differ",), "P"),
    Break("a window at twice the rate", point(steady_state={"window": {"duration_s": 700.0}}), ("steady-state",), "P"),
    Break("the data set of another benchmark", fewer_samples, ("dataset",), "P"),
    Break("a configuration of fewer requests", config(settings={"runtime": {"n_samples_to_issue": 100}}), ("config-differs",), "P"),
    Break("a configuration without a concurrency", config(settings={"load_pattern": {"target_concurrency": None}}), ("config-differs",), "P"),
    Break("a warm-up that is not declared", config(settings={"warmup": {"enabled": True}}), ("config-differs",), "P"),
    Break("a second seed set in point.yaml", repeated_key("point.yaml", "seed_set: A"), ("bad-file",), "P"),
    Break("a second duration in the result", repeated_key("result_summary.json", '"duration_ns": 1'), ("bad-file",), "P"),
    Break("the score of another point", shared_score, ("copied-result",), "P"),
    Break("a second, better score", better_score, ("accuracy-set",), "E"),
    Break("a score above 100", metric(rouge1="387.8"), ("accuracy-target",), "P"),
    Break("a processor of 0 W", all_of(power(), power_part("cpu", tdp_per_unit={"value_w": 0})), ("power",), "P"),
    Break("no processors in the power", all_of(power(), power_part("cpu", count_per_node=0)), ("power",), "P"),
    Break("a default that is not the rules'", as_model("accelerator", "NVIDIA B200", 100, "mlc_default", "D.1"), ("power",), "W"),
    Break("a tenth of the power of its model", as_model("accelerator", "NVIDIA B200", 100, "vendor_spec", "https://example.org/card"), ("power",), "P"),
    Break("fewer nodes in the power than in the system", one_node_less, ("power",), "P"),
)  # fmt: skip

__all__ = ["BREAKS", "MODEL", "SAMPLES", "Break"]
