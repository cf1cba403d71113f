"""Scores videos in six of VBench's dimensions, with MLPerf's script run_evaluation.py for Wan 2.2.

The script runs unmodified in an environment that contains its neural networks and packages. The environment variable
VIDEO_SCORER contains the command, such as `python ~/inference/text_to_video/wan-2.2-t2v-a14b/run_evaluation.py
--num-gpus 1`.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean

from harness.accuracy.parts import program
from harness.accuracy.parts.text import text_of
from harness.core.formats.video import video_of
from harness.errors import UnusableAnswer, one_line
from harness.types import Answer, Metric, Score

VARIABLE, SCRIPT = "VIDEO_SCORER", "run_evaluation.py"
DIMENSIONS = (
    "subject_consistency",
    "dynamic_degree",
    "motion_smoothness",
    "appearance_style",
    "scene",
    "background_consistency",
)
_MOST_NAME_BYTES = 255
"""Maximum length of a file name in ext4, XFS and other file systems; longer prompts are refused."""


class Vbench(program.ScoredFiles):
    """Mean of the six dimensions, in percent. The details contain each dimension's value.

    An answer is an MP4 file, an MP4 file in base64, or the path to an MP4 file on this machine. A label is the video's
    prompt.
    """

    metric = "vbench"
    content = "videos"
    variable = VARIABLE
    script = SCRIPT

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Also refuses a prompt that cannot be a file name, because VBench expects the video file to be named after the
        prompt.
        """
        super().check_labels(labels)
        for index, label in labels.items():
            name = _file_name(text_of(index, label), len(labels))
            if "\0" in name or len(name.encode()) > _MOST_NAME_BYTES:
                raise ValueError(
                    f"the prompt of sample {index} cannot be the file name of its video, which VBench expects: use a prompt "
                    f"of at most {_MOST_NAME_BYTES - len(_file_name('', len(labels)))} bytes without NUL"
                )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        scorer = self.program()
        with tempfile.TemporaryDirectory() as name:
            videos, out = Path(name) / "videos", Path(name) / "out"
            videos.mkdir()
            out.mkdir()
            total = _write_videos(videos, answers, labels)
            program.run(scorer, [f"--videos-path={videos}", f"--output-path={out}"], Path(name))
            dimensions = _dimensions(out)
        value = 100 * fmean(dimensions.values())
        shown = {"vbench_score": round(value, 4)}
        return Score(
            metric=self.metric,
            value=value,
            unit="%",
            samples=total,
            line=f"{shown}, scored by {scorer.version}",
            details={name: 100 * share for name, share in dimensions.items()},
            scorer=scorer.scorer,
        )


def _write_videos(folder: Path, answers: Iterable[Answer], labels: Mapping[int, object]) -> int:
    """Writes each video to PROMPT-NUMBER.mp4, the name that VBench expects. Returns the number of answers.

    Skips failed samples, which have no video; a run with failed samples is INVALID anyway.
    """
    used: Counter[str] = Counter()
    total = 0
    for index, payload in answers:
        total += 1
        if not payload:
            continue
        prompt = _plain(text_of(index, labels[index]))
        try:
            content = video_of(payload)
        except (OSError, ValueError) as e:
            raise UnusableAnswer(
                f"the answer to sample {index} is not a video: {one_line(e)}"
            ) from e
        (folder / _file_name(prompt, used[prompt])).write_bytes(content)
        used[prompt] += 1
    return total


def _file_name(prompt: str, number: int) -> str:
    return f"{_plain(prompt)}-{number}.mp4"


def _plain(prompt: str) -> str:
    return prompt.replace("/", "_")


def _dimensions(out: Path) -> dict[str, float]:
    """Returns each dimension's value from the newest results. Raises a ValueError if a dimension is missing."""
    files = sorted(out.glob("*_eval_results.json"))
    try:
        content = json.loads(files[-1].read_bytes())
        return {name: float(content[name][0]) for name in DIMENSIONS}
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise ValueError(f"{SCRIPT} wrote no results for {', '.join(DIMENSIONS)}") from e


_: type[Metric] = Vbench
