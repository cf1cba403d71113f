"""The command line of `advise`."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.config.options import (
    Parser,
    add_options,
    expanded,
    ignored_beside,
    parse_known,
    parse_values,
)
from harness.core.config.run_config import config_from
from harness.errors import ConfigError
from harness.explain.advise.options import AdviseOptions

_OF_A_RUN = ("model", "dataset", "data_dir", "input_shape")
"""Options that a run has, too, and that are parsed as a run's are."""


def options_of(arguments: list[str]) -> tuple[AdviseOptions, Mapping[str, Any]]:
    """The options, and of them those of a run as a run has them. A ConfigError with all that is wrong."""
    parser = Parser(
        prog="python -m harness advise",
        description="How far a model on ONNX Runtime is from what its layers could give, which "
        "settings would be faster and by how much, and whether they are: predicted from the layers "
        "alone, then measured. See docs/advise.md.",
        allow_abbrev=False,
    )
    add_options(parser, AdviseOptions)
    given = {k: v for k, v in vars(parse_known(parser, arguments)).items() if v is not None}
    problems: list[str] = given.pop("problems")
    values = parse_values(AdviseOptions, given, "command line", problems)
    of_a_run = {name: given[name] for name in _OF_A_RUN if name in given}
    run = {"backend": "ort", **config_from(of_a_run, "command line", problems)}
    problems += _problems(given, run)
    if problems:
        raise ConfigError("\n".join(problems))
    return AdviseOptions(**expanded(values)), run


def _problems(given: Mapping[str, object], run: Mapping[str, Any]) -> Iterator[str]:
    if "from" in given:
        yield from ignored_beside("from", given, ("json", "quiet"))
    elif "model" not in given:
        yield "advise needs --model (or --from, a folder it left)"
    else:
        from harness.models.opened.loading import missing_data, unknown_names

        yield from (*unknown_names(run), *missing_data(run.get("data_dir")))
