"""The verb `run`: one run, or the same run several times. Its help is the page of the whole program."""

from harness.cli import many_runs
from harness.cli.parser import Parser
from harness.cli.run_options import invocation, read_run_options, run_parser
from harness.cli.verbs import VERBS, verb_list
from harness.core.config.run_config import RunConfig
from harness.search.options import RepeatOptions

ABOUT = (
    "mlperf-harness measures how fast and how accurately a model answers under load. MLPerf LoadGen decides when "
    "each query arrives, the model answers on ONNX Runtime, TensorFlow, OpenVINO, LiteRT or PyTorch, "
    "and the run leaves a folder that can be repeated, compared and checked."
)
DETAILS = "print every number, and the text of every doubt"
EXAMPLES = """\
examples:
  # the embedded digits model under Poisson arrivals, at a demonstration rate
  python -m harness --scenario server --backend ort
  # any ONNX file on synthetic data, as many samples per second as possible
  python -m harness --scenario offline --model model.onnx --mode performance
  # the highest rate at which 99 % of the queries take at most 10 ms
  python -m harness peak --scenario server --slo p99=10ms
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
    from harness.run.supervisor.job import execute

    return execute(call.config, as_json=call.as_json, quiet=call.quiet, details=details)


def parser() -> Parser:
    parser = run_parser(
        "",
        ABOUT,
        ("[run] --scenario NAME [options]", "VERB [options]"),
        (RunConfig, RepeatOptions),
        f"{EXAMPLES}\n{verb_list(VERBS)}\n\n`python -m harness VERB --help` lists the options of a verb.",
    )
    parser.flag("--details", DETAILS)
    return parser
