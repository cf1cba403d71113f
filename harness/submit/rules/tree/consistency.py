"""Verifies that a language model's logged answers are consistent, as MLCommons' script in compliance/TEST06 does.

Source: mlcommons/inference b66003e, compliance/TEST06/README.md.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from harness.loadgen.logs import LoggedAnswer
from harness.results.agreement import decode

TEST06 = "TEST06"
CONSISTENT = "TEST06 verification complete"


DTYPES = ("int32", "int64", "int16")
"""Token types that the script accepts."""


def verify_consistency(
    answers: Iterable[LoggedAnswer], dtype: str, end_tokens: Sequence[int], scenario: str
) -> str:
    """Returns the text about TEST06. dtype: type of the tokens in an answer. scenario: name in the round.

    An answer must have as many tokens as LoadGen received, and may have one of end_tokens only at its end. In every
    scenario except Offline, an answer must also begin with the first token that LoadGen received earlier. The script
    accepts an answer whose first token was not reported, but this function does not.
    """
    begun_alike = ended_once = counted = True
    count = 0
    for row in answers:
        count += 1
        tokens = decode(row.answer.payload, dtype)
        first = decode(row.first_token or b"", dtype)
        begun_alike = begun_alike and len(first) > 0 and np.array_equal(tokens[: len(first)], first)
        counted = counted and row.tokens == len(tokens)
        last = tokens[1:][-2:]  # because the script skips the first token
        ended_once = ended_once and int(np.isin(last, end_tokens).sum()) < 2
    checks = {"EOS": ended_once, "Sample length": counted and count > 0}
    if scenario == "Offline":
        lines = ["First token check pass: Skipped"]
    else:
        checks = {"First token": begun_alike and count > 0, **checks}
        lines = []
    lines += [f"{name} check pass: {passed}" for name, passed in checks.items()]
    lines.append(CONSISTENT if all(checks.values()) else "TEST06 verification failed")
    return "\n".join(lines) + "\n"
