"""Declares a run's options: one field each, with its flag, its key in files, its help and its parser.

To add an option, add a field to `RunOptions`. The keywords of `option` (options.py) state where the option applies and
which fields it resets. If the option contradicts another option, add a line to problems.py. If MLPerf's reference
harness has the option under a different name, add an alias to harness/cli/run_options.py.
"""

from dataclasses import dataclass
from pathlib import Path

from harness.core.config import parse as parsers
from harness.core.config.options import MACHINE, NODE, NODES, SERVERS, option, resolved
from harness.core.config.parse import Cancel, Endpoint, LoadHosts, Ramp, Slo
from harness.core.registry import DEFAULT_MODEL
from harness.core.units import NS_PER_S, parse_duration_ns, write_duration
from harness.types import Interval, Lognormal

MAX_BATCH = 65_535
"""Maximum batch size in samples; larger sizes are refused, because the journal stores the size in 16 bits."""

MAX_CONCURRENCY = 1_000_000
MAX_STREAMS = 100_000
MAX_QUERIES = 2**31 - 1
MAX_SEED = 2**64 - 1

MODES = ("performance", "accuracy", "both")
DISPATCHES = ("elastic", "greedy", "deadline")
TRANSPORTS = ("socket", "actor")
DEFAULT_DURATION_NS = 10 * NS_PER_S

_SEEDS = ("qsl_seed", "sample_index_seed", "schedule_seed")
_FILES_OF_MODEL = ("model_sha256", "model_file", "dataset_digest")
_SET_BY_MODEL = ("dataset", "metric", "max_batch")
_SET_BY_SCENARIO = (
    *("queries", "slo", "target_qps", "samples_per_query", "arrivals", "arrivals_sha256"),
    *("concurrency", "load_hosts", "instances", "threads", "max_batch", "dispatch"),
    "batch_wait_ns",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Times are in ns, rates in queries/s (offline: samples/s), and batch sizes in samples; None means not set."""

    scenario: str = option(
        "single-stream, multi-stream, server (Poisson arrivals) or offline",
        parse=parsers.parse_scenario,
        group="scenario, model and data",
        resets_of_run=_SET_BY_SCENARIO,
    )
    backend: str = option(
        "framework that runs the model: a name from `list`, module:Class or file.py:Class (default ort)",
        default="ort",
        parse=parsers.parse_name,
        resets=("model_sha256", "model_file"),
    )
    model: str = option(
        "a name from `list`, a manifest (.yaml), a model file, hf:ORG/NAME@COMMIT:FILE, pypi:NAME==VERSION:PATH or "
        "npm:NAME@VERSION:PATH (default digits; digits-trees for backend trees)",
        default=DEFAULT_MODEL,
        parse=parsers.parse_name,
        metavar="MODEL",
        of_one_model=True,
        resets=_FILES_OF_MODEL,
        resets_of_run=_SET_BY_MODEL,
    )
    models: Path | None = option(
        "server: YAML file that lists several models with their popularity and their shared cache (docs/models-sharing.md)",
        parse=parsers.parse_path,
        metavar="FILE",
        level="expert",
        resets=("model", *_FILES_OF_MODEL),
        resets_of_run=(*_SET_BY_MODEL, "instances", "threads"),
    )
    dataset: str | None = option(
        "a name from `list`, module:Class or file.py:Class (default: the manifest's dataset, else synthetic)",
        parse=parsers.parse_name,
        of_one_model=True,
        resets=("dataset_digest",),
        resets_of_run=("data_dir", "dataset_option"),
    )
    data_dir: Path | None = option(
        "file or folder of the dataset, or hf:NAME for --dataset huggingface",
        parse=parsers.parse_path,
        metavar="PATH",
        of_one_model=True,
        resets=("dataset_digest",),
    )
    metric: str | None = option(
        "accuracy metric, a name from `list` (default: the manifest's metric)",
        parse=parsers.parse_name,
        level="expert",
        of_one_model=True,
    )
    hook: Path | None = option(
        "Python file with the manifest's postprocessing hook; the harness runs this code",
        parse=parsers.parse_path,
        metavar="FILE",
        level="expert",
        of_one_model=True,
    )
    mode: str = option(
        "performance, accuracy or both (default both)",
        choices=MODES,
        default="both",
        metavar="MODE",
    )
    duration_ns: int = option(
        "approximate duration of the performance run, e.g. 10s or 2min (default 10s)",
        name="duration",
        parse=parsers.parse_positive_duration_ns,
        write=write_duration,
        default=DEFAULT_DURATION_NS,
        metavar="TIME",
        group="load",
        resets=("queries",),
    )
    queries: int | None = option(
        "issue exactly N queries (offline: N samples) instead of --duration",
        parse=parsers.positive(MAX_QUERIES),
        metavar="N",
        level="expert",
        resets=("duration_ns",),
    )
    slo: tuple[Slo, ...] = option(
        "bound on a percentile of the query latency, e.g. p99=15ms, or of the token times, e.g. ttft:p99=2s, "
        "tpot:p99=200ms or itl:p99=300ms (repeatable)",
        parse=parsers.parse_slo,
        many=True,
        metavar="SLO",
        resets_of_run=("queries",),
    )
    target_qps: float | None = option(
        "server: arrival rate in queries/s (default: 25 % of the calibrated capacity)",
        parse=parsers.parse_rate,
        metavar="QPS",
        resets=("arrivals", "arrivals_sha256", "concurrency", "streams"),
        resets_of_run=("queries",),
    )
    arrivals: Path | Ramp | None = option(
        "server: replay the arrival times in a file, one per line; ramp:RATE raises the rate until an SLO breaks, and "
        "then holds a lower rate for --duration; not MLPerf-compliant (docs/arrivals.md)",
        parse=parsers.parse_arrivals,
        metavar="FILE|ramp:RATE",
        level="expert",
        of_one_run=True,
        resets=("duration_ns", "target_qps", "arrivals_sha256", "concurrency", "streams"),
        resets_of_run=("queries",),
    )
    concurrency: int | None = option(
        "server: keep N queries, conversations or sessions in flight; each answer triggers the next query; not "
        "MLPerf-compliant",
        parse=parsers.positive(MAX_CONCURRENCY),
        metavar="N",
        level="expert",
        resets=("target_qps", "arrivals", "arrivals_sha256", "streams"),
        resets_of_run=("queries", "load_hosts"),
    )
    until: str | None = option(
        "with --concurrency or --arrivals: continue until it is decided whether the run was steady (steady), "
        "or until the 95 % interval of its rate or latency is at most this wide on each side (e.g. 2%), for at most "
        "30 times --duration (docs/steady.md)",
        parse=parsers.parse_until,
        metavar="steady|N%",
        level="expert",
        of_one_run=True,
    )
    streams: int | None = option(
        "server: send N sequences at a time in real time, for a model with states; each frame is due one period after "
        "the previous frame; not MLPerf-compliant (docs/streams.md)",
        parse=parsers.positive(MAX_STREAMS),
        metavar="N",
        level="expert",
        resets=("target_qps", "arrivals", "arrivals_sha256", "concurrency"),
        resets_of_run=("queries", "load_hosts"),
    )
    load_hosts: LoadHosts | None = option(
        "server: split the load on the remote backend's servers among N processes on this machine, or among "
        "`load-host` processes on other machines; not MLPerf-compliant (docs/load-hosts.md)",
        parse=parsers.parse_load_hosts,
        metavar="N|HOST:PORT,…",
        level="expert",
        of=(SERVERS,),
    )
    samples_per_query: int | None = option(
        "multi-stream: samples per query (default 8)",
        parse=parsers.positive(4096),
        metavar="N",
        level="expert",
    )
    performance_count: int | None = option(
        "number of samples that the performance run holds in memory and draws from (default: set by the dataset)",
        parse=parsers.positive(2**31 - 1),
        metavar="N",
        level="expert",
        of_one_model=True,
    )
    seed: int | None = option(
        "seed of arrivals, sample order and synthetic data (default: the MLPerf round's seed)",
        parse=parsers.bounded(0, MAX_SEED),
        metavar="N",
        level="expert",
        resets=(*_SEEDS, "dataset_digest"),
    )
    instances: int | None = option(
        "copies of the model that answer in parallel (default: 1 for single-stream and multi-stream, else one per core)",
        parse=parsers.positive(1024),
        metavar="N",
        group="instances and batches",
        of=(MACHINE, NODE),
        resets_of_run=("threads",),
    )
    threads: int | None = option(
        "threads per instance (default: cores / instances)",
        parse=parsers.positive(1024),
        metavar="N",
        of=(MACHINE, NODE),
    )
    max_batch: int | None = option(
        "largest batch in samples (default: the manifest's, else 8)",
        parse=parsers.positive(MAX_BATCH),
        metavar="N",
    )
    oversubscribe: bool = option(
        "allow more threads than the cores can run at once",
        flag=True,
        level="expert",
        of=(MACHINE, NODE),
        resets=("pin",),
    )
    pin: bool = option(
        "bind the threads of each instance to separate cores",
        flag=True,
        level="expert",
        of=(MACHINE, NODE),
        resets=("oversubscribe",),
    )
    dispatch: str = option(
        "server: greedy chooses batch sizes from the warm-up times; elastic also lets a single waiting query use all "
        "cores; deadline keeps batches small enough to meet the SLO (default elastic)",
        choices=DISPATCHES,
        default="elastic",
        level="expert",
        of=(MACHINE,),
    )
    batch_wait_ns: int = option(
        "server: maximum time that a sample waits for its batch to fill, e.g. 500us (default 0s)",
        name="batch_wait",
        parse=parse_duration_ns,
        write=write_duration,
        default=0,
        metavar="TIME",
        level="expert",
        of=(MACHINE,),
    )
    device: str = option(
        "cpu, cuda, or GPUs by number, e.g. cuda:0,1, assigned to the instances in turn (default cpu)",
        parse=parsers.parse_device,
        default="cpu",
        metavar="DEVICE",
        group="backend",
        level="expert",
        of=(MACHINE, NODE),
    )
    provider: str | None = option(
        "ort: execution provider; the run fails if ONNX Runtime does not use it (default: set by --device)",
        level="expert",
        of=(MACHINE, NODE),
    )
    provider_option: tuple[tuple[str, str], ...] = option(
        "ort: option of the execution provider, e.g. trt_fp16_enable=1 (repeatable)",
        parse=parsers.parse_key_value,
        write=parsers.write_pair,
        many=True,
        metavar="KEY=VALUE",
        level="expert",
        of=(MACHINE, NODE),
    )
    input_shape: tuple[tuple[str, tuple[int, ...]], ...] = option(
        "shape of an input with symbolic dimensions, e.g. ids=1x128 (repeatable)",
        parse=parsers.parse_input_shape,
        write=parsers.write_input_shape,
        many=True,
        metavar="NAME=1xDIM",
        level="expert",
        of_one_model=True,
        resets=("dataset_digest",),
    )
    input_range: tuple[tuple[str, Interval], ...] = option(
        "synthetic data: range of an input's values, HIGH excluded, e.g. ids=0:30522 (repeatable; default for "
        "integers: the row numbers of the table that they index, else 0:2)",
        parse=parsers.parse_input_range,
        write=parsers.write_pair,
        many=True,
        metavar="NAME=LOW:HIGH",
        level="expert",
        of_one_model=True,
        resets=("dataset_digest",),
    )
    lengths: tuple[tuple[str, Lognormal | Path], ...] = option(
        "synthetic data: lengths of a symbolic dimension, as lognormal:median=128,sigma=0.6,max=512 or "
        "as a file with one length per line (repeatable)",
        parse=parsers.parse_lengths,
        write=parsers.write_pair,
        many=True,
        metavar="DIM=LENGTHS",
        level="expert",
        of_one_model=True,
        resets=("dataset_digest",),
    )
    dataset_option: tuple[tuple[str, str], ...] = option(
        "option of the dataset, e.g. input=lognormal:median=512,sigma=0.6,max=4096 for synthetic-prompts "
        "(docs/datasets.md; repeatable)",
        parse=parsers.parse_key_value,
        write=parsers.write_pair,
        many=True,
        metavar="KEY=VALUE",
        level="expert",
        of_one_model=True,
        resets=("dataset_digest",),
    )
    backend_option: tuple[tuple[str, str], ...] = option(
        "option of the backend, e.g. compile=off; format=NAME selects the model file; processes=on gives each "
        "instance a separate process, as --mlperf does for plug-ins; KEY=@FILE reads the value from a JSON or YAML "
        "file (repeatable)",
        parse=parsers.parse_backend_option,
        write=parsers.write_pair,
        many=True,
        metavar="KEY=VALUE",
        level="expert",
        resets_of_run=("model_sha256", "model_file"),
    )
    url: tuple[str, ...] = option(
        "URL of a remote backend's server, e.g. http://127.0.0.1:8000 or grpc://127.0.0.1:8001; repeat the "
        "option for each replica",
        parse=parsers.parse_server,
        many=True,
        metavar="URL",
        group="server of a remote backend",
        level="expert",
        resets_of_run=("instances", "threads"),
    )
    connections: int | None = option(
        "connections to each server; each carries one request at a time (default 64, or --concurrency if it is higher; "
        "1 to 16 for single-stream and multi-stream)",
        parse=parsers.positive(65_535),
        metavar="N",
        level="expert",
        of=(SERVERS,),
    )
    request_timeout_ns: int | None = option(
        "maximum time per request (default: 10s, or 20 times the slowest warm-up request if this is longer)",
        name="request_timeout",
        parse=parsers.parse_positive_duration_ns,
        write=write_duration,
        metavar="TIME",
        level="expert",
        of=(SERVERS, NODES),
    )
    header: tuple[tuple[str, str], ...] = option(
        "header of each request, with its value from an environment variable, e.g. Authorization=env:TOKEN (repeatable)",
        parse=parsers.parse_header,
        write=parsers.write_pair,
        many=True,
        metavar="NAME=env:VARIABLE",
        level="expert",
        of=(SERVERS,),
    )
    insecure: bool = option(
        "https and grpcs: accept any certificate and host name",
        flag=True,
        level="expert",
        of=(SERVERS,),
    )
    server_metrics: tuple[str, ...] = option(
        "URL of a server's Prometheus metrics, e.g. http://127.0.0.1:8002/metrics (default: /metrics of each "
        "--url; repeatable)",
        parse=parsers.parse_metrics_page,
        many=True,
        metavar="URL",
        level="expert",
        of=(SERVERS,),
    )
    server_metric: tuple[str, ...] = option(
        "additional series to keep from the servers' metrics pages, e.g. queue_size or "
        'queue_size{model="a"} (repeatable)',
        parse=parsers.parse_series,
        many=True,
        metavar="SERIES",
        level="expert",
        of=(SERVERS,),
    )
    before_run: str | None = option(
        "run this just before LoadGen starts: vllm or sglang clears the prefix cache of each --url; any other value "
        "is a command, which runs without a shell",
        parse=parsers.parse_name,
        metavar="vllm|sglang|COMMAND",
        level="expert",
    )
    probe_rate: float | None = option(
        "measure how long other clients wait by sending N small requests per second on separate connections during the "
        "load (one-token requests to a language model); not MLPerf-compliant",
        parse=parsers.parse_probe_rate,
        metavar="N",
        level="expert",
        of=(SERVERS,),
    )
    cancel: Cancel | None = option(
        "with --concurrency or --arrivals: close the connections of this share of the requests after this time, as "
        "impatient clients do, e.g. 10%@500ms",
        parse=parsers.parse_cancel,
        metavar="SHARE@TIME",
        level="expert",
        of=(SERVERS,),
    )
    no_resend: bool = option(
        "fail a request if the server has just closed its idle connection, instead of sending it again",
        flag=True,
        level="expert",
        of=(SERVERS,),
    )
    qdl: bool = option(
        "follow the rules of MLPerf's Network division: report each server's name to LoadGen, send one sample "
        "per request, and use the reply as the answer, without postprocessing in the client",
        flag=True,
        level="expert",
        of=(SERVERS,),
    )
    yes_load_this_host: bool = option(
        "allow more than 100 requests/s to a server that is neither on this machine nor in a private network",
        flag=True,
        level="expert",
        of=(SERVERS,),
    )
    nodes: str | None = option(
        "machines that answer the queries: HOST:PORT,HOST:PORT of `serve --node`, ray://HEAD of a Ray cluster, or "
        "local:N for N processes on this machine (docs/cluster.md)",
        parse=parsers.parse_nodes,
        metavar="NODES",
        group="nodes",
        level="expert",
        of=(NODES,),
        resets_of_run=("instances", "threads"),
    )
    node_count: int | None = option(
        "with --nodes ray://HEAD: use N whole nodes of the cluster",
        parse=parsers.positive(parsers.MOST_NODES),
        metavar="N",
        level="expert",
        of=(NODES,),
    )
    transport: str | None = option(
        "with --nodes ray://HEAD: socket (default) sends batches over the harness's connections; actor sends "
        "them through Ray, for nodes whose ports cannot be reached",
        choices=TRANSPORTS,
        level="expert",
        of=(NODES,),
    )
    inputs_on_wire: bool = option(
        "send samples to the nodes, instead of indices into each node's copy of the data",
        flag=True,
        level="expert",
        of=(NODES,),
    )
    hang_timeout_ns: int | None = option(
        "end the run after this time without an answer (default: 10s, or 20 times the slowest warm-up "
        "batch if this is longer)",
        name="hang_timeout",
        parse=parsers.parse_positive_duration_ns,
        write=write_duration,
        metavar="TIME",
        level="expert",
    )
    meter: tuple[tuple[str, str], ...] = option(
        "read power from a meter: a name from `list`, NAME=ARGUMENT, module:Class or file.py:Class "
        "(repeatable)",
        parse=parsers.parse_meter,
        write=parsers.write_meter,
        many=True,
        group="power",
        level="expert",
    )
    price: float | None = option(
        "hourly price of all machines in the run, e.g. 1.20/h; the result then includes the cost per million samples "
        "and tokens",
        parse=parsers.parse_price,
        write=parsers.write_price,
        metavar="PRICE",
        level="expert",
    )
    mlperf: bool = option(
        "apply the official rules: 600 s, official seeds, query counts and latency bounds",
        flag=True,
        group="MLPerf rules",
        level="expert",
        of_one_run=True,
        resets=("duration_ns", "queries"),
        resets_of_run=("seed", "slo", "samples_per_query", "target_qps", *_SEEDS),
    )
    user_conf: Path | None = option(
        "with --mlperf: LoadGen's user.conf",
        parse=parsers.parse_path,
        metavar="FILE",
        level="expert",
        of_one_run=True,
    )
    audit: Path | None = option(
        "make the performance run of a compliance test with this audit.config for LoadGen (see `submit run`)",
        parse=parsers.parse_path,
        metavar="FILE",
        level="expert",
        of_one_run=True,
    )
    out: Path | None = option(
        "result folder, which must not exist yet (default results/TIME-SCENARIO-BACKEND-MODEL)",
        parse=parsers.parse_path,
        metavar="DIR",
        group="output",
        repeated=False,
    )
    no_report: bool = option(
        "write no report.html",
        flag=True,
        level="expert",
        repeated=False,
    )
    sign: Path | None = option(
        "sign SHA256SUMS of the result folder with this OpenSSH key; `check` reports who signed",
        parse=parsers.parse_path,
        metavar="KEY",
        level="expert",
        repeated=False,
    )
    metrics: Endpoint | None = option(
        "address where Prometheus can scrape the run (default 127.0.0.1:9464, or another port if 9464 is in use)",
        parse=parsers.parse_endpoint,
        metavar="HOST:PORT",
        level="expert",
        repeated=False,
        resets=("no_metrics",),
    )
    no_metrics: bool = option(
        "open no port for Prometheus; metrics.prom is still written",
        flag=True,
        level="expert",
        repeated=False,
        resets=("metrics", "metrics_linger_ns"),
    )
    metrics_linger_ns: int = option(
        "serve the metrics for this time after the run, so that Prometheus can scrape the verdict, e.g. 15s",
        name="metrics_linger",
        parse=parsers.parse_positive_duration_ns,
        write=write_duration,
        default=0,
        metavar="TIME",
        level="expert",
        of_one_run=True,
        repeated=False,
    )
    metrics_push: str | None = option(
        "push the metrics at the end of the run to a Pushgateway (e.g. http://127.0.0.1:9091) or to an OpenTelemetry "
        "collector (http://HOST:4318/v1/metrics), which also receives a language model's metrics during the run",
        parse=parsers.parse_gateway,
        metavar="URL",
        of_one_run=True,
        repeated=False,
    )
    # A run resolves the values of these options, and writes them to its config.yaml. These options do not have a flag.
    qsl_seed: int | None = resolved(parsers.bounded(0, MAX_SEED))
    sample_index_seed: int | None = resolved(parsers.bounded(0, MAX_SEED))
    schedule_seed: int | None = resolved(parsers.bounded(0, MAX_SEED))
    model_file: Path | None = resolved(parsers.parse_path, of_one_model=True)
    model_sha256: str | None = resolved()
    dataset_digest: str | None = resolved()
    arrivals_sha256: str | None = resolved()
    plugin_sha256: tuple[tuple[str, str], ...] = resolved(
        parsers.parse_file_digest, write=parsers.write_pair, many=True
    )
    loadgen_version: str | None = resolved()
    mlperf_model: str | None = resolved()
    node_urls: tuple[str, ...] = resolved(parsers.parse_server, many=True, of=(NODES,))

    @property
    def servers(self) -> tuple[str, ...]:
        """Addresses of the servers that process the queries. The addresses come from --url or, once the nodes are
        ready, from the nodes.
        """
        return self.url or self.node_urls

    @property
    def nodes_are_started(self) -> bool:
        """Whether the command itself starts the nodes; otherwise the nodes are already running."""
        started = (parsers.LOCAL_NODES, parsers.RAY_NODES)
        return self.nodes is not None and self.nodes.startswith(started)

    @property
    def harness_scheduled(self) -> bool:
        """Whether the harness's scheduler, not LoadGen, issues the performance run's queries."""
        others = (self.arrivals, self.concurrency, self.streams, self.load_hosts)
        return any(one is not None for one in others)

    @property
    def runs_performance(self) -> bool:
        return self.mode in ("performance", "both")

    @property
    def runs_accuracy(self) -> bool:
        return self.mode in ("accuracy", "both")
