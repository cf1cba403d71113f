"""What a manifest requires of the framework and of the machine, against what is here."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.core.extras import how_to_install_packages
from harness.machine import host
from harness.models.manifest.schema import Requires


class Here(NamedTuple):
    """The chosen backend's framework, memory, and the CPU's flags.

    framework: the module; distribution and version: what provides it, e.g. onnxruntime-gpu 1.31.1.
    None and empty: not known here, and then nothing is held against it.
    """

    framework: str | None
    distribution: str | None
    version: str | None
    ram_mb: int
    cpu_flags: frozenset[str]


def here(framework: str | None) -> Here:
    """framework: the module the backend needs; it is not imported."""
    ram_mb = host.available_memory_bytes() >> 20
    distribution, installed = _installed(framework)
    return Here(framework, distribution, installed, ram_mb, host.cpu_flags())


def problems(model: str, requires: Requires, found: Here) -> Iterator[str]:
    """One line each; nothing where all is well. model: its name, for the messages."""
    for framework, wanted in requires.frameworks.items():
        have = found.version if framework == found.framework else None
        if have is not None and not satisfies(have, wanted):
            advice = how_to_install_packages(f"{found.distribution}{wanted.replace(' ', '')}")
            yield f"model {model!r} requires {framework} {wanted}, {have} is installed: {advice}"
    if requires.ram_mb is not None and found.ram_mb < requires.ram_mb:
        yield (
            f"model {model!r} requires {requires.ram_mb:,} MiB of memory, {found.ram_mb:,} are "
            "free: close other programs, or run it on a larger machine"
        )
    missing = [f for f in requires.cpu_flags if found.cpu_flags and f not in found.cpu_flags]
    if missing:
        yield (
            f"model {model!r} requires a CPU with {', '.join(requires.cpu_flags)}, this one lacks "
            f"{', '.join(missing)}: run it on another machine"
        )


def satisfies(have: str, wanted: str) -> bool:
    """Whether a version lies in a range, by the rules of Python packages (PEP 440).

    have: of what follows its release (rc1, a0, +cpu) nothing counts: containers come with builds such
    as 2.6.0a0+ecf3bae of the release that a manifest means. One that is no such version is not held
    against the machine. wanted: e.g. ">=1.20, <2".
    """
    try:
        release = Version(have).base_version
    except InvalidVersion:
        return True
    return SpecifierSet(wanted).contains(release)


def _installed(module: str | None) -> tuple[str, str] | tuple[None, None]:
    """onnxruntime may come from onnxruntime-gpu, tensorflow from tensorflow-cpu."""
    for distribution in packages_distributions().get(module or "", ()):
        try:
            return distribution, version(distribution)
        except PackageNotFoundError:  # removed meanwhile
            continue
    return None, None
