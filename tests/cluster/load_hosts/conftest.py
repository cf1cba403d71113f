"""Starts the server to which the load hosts send queries."""

from collections.abc import Iterator

import pytest

from tests.builders.serving import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("onnxruntime")
    with serving("digits", "--backend", "ort", "--max-batch", "16") as served:
        yield f"http://127.0.0.1:{served.port}"
