"""Writes the answers to the six questions as sentences. This module has no side effects."""

from collections.abc import Callable, Mapping, Sequence

from harness.core.units import counted, show_ns, show_percent
from harness.explain.advise.content import AccuracyCost, Content, Question
from harness.explain.advise.layers.settings import INT8
from harness.explain.advise.predict import CLOCKS, WORTH, Advice

FASTER = 0.05
"""A layer's gain under another setting is reported only if it is at least this share of the layer's time."""


def questions(advice: Content, ranked: Sequence[Advice]) -> list[Question]:
    """Returns an entry for each of the six questions, even if it contains no data. advice: the content of advise.json
    without the questions.
    """
    return [
        {"question": name, "asked": question, "answer": answer(advice, ranked)}
        for name, (question, answer) in _QUESTIONS.items()
    ]


def _ideal(advice: Content, _ranked: Sequence[Advice]) -> str:
    bound, clock = advice["lower_bound"], advice["lower_bound"]["clock"]
    measured = advice["measured"]
    model_ns = measured["cpu_ns"] if clock == "cpu" else measured["wall_ns"]
    text = (
        f"The layers alone take {show_ns(bound['sequential_ns'])}, the model "
        f"{show_ns(model_ns)} ({CLOCKS[clock]}): ratio {bound['ratio']:.2f}"
    )
    if bound["why_none"]:
        return f"{text}, no lower bound: {bound['why_none']}."
    gain = 1 / bound["ratio"] if bound["ratio"] else 1.0
    if gain <= 1:
        return f"{text}: these kernels, threads and precision allow no further gain."
    return f"{text}, so the model could be at most {gain:.2f} x faster with these kernels, threads and precision."


def _parallel(advice: Content, ranked: Sequence[Advice]) -> str:
    bound = advice["lower_bound"]
    limit = bound["sequential_ns"] / bound["parallel_ns"] if bound["parallel_ns"] else 1.0
    text = (
        f"The critical path has {len(bound['path'])} of {counted(bound['units'], 'layer')}: with enough workers, "
        f"the model could be at most {limit:.2f} x faster"
    )
    return f"{text}. {_best_setting('Q2', advice, ranked)}"


def _settings(advice: Content, ranked: Sequence[Advice]) -> str:
    slow = [
        row
        for row in advice["layers"]
        if row["now_ns"] and row["now_ns"] - row["best_ns"] >= FASTER * row["now_ns"]
    ]
    gain = sum(row["gain_ns"] or 0.0 for row in slow)
    text = (
        f"Another graph level makes {len(slow)} of {counted(len(advice['layers']), 'distinct layer')} at least "
        f"{show_percent(FASTER)} faster"
    )
    return f"{text}{f', which saves {show_ns(gain)} in total' if slow else ''}. {_best_setting('Q3', advice, ranked)}"


def _framework(advice: Content, _ranked: Sequence[Advice]) -> str:
    kernels = advice["kernels"]
    moving = sum(k["ns"] for k in kernels["unexpected"])
    text = (
        f"{counted(kernels['executed'], 'kernel')} run for {counted(kernels['nodes'], 'node')}; "
        f"{len(kernels['unexpected'])} of the kernels compute nothing ({show_ns(moving)}); "
        f"{show_ns(kernels['between_ns'])} of {show_ns(kernels['run_ns'])} passes between kernels."
    )
    spare = len(kernels["in_file"])
    return f"{text} {counted(spare, 'node')} of the file could be removed." if spare else text


def _fusion(advice: Content, ranked: Sequence[Advice]) -> str:
    levels = [
        f"{row['graph']} {counted(row['kernels'], 'kernel')} {show_ns(row['measured_ns'])}"
        for row in advice["levels"]
        if row["measured_ns"] is not None and row["kernels"] is not None
    ]
    return f"{', '.join(levels)}. {_best_setting('Q5', advice, ranked)}"


def _precision(advice: Content, ranked: Sequence[Advice]) -> str:
    accuracy = advice["accuracy"]
    if accuracy is None:
        return "no data: --vary does not include precision"
    if accuracy.get("quantised"):
        return f"The file {accuracy['failed']}: it is not quantised again."
    if accuracy.get("failed"):
        return f"no data: {accuracy['failed']}"
    one = next((a for a in ranked if a.setting.precision == INT8), None)
    text = _best_setting("Q6", advice, ranked) if one else "no data: no layer was measured in int8."
    broken = "" if not accuracy.get("broken") else f" Do not use it: {accuracy['broken']}."
    return f"{text} {accuracy_text(accuracy)}{broken}{_int8_here(advice['peaks'])}"


def _int8_here(peaks: Mapping[str, float]) -> str:
    """States the machine's int8 rate, if `machine` has stored its peaks."""
    if not {"int8_per_s", "flops_per_s"} <= peaks.keys():
        return ""
    ratio = peaks["int8_per_s"] / peaks["flops_per_s"]
    return f" Matrix products in int8 run at {ratio:.1f} times the fp32 rate on this machine."


def accuracy_text(accuracy: AccuracyCost) -> str:
    """Formats the accuracy, for example as `top1 99.20 % -> 98.80 % (500 samples), 99.4 % of the answers the same`."""
    same = (
        f"{show_percent(accuracy['agreement'], 1)} of {accuracy['samples']:,} answers are the same"
    )
    if accuracy["score"] is None:
        return f"Accuracy: not known ({accuracy['no_score']}); {same}."
    unit, metric = accuracy["unit"], accuracy["metric"]
    scores = f"{accuracy['own_score']:.2f} -> {accuracy['score']:.2f} {unit}"
    return f"Accuracy: {metric} {scores}; {same}."


def _best_setting(question: str, advice: Content, ranked: Sequence[Advice]) -> str:
    """States the best setting of a question, with predicted and realised gain."""
    mine = [a for a in ranked if a.question == question]
    if not mine:
        return _without_prediction(question, advice)
    best = max(mine, key=lambda a: a.gain)
    gain = show_percent(best.gain, 1, signed=True)
    if best.gain < WORTH:
        return f"No setting is predicted to gain {show_percent(WORTH)} ({best.change}: {gain})."
    realised = (
        f", realised {show_percent(best.realised.gain, 1, signed=True)}"
        if best.realised
        else ", not measured"
    )
    leave = " Do not use it: it was slower when measured." if best.verdict == "slower" else ""
    return f"{best.change}: predicted {gain}{realised} ({CLOCKS[best.clock]}).{leave}"


def _without_prediction(question: str, advice: Content) -> str:
    measured = [
        f"{one['change']} {show_percent(one['gain'], 1, signed=True)}"
        for one in advice["unpredicted"]
        if one["question"] == question
    ]
    if not measured:
        return "No data: no other setting was requested or could be measured."
    missing = ", ".join(advice["coverage"]["layers_missing"])
    return (
        f"No prediction: no layer could be measured alone ({missing}). Measured with the whole "
        f"model: {', '.join(measured)}."
    )


_Answer = Callable[[Content, Sequence[Advice]], str]
_QUESTIONS: Mapping[str, tuple[str, _Answer]] = {
    "Q1": ("How far is the model from the lower bound of its layers?", _ideal),
    "Q2": ("Would it help to run independent layers at once?", _parallel),
    "Q3": ("Does every layer run under its best setting?", _settings),
    "Q4": ("How much does the framework add to the layers?", _framework),
    "Q5": ("How much does fusion gain?", _fusion),
    "Q6": ("Would int8 be faster, and how much accuracy would it cost?", _precision),
}
