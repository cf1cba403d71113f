"""Reads the --config files: the package's presets, the user's files, and the config.yaml files of runs."""

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from harness.cli.verbs import VERBS
from harness.core.config.options import option_key, user_path
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, config_from
from harness.errors import ConfigError

PRESETS = Path(__file__).parent / "presets"
CONFIG_FLAG = "--config"


class ConfigFile(NamedTuple):
    name: str
    """Name of the file on the command line."""
    is_of_run: bool
    """Whether the file is a run's config.yaml. Such a file contains every resolved option, not only the options that
    the user set.
    """
    keys: tuple[str, ...]
    """Keys of the run's options that the file sets."""
    values: dict[str, Any]
    """Values that the file sets, by field of RunConfig."""


class ConfigFiles(NamedTuple):
    """The --config files of a command line. A later file overrides an earlier one."""

    names: tuple[str, ...]
    files: tuple[ConfigFile, ...]
    own: dict[str, Any]
    """Values of the verb's options, by key, as on the command line."""
    notices: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{CONFIG_FLAG} {name}" for name in self.names)


def presets() -> dict[str, str]:
    """Maps the name of each preset to its purpose. The purpose is the first line of the preset."""
    files = sorted(PRESETS.glob("*.yaml"))
    return {p.stem: p.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for p in files}


def read(names: Sequence[str], own: Set[str], problems: list[str]) -> ConfigFiles:
    """Reads the files. Skips keys that only other verbs accept, and prints a notice about them. own: keys of the verb's
    options.
    """
    files: list[ConfigFile] = []
    of_verb: dict[str, Any] = {}
    notices: list[str] = []
    run = {option_key(field) for field in RunConfig.__dataclass_fields__.values()}
    for name in names:
        path = _place(name, notices)
        content = _content(path)
        others = content.keys() - run - own
        for key, verb in _of_other_verbs(others) if others else ():
            notices.append(f"{path}: {key} is skipped: it is an option of `{verb}`")
            del content[key]
        typed = {key: _as_typed(content.pop(key)) for key in own if key in content}
        of_verb |= {key: value for key, value in typed.items() if value not in (None, False)}
        values = config_from(content, str(path), problems)
        files.append(ConfigFile(name, is_of_run(path), tuple(content), values))
    return ConfigFiles(tuple(names), tuple(files), of_verb, tuple(notices))


def is_of_run(path: Path) -> bool:
    """Whether the path is a run's folder or the config.yaml in such a folder."""
    from harness.results.run_folder import CONFIG, RESULT

    return path.is_dir() or (path.name == CONFIG and (path.parent / RESULT).is_file())


def sources(names: Sequence[str]) -> dict[str, str]:
    """Maps the key of each option in the --config files to a description of the last file that sets it."""
    found: dict[str, str] = {}
    for name in names:
        path = _place(name, [])
        source = f"the preset {name}" if path.parent == PRESETS else str(path)
        found |= {key: source for key, value in _content(path).items() if value is not None}
    return found


def from_file(path: Path, problems: list[str]) -> dict[str, Any]:
    """Returns the fields of RunConfig that a YAML file, or the config.yaml in a run's folder, sets."""
    return config_from(_content(path), str(path), problems)


def _place(name: str, notices: list[str]) -> Path:
    preset = PRESETS / f"{name}.yaml"
    if not name.isidentifier() or not preset.is_file():
        path = user_path(name)
        if name.isidentifier() and not path.exists():
            raise ConfigError(
                f"{CONFIG_FLAG} {name} is neither a file nor a preset: the presets are {', '.join(presets())}"
            )
        return path
    if Path(name).exists():
        notices.append(f"{CONFIG_FLAG} {name} is the preset: write ./{name} for the file here")
    return preset


def _content(path: Path) -> dict[str, Any]:
    from harness.core import files
    from harness.core.formats.strict_yaml import load_yaml
    from harness.results import run_folder

    if path.is_dir():
        if not (path / run_folder.CONFIG).is_file():
            raise ConfigError(
                f"{CONFIG_FLAG}: {files.not_a_run(path, run_folder.CONFIG, run_folder.RESULT)}"
            )
        path /= run_folder.CONFIG
    content = load_yaml(path)
    if not isinstance(content, dict) or not all(isinstance(k, str) for k in content):
        raise ConfigError(f"{path} is not a configuration: it must map option names to values")
    version = content.pop("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema_version {version!r}, this harness reads up to {SCHEMA_VERSION}: "
            "update the harness"
        )
    return content


def _of_other_verbs(keys: Set[str]) -> Iterator[tuple[str, str]]:
    """Yields each key that is an option of another verb, and the name of that verb."""
    for name, verb in VERBS.items():
        parser = verb.parser()
        if parser.has(CONFIG_FLAG):
            yield from ((key, name) for key in sorted(keys & parser.fields.keys()))


def _as_typed(value: object) -> object:
    """Returns a YAML scalar, or each entry of a list, in the form that a user would type on the command line."""
    if isinstance(value, list):
        return [_as_typed(entry) for entry in value]
    return value if value is None or isinstance(value, bool | dict) else str(value)
