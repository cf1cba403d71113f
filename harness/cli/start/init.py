"""The verb `init`, which writes a template for a --config file or for a manifest (--model)."""

import argparse
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.cli.parser import Parser
from harness.cli.start import schemas
from harness.cli.start.config_files import CONFIG_FLAG
from harness.cli.verbs import DEFAULT, VERBS
from harness.core.config.options import user_path
from harness.core.config.parse import NPM, PYPI, parse_input_shape
from harness.core.console import program, show
from harness.core.files import atomic_file, write_text
from harness.core.formats.strict_yaml import parse_yaml
from harness.errors import ConfigError

OPTIONS_FILE = Path("run.yaml")
_DEFAULT_VALUE = re.compile(r"\(default (\S+?)[);,]")
_COLUMNS = 100


def init(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.model is None:
        if options.input_shape or options.backend:
            raise ConfigError("--input-shape and --backend need --model FILE: add it")
        out = user_path(options.out or OPTIONS_FILE)
        text, kind = options_text(options.verb), "config"
    else:
        if options.verb != DEFAULT:
            raise ConfigError("a verb and --model make two different files: pass only one of them")
        (out, text), kind = _manifest_of(options), "manifest"
    schema = out.with_name(f"{kind}.schema.json")
    _write(out, f"# yaml-language-server: $schema={schema.name}\n{text}")
    write_text(schema, json.dumps(schemas.SCHEMAS[kind](), indent=1, ensure_ascii=False) + "\n")
    show(f"{out}, and next to it {schema.name}, which editors use to complete it")
    words = shlex.join(["--model" if options.model else CONFIG_FLAG, str(out)])
    verb = "" if options.verb == DEFAULT else f" {options.verb}"
    scenario = ""
    if options.model:
        manifest: Any = parse_yaml(text)
        backend = _backend_option(manifest, options.backend)
        scenario = f"{backend} --scenario offline{_prompt_options(manifest)}"
    show(f"{'try it':<12}{program()}{verb} {words}{scenario}")
    return 0


def _backend_option(manifest: Mapping[str, Any], chosen: str | None) -> str:
    """Returns the option for the backend that reads the manifest's file, or '' for the default backend. chosen: the
    value of `init --backend`.
    """
    from harness.models.manifest.formats import ONNX, USUAL_BACKEND

    (kind,) = manifest["files"]
    backend = chosen or USUAL_BACKEND[kind]
    return "" if backend == ONNX.backend else f" --backend {backend}"


def _prompt_options(manifest: Mapping[str, Any]) -> str:
    """Returns options that adapt synthetic prompts to the manifest's language model, or '' for other models."""
    if "generation" not in manifest:
        return ""
    values = (f"tokens=0:{manifest['generation']['vocabulary']}", "input=16", "output=16")
    return "".join(f" --dataset-option {value}" for value in values)


def _parser() -> Parser:
    parser = Parser(
        "init",
        "Write a template: every option of a verb with its meaning, for --config; or, with --model, the manifest of a "
        "model file with its inputs, types, shapes and checksums. Only the schema for editors, which lies next to the "
        "template, may be overwritten.",
        "[VERB] [--out FILE]",
        "--model FILE [options]",
    )
    parser.text(
        "verb", "VERB", "a verb that takes --config (default run)", nargs="?", default=DEFAULT
    )
    parser.text(
        "--model",
        "FILE",
        "a model file, the folder of a SavedModel or of an engine's files, or a file in a package, "
        "pypi:NAME==VERSION:PATH",
    )
    parser.text(
        "--input-shape",
        "NAME=1xDIM",
        "sizes of an input's symbolic dimensions, e.g. ids=1x128; a TorchScript file records no shapes "
        "and needs them (repeatable)",
        action="append",
        default=[],
    )
    parser.text(
        "--backend", "NAME", "framework that opens the model (default: set by the file's format)"
    )
    parser.text(
        "--out",
        "FILE",
        f"file to write (default {OPTIONS_FILE}; with --model, the model's name and .yaml)",
    )
    return parser


def _beside(model: Path) -> Path:
    return model.with_name(f"{model.name if model.is_dir() else model.stem}.yaml")


def _manifest_of(options: argparse.Namespace) -> tuple[Path, str]:
    """Returns the path and the text of the manifest for --model."""
    from harness.models.opened.template import manifest_of, manifest_of_package

    out = user_path(options.out) if options.out else None
    if options.model.startswith((PYPI, NPM)):
        out, text = manifest_of_package(options.model, out, _shapes(options), options.backend)
        return out, _with_title(options.model, text)
    model = user_path(options.model)
    if not model.exists():
        raise ConfigError(f"--model {model} does not exist: pass the path of a model file")
    out = out or _beside(model)
    shapes = _shapes(options)
    if out.exists():  # this check comes first, because the framework starts slowly
        raise ConfigError(
            f"{out} already exists and will not be overwritten: pass a different --out"
        )
    return out, _with_title(model.name, manifest_of(model, out, shapes, options.backend))


def _shapes(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    try:
        return dict(map(parse_input_shape, options.input_shape))
    except ValueError as e:
        raise ConfigError(f"--input-shape: {e}") from None


def _with_title(name: str, text: str) -> str:
    return f"# The manifest of {name}; docs/manifest.md explains each field.\n{text}"


def _write(path: Path, text: str) -> None:
    try:
        with atomic_file(path, new=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(
            f"{path} already exists and will not be overwritten: pass a different --out"
        ) from None
    except OSError as e:
        raise ConfigError(f"{path} cannot be written ({e.strerror}): pass a different --out") from e


def options_text(verb: str) -> str:
    """Returns all options that a file for the verb may contain, as comments. Sets a scenario only if the verb requires
    a scenario.
    """
    takers = [name for name, row in VERBS.items() if row.parser().has(CONFIG_FLAG)]
    if verb not in takers:
        raise ConfigError(f"init {verb}: choose from {', '.join(takers)}")
    return "\n".join(_option_lines(verb, VERBS[verb].parser())) + "\n"


def _option_lines(verb: str, parser: Parser) -> Iterator[str]:
    yield f"# Options of `{verb}`, for --config. Remove the # in front of a key to set it."
    for title, actions in parser.option_groups():
        yield f"\n# {title}"
        for action in actions:
            assert action.help is not None
            yield from textwrap.wrap(
                action.help,
                _COLUMNS,
                initial_indent="#   ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            if action.dest == "scenario" and "--scenario" in (parser.usage or ""):
                yield "scenario: server"
            else:
                yield f"# {action.dest}: {_shown(parser, action)}"


def _shown(parser: Parser, action: argparse.Action) -> str:
    """Returns the option's default from its help text, or else the placeholder for its value."""
    meta = parser.fields[action.dest].metadata
    if meta["flag"]:
        return "false"
    match = _DEFAULT_VALUE.search(action.help or "")
    value = match[1] if match else str(action.metavar)
    return f"[{value}]" if meta["many"] else value
