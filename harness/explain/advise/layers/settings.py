"""Defines the ONNX Runtime settings that `advise` compares."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.models.opened.ort_session import GRAPH_LEVELS, SessionSetup

AXES: Mapping[str, str] = {
    "graph": "optimisation level; all adds the blocked layout",
    "threads": "threads that share each kernel",
    "execution": "parallel: run independent kernels at the same time, one thread each",
    "precision": "int8: quantise the model, and measure the loss of accuracy",
}

FILE, INT8 = "file", "int8"
SEQUENTIAL, PARALLEL = "sequential", "parallel"


class Setting(NamedTuple):
    """One way to run the model.
    graph: one of GRAPH_LEVELS.
    threads: number of threads per kernel. With execution `parallel`, threads is the number of kernels that run at once,
    and each kernel uses one thread.
    precision: `file` (as stored) or `int8`.
    """

    graph: str = "all"
    threads: int = 1
    execution: str = SEQUENTIAL
    precision: str = FILE

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._asdict().items())

    @property
    def kernel(self) -> "Setting":
        """The setting under which a single kernel runs. In parallel execution, each kernel uses one thread."""
        if self.execution == PARALLEL:
            return self._replace(threads=1, execution=SEQUENTIAL)
        return self

    @property
    def session(self) -> SessionSetup:
        is_parallel = self.execution == PARALLEL
        return SessionSetup(threads=self.threads, graph=self.graph, parallel=is_parallel)

    def changes(self, now: "Setting") -> str:
        """Returns the fields that differ from `now`, such as `threads=2`."""
        pairs = zip(self._fields, self, now, strict=True)
        return " ".join(f"{name}={mine}" for name, mine, theirs in pairs if mine != theirs)


def parse_setting(text: str) -> Setting:
    """Parses str(setting); raises ValueError for any other text."""
    values = dict(part.split("=", 1) for part in text.split())
    if values.keys() != set(Setting._fields):
        raise ValueError(f"{text!r} is not a setting")
    return Setting(**{**values, "threads": int(values["threads"])})  # type: ignore[arg-type]


def candidates(now: Setting, axes: Sequence[str], cores: int) -> list[Setting]:
    """Returns every setting that differs from `now` in one of `axes`.

    cores: usable cores of this machine. With threads=N, parallel execution runs N kernels at once. Candidates with
    parallel execution use at least as many threads as cores.
    """
    return list(dict.fromkeys(s for s in _others(now, axes, cores) if s != now))


def _others(now: Setting, axes: Sequence[str], cores: int) -> Iterator[Setting]:
    if "graph" in axes:
        yield from (now._replace(graph=level) for level in GRAPH_LEVELS)
    if "threads" in axes:
        counts = {1, cores, *(2**i for i in range(cores.bit_length()) if 2**i <= cores)}
        yield from (now._replace(threads=n) for n in sorted(counts))
    if "execution" in axes:
        if now.execution == PARALLEL:
            yield now._replace(execution=SEQUENTIAL)
        elif max(cores, now.threads) > 1:
            yield now._replace(execution=PARALLEL, threads=max(cores, now.threads))
    if "precision" in axes and now.precision == FILE:
        yield now._replace(precision=INT8)
