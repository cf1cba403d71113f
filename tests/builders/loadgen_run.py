"""Runs LoadGen once, in a separate process, with a system that answers immediately.

python tests/builders/loadgen_run.py OUTDIR SCENARIO QUERIES LATE QPS: LATE queries are held back until the last query
has been issued (Server's bound is 20 ms). The logs and the trace stay in OUTDIR.
"""

import os
import sys
import threading

import mlperf_loadgen as lg


def main() -> None:
    outdir, scenario, queries, late, qps = sys.argv[1:]
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = 1
    settings.min_query_count = int(queries)
    settings.schedule_rng_seed = 16159082839903944936
    settings.server_target_qps = float(qps)
    settings.server_target_latency_ns = 20_000_000
    settings.server_coalesce_queries = True
    log = lg.LogSettings()
    log.log_output.outdir = outdir
    log.enable_trace = True
    held: list[int] = []

    def answer(ids: list[int]) -> None:
        lg.QuerySamplesComplete([lg.QuerySampleResponse(i, 0, 0) for i in ids])

    def issue(ids: list[int], indices: list[int]) -> None:
        while ids and len(held) < int(late):
            held.append(ids.pop())
        answer(ids)

    sut = lg.ConstructFastSUT(issue, lambda: answer(held))
    qsl = lg.ConstructQSL(10, 10, lambda indices: None, lambda indices: None)
    test = (sut, qsl, settings, log, "no-audit.config")
    thread = threading.Thread(target=lg.StartTestWithLogSettings, args=test)
    thread.start()
    thread.join()
    os._exit(0)


if __name__ == "__main__":
    main()
