"""What another setting would give, from the times of single layers, and what it gave. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.explain.advise.layers.lower_bound import makespan_ns
from harness.explain.advise.layers.settings import INT8, PARALLEL, Setting
from harness.explain.advise.record import Realised, Record

WORTH = 0.02
"""Share of the time: a smaller gain is none."""

CREDIBLE = 1.02
"""Lower bound over measured: above it, it is none."""

WITHIN = 0.25
"""How far what was realised may lie from its prediction, of the predicted gain."""

MOST_DROP = 0.5
"""In the metric's unit, e.g. percentage points: int8 that costs more is not recommended."""


class Advice(NamedTuple):
    """question: Q2, Q3, Q5, Q6, or several for settings that change more than one thing.

    now_ns, predicted_ns: of the whole model on `clock`. needs: what a person must decide first,
    empty where nothing. accuracy: of another precision, as `advise_accuracy` gives it.
    """

    question: str
    setting: Setting
    change: str
    clock: str
    now_ns: float
    predicted_ns: float
    realised: Realised | None
    accuracy: Mapping[str, Any] | None
    needs: str

    @property
    def gain(self) -> float:
        """Predicted share of the time that is saved."""
        return 1 - self.predicted_ns / self.now_ns

    @property
    def within(self) -> bool | None:
        """Whether what was realised is what was predicted; None where nothing was predicted or done."""
        if self.realised is None or abs(self.gain) < WORTH:
            return None
        return abs(self.realised.gain / self.gain - 1) <= WITHIN

    @property
    def verdict(self) -> str:
        """faster or slower where the pairs' interval says so, else undecided; empty: not measured."""
        if self.realised is None:
            return ""
        if self.realised.low is not None and self.realised.low > 1:
            return "faster"
        return (
            "slower" if self.realised.high is not None and self.realised.high < 1 else "undecided"
        )

    def to_json(self) -> dict[str, Any]:
        realised = None
        if self.realised is not None:
            realised = {**self.realised._asdict(), "gain": self.realised.gain}
        derived = {
            "gain": self.gain,
            "within": self.within,
            "verdict": self.verdict,
            "realised": realised,
        }
        return {**self._asdict(), "setting": str(self.setting), **derived}


def predicted_ns(record: Record, setting: Setting) -> float | None:
    """Now, less what each layer takes less alone. None where no layer was measured so.

    All else of the whole model (layout changes between layers, the runtime's own time) stays as it
    is. In parallel, layers are placed on the workers as they become ready. Where the layers alone
    take longer than the model, as those of a few microseconds do under a profiler that counts them
    whole, what they save is scaled down alike.
    """
    cpu = record.uses_cpu(setting)
    own = (record.own_ns(s, cpu=cpu) for s in (record.now, setting))
    if not any(None not in pair for pair in zip(*own, strict=True)):
        return None
    before_ns = record.unit_ns(record.now, cpu=cpu)
    after_ns = record.unit_ns(setting, cpu=cpu)
    if setting.execution == PARALLEL:
        saved_ns = sum(before_ns) - makespan_ns(after_ns, record.needs, setting.threads)
    else:
        saved_ns = sum(before_ns) - sum(after_ns)
    now_ns = record.now_ns(cpu=cpu)
    return now_ns - saved_ns * min(1.0, now_ns / (sum(before_ns) or 1.0))


def advice(record: Record) -> list[Advice]:
    """Of every candidate with a prediction, the largest predicted gain first; what a person must
    decide comes after what can be done at once.
    """
    found = [one for s in record.candidates if (one := _advice(record, s)) is not None]
    return sorted(found, key=lambda a: (bool(a.needs), -a.gain))


def _advice(record: Record, setting: Setting) -> Advice | None:
    predicted = predicted_ns(record, setting)
    if predicted is None:
        return None
    cpu = record.uses_cpu(setting)
    accuracy = record.content["accuracy"] if setting.precision == INT8 else None
    return Advice(
        question_of(record.now, setting),
        setting,
        setting.changes(record.now),
        "cpu" if cpu else "wall",
        record.now_ns(cpu=cpu),
        predicted,
        record.realised(setting),
        accuracy,
        _needs(setting, accuracy),
    )


def top(ranked: list[Advice]) -> Advice | None:
    """The largest gain that can be had without deciding anything; None where nothing is worth it."""
    best = next((a for a in ranked if not a.needs), None)
    return best if best is not None and best.gain >= WORTH else None


def question_of(now: Setting, setting: Setting) -> str:
    """Which of the six it answers; several where it changes several things."""
    found = []
    if setting.execution != now.execution:
        found.append("Q2")
    layouts = {"all", "extended"}
    if setting.graph != now.graph:
        found.append("Q3" if {setting.graph, now.graph} == layouts else "Q5")
    if setting.threads != now.threads and setting.execution == now.execution:
        found.append("Q3")
    if setting.precision != now.precision:
        found.append("Q6")
    return "+".join(sorted(dict.fromkeys(found)))


_TOGETHER = ({"graph"}, {"threads", "execution"}, {"precision"})
"""Fields of a setting that are one choice."""


def combination(record: Record) -> Setting | None:
    """The best of each choice together, where more than one is predicted to gain; else None."""
    chosen, made = record.now, 0
    for one in advice(record):
        changed = {n for n in Setting._fields if getattr(one.setting, n) != getattr(record.now, n)}
        choice = next((fields for fields in _TOGETHER if changed <= fields), None)
        if choice is None or one.needs or one.gain < WORTH:
            continue
        if all(getattr(chosen, name) == getattr(record.now, name) for name in choice):
            chosen = chosen._replace(**{name: getattr(one.setting, name) for name in choice})
            made += 1
    return chosen if made > 1 else None


def _needs(setting: Setting, accuracy: Mapping[str, Any] | None) -> str:
    if setting.precision != INT8:
        return ""
    if accuracy is None or accuracy.get("failed"):
        return "what it costs in accuracy: it could not be measured"
    if accuracy.get("broken"):
        return f"nothing: leave it, {accuracy['broken']}"
    drop = accuracy.get("drop")
    if drop is None:
        return f"what it costs in accuracy: {accuracy['no_score']}"
    if drop > MOST_DROP:
        return f"whether {drop:.2f} {accuracy['unit']} of {accuracy['metric']} may be lost"
    return ""
