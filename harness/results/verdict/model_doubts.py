"""Derives doubts about a model, its backend and its answers. Has no side effects."""

import math
from collections.abc import Iterator

from harness.core.codes import Reason
from harness.core.units import show_percent
from harness.models.manifest import judge
from harness.models.manifest.model import Model
from harness.models.manifest.schema import Accuracy
from harness.results.evidence.evidence import Evidence
from harness.results.schema.performance import InputProbe, NotProbed
from harness.results.verdict.answers_check import FEWEST, LOGGED
from harness.results.verdict.busy import LEAST_BUSY
from harness.types import Score

CACHED_RATIO = 1.5
"""The run gets a doubt if the whole interval of one of the input probe's ratios lies above this value. Models that
compute every answer stay close to 1.
"""

PADDING_SHARE = 0.10
"""The run gets a doubt if a model with a fixed batch size computed more than this share of its rows as padding.
"""

BUSY_CORES = 0.5
"""A backend that hardly computed causes a doubt only if it kept fewer cores than this busy. The limit is half a core,
because instances of a very fast model wait for Python's lock while another instance computes.
"""

FEWEST_INFER_S = 0.1
"""A run is not judged if its batches together spent less time than this in the backend."""

NOISE_SIGMAS = 3
"""A score is too good if it exceeds the reference by more than this many standard deviations of a mean."""

TOLERATED_SHARE = 0.10
WIDEST_TOLERANCE = 0.10
"""The run gets a doubt if the manifest allows a share of differing answers above TOLERATED_SHARE, or a relative
difference between numbers above WIDEST_TOLERANCE.
"""

PERFECT_ERRORS = 3
"""The run gets a doubt if the score has no error although the reference predicts at least this many errors. By chance,
such a score occurs in only 5 % of cases.
"""


def idle(run: Evidence, infer_s: float) -> Iterator[Reason]:
    """Yields a doubt if a backend that runs on this machine's cores hardly computed.

    infer_s: total time of all batches in the backend.
    """
    used = run.ended["used"] if run.ended is not None else {}
    if "run_queue_s" not in used or infer_s < FEWEST_INFER_S:
        return
    busy_s = used["cpu_s"] + used["run_queue_s"]
    if busy_s < LEAST_BUSY * infer_s and busy_s < BUSY_CORES * used["wall_s"]:
        yield Reason(
            "idle",
            f"the batches took {infer_s:.2f} s in the backend, but all threads together computed or waited "
            f"for a core for only {busy_s:.2f} s: the backend was idle or waited for another program",
        )


def too_good(score: Score, target: Accuracy) -> Iterator[Reason]:
    """Judges a score on the manifest's dataset, metric and files.

    Numbers between 0 and 1 vary most if they are all 0 or 1, as for wrong and right answers.
    """
    if target.reference is None or target.metric != score.metric:
        return
    whole = 100.0 if score.unit == "%" else 1.0
    reference, value = target.reference / whole, score.value / whole
    better = reference - value if score.lower_is_better else value - reference
    noise = NOISE_SIGMAS * math.sqrt(max(0.0, reference * (1 - reference)) / score.samples)
    errors = score.samples * (reference if score.lower_is_better else 1 - reference)
    perfect = value <= 0 if score.lower_is_better else value >= 1
    if better > noise or (perfect and errors >= PERFECT_ERRORS):
        yield Reason(
            "too-good",
            f"accuracy {score.metric} is {score.value:.5g} {score.unit}, but the manifest "
            f"states {target.reference:g} {score.unit} for this model: answers may come from labels",
        )


def model_file(model: str, sha256: str | None, *, pinned: bool) -> Iterator[Reason]:
    """Yields a doubt if the model file is not pinned, which means that the manifest does not contain its SHA-256."""
    if not pinned:
        yield Reason(
            "model-not-pinned",
            f"the manifest of {model!r} does not state the SHA-256 of its file; the file that ran has "
            f"{str(sha256)[:12]}…: compare it with the publisher's SHA-256, then put it into a manifest",
        )


def padding(mean_batch: float, fixed_batch: int | None) -> Iterator[Reason]:
    """Yields a doubt if smaller batches are padded to the size that the model file fixes. Both arguments count samples."""
    if fixed_batch is not None and mean_batch < (1 - PADDING_SHARE) * fixed_batch:
        yield Reason(
            "padded",
            f"the model file fixes the batch at {fixed_batch}, but batches held {mean_batch:.1f} samples "
            f"on average: {show_percent(1 - mean_batch / fixed_batch)} of the work was padding; export the "
            "model with a symbolic batch dimension",
        )


def other_judge(model: Model) -> Iterator[Reason]:
    """Yields a doubt if the manifest judges by different values than the shipped manifest with the same name or file."""
    for name, differing in judge.differences(model):
        yield Reason(
            "judge-changed",
            f"the manifest has the name or the file of the shipped model {name!r}, but "
            f"{'; '.join(differing)}",
        )


_WHOLE = {"%": 100.0, "of 1": 1.0}
"""Maps a score's unit to the largest possible score, for scores that are shares."""


def weak_judge(target: Accuracy, score: Score | None, compared: int | None) -> Iterator[Reason]:
    """Yields a doubt if the target or a tolerance hides errors.

    compared: number of answers from the performance run that were compared; None without a comparison.
    """
    weak = []
    if score is not None and target.metric == score.metric:
        whole = _WHOLE.get(score.unit)
        if whole is not None and (
            target.target >= whole if score.lower_is_better else target.target <= 0
        ):
            weak.append(f"any score reaches the target {target.target:g} {score.unit}".rstrip())
    compared = compared or 0
    if compared >= FEWEST and target.sampling_tolerance > TOLERATED_SHARE * compared:
        weak.append(
            f"sampling_tolerance allows {target.sampling_tolerance:,} of {compared:,} compared answers to differ"
        )
    if target.tolerance > WIDEST_TOLERANCE:
        weak.append(
            f"tolerance accepts numbers that differ by {show_percent(target.tolerance)} as equal"
        )
    if weak:
        yield Reason("judge-weak", "; ".join(weak))


def unscored(target: Accuracy, metric: str | None, why: str, other_data: str) -> Iterator[Reason]:
    """Yields a doubt if the target was not checked.

    other_data: name of the dataset if it differs from the target's; otherwise empty.
    """
    goal = f"the manifest's target is {target.metric} {target.target:g}"
    if why:
        yield Reason("target-not-checked", f"{goal}, but nothing was scored: {why}")
    elif metric != target.metric:
        yield Reason("target-not-checked", f"{goal}, but the run was scored with {metric!r}")
    elif other_data:
        yield Reason("target-not-checked", f"{goal}, but the run used the dataset {other_data!r}")


def few_compared(answers: int, logged: int) -> Iterator[Reason]:
    """Yields a doubt if too few answers were compared.

    answers: number of compared answers. logged: number of answers that LoadGen should log, which is small if answers
    are large.
    """
    advice = "raise --duration or --queries"
    if logged < LOGGED:
        advice = f"LoadGen has memory for {logged} of these answers: add a postprocess step that shrinks them"
    if answers < FEWEST:
        yield Reason(
            "few-compared",
            f"only {answers} answers of the performance run were compared with the accuracy run's, but "
            f"{FEWEST} are needed: {advice}",
        )


def drawn_answers() -> Iterator[Reason]:
    yield Reason(
        "answers-drawn",
        "the requests have a temperature above 0 and no seed, so answers of the performance run cannot be compared "
        "with the accuracy run's: add a seed, or drop the temperature",
    )


def cached(probe: InputProbe | NotProbed | None) -> Iterator[Reason]:
    """Yields a doubt if changed inputs took longer than repeated inputs or raised an exception. In models with
    branches, changed inputs may also take longer for honest reasons.
    """
    if probe is None or "reason" in probe:
        return
    if probe["raised"]:
        yield Reason(
            "cached",
            "after the run, the backend raised an exception on a batch of exchanged or slightly changed inputs: "
            f"{probe['raised']}",
        )
    for ratio, when in ((probe["over_again"], "just before"), (probe["over_seen"], "in the run")):
        if ratio is not None and ratio[0] > CACHED_RATIO:
            yield Reason(
                "cached",
                f"a batch of slightly changed values took {ratio[1]:.3g} times as long as a batch that was answered "
                f"{when} (99 % interval {ratio[0]:.3g} to {ratio[2]:.3g}): the backend may cache answers by input; "
                "a model whose work depends on the values does the same",
            )
            return
