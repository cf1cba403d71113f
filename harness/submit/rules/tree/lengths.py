"""Verifies the mean length of a language model's answers, as MLCommons' script in compliance/TEST09 does.

Source: mlcommons/inference b66003e, compliance/TEST09/README.md.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from harness.loadgen.logs import LoggedAnswer
from harness.submit.rules.tree.verify import FAIL, PASS

TEST09 = "TEST09"
OUTPUT = "verify_output_len.txt"
_LEAST, _MOST = "test09_min_output_tokens", "test09_max_output_tokens"
_TOKEN_BYTES = 4
"""Size of a token in bytes. The script treats every four bytes of an answer as a token."""

_RULE = "=" * 80


def verify_lengths(
    answers: Iterable[LoggedAnswer], dtype: str, settings: Mapping[str, int | float]
) -> str:
    """Returns the text about TEST09. dtype: type of the tokens in an answer. settings: from the benchmark's
    audit.config.

    The mean number of tokens must be within the bounds. This function is stricter than the script. It also fails if a
    query has no answer, if an answer has another type, or if the number of tokens in an answer differs from the number
    that LoadGen received.
    """
    least, most = settings[_LEAST], settings[_MOST]
    lengths, alike = [], np.dtype(dtype).itemsize == _TOKEN_BYTES
    for row in answers:
        lengths.append(len(row.answer.payload) // _TOKEN_BYTES)
        alike = alike and row.tokens in (None, lengths[-1])
    counts = np.array(lengths or [0])
    mean = float(counts.mean())
    checks = {"Min check pass": mean >= least, "Max check pass": mean <= most}
    enough = len(lengths) >= settings["min_query_count"]
    lines = [
        *(_RULE, "TEST09: Verify Output Token Length in Performance Mode", _RULE, ""),
        *("Output Token Length Statistics", "-" * 40),
        f"Total samples: {len(lengths)}",
        f"Mean output tokens: {mean:.2f}",
        f"Min output tokens: {counts.min()}",
        f"Max output tokens: {counts.max()}",
        f"Std deviation: {counts.std():.2f}",
        *("", _RULE, "Verification Results", _RULE),
        f"Mean output tokens: {mean:.2f}",
        f"Min threshold: {float(least)}",
        f"Max threshold: {float(most)}",
        *(f"{name}: {passed}" for name, passed in checks.items()),
        *([] if enough else [f"Samples check pass: False, {settings['min_query_count']} needed"]),
        *([] if alike else [f"Tokens check pass: False, of {dtype}"]),
        *("", PASS if all(checks.values()) and enough and alike else FAIL),
    ]
    return "\n".join(lines) + "\n"
