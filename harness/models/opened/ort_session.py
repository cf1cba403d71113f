"""Creates ONNX Runtime sessions with the settings of the backend `ort`.

Measurements outside a run (layers, bricks, int8 files, peak rates) use this module, so that they have the same settings
as a run. backends/ort.py is a plug-in and does not import this module. tests/models/opened/test_ort_session.py compares
the options of both modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.core.number_types import ORT_ARRAYS

GRAPH_LEVELS: Mapping[str, int] = {"off": 0, "basic": 1, "extended": 2, "all": 99}
"""Maps a value of the backend's option `graph` to onnxruntime.GraphOptimizationLevel. `extended` applies every fusion
but keeps the file's layout, NCHW. `all` adds the blocked layout, NCHWc.
"""

INTRA_OP_SPINNING = "session.intra_op.allow_spinning"
_INTER_OP_SPINNING = "session.inter_op.allow_spinning"
_ERRORS = 3
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """The session settings that affect a profile or a measurement. Results store these settings."""

    threads: int = 1
    """Number of threads per kernel. With `parallel`, the number of kernels that run at once, each on one thread."""
    graph: str = "all"
    """A key of GRAPH_LEVELS."""
    parallel: bool = False
    """Whether independent kernels run at the same time."""
    arena: bool = True
    """Whether ONNX Runtime keeps memory between calls."""
    provider: str = "CPUExecutionProvider"
    config: Mapping[str, str] = field(default_factory=lambda: {INTRA_OP_SPINNING: "0"})
    """Session configuration entries of ONNX Runtime, by key."""


def setup_of(
    options: Mapping[str, str],
    threads: int,
    *,
    owns_cores: bool = False,
    provider: str | None = None,
) -> SessionSetup:
    """Returns the session settings of the backend with these `options` (--backend-option).

    owns_cores: whether no other instance uses the cores, so that idle threads spin by default.
    """
    spinning = options.get("spinning", "auto")
    spins = spinning == "on" or (spinning == "auto" and owns_cores)
    config = {INTRA_OP_SPINNING: "1" if spins else "0"}
    if options.get("share_weights") == "on":
        config["session.disable_prepacking"] = "1"
    return SessionSetup(
        threads=threads,
        graph=options.get("graph", "all"),
        arena=options.get("arena", "on") == "on",
        provider=provider or "CPUExecutionProvider",
        config=config,
    )


def session_options(setup: SessionSetup) -> Any:
    """Returns onnxruntime.SessionOptions with these settings."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1 if setup.parallel else setup.threads
    options.inter_op_num_threads = setup.threads if setup.parallel else 1
    if setup.parallel:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.add_session_config_entry(_INTER_OP_SPINNING, setup.config[INTRA_OP_SPINNING])
    options.graph_optimization_level = ort.GraphOptimizationLevel(GRAPH_LEVELS[setup.graph])
    options.enable_cpu_mem_arena = setup.arena
    for key, value in setup.config.items():
        options.add_session_config_entry(key, value)
    return options


def open_session(
    model: Path | bytes,
    setup: SessionSetup | None = None,
    *,
    profile_prefix: Path | None = None,
    optimised: Path | None = None,
    sizes: Mapping[str, int] = _NOTHING,
    config: Mapping[str, str] = _NOTHING,
) -> Any:
    """Returns an onnxruntime.InferenceSession that never falls back to another provider.

    model: an ONNX file, or its content. setup: None for the backend's default setup with one thread. profile_prefix:
    enables ONNX Runtime's profiler, whose file names begin with this path. optimised: the file to which the optimised
    graph is written. sizes: sizes by symbolic dimension. config: entries in addition to the setup's entries. Raises the
    errors of ONNX Runtime, whose only common base class is Exception.
    """
    import onnxruntime as ort

    setup = setup or SessionSetup()
    options = session_options(setup)
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    ort.set_default_logger_severity(_ERRORS)
    content = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(content, options, providers=[setup.provider])
    session.disable_fallback()
    # Like the backend, the session requests only outputs that become arrays, and skips maps and sequences.
    arrays = [port for port in session.get_outputs() if port.type in ORT_ARRAYS]
    session._outputs_meta = arrays or session.get_outputs()  # noqa: SLF001 - it has no public way
    return session
