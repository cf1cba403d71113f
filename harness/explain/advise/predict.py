"""Predicts the gain of other settings from the times of single layers, and compares the predicted gain with the
measured gain. This module has no side effects.
"""

from typing import NamedTuple, cast

from harness.explain.advise.content import AccuracyCost, AdviceEntry, Realised, Unpredicted
from harness.explain.advise.layers.settings import INT8, PARALLEL, Setting
from harness.explain.advise.record import RealisedGain, Record
from harness.explain.pieces.lower_bound import makespan_ns

WORTH = 0.02
"""A setting is recommended only if it saves at least this share of a call's time."""

CREDIBLE = 1.02
"""A lower bound is credible if it exceeds the measured time by at most this factor. A value that exceeds the measured
time by more than this factor is not a lower bound.
"""

CLOCKS = {"cpu": "CPU time", "wall": "wall time"}

WITHIN = 0.25
"""A realised gain agrees with its prediction if they differ by at most this share of the prediction."""

MOST_DROP = 0.5
"""int8 is recommended only if the accuracy loss is at most this value, in the metric's unit (such as percentage
points).
"""


class Advice(NamedTuple):
    """One candidate setting.
    question: Q2, Q3, Q5 or Q6; several if the setting changes several things.
    now_ns, predicted_ns: time of the whole model on `clock`. needs: the decision that the user must make first, or "".
    accuracy: accuracy cost of another precision, from accuracy.int8.
    """

    question: str
    setting: Setting
    change: str
    clock: str
    now_ns: float
    predicted_ns: float
    realised: RealisedGain | None
    accuracy: AccuracyCost | None
    needs: str

    @property
    def gain(self) -> float:
        """Predicted share of the time that is saved."""
        return 1 - self.predicted_ns / self.now_ns

    @property
    def within(self) -> bool | None:
        """Whether the realised gain agrees with the prediction; None if either is missing."""
        if self.realised is None or abs(self.gain) < WORTH:
            return None
        return abs(self.realised.gain / self.gain - 1) <= WITHIN

    @property
    def verdict(self) -> str:
        """`faster` or `slower` if the 95 % interval of the measured ratio lies on one side of 1, otherwise `undecided`;
        "" if the setting was not measured.
        """
        if self.realised is None:
            return ""
        low, high = self.realised.low, self.realised.high
        if low is not None and low > 1:
            return "faster"
        return "slower" if high is not None and high < 1 else "undecided"

    def to_json(self) -> AdviceEntry:
        realised = self.realised
        return {
            "question": self.question,
            "setting": str(self.setting),
            "change": self.change,
            "clock": self.clock,
            "now_ns": self.now_ns,
            "predicted_ns": self.predicted_ns,
            "realised": cast("Realised", {**realised._asdict(), "gain": realised.gain})
            if realised
            else None,
            "accuracy": self.accuracy,
            "needs": self.needs,
            "gain": self.gain,
            "within": self.within,
            "verdict": self.verdict,
        }


def predicted_ns(record: Record, setting: Setting) -> float | None:
    """Predicts the time of the model: the current time minus the time that each layer saves when it runs alone.

    Returns None if no layer was measured under this setting. The rest of the model's time (layout changes between
    layers, the runtime's overhead) is assumed to stay the same. In parallel execution, layers go to workers as they
    become ready. Layers that are measured alone can take longer in total than the model, for example if a profiler
    rounds short kernels to whole microseconds. If they do, all savings are scaled down by the same factor.
    """
    clock = record.clock(setting)
    own = (record.own_ns(s, clock) for s in (record.now, setting))
    if not any(None not in pair for pair in zip(*own, strict=True)):
        return None
    before_ns = record.unit_ns(record.now, clock)
    after_ns = record.unit_ns(setting, clock)
    if setting.execution == PARALLEL:
        saved_ns = sum(before_ns) - makespan_ns(after_ns, record.needs, setting.threads)
    else:
        saved_ns = sum(before_ns) - sum(after_ns)
    now_ns = record.now_ns(clock)
    return now_ns - saved_ns * min(1.0, now_ns / (sum(before_ns) or 1.0))


def advice(record: Record) -> list[Advice]:
    """Returns every candidate with a prediction, by descending gain. Candidates that need a decision by the user come
    last.
    """
    candidates = [one for s in record.candidates if (one := _advice(record, s)) is not None]
    return sorted(candidates, key=lambda a: (bool(a.needs), -a.gain))


def unpredicted(record: Record) -> list[Unpredicted]:
    """Returns the settings that were measured only on the whole model. gain: the realised gain."""
    return [
        {
            "question": question_of(record.now, setting),
            "change": setting.changes(record.now),
            "gain": realised.gain,
        }
        for setting in record.candidates
        if predicted_ns(record, setting) is None and (realised := record.realised(setting))
    ]


def _advice(record: Record, setting: Setting) -> Advice | None:
    predicted = predicted_ns(record, setting)
    if predicted is None:
        return None
    clock = record.clock(setting)
    accuracy = record.content["accuracy"] if setting.precision == INT8 else None
    return Advice(
        question_of(record.now, setting),
        setting,
        setting.changes(record.now),
        clock,
        record.now_ns(clock),
        predicted,
        record.realised(setting),
        accuracy,
        _needs(setting, accuracy),
    )


def top(ranked: list[Advice]) -> Advice | None:
    """Returns the advice with the largest predicted gain, or None if this gain is too small. Skips advice that needs a
    decision by the user, and advice that was slower in a measurement.
    """
    credible = (a for a in ranked if not a.needs and (a.realised is None or a.realised.gain > 0))
    best = next(credible, None)
    return best if best is not None and best.gain >= WORTH else None


def question_of(now: Setting, setting: Setting) -> str:
    """Returns the question that the setting answers, or several questions if the setting differs in several fields."""
    questions = []
    if setting.execution != now.execution:
        questions.append("Q2")
    layouts = {"all", "extended"}
    if setting.graph != now.graph:
        questions.append("Q3" if {setting.graph, now.graph} == layouts else "Q5")
    if setting.threads != now.threads and setting.execution == now.execution:
        questions.append("Q3")
    if setting.precision != now.precision:
        questions.append("Q6")
    return "+".join(sorted(dict.fromkeys(questions)))


_TOGETHER = ({"graph"}, {"threads", "execution"}, {"precision"})
"""Groups of setting fields that are chosen together."""


def combination(record: Record) -> Setting | None:
    """Combines the best settings of all choices. Returns None unless at least two choices have a predicted gain."""
    chosen, choices = record.now, 0
    for one in advice(record):
        changed = {n for n in Setting._fields if getattr(one.setting, n) != getattr(record.now, n)}
        choice = next((fields for fields in _TOGETHER if changed <= fields), None)
        if choice is None or one.needs or one.gain < WORTH:
            continue
        if all(getattr(chosen, name) == getattr(record.now, name) for name in choice):
            chosen = chosen._replace(**{name: getattr(one.setting, name) for name in choice})
            choices += 1
    return chosen if choices > 1 else None


def _needs(setting: Setting, accuracy: AccuracyCost | None) -> str:
    if setting.precision != INT8:
        return ""
    if accuracy is None or accuracy.get("failed"):
        return "whether its accuracy is acceptable: it could not be measured"
    if accuracy.get("broken"):
        return f"nothing: do not use it, because {accuracy['broken']}"
    drop = accuracy.get("drop")
    if drop is None:
        return f"whether its accuracy is acceptable (not measured: {accuracy['no_score']})"
    if drop > MOST_DROP:
        return f"whether {drop:.2f} {accuracy['unit']} of {accuracy['metric']} may be lost"
    return ""
