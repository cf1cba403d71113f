"""LoadGen answered inside its callback by nobody: the least any Python harness can cost.

bare_loadgen.py single-stream QUERIES | server QUERIES RATE     prints JSON: p50 and p99 in ns
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import mlperf_loadgen as lg

_PERCENTILE = re.compile(r'"result_(50|99)\.00_percentile_latency_ns", "value": (\d+)')


def main() -> None:
    scenario, queries = sys.argv[1], int(sys.argv[2])
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.SingleStream
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = 1, queries
    if scenario == "server":
        settings.scenario = lg.TestScenario.Server
        settings.server_target_qps = float(sys.argv[3])
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
