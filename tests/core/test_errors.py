"""Errors are printed as one line that begins with the cause."""

import time

import pytest

from harness.errors import one_line

_SIGNATURE = (
    "onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&, "
    "const std::unordered_map<std::__cxx11::basic_string<char>, int>&, const onnxruntime::ModelOptions&)"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            (
                "[ONNXRuntimeError] : 1 : FAIL : Load model from /a b/m.onnx failed:/src/core/graph/model.cc:256 "
                f"{_SIGNATURE} Unsupported model IR version: 99"
            ),
            "Unsupported model IR version: 99",
        ),
        (
            (
                "Exception during initialization: /src/string_normalizer.cc:235 onnxruntime::Locale::Locale(const "
                "std::string&)::<lambda()> Failed to construct locale"
            ),
            "Exception during initialization: Failed to construct locale",
        ),
        (
            "Deserialize tensor w failed.tensorprotoutils.cc:1876 GetExtData External initializer: w",
            "Deserialize tensor w failed. External initializer: w",
        ),
        ("Exception from src/cpp/core.cpp:132: Check 'false' failed at src/frontend.cpp:47: Unsupported type", "Unsupported type"),
        ("see net.h: line 3 of 9", "see net.h: line 3 of 9"),
        ("/src/core/graph/model.cc:256 f() ", "/src/core/graph/model.cc:256 f()"),
        ("", ""),
    ],
)  # fmt: skip
def test_places_in_a_framework_s_source_do_not_hide_the_cause(text: str, shown: str) -> None:
    assert one_line(RuntimeError(text)) == shown


def test_the_number_of_an_error_is_left_out() -> None:
    assert one_line(OSError(2, "No such file")) == "No such file"
    assert one_line("[Errno -2] Name or service not known") == "Name or service not known"


@pytest.mark.parametrize("text", ["/" * 1_000_000, "a.cc:1 " + "f(" * 500_000, "a, " * 300_000])
def test_a_long_text_is_read_in_time(text: str) -> None:
    begun_s = time.process_time()
    assert len(one_line(text)) <= 301
    assert time.process_time() - begun_s < 2
