"""Builds a work folder for MLPerf Endpoints with finished and witnessed runs, whose numbers are made up but consistent."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from harness.core.files import sha256
from harness.core.formats.strict_yaml import write_yaml
from harness.submit.endpoints import points, runs
from harness.submit.endpoints.client.config import Template, client_config, passes
from harness.submit.endpoints.pack.description import read_description
from harness.submit.endpoints.pack.pack import SUBMISSION, pack
from harness.submit.endpoints.points import Curve, Point
from harness.submit.endpoints.request import Request, make_request, write_request

TOKENS = 128
SAMPLES = 13368
COMMIT = "ea3327530376fef63d706f4105612e17c2c80a8d"
PERCENTILES = ("99.9", "99", "97", "95", "90", "80", "75", "50", "25", "10", "5", "1")

REQUEST: Mapping[str, Any] = {
    "submitter": "LabOrg",
    "system": "box",
    "division": "standardized",
    "model": "llama3_1-8b",
    "cohort": "2026-10-C1",
    "url": ("http://10.0.0.2:8000",),
    "served": "llama",
    "c_max": 64,
    "points": (1, 4, 8, 16, 32, 48, 64),
}
DESCRIBE: Mapping[str, Any] = {
    "model_precision": "bf16",
    "link_to_model": "https://example.org/model",
    "dataset_name": "CNN/DailyMail",
    "dataset_link": "https://example.org/data",
    "shortened_system_name": "box 4x",
    "system_availability_status": "available",
    "availability_url": "https://example.org/box",
    "system_size": "1 node, 4 accelerators",
    "serving_framework": "vLLM 0.33",
    "driver": "580.1",
    "host_memory_configuration": "8x 32 GB DDR5-4800",
    "cooling": "air",
    "data_parallel": 4,
    "tensor_parallel": 1,
    "accelerator_model_name": "Example 300",
    "accelerators_per_node": 4,
    "readme": "readme.md",
    "docs": "documents",
    "power": {
        "cooling": "air",
        "node_sets": [
            {
                "components": {
                    "cpu": {"count_per_node": 1, "tdp_per_unit": {"value_w": 200, "source_type": "vendor_spec", "source": "https://example.org/cpu"}},
                    "accelerator": {"count_per_node": 4, "tdp_per_unit": {"value_w": 300, "source_type": "vendor_spec", "source": "https://example.org/card"}},
                }
            }
        ],
    },
}  # fmt: skip
TEMPLATE: Mapping[str, Any] = {
    "name": "llama",
    "type": "online",
    "model_params": {"name": "llama", "temperature": 0.0, "max_new_tokens": TOKENS},
    "datasets": [
        {"name": "cnn_dailymail::llama3_8b", "type": "accuracy", "samples": SAMPLES, "accuracy_config": {"eval_method": "rouge"}},
        {"name": "cnn_dailymail::llama3_8b", "type": "performance", "samples": SAMPLES},
    ],
    "settings": {"client": {"num_workers": 4}},
    "endpoint_config": {"endpoints": ["http://127.0.0.1:8000"], "api_key": "k-secret"},
}  # fmt: skip
SCORE = {"rouge1": "38.78", "rouge2": "15.91", "rougeL": "24.50", "rougeLsum": "35.80", "gen_len": "8167644"}  # fmt: skip


def speed(concurrency: int) -> tuple[float, float, float]:
    """Returns TTFT, TPOT and latency in ns."""
    ttft, tpot = 50e6 + 2e6 * concurrency, 10e6 * (1 + concurrency / 64)
    return ttft, tpot, ttft + tpot * (TOKENS - 1)


def series(mean: float, count: int) -> dict[str, Any]:
    """Returns a block of result_summary.json with percentiles around the mean."""
    at = {key: mean * (0.9 + 0.2 * float(key) / 100) for key in PERCENTILES}
    return {
        "total": mean * count,
        "min": mean * 0.85,
        "max": mean * 1.2,
        "avg": mean,
        "median": at["50"],
        "percentiles": at,
        "histogram": histogram(mean, count),
    }


def histogram(mean: float, count: int) -> dict[str, Any]:
    """Returns the client's buckets for values spread evenly from 0.9 to 1.1 times the mean."""
    edges = [mean * (0.85 + 0.35 * i / 10) for i in range(11)]
    shares = [min(max((edge / mean - 0.9) / 0.2, 0.0), 1.0) for edge in edges]
    ends = [round(share * count) for share in shares]
    return {
        "buckets": [list(pair) for pair in pairwise(edges)],
        "counts": [high - low for low, high in pairwise(ends)],
    }


def summary(asked: Mapping[str, Any], queries: int, concurrency: int) -> dict[str, Any]:
    ttft, tpot, latency = speed(concurrency)
    settings = asked["settings"]
    return {
        "version": "0.1.0",
        "git_sha": COMMIT[:7],
        "test_started_at": 0,
        "n_samples_issued": queries,
        "n_samples_completed": queries,
        "n_samples_failed": 0,
        "duration_ns": int(queries * latency / concurrency),
        "state": "complete",
        "complete": True,
        "ttft": series(ttft, queries),
        "tpot": series(tpot, queries),
        "latency": series(latency, queries),
        "input_sequence_lengths": {"total": 800 * queries, "min": 50, "max": 2000, "avg": 800},
        "output_sequence_lengths": {"total": TOKENS * queries, "min": 1, "max": TOKENS, "avg": TOKENS},
        "finish_reason_counts": {"length": queries},
        "run_config": {
            "load_pattern": settings["load_pattern"],
            "warmup": {"enabled": False},
            "scheduler_random_seed": settings["runtime"]["scheduler_random_seed"],
            "dataloader_random_seed": settings["runtime"]["dataloader_random_seed"],
        },
    }  # fmt: skip


def steady(queries: int, duration_s: float) -> dict[str, Any]:
    count = queries // SAMPLES
    return {
        "status": "windowable",
        "verdict": "STEADY STATE",
        "window": {
            "super_pass_start": 2,
            "super_pass_end": count,
            "super_pass_size": SAMPLES,
            "n_samples": SAMPLES * (count - 1),
            "duration_s": duration_s * (count - 1) / count,
        },
        "state": {"tpot_p50": "Plateau", "tpot_p90": "Plateau"},
    }


def put_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2))


def made_run(work: Path, request: Request, template: Template, point: Point) -> runs.Attempt:
    """Writes the files of one finished and witnessed run."""
    attempt = runs.next_attempt(work, point.name)
    per_s = point.concurrency / (speed(point.concurrency)[2] / 1e9)
    queries = passes(point, SAMPLES, per_s) * SAMPLES
    asked = client_config(request, template, point, queries, attempt.report)
    attempt.report.mkdir(parents=True)
    (attempt.report / "config.yaml").write_text(yaml.safe_dump(asked))
    content = summary(asked, queries, point.concurrency)
    put_json(attempt.summary, content)
    if point.is_accuracy:
        entry = {"dataset_name": "cnn_dailymail::llama3_8b", "dataset_type": "accuracy", "unit_samples": SAMPLES, "num_repeats": 1, "score": SCORE, "duration_s": 900.0 - point.concurrency}  # fmt: skip
        put_json(attempt.accuracy, {"accuracy_scores": [entry]})
    put_json(attempt.folder / runs.RUN, {"status": 0, "asked": asked, "changed": False})
    witnessed = {
        "summary_sha256": sha256(attempt.summary),
        "accuracy_sha256": sha256(attempt.accuracy) if point.is_accuracy else None,
        "tokens_absent": None,
        "steady_state": steady(queries, content["duration_ns"] / 1e9),
        "warm_up": {"duration_s": 0.0, "requests_issued": 0, "requests_completed": 0},
        "doubts": [],
        "rows": [{"name": "duration_ns", "published": 1.0, "recomputed": 1.0, "agrees": True}],
    }
    put_json(attempt.folder / runs.WITNESS, witnessed)
    return attempt


def made_work(work: Path, **changes: Any) -> tuple[Request, Template, Curve]:
    """Writes a work folder with a run for every point."""
    work.mkdir(parents=True)
    write_yaml(work / "template.yaml", TEMPLATE)
    request = make_request({**REQUEST, "template": work / "template.yaml", **changes})
    write_request(work, request)
    template = Template(work / "template.yaml")
    curve = points.curve(request, request.c_max, SAMPLES)
    for point in curve.points:
        made_run(work, request, template, point)
    put_json(
        work / "client.json", {"commit": COMMIT, "digest": "0" * 64, "files": 300, "changed": []}
    )
    (work / "readme.md").write_text("# box\n\nStart vLLM with the model.\n")
    (work / "documents").mkdir()
    (work / "documents" / "network.md").write_text("# Network\n\nOne switch, 20 us.\n")
    write_yaml(work / "describe.yaml", DESCRIBE)
    return request, template, curve


def made_tree(folder: Path, **changes: Any) -> Path:
    """Packs a made-up work folder, and returns the tree's root."""
    work = folder / "work"
    request, template, curve = made_work(work, **changes)
    described = read_description([work / "describe.yaml"], request)
    return pack(request, template, curve, described, work, folder / "tree")


MODEL = f"LabOrg/{SUBMISSION}/results/box/llama3_1-8b"


def point_path(tree: Path, concurrency: int) -> Path:
    return tree / MODEL / f"r{concurrency}"
