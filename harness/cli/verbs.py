"""The table of verbs, which is the source for dispatch, `--help`, docs/cli.md and the test of the README.

To add a verb, add a row to `VERBS`, and the function that this row names. The function must first create a `Parser`
(harness/cli/parser.py) and parse the words, because `Verb.parser` calls the function only to get its parser. The
function then imports the module that does the work, and returns the exit status. Because of this late import, `--help`
stays fast.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

from harness.cli.parser import Built, Parser, building
from harness.core.console import program
from harness.errors import ConfigError


class Verb(NamedTuple):
    target: str
    """The verb's function, as module:function in harness/cli. The function takes the words after the verb, and returns
    the exit status.
    """
    about: str
    """The verb's description in the list of verbs."""

    def __call__(self, arguments: list[str]) -> int:
        module, function = self.target.split(":")
        status: int = getattr(import_module(f"harness.cli.{module}"), function)(arguments)
        return status

    def parser(self) -> Parser:
        """Creates and returns the verb's parser, without parsing."""
        with building():
            try:
                self([])
            except Built as built:
                return built.parser
        raise AssertionError(f"{self.target} parses no words")


DEFAULT = "run"
"""The verb that runs if a command line begins with an option."""

HELP = "help"
"""The word before a topic: `help VERB` prints the page of `VERB --help`, and `help GROUP` prints one group of options
of `DEFAULT`.
"""

FRONT = ""
"""The name that `find` returns for the front page, which lists the verbs."""

VERBS: Mapping[str, Verb] = {
    DEFAULT: Verb("run:run", "measure one run: performance, accuracy, verdict (default)"),
    "peak": Verb("search:peak", "find the highest VALID rate under a latency bound"),
    "sweep": Verb("search:sweep", "measure latency against load, or a grid of batches and more"),
    "tune": Verb(
        "search:tune", "find the fastest combination of instances, threads and batch size"
    ),
    "overhead": Verb("search:overhead", "measure the cost of serving a model, part by part"),
    "profile": Verb("explain:profile", "show where a query's time goes, down to the kernels"),
    "advise": Verb("explain:advise", "find faster ONNX Runtime settings, and measure them"),
    "bricks": Verb("explain:bricks", "time the layer sequences that several models share"),
    "cold": Verb("explain:cold", "show how long a new process takes to answer, and why"),
    "pitfalls": Verb("explain:pitfalls", "show which mistakes in preparing inputs cost accuracy"),
    "machine": Verb(
        "explain:machine", "measure this machine's peak rates and its cost of moving data"
    ),
    "probe": Verb("run:probe", "describe a server and the requests that its models accept"),
    "serve": Verb("run:serve", "serve a model over HTTP, to measure the cost of serving"),
    "load-host": Verb("run:load_host", "issue part of the load for runs on other machines"),
    "compare": Verb("comparisons:compare", "show whether runs differ by more than noise"),
    "rerun": Verb("comparisons:rerun", "repeat a finished run here and compare the two"),
    "check": Verb("results:check", "recompute a run's verdict from its files"),
    "score": Verb("results:score", "score a run's answers again after its scoring program failed"),
    "publish": Verb("results:publish", "copy a run's folder without names, paths and passwords"),
    "export": Verb(
        "results:export", "export a run to Parquet, CSV, JUnit, MLflow or other formats"
    ),
    "report": Verb("results:report", "write an HTML page with plots of finished runs"),
    "runs": Verb("runs:runs", "list, export or plot the runs made here"),
    "browse": Verb("runs:browse", "show finished and live runs as local web pages"),
    "on": Verb("run:on", "run a verb on several machines and gather the results"),
    "list": Verb("data:list_names", "list backends, datasets, metrics, meters, models, or nodes"),
    "init": Verb("start.init:init", "write an options file, or the manifest of a model file"),
    "schema": Verb("start.schemas:schema", "print the JSON Schema of a file format, for editors"),
    "completion": Verb("start.completion:completion", "print the completion script for a shell"),
    "data check": Verb("data:check", "decode every sample of a dataset before a run"),
    "arrivals": Verb("data:arrivals", "write an arrival schedule for `run --arrivals`"),
    "dashboards": Verb("data:dashboards", "write the Grafana dashboard and the Prometheus rules"),
    "submit plan": Verb(
        "submit:plan", "list the runs that an MLPerf submission needs, and their state"
    ),
    "submit run": Verb("submit:run", "make the missing, stale and failed runs"),
    "submit pack": Verb("submit:pack", "write the submission folder from the finished runs"),
    "submit check": Verb(
        "submit:check", "check a submission folder against the rules of the round"
    ),
    "endpoints plan": Verb(
        "endpoints:plan", "list the points that an MLPerf Endpoints submission needs"
    ),
    "endpoints rehearse": Verb(
        "endpoints:rehearse", "measure the points with the harness's own client"
    ),
    "endpoints run": Verb("endpoints:run", "measure the missing points with the official client"),
    "endpoints witness": Verb(
        "endpoints:witness", "recompute the official client's numbers from its events"
    ),
    "endpoints pack": Verb("endpoints:pack", "write the submission tree from the witnessed points"),
    "endpoints check": Verb(
        "endpoints:check", "check a submission tree against the Endpoints rules"
    ),
}
"""Verbs by name, in the order in which they are listed. A name with two words belongs to a group of verbs."""


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the name of the verb or group, and the words that follow it. If an option comes first, the verb is
    `DEFAULT`.
    """
    if words and words[0] == HELP:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        return FRONT, [*words]
    if words[0].startswith("-"):
        return DEFAULT, [*words]
    first, *rest = words
    group = list(members(first))
    if group and not rest:
        raise ConfigError(f"{first} needs a verb: choose from {', '.join(group)}")
    if group and rest[0] in ("-h", "--help"):
        return first, rest
    name = f"{first} {rest.pop(0)}" if group else first
    if name not in VERBS:
        others = group or [*dict.fromkeys(verb.partition(" ")[0] for verb in VERBS)]
        last_words = {verb.rpartition(" ")[2]: verb for verb in others}
        near = get_close_matches(name.rpartition(" ")[2], last_words, n=1)
        hint = (
            f"did you mean {last_words[near[0]]!r}?" if near else f"choose from {', '.join(others)}"
        )
        raise ConfigError(f"no verb {name!r}: {hint}")
    return name, rest


def members(group: str) -> Iterable[str]:
    """Returns the verbs whose first word is `group`. Returns nothing if `group` is itself a verb."""
    return (name for name in VERBS if name.startswith(f"{group} "))


def verbs_with(flag: str) -> Iterable[str]:
    """Returns the verbs that accept an option."""
    return (name for name, verb in VERBS.items() if verb.parser().shows(flag))


Parser.verbs_with = staticmethod(verbs_with)


def verb_list(names: Iterable[str]) -> str:
    rows = {name: VERBS[name].about for name in names}
    width = max(map(len, rows))
    return "\n".join(["verbs:", *(f"  {name:<{width}}  {about}" for name, about in rows.items())])


def group_page(group: str) -> str:
    """Returns the help page for a group such as `submit`, which does nothing without a verb."""
    return (
        f"usage: {program()} {group} VERB [options]\n\n{verb_list(members(group))}\n\n"
        f"`{program()} {group} VERB --help` lists the options of a verb."
    )


def options_page(words: Sequence[str]) -> str | None:
    """Returns the page of `help GROUP`, or None if the words are not `help GROUP`."""
    if len(words) != 2 or words[0] != HELP or words[1] in VERBS or any(members(words[1])):
        return None
    return VERBS[DEFAULT].parser().groups().get(words[1].lower())
