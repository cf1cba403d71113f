"""Builds dashboards/harness.json, the Grafana dashboard: python scripts/dashboard.py

The JSON file is committed, and a test compares it with this script's output. The script requires `./run.sh install
dev`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders import prometheus as query
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as parts
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PATH = Path(__file__).parents[1] / "dashboards" / "harness.json"
SOURCE = parts.DataSourceRef(type_val="prometheus", uid="${source}")

OF_RUN = 'run=~"$run"'
TIMED = 'run=~"$run", phase="performance"'
OTHER = 'run=~"$other", phase="performance"'
WINDOW = "[$__rate_interval]"


class Query(NamedTuple):
    """One series in a panel."""

    expr: str
    legend: str = "{{run}}"
    """Legend text, in which Grafana replaces {{label}} with the label's value."""
    form: PromQueryFormat = PromQueryFormat.TIME_SERIES
    instant: bool = False


def quantile(fraction: float, metric: str, labels: str = TIMED, shift: str = "") -> str:
    buckets = f"rate({metric}_bucket{{{labels}}}{WINDOW}{shift})"
    return f"histogram_quantile({fraction}, sum by (le, run) ({buckets}))"


def rate(metric: str, labels: str = TIMED, by: str = "run", shift: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}{WINDOW}{shift}))"


def _with(panel: Any, about: str, width: int, height: int, queries: Sequence[Query]) -> Any:
    panel.description(about).datasource(SOURCE).span(width).height(height)
    for n, (expr, legend, form, instant) in enumerate(queries):
        target = query.Dataquery().expr(expr).legend_format(legend).format(form)
        target.ref_id(chr(ord("A") + n)).datasource(SOURCE)
        panel.with_target(target.instant() if instant else target.range())
    return panel


def number(
    title: str, unit: str, expr: str, about: str, steps: Sequence[Any] = (), width: int = 3
) -> Any:
    """Returns a panel that shows the latest value of each run as a large number."""
    panel = stat.Panel().title(title).unit(unit).no_value("…")
    panel.graph_mode(kinds.BigValueGraphMode.NONE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if steps:
        panel.thresholds(
            dashboard.ThresholdsConfig().mode(parts.ThresholdsMode.ABSOLUTE).steps(list(steps))
        )
        panel.color_mode(kinds.BigValueColorMode.BACKGROUND)
    return _with(panel, about, width, 4, [Query(expr)])


def verdict() -> Any:
    expr = f"harness_run_valid{{{OF_RUN}}}"
    panel = number("Verdict", "short", expr, "At the end of the run", width=4)
    texts = {
        "0": parts.ValueMappingResult(text="INVALID", color="red", index=0),
        "1": parts.ValueMappingResult(text="VALID", color="green", index=1),
    }
    panel.color_mode(kinds.BigValueColorMode.BACKGROUND).no_value("running")
    return panel.mappings([parts.ValueMap(options=texts)])


def lines(
    title: str, unit: str, about: str, *queries: Query, width: int = 12, stacked: bool = False
) -> Any:
    panel = timeseries.Panel().title(title).unit(unit).axis_soft_min(0)
    panel.show_points(kinds.VisibilityMode.NEVER).line_width(2).span_nulls(False)
    panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI))
    panel.legend(
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL)).fill_opacity(40)
    return _with(panel, about, width, 8, queries)


def latency_lines() -> Any:
    metric = "harness_latency_seconds"
    panel = lines(
        "Latency",
        "s",
        "Latency of the queries answered in the last seconds, from their scheduled time; the SLO is dashed",
        Query(quantile(0.5, metric), "{{run}} p50"),
        Query(quantile(0.9, metric), "{{run}} p90"),
        Query(quantile(0.99, metric), "{{run}} p99"),
        Query(f"harness_slo_seconds{{{OF_RUN}}}", "SLO {{quantile}}"),
        Query(quantile(0.99, metric, OTHER, " offset $shift"), "other {{run}} p99"),
    )
    panel.scale_distribution(
        common.ScaleDistributionConfig().type(kinds.ScaleDistribution.LOG).log(10)
    )
    dashed = {"fill": "dash", "dash": [10, 10]}
    return panel.override_by_regexp(
        "^(SLO|other ).*", [parts.DynamicConfigValue("custom.lineStyle", dashed)]
    )


def rate_lines() -> Any:
    panel = lines(
        "Rate",
        "reqps",
        "Queries/s: offered (Server), issued by LoadGen, completed",
        Query(f"harness_asked_queries_per_second{{{TIMED}}}", "{{run}} offered"),
        Query(rate("harness_queries_issued_total"), "{{run}} issued"),
        Query(rate("harness_queries_completed_total"), "{{run}} completed"),
        Query(
            rate("harness_queries_completed_total", OTHER, shift=" offset $shift"),
            "other {{run}} completed",
        ),
    )
    dashed = {"fill": "dash", "dash": [10, 10]}
    return panel.override_by_regexp(
        "^other .*|.* offered$", [parts.DynamicConfigValue("custom.lineStyle", dashed)]
    )


def latency_map() -> Any:
    panel = heatmap.Panel().title("Latency, heat map").calculate(False)
    panel.color(
        heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Turbo").steps(64)
    )
    panel.y_axis(heatmap.YAxisConfig().unit("s")).cell_gap(0)
    expr = f"sum by (le) (increase(harness_latency_seconds_bucket{{{TIMED}}}{WINDOW}))"
    about = "Number of queries by latency, for all selected runs together"
    return _with(panel, about, 12, 8, [Query(expr, "{{le}}", PromQueryFormat.HEATMAP)])


def stages() -> Any:
    spent = rate("harness_stage_seconds_sum", by="stage")
    return lines(
        "Stages of the latency",
        "s",
        "Mean time of a sample in each stage; the stages add up to its latency",
        Query(f"{spent} / {rate('harness_stage_seconds_count', by='stage')}", "{{stage}}"),
        stacked=True,
    )


def inside() -> list[Any]:
    batches = "harness_batch_samples"
    mean = f"{rate(f'{batches}_sum')} / {rate(f'{batches}_count')}"
    busy = rate("harness_instance_busy_seconds_total")
    return [
        lines(
            "Batch size",
            "short",
            "Samples in a batch",
            Query(mean, "{{run}} mean"),
            Query(quantile(0.99, batches), "{{run}} p99"),
            width=8,
        ),
        lines(
            "Queue",
            "short",
            "Samples that are issued and not answered (in flight), and samples that wait for an instance",
            Query(f"harness_in_flight_samples{{{TIMED}}}", "{{run}} in flight"),
            Query(f"harness_queue_depth_samples{{{TIMED}}}", "{{run}} waiting"),
            width=8,
        ),
        lines(
            "Busy instances",
            "short",
            "Mean number of instances that were busy, and the number of instances",
            Query(busy, "{{run}} busy"),
            Query(f"harness_instances{{{TIMED}}}", "{{run}} instances"),
            width=8,
        ),
    ]


def tokens() -> list[Any]:
    buckets = f"rate(harness_token_time_seconds_bucket{{{TIMED}}}{WINDOW})"

    def share(fraction: float) -> Query:
        expr = f"histogram_quantile({fraction}, sum by (le, run, time) ({buckets}))"
        return Query(expr, f"{{{{run}}}} {{{{time}}}} p{fraction * 100:g}")

    times = lines(
        "Token times",
        "s",
        "Streams of a language model: ttft is the time from the schedule to the first token, tpot the time per later token; SLOs are dashed",
        share(0.5),
        share(0.99),
        Query(f"harness_token_slo_seconds{{{OF_RUN}}}", "SLO {{time}} {{quantile}}"),
    )
    times.scale_distribution(
        common.ScaleDistributionConfig().type(kinds.ScaleDistribution.LOG).log(10)
    )
    dashed = {"fill": "dash", "dash": [10, 10]}
    times.override_by_regexp("^SLO.*", [parts.DynamicConfigValue("custom.lineStyle", dashed)])
    per_s = lines(
        "Tokens",
        "short",
        "Tokens/s in the answers of a language model; tokens count when their answer is complete",
        Query(rate("harness_tokens_total"), "{{run}}"),
    )
    return [times, per_s]


def nodes() -> list[Any]:
    """Returns the panels for runs on several nodes, which are empty for other runs."""
    return [
        lines(
            "Samples by node",
            "short",
            "Samples/s of each node; fast nodes get more",
            Query(rate("harness_node_samples_completed_total", by="run, node"), "{{run}} {{node}}"),
        ),
        lines(
            "Answer time of nodes, p99",
            "s",
            "Time from sending a batch to a node until its answer; the slowest node determines the tail",
            Query(
                f"histogram_quantile(0.99, sum by (le, run, node) "
                f"(rate(harness_node_request_seconds_bucket{{{TIMED}}}{WINDOW})))",
                "{{run}} {{node}}",
            ),
        ),
    ]


def models() -> list[Any]:
    """Returns the panel for the model cache, which is empty for runs with a single model."""
    origins = f"sum by (run, origin) (rate(harness_model_requests_total{{{TIMED}}}{WINDOW}))"
    panel = lines(
        "Model cache",
        "short",
        "With several models (--models): samples/s by the origin of their model, and models evicted per second",
        Query(f"{origins} > 0", "{{run}} {{origin}}"),
        Query(f"{rate('harness_model_evictions_total')} > 0", "{{run}} evictions"),
        width=24,
    )
    return [panel]


def power() -> list[Any]:
    """Returns the panels for meters, which are empty without --meter."""
    return [
        lines(
            "Power",
            "watt",
            "Power of each meter",
            Query(f"harness_power_watts{{{OF_RUN}}}", "{{run}} {{source}}"),
        ),
        lines(
            "Energy per query",
            "joule",
            "Energy of each meter, idle power included",
            Query(
                f"sum by (run, source) (rate(harness_energy_joules_total{{{OF_RUN}}}{WINDOW})) "
                f"/ on (run) group_left {rate('harness_queries_completed_total')}",
                "{{run}} {{source}}",
            ),
        ),
    ]


def machine() -> list[Any]:
    cpu = f"avg by (mode) (rate(harness_host_cpu_seconds_total{{{OF_RUN}}}{WINDOW}))"
    return [
        lines(
            "CPU time",
            "short",
            "Cores by mode, as the mean of the selected runs; steal is time taken by the hypervisor",
            Query(cpu, "{{mode}}"),
            stacked=True,
        ),
        lines(
            "Memory available",
            "bytes",
            "Memory that can still be allocated",
            Query(f"harness_host_memory_available_bytes{{{OF_RUN}}}"),
        ),
    ]


def sensors() -> list[Any]:
    """Returns the panels for the machine's sensors, which most virtual machines do not have."""
    return [
        lines(
            "CPU frequency",
            "hertz",
            "Mean over the cores",
            Query(f"avg by (run) (harness_host_cpu_frequency_hertz{{{OF_RUN}}})"),
        ),
        lines(
            "Temperature",
            "celsius",
            "Temperature of each sensor",
            Query(f"harness_host_temperature_celsius{{{OF_RUN}}}", "{{run}} {{sensor}}"),
        ),
    ]


def gpus() -> list[Any]:
    """Returns the panels for GPUs, which are empty for runs on CPUs."""
    return [
        lines(
            "GPUs: busy",
            "percentunit",
            "Share of the time during which a kernel ran",
            Query(f"harness_gpu_busy_ratio{{{OF_RUN}}}", "{{run}} GPU {{gpu}}"),
            width=8,
        ),
        lines(
            "GPUs: clock",
            "hertz",
            "Clock of the multiprocessors",
            Query(f"harness_gpu_sm_clock_hertz{{{OF_RUN}}}", "{{run}} GPU {{gpu}}"),
            width=8,
        ),
        lines(
            "GPUs: power",
            "watt",
            "Power of each board",
            Query(f"harness_gpu_power_watts{{{OF_RUN}}}", "{{run}} GPU {{gpu}}"),
            width=8,
        ),
    ]


def summary() -> list[Any]:
    step = parts.Threshold
    bad = [step(value=None, color="green"), step(value=1, color="red")]
    percentile = f"harness_latency_percentile_seconds{{{TIMED}}}"
    return [
        verdict(),
        number(
            "Progress",
            "percentunit",
            f'max by (run) (harness_progress_ratio{{{OF_RUN}, phase="performance"}})',
            "Share of the performance run",
        ),
        number(
            "Completed",
            "reqps",
            f"harness_achieved_queries_per_second{{{TIMED}}}",
            "Queries/s, mean so far",
            width=4,
        ),
        number(
            "p99 so far",
            "s",
            f'harness_latency_percentile_seconds{{{TIMED}, quantile="0.99"}}',
            "99th percentile of all queries so far",
            width=4,
        ),
        number(
            "Share of the SLO",
            "percentunit",
            f"max by (run) ({percentile} / on (run, quantile) harness_slo_seconds{{{OF_RUN}}})",
            "Latency so far at the SLO's percentile, divided by the SLO's bound; above 100 % the SLO is missed",
            bad,
        ),
        number("Accuracy", "short", f"harness_accuracy{{{OF_RUN}}}", "At the end of the run"),
        number(
            "Failed samples",
            "short",
            f"sum by (run) (harness_samples_failed_total{{{OF_RUN}}})",
            "One failed sample makes the run INVALID",
            bad,
        ),
    ]


def why() -> Any:
    panel = table.Panel().title("Reasons and doubts").no_value("none")
    codes = f"harness_run_reason{{{OF_RUN}}} or harness_run_doubt{{{OF_RUN}}}"
    expr = f"max by (run, code) ({codes})"
    about = "A reason makes the run INVALID; docs/verdict.md explains every code"
    return _with(panel, about, 24, 5, [Query(expr, "", PromQueryFormat.TABLE, True)])


FOLDED: Mapping[str, Callable[[], Sequence[Any]]] = {
    "Tokens of language models": tokens,
    "Sets of models (--models)": models,
    "Nodes (--nodes)": nodes,
    "Power (--meter)": power,
    "Sensors": sensors,
    "GPUs (--device cuda)": gpus,
}
"""Maps a row's title to its panels. These rows are folded because they are empty for most runs; a click unfolds them.
"""


def phases() -> Any:
    """Shades the time of each LoadGen run, whose phase is performance, accuracy or answers."""
    shaded = dashboard.AnnotationQuery().name("LoadGen runs").datasource(SOURCE)
    expr = f"harness_progress_ratio{{{OF_RUN}}} < bool 1"
    return shaded.enable(True).icon_color("blue").expr(expr)


def _run_variable() -> Any:
    variable = dashboard.QueryVariable("run").label("Run").datasource(SOURCE)
    variable.query({"query": "label_values(harness_run_info, run)", "refId": "run"})
    variable.multi(True).include_all(False)
    variable.refresh(parts.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.sort(parts.VariableSort.ALPHABETICAL_DESC)


def build() -> str:
    """Returns the dashboard as JSON."""
    board = (
        dashboard.Dashboard("mlperf-harness").uid("mlperf-harness").tags(["mlperf", "inference"])
    )
    board.time("now-5m", "now").refresh("1s").timezone("browser").editable()
    board.timepicker(dashboard.TimePicker().refresh_intervals(["1s", "5s", "30s"]))
    board.tooltip(parts.DashboardCursorSync.CROSSHAIR)
    board.with_variable(
        dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus")
    )
    board.with_variable(_run_variable())
    for name, label, default in (
        ("other", "Compare with run", "none"),
        ("shift", "started earlier by", "1h"),
    ):
        board.with_variable(dashboard.TextBoxVariable(name).label(label).default_value(default))
    board.annotation(phases())
    for panel in [*summary(), rate_lines(), latency_lines(), latency_map(), stages(), why()]:
        board.with_panel(panel)
    board.with_row(dashboard.Row("Inside the system under test"))
    for panel in [*inside(), *machine()]:
        board.with_panel(panel)
    for title, panels in FOLDED.items():
        row = dashboard.Row(title).collapsed(True)
        for panel in panels():
            row.with_panel(panel)
        board.with_row(row)
    content = json.loads(JSONEncoder(sort_keys=True).encode(board.build()))
    for shaded in content["annotations"]["list"]:
        shaded |= {
            "step": "1s",
            "titleFormat": "{{run}} {{phase}}",
        }  # fields of annotations from Prometheus that the SDK does not know
    for variable in content["templating"]["list"]:
        for key in (
            "auto",
            "auto_count",
            "auto_min",
        ):  # the SDK adds these fields to every variable, but only intervals use them
            variable.pop(key, None)
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(build(), encoding="utf-8")
    sys.stdout.write(f"{PATH}\n")
