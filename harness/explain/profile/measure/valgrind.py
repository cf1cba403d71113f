"""Simulates a call with valgrind to count instructions and cache misses without hardware counters.

The simulation is at least fifty times slower than the call, but other programs on the machine do not change the counts.
The result differs from a measurement, because caches do not prefetch, threads run one at a time, and vector
instructions that valgrind does not support are not used.

Source: Valgrind user manual, Callgrind (cache simulation, options) and "Callgrind Format
Specification".
"""

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.child import call
from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.core.files import reading
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.loadgen.plan import InstanceGroup

CALLS = 2
"""This many calls are counted after a warm-up call. The counts differ by a few per cent, because each call allocates
memory again.
"""

INSTRUCTIONS = "Ir"
_MARK = "getpgrp"
"""A C function that only this module calls. valgrind writes its counts whenever this function begins."""

_OPTIONS = (
    "--tool=callgrind",
    "--cache-sim=yes",
    f"--dump-before={_MARK}",
    "--compress-strings=no",
    "--dump-line=no",
)
_COST = re.compile(r"[+*0-9-]\S* (\d+)")


class Dump(NamedTuple):
    """The code that ran between two marks.
    counts: counts by callgrind event name.
    libraries: number of instructions by file name. The name is "" for code outside files.
    caches: valgrind's descriptions of the caches.
    """

    counts: Mapping[str, int]
    libraries: Mapping[str, int]
    caches: tuple[str, ...]


def simulate(config: RunConfig, dataset: str, spec: InstanceGroup, folder: Path) -> dict[str, Any]:
    """Returns an entry per counted call.

    folder: place for the logs of valgrind and of the simulated process. Raises PluginUnavailable if valgrind is not
    installed, or if it cannot run this model's framework.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise PluginUnavailable("not supported: valgrind is not on the PATH")
    with tempfile.TemporaryDirectory(prefix="harness-valgrind-") as name:
        out = Path(name) / "counts"
        request = {"config": to_plain(config), "dataset": dataset, "spec": list(spec)}
        under = (valgrind, *_OPTIONS, f"--callgrind-out-file={out}")
        try:
            seen = call(f"{__name__}:calls", request, folder / "valgrind.log", under=under)
            dumps = _of_calls(out)
        except HarnessError as e:
            raise PluginUnavailable(f"not simulated: {one_line(e)}") from e
    return {
        "calls": [{"counts": d.counts, "libraries": d.libraries} for d in dumps],
        "caches": dumps[0].caches,
        "not_simulated": sorted(set(vector_extensions()) - set(seen["vector_extensions"])),
    }


def _of_calls(out: Path) -> list[Dump]:
    """Reads the counts of the calls. Output 1 covers the time before the first mark. The unnumbered output covers the
    time after the last mark.
    """
    count = len(list(out.parent.glob(f"{out.name}.*")))
    if count != CALLS + 1:
        raise ConfigError(f"valgrind wrote {count} outputs for {CALLS} calls")
    return [read_dump(out.with_suffix(f".{i + 2}")) for i in range(CALLS)]


def calls(request: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the calls under valgrind, with a mark before each call and after the last call."""
    from harness.explain.profile.measure.measure import opened
    from harness.models.manifest.lookup import load_model

    config = from_plain(request["config"])
    spec = InstanceGroup(*request["spec"])
    with ExitStack() as stack:
        model = load_model(config.model)
        subject = opened(config, model, request["dataset"], spec, spec.max_batch, stack)
        infer = partial(subject.backend.infer, subject.batch(spec.max_batch))
        infer()
        for _ in range(CALLS):
            os.getpgrp()
            infer()
        os.getpgrp()
    return {"vector_extensions": vector_extensions()}


def vector_extensions() -> list[str]:
    """Returns the CPU extensions beyond numpy's baseline that this process can use. Under valgrind, these are the
    simulated extensions.
    """
    numpy_config: Any = np.show_config(mode="dicts")
    return list(numpy_config["SIMD Extensions"]["found"])


def read_dump(path: Path) -> Dump:
    """Reads a dump. Raises ConfigError if the file is missing or its lines do not add up to its total."""
    with reading(f"{path.name} is not callgrind output", also=(OSError,)):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        header = dict(
            line.split(": ", 1) for line in lines if re.match(r"(events|summary): ", line)
        )
        events = header["events"].split()
        values = [int(word) for word in header["summary"].split()]
        values += [0] * (len(events) - len(values))  # because callgrind omits trailing zeros
        counts = dict(zip(events, values, strict=True))
        whole = counts[INSTRUCTIONS]
    libraries: Counter[str] = Counter()
    for library, cost in _own_costs(lines):
        libraries[library] += cost
    if abs(libraries.total() - whole) > 1e-4 * whole:
        raise ConfigError(
            f"{path.name}: its lines add up to {libraries.total():,} instructions, but its summary has {whole:,}"
        )
    caches = (line.removeprefix("desc: ") for line in lines if re.match(r"desc: \w+ cache: ", line))
    return Dump(counts, dict(libraries.most_common()), tuple(caches))


def _own_costs(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Yields the library and number of instructions of each cost line. The cost of a call is counted for the called
    function.
    """
    library, is_of_a_call = "", False
    for line in lines:
        if line.startswith("ob="):
            name = line.removeprefix("ob=")
            library = "" if name == "???" else Path(name).name
        elif line.startswith("calls="):
            is_of_a_call = True
        elif cost := _COST.match(line):
            if not is_of_a_call:
                yield library, int(cost[1])
            is_of_a_call = False
