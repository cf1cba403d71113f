"""Checks whether a model's numbers are reliable: compares reruns, and measures the harness's overhead and
micro-batches.

Source: Deep500 (Ben-Nun et al., IPDPS 2019), for variance over reruns, wrapper overhead and micro-batches.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from harness.core import registry
from harness.errors import one_line
from harness.explain.advise.checks.operators import errors
from harness.explain.advise.layers.settings import Setting
from harness.explain.advise.layers.timing import open_session, time_in_turns
from harness.explain.advise.subject import Job
from harness.explain.kernels import ort
from harness.models.opened.ort_session import SessionSetup
from harness.types import Array, Backend, BackendSetup, Batch

RERUNS = 10
_BATCH, _PARTS = 8, 4
_PAIRS = 15


def check(job: Job, _folder: Path) -> dict[str, Any]:
    session = open_session(job.path, job.now)
    checks = {
        "repeatability": repeatability(
            session, job.feeds, [port.name for port in session.get_outputs()]
        ),
        "overhead": overhead(job.path, job.subject.model.name, job.feeds, job.now),
    }
    del session
    feeds = {k: v[[i % len(v) for i in range(_BATCH)]] for k, v in job.feeds.items()}
    try:
        checks["micro_batches"] = _micro_batches(job.path, feeds, job.now)
    except Exception as e:  # noqa: BLE001 - a model with a fixed batch
        checks["micro_batches"] = {"failed": one_line(e) or type(e).__name__}
    return checks


def repeatability(session: Any, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Any]:
    """Makes RERUNS calls with the same input.

    For each output, returns the largest variance of any value, and the number of values that varied.
    """
    rows: list[dict[str, Any]] = []
    runs = [session.run(None, feeds) for _ in range(RERUNS)]
    for name, *values in zip(names, *runs, strict=True):
        arrays = [np.asarray(one) for one in values]
        first = arrays[0]
        if first.dtype.kind not in "fiub" or any(one.shape != first.shape for one in arrays):
            rows.append(
                {"output": name, "failed": "its values are not numbers, or its shape varies"}
            )
            continue
        stacked = np.stack(arrays)
        varies = (stacked != first).any(axis=0)
        variance = np.where(varies, stacked.var(axis=0, dtype=np.float64), 0.0)
        rows.append(
            {
                "output": name,
                "values": int(first.size),
                "varying": int(varies.sum()),
                "variance": float(np.max(variance, initial=0.0)),
            }
        )
    return {"reruns": RERUNS, "outputs": rows}


def overhead(path: Path, name: str, feeds: Mapping[str, Array], setting: Setting) -> dict[str, Any]:
    """Compares the time of a call to the backend `ort` with the time of a direct call to the session's `run`. Calls are
    made in pairs, with the setting's graph level and threads.
    """
    rows = len(next(iter(feeds.values())))
    cls = registry.load("backend", "ort")
    setup = BackendSetup(
        model=path,
        model_name=name,
        threads=setting.threads,
        max_batch=rows,
        options={"graph": setting.graph},
    )
    batch = Batch(rows, feeds)
    with ExitStack() as stack:
        backend: Backend = stack.enter_context(cls(setup))
        session = open_session(path, setting._replace(execution="sequential"))
        with_harness, bare = time_in_turns(
            lambda: backend.infer(batch), lambda: session.run(None, feeds), _PAIRS
        )
    return {"harness": with_harness, "bare": bare}


def _micro_batches(path: Path, feeds: Mapping[str, Array], setting: Setting) -> dict[str, Any]:
    """Compares one batch with the same samples in _PARTS smaller batches that run one after the other.
    feeds: one batch of _BATCH.
    """
    step = _BATCH // _PARTS
    parts = [
        {name: rows[at : at + step] for name, rows in feeds.items()}
        for at in range(0, _BATCH, step)
    ]
    session = open_session(path, setting)
    whole = session.run(None, feeds)
    pieces = [session.run(None, part) for part in parts]
    joined = [np.concatenate([piece[i] for piece in pieces]) for i in range(len(whole))]
    differences = [errors([b], [a]) for a, b in zip(whole, joined, strict=True)]
    at_once, in_parts = time_in_turns(
        lambda: session.run(None, feeds), lambda: [session.run(None, p) for p in parts], 5
    )
    return {
        "batch": _BATCH,
        "parts": _PARTS,
        "largest_difference": max(one.get("relative", np.inf) for one in differences),
        "peak_bytes": {
            "at_once": _peak_bytes(path, feeds, setting),
            "in_parts": _peak_bytes(path, parts[0], setting),
        },
        "at_once": at_once,
        "in_parts": in_parts,
    }


def _peak_bytes(path: Path, feeds: Mapping[str, Array], setting: Setting) -> int | None:
    """Returns the maximum number of bytes that the runtime's allocator used."""
    setup = SessionSetup(threads=setting.kernel.threads, graph=setting.graph)
    return ort.profile(path, feeds, runs=1, warm_up=1, setup=setup).peak_bytes
