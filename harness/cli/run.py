"""The verbs that open a model or a server, such as `run`, `serve` and `probe`."""

import os

from harness.cli import many_runs
from harness.cli.parser import Parser, add_options, read_options
from harness.cli.run_options import invocation, read_run_options, run_parser
from harness.core.config.options import (
    flag_name,
    option_key,
    parse_values,
    user_path,
    visible_fields,
)
from harness.core.config.parse import Endpoint, parse_endpoint
from harness.core.config.run_config import RunConfig, config_from, make_config
from harness.core.console import program
from harness.core.registry import REMOTE_BACKENDS
from harness.search.options import RepeatOptions
from harness.serve.options import OF_A_NODE, OF_A_RUN, ServeOptions

ABOUT = (
    "Measure one run: performance, accuracy and a verdict. With --repeats, measure the same run several "
    "times and report the spread."
)
DETAILS = "print every number and the full text of every doubt"
_EXAMPLES = """\
examples:
  # the embedded digits model under Poisson arrivals, at a demonstration rate
  {program} --scenario server
  # an ONNX file on synthetic data, for 2 s
  {program} --config quick --scenario offline --model model.onnx
"""


def run(arguments: list[str]) -> int:
    texts, problems = read_run_options(parser(), arguments)
    details = texts.pop("details", False)
    if details and "repeats" in texts:
        problems.append("--details prints the numbers of one run: drop it with --repeats")
    call = invocation(texts, problems, RepeatOptions)
    if call.own.repeats is not None:
        from harness.search import repeats

        many = call.with_own(call.own.repeats)
        return many_runs.execute("run", many, repeats.problems, repeats.repeat)
    from harness.cluster.job import execute

    return execute(call.config, as_json=call.as_json, quiet=call.quiet, details=details)


def parser() -> Parser:
    parser = run_parser(
        "",
        ABOUT,
        ("[run] --scenario NAME [options]",),
        (RunConfig, RepeatOptions),
        _EXAMPLES.format(program=program()),
    )
    parser.flag("--details", DETAILS)
    return parser


def serve(arguments: list[str]) -> int:
    parser = Parser(
        "serve",
        "Serve a model over HTTP with the Open Inference Protocol v2 of KServe and Triton, to measure the cost of "
        "serving. One instance answers the requests one at a time, in order of arrival. A language model (its "
        "manifest has `generation`) is served over the OpenAI API, and answers several prompts at a time.",
        "MODEL [options]",
    )
    parser.text("model", "MODEL", "a name from `list`, a manifest (.yaml), or a model file")
    add_options(parser, ServeOptions)
    fields = {field.name: field for field in visible_fields(RunConfig)}
    group = parser.add_argument_group("model")
    for name in OF_A_RUN:
        parser.add_option(group, fields[name])
    group = parser.add_argument_group("with --node")
    for name in OF_A_NODE:
        parser.add_option(group, fields[name])
    parser.set_helps({"threads": "threads of the model (default: one per core)"})
    texts, problems = read_options(parser, arguments)
    of_run = {
        key: texts[key] for key in texts if key in {"model", *map(option_key, fields.values())}
    }
    own = {key: texts[key] for key in texts if key not in of_run}
    options = ServeOptions(**parse_values(ServeOptions, own, "command line", problems))
    values = {
        "scenario": "offline",
        **({} if options.node else {"instances": 1}),
        **config_from(of_run, "command line", problems),
    }
    if not options.node:
        given = [
            flag_name(option_key(fields[n])) for n in OF_A_NODE if option_key(fields[n]) in of_run
        ]
        problems += [f"{flag} is an option of nodes: add --node, or drop it" for flag in given]
    if values.get("backend") in REMOTE_BACKENDS:
        problems.append(
            f"--backend {values['backend']} sends queries to a server, but `serve` is a server itself: name a backend that "
            "runs the model here"
        )
    from harness.models.opened.loading import unknown_names

    config = make_config(values, [*problems, *unknown_names(values)])
    from harness.serve import job

    return job.serve(config, options)


def load_host(arguments: list[str]) -> int:
    parser = Parser(
        "load-host",
        "Act as a host for `run --load-hosts HOST:PORT,…`: issue part of the load for runs on other machines, one run "
        "at a time (docs/load-hosts.md). The data and the variables of --allow-env come from this machine.",
        "[options]",
    )
    default = "127.0.0.1:7100"
    parser.text(
        "--listen",
        "HOST:PORT",
        f"address to listen on (default {default}; port 0 takes a free port)",
    )
    parser.text(
        "--allow-env",
        "NAME",
        "environment variable that a run may send to a server with --header (repeatable; default none)",
        action="append",
    )
    texts, problems = read_options(parser, arguments)
    allowed = frozenset(texts.get("allow_env", ()))
    problems += [
        f"--allow-env {name}: the variable is not set: export it first"
        for name in sorted(allowed)
        if not os.environ.get(name)
    ]
    listen = Endpoint("", 0)
    try:
        listen = parse_endpoint(texts.get("listen", default), default)
    except ValueError as e:
        problems.append(f"--listen: {e}")
    from harness.errors import refuse

    refuse(problems)
    from harness.serve import load_host as host

    return host.serve(listen, allowed)


_OF_A_SERVER = ("header", "insecure", "request_timeout_ns")


def probe(arguments: list[str]) -> int:
    parser = Parser(
        "probe",
        "Describe a server: its round-trip time, its protocols, its models, and the requests that they accept. Each "
        "model receives one sample of zeros.",
        "URL [options]",
    )
    parser.text("url", "URL", "URL of the server, e.g. http://127.0.0.1:8000")
    group = parser.add_argument_group("server")
    fields = {field.name: field for field in visible_fields(RunConfig)}
    for name in _OF_A_SERVER:
        parser.add_option(group, fields[name])
    parser.add_option(group, fields["model"])
    parser.set_helps(
        {"model": "name of a model on the server (default: all models that the server lists)"}
    )
    parser.flag("--json", "print JSON")
    texts, problems = read_options(parser, arguments)
    model = texts.pop("model", None)
    as_json = bool(texts.pop("json", False))
    values = {"scenario": "offline", "backend": "kserve", **texts, "url": [texts["url"]]}
    config = make_config(config_from(values, "command line", problems), problems)
    from harness.errors import refuse
    from harness.models.opened.remote import server_problems
    from harness.serve import probe as server

    refuse(list(server_problems(config)))
    return server.probe(config, model, as_json=as_json)


def on(arguments: list[str]) -> int:
    parser = Parser(
        "on",
        "Run a verb on several whole nodes of a Ray cluster, and gather their results in one folder. With --share, "
        "the next free node takes the next value. After an interruption, the same command with the same --out "
        "continues.",
        "ray://HEAD --node-count N --out DIR -- VERB [options]",
        "ray://HEAD --node-count N --out DIR --share VALUES -- VERB [options]",
        notes="examples:\n  # the same sweep on two machines\n"
        f"  {program()} on ray://127.0.0.1 --node-count 2 --out fleet -- sweep --scenario server\n"
        "  # one grid, measured by two machines\n"
        f"  {program()} on ray://127.0.0.1 --node-count 2 --out grid --share 1,2,4 -- sweep --batch {{}}",
    )
    parser.text(
        "nodes", "ray://HEAD[:PORT]", "the cluster's head node, with the port of Ray's client"
    )
    parser.text("--node-count", "N", "use N nodes of the cluster", required=True)
    parser.text("--out", "DIR", "folder for the results of all nodes", required=True)
    parser.text(
        "--share",
        "VALUES",
        "run the command once per value, e.g. 1,2,4: the next free node runs it with {} replaced by the value",
    )
    end = arguments.index("--") if "--" in arguments else len(arguments)
    from harness.cluster import on_nodes

    if end and not arguments[0].startswith("-"):
        # A wrong address is reported first, even if there are options that `on` does not accept.
        on_nodes.ray_head(arguments[0])
    options = parser.parse_args(arguments[:end])
    nodes, count = on_nodes.parsed(options.nodes, options.node_count)
    values = options.share.split(",") if options.share is not None else ()
    return on_nodes.execute(nodes, count, arguments[end + 1 :], user_path(options.out), values)
