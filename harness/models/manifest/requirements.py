"""Checks a manifest's requirements against the installed framework and this machine."""

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.core.extras import how_to_install_packages
from harness.machine import host
from harness.models.manifest.schema import Requires


class Environment(NamedTuple):
    """The framework of the chosen backend, and this machine. A value that is None or empty is unknown, and never causes
    a refusal.
    """

    framework: str | None
    """The module that the backend needs."""
    distribution: str | None
    """The package that provides the module, for example onnxruntime-gpu."""
    version: str | None
    """The version of the distribution."""
    ram_mb: int
    """Available memory, in MiB."""
    cpu_flags: frozenset[str]


def read_environment(framework: str | None) -> Environment:
    """Reads the version of the framework and the properties of this machine. framework: the module, which is not
    imported.
    """
    framework = framework.partition(".")[0] if framework else framework
    ram_mb = host.available_memory_bytes() >> 20
    distribution, installed = _installed(framework)
    return Environment(framework, distribution, installed, ram_mb, host.cpu_flags())


def problems(model: str, requires: Requires, environment: Environment) -> Iterator[str]:
    """Yields a line for each unmet requirement. model: the model's name, for the messages."""
    for framework, versions in requires.frameworks.items():
        installed = environment.version if framework == environment.framework else None
        if installed is not None and not satisfies(installed, versions):
            package = f"{environment.distribution}{versions.replace(' ', '')}"
            yield (
                f"model {model!r} requires {framework} {versions}, but {installed} is installed: "
                f"{how_to_install_packages(package)}"
            )
    if requires.ram_mb is not None and environment.ram_mb < requires.ram_mb:
        yield (
            f"model {model!r} requires {requires.ram_mb:,} MiB of memory, but only {environment.ram_mb:,} MiB are "
            "free: close other programs, or run it on a larger machine"
        )
    flags = environment.cpu_flags
    missing = [flag for flag in requires.cpu_flags if flags and flag not in flags]
    if missing:
        yield (
            f"model {model!r} requires a CPU with {', '.join(requires.cpu_flags)}, but this one lacks "
            f"{', '.join(missing)}: run it on a different machine"
        )


def satisfies(installed: str, versions: str) -> bool:
    """Returns whether a version lies in a range, according to the rules for Python packages (PEP 440).

    installed: the installed version, whose suffix (rc1, a0, +cpu) is ignored, because containers contain builds of a
    release with names such as 2.6.0a0+ecf3bae. A text that is not a version satisfies any range. versions: for example
    ">=1.20, <2".
    """
    try:
        release = Version(installed).base_version
    except InvalidVersion:
        return True
    return SpecifierSet(versions).contains(release)


def _installed(module: str | None) -> tuple[str, str] | tuple[None, None]:
    """Returns the name and the version of the distribution that provides a module. For example, onnxruntime may come
    from onnxruntime-gpu.
    """
    if not module:
        return None, None
    try:
        return module, version(module)
    # The search comes last, because searching for another distribution takes half a second.
    except PackageNotFoundError:
        for distribution in packages_distributions().get(module, ()):
            with suppress(
                PackageNotFoundError
            ):  # the distribution may have been removed since it was found
                return distribution, version(distribution)
    return None, None
