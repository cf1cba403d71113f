"""Lists the lines below a run's headline. Every place that shows an answer uses these lines. Has no side effects."""

from collections.abc import Mapping
from typing import Any

from harness.results import cost
from harness.results.answer.answer import answer_of
from harness.results.models import shown as models
from harness.results.real_time import shown as real_time
from harness.results.slos import shown as goodput
from harness.results.steady import shown as steady
from harness.results.tokens import by_model, cancellations, media, probes, ramp, sessions
from harness.results.tokens import shown as tokens


def answer_rows(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns a mapping from label to text, and leaves out empty texts. result: the content of result.json."""
    answer = answer_of(result)
    rows = {
        "accuracy": answer.accuracy if answer.accuracy != answer.headline else None,
        "tokens": tokens.shown(result),
        "sound": media.shown(result),
        "by model": by_model.shown(result),
        "sessions": sessions.shown(result),
        "probes": probes.shown(result),
        "cancelled": cancellations.shown(result),
        "ramp": ramp.shown(result),
        "goodput": goodput.shown(result),
        "cost": cost.shown(result.get("cost")),
        "models": models.shown(result),
        "real time": real_time.shown(result),
        "steady": steady.shown(result),
        "limited by": answer.limited_by,
        "doubts": answer.doubts,
        "advice": answer.advice,
    }
    return {label: text for label, text in rows.items() if text}
