"""Builds a point's point.yaml from the request, the description and the witness."""

from collections.abc import Mapping
from typing import Any

from harness.submit.endpoints.client.config import PERFORMANCE, Template
from harness.submit.endpoints.pack.description import POINT_FILE, Description
from harness.submit.endpoints.points import Point
from harness.submit.endpoints.request import DEDICATED, Request

DOCS = "docs"


def point_file(
    request: Request,
    template: Template,
    described: Description,
    point: Point,
    c_max: int,
    asked: Mapping[str, Any],
    witnessed: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the content of point.yaml.

    asked: the client's configuration for the run. witnessed: the content of witness.json.
    """
    content: dict[str, Any] = {
        "concurrency": point.concurrency,
        **({"region": point.region} if point.region else {}),
        **({"offline": point.offline} if point.offline else {}),
        "division": request.division,
        "max_supported_concurrency": c_max,
        "model_name": request.model,
        **_described(described, ("model_precision", "link_to_model")),
        **_described(described, ("link_to_model_transformation", "model_notes")),
        "dataset": _dataset(request, template),
        **_described(described, ("dataset_name",)),
        "dataset_type": "Accuracy + Performance" if point.is_accuracy else "Performance",
        **_described(described, ("dataset_link",)),
        "seed_set": request.seeds.id,
        "target_cohort": request.cohort,
        "shared_src": f"src/{implementation(request)}",
        "shared_docs": DOCS,
        "runtime_settings": _settings(request, point, asked),
        "warmup": _warm_up(asked, witnessed),
        "steady_state": {k: v for k, v in witnessed["steady_state"].items() if k != "reason"},
    }
    drafter = described["speculative_decoding"]
    if isinstance(drafter, Mapping):
        content["speculative_decoding"] = dict(drafter)
    more = described.of_point(point.concurrency)
    return content | {key: more[key] for key in POINT_FILE if key in more}


def implementation(request: Request) -> str:
    """Returns the name of the folder below src/."""
    return request.tree_names[1]


def _described(described: Description, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: described[key] for key in keys if described[key] not in (None, "")}


def _dataset(request: Request, template: Template) -> str:
    if request.of_round is not None:
        return request.of_round.dataset
    name = str(template.of_type(PERFORMANCE)[0].get("name") or "performance")
    return name.partition("::")[0]


def _settings(request: Request, point: Point, asked: Mapping[str, Any]) -> dict[str, Any]:
    settings, found = asked["settings"], request.seeds.seeds
    pattern = settings["load_pattern"]["type"]
    known: dict[str, Any] = {
        "load_pattern": pattern,
        "min_duration_ms": round(point.least_s * 1000),
        "runtime": dict(found),
    }
    queries = settings["runtime"].get("n_samples_to_issue")
    if queries is not None and point.offline != DEDICATED:
        known["min_sample_count"] = queries
    client = settings.get("client")
    if isinstance(client, Mapping) and "stream_all_chunks" in client:
        known["stream_all_chunks"] = client["stream_all_chunks"]
    if (warm_up := settings.get("warmup")) and warm_up.get("enabled"):
        known["warmup"] = {"salt": bool(warm_up.get("salt"))}
    return known


def _warm_up(asked: Mapping[str, Any], witnessed: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(witnessed["warm_up"])
    if not found.get("requests_issued"):
        return {
            "duration_s": 0.0,
            "requests_issued": 0,
            "requests_completed": 0,
            "data_source": "none",
            "concurrency": 0,
            "initialization_steps": [],
        }
    pattern = asked["settings"]["load_pattern"]
    warm_up = asked["settings"].get("warmup") or {}
    source = "the performance data, with a 64-bit salt before each prompt"
    return {
        **found,
        "data_source": source if warm_up.get("salt") else "the performance data",
        "concurrency": pattern.get("target_concurrency") or found["requests_issued"],
        "initialization_steps": [],
        "logs_retained": True,
    }
