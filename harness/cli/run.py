"""The verb `run`: one run, or the same run several times."""

from harness.cli import many_runs
from harness.cli.parser import Parser
from harness.cli.run_options import invocation, read_run_options, run_parser
from harness.core.config.run_config import RunConfig
from harness.core.console import program
from harness.search.options import RepeatOptions

ABOUT = (
    "Measure one run: performance, accuracy and a verdict. With --repeats, measure the same run several "
    "times and report the spread."
)
DETAILS = "print every number, and the text of every doubt"
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
    from harness.run.supervisor.job import execute

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
