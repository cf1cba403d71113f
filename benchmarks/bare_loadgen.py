"""Runs LoadGen with an empty callback, the lower bound of any Python harness; prints p50 and p99 as JSON."""

import argparse
import json
import re
import tempfile
from pathlib import Path

import mlperf_loadgen as lg

_PERCENTILE = re.compile(r'"result_(50|99)\.00_percentile_latency_ns", "value": (\d+)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=("single-stream", "server"))
    parser.add_argument("queries", type=int)
    parser.add_argument("rate", type=float, nargs="?", default=1.0, help="queries/s (server)")
    options = parser.parse_args()
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.SingleStream
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = 1, options.queries
    if options.scenario == "server":
        settings.scenario = lg.TestScenario.Server
        settings.server_target_qps = options.rate
        settings.server_coalesce_queries = True
    responses: list[lg.QuerySampleResponse] = []

    def issue(ids: list[int], _indices: list[int]) -> None:
        while len(responses) < len(ids):
            responses.append(lg.QuerySampleResponse(0, 0, 0))
        for response, sample_id in zip(responses, ids, strict=False):
            response.id = sample_id
        lg.QuerySamplesComplete(responses[: len(ids)])

    with tempfile.TemporaryDirectory() as folder:
        log = lg.LogSettings()
        log.log_output.outdir = folder
        log.enable_trace = False
        sut = lg.ConstructFastSUT(issue, lambda: None)
        qsl = lg.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(sut, qsl, settings, log, "no-audit.config")
        text = (Path(folder) / "mlperf_log_detail.txt").read_text(encoding="utf-8")
    print(json.dumps({f"p{percent}_ns": int(ns) for percent, ns in _PERCENTILE.findall(text)}))


main()
