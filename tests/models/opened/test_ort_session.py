"""Sessions outside a run use the same options as the backend's own sessions; the test reads and compares the options."""

import ast
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.explain.advise.layers.settings import PARALLEL, Setting
from harness.models.manifest.model import MODELS_DIR
from harness.models.opened import ort_session
from harness.models.opened.ort_session import GRAPH_LEVELS, SessionSetup, open_session, setup_of
from harness.types import BackendSetup

ort = pytest.importorskip("onnxruntime")

DIGITS = MODELS_DIR / "digits.onnx"
ROOT = Path(__file__).parents[3]
CONFIG = (
    "session.intra_op.allow_spinning", "session.inter_op.allow_spinning",
    "session.disable_prepacking", "session.use_env_allocators",
)  # fmt: skip


def read_back(session: Any) -> dict[str, Any]:
    """Returns everything that ONNX Runtime reports about a session's options."""
    options = session.get_session_options()
    names = [n for n in dir(options) if not n.startswith("_") and not callable(getattr(options, n))]
    found = {name: getattr(options, name) for name in names}
    for key in CONFIG:
        try:
            found[key] = options.get_session_config_entry(key)
        except RuntimeError:
            found[key] = None
    return {**found, "providers": session.get_providers()}


@pytest.mark.parametrize("graph", GRAPH_LEVELS)
@pytest.mark.parametrize(
    ("spinning", "owns_cores", "arena", "share_weights", "threads"),
    [
        *product(("auto", "on", "off"), (False, True), ("on",), ("off",), (1,)),
        ("auto", False, "off", "off", 2),
        ("auto", False, "on", "on", 2),
    ],
)
def test_each_option_changes_the_session_as_in_the_backend(
    graph: str, spinning: str, owns_cores: bool, arena: str, share_weights: str, threads: int
) -> None:
    from harness.backends.ort import OrtBackend

    options = {"graph": graph, "spinning": spinning, "arena": arena, "share_weights": share_weights}
    setup = BackendSetup(
        model=DIGITS, model_name="digits", threads=threads, owns_cores=owns_cores, options=options
    )
    with OrtBackend(setup) as backend:
        theirs = read_back(backend._session)
    ours = open_session(DIGITS, setup_of(options, threads, owns_cores=owns_cores))
    assert read_back(ours) == theirs
    # The value depends on the test case, so it cannot be the default in both sessions.
    assert theirs["session.intra_op.allow_spinning"] == str(
        int(spinning == "on" or (spinning == "auto" and owns_cores))
    )


def test_session_without_options_has_the_defaults_of_the_backend() -> None:
    from harness.backends.ort import OrtBackend

    with OrtBackend(BackendSetup(model=DIGITS, model_name="digits", threads=1)) as backend:
        theirs = read_back(backend._session)
    assert read_back(open_session(DIGITS)) == theirs
    assert read_back(open_session(DIGITS.read_bytes(), Setting().session)) == theirs


def test_parallel_execution_has_a_thread_for_each_kernel() -> None:
    found = read_back(open_session(DIGITS, Setting(threads=2, execution=PARALLEL).session))
    assert (found["intra_op_num_threads"], found["inter_op_num_threads"]) == (1, 2)
    assert found["execution_mode"] == ort.ExecutionMode.ORT_PARALLEL
    assert found["session.inter_op.allow_spinning"] == "0"


def test_graph_levels_are_the_backends_and_onnx_runtimes() -> None:
    from harness.backends.ort import OrtBackend

    assert tuple(GRAPH_LEVELS)[::-1] == OrtBackend.options["graph"]
    for name, level in {"off": "DISABLE_ALL", "all": "ENABLE_ALL"}.items():
        assert ort.GraphOptimizationLevel(GRAPH_LEVELS[name]) == getattr(
            ort.GraphOptimizationLevel, f"ORT_{level}"
        )


def test_a_profiled_session_leaves_its_events_and_its_graph(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    session = open_session(
        DIGITS,
        SessionSetup(graph="extended"),
        profile_prefix=tmp_path / "events",
        optimised=tmp_path / "graph.onnx",
        sizes={"batch": 2},
        config={"session.use_env_allocators": "0"},
    )
    name = session.get_inputs()[0].name
    session.run(None, {name: np.zeros((2, 1, 8, 8), np.float32)})
    assert Path(session.end_profiling()).parent == tmp_path
    kinds = {node.op_type for node in onnx.load(tmp_path / "graph.onnx").graph.node}
    assert "FusedConv" in kinds  # FusedConv appears only at the level `extended`


def test_only_one_module_of_the_harness_makes_a_session() -> None:
    """A session made elsewhere would have different settings; only `machine`, which measures peaks, may make one.

    The worker of `cold` that shares weights may also make a session, because the worker changes how the backend makes
    sessions.
    """
    others = {"machine/characterise/arithmetic/libraries/ort.py", "explain/cold/sharing/adapt.py"}
    makers = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        if str(path.relative_to(ROOT / "harness")) in others:
            continue
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        makers += [path.name] if used & {"InferenceSession", "SessionOptions"} else []
    assert set(makers) == {Path(ort_session.__file__).name}
