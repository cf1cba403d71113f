"""Scores images by their CLIP score and FID, with MLPerf's script accuracy_coco.py for Stable Diffusion XL.

The script runs unmodified in an environment that contains its neural networks and packages. The environment variable
IMAGE_SCORER contains the command, such as
`python ~/inference/text_to_image/tools/accuracy_coco.py --device gpu`.
"""

import io
import json
import math
import shutil
import tempfile
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.accuracy.parts import program
from harness.accuracy.parts.text import text_of
from harness.core.units import show_bytes
from harness.errors import UnusableAnswer, one_line
from harness.types import Answer, Metric, Score

SIDE = 1024
"""Width and height of an image in pixels."""

VARIABLE, SCRIPT = "IMAGE_SCORER", "accuracy_coco.py"
SCORES = ("CLIP_SCORE", "FID_SCORE")
_ROW_BYTES = 2 * SIDE * SIDE * 3
"""Size of an image in the log, in which each byte takes two hexadecimal digits."""

_PNG = b"\x89PNG\r\n\x1a\n"


class ClipFid(program.ScoredFiles):
    """Mean CLIP score of the images. The details also contain the FID, for which the rules set a lower and an upper
    limit.

    An answer is an image of 1024 x 1024 pixels: RGB in uint8, a PNG file, or a PNG file in base64. A label is the
    image's caption.
    """

    metric = "clip-fid"
    content = "images"
    variable = VARIABLE
    script = SCRIPT

    def check_labels(self, labels: Mapping[int, object]) -> None:
        """Also refuses a run if the disk is too full for the log that the script reads."""
        super().check_labels(labels)
        folder = tempfile.gettempdir()
        needed, free = len(labels) * _ROW_BYTES, shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"scoring {len(labels):,} images writes {show_bytes(needed)} into {folder}, which has "
                f"{show_bytes(free)} free: set TMPDIR to a folder on a larger disk"
            )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        scorer = self.program()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            total = program.write_log(folder / "mlperf_log_accuracy.json", _pixels(answers))
            _write_captions(folder / "captions.tsv", labels)
            program.run(
                scorer,
                [
                    *("--mlperf-accuracy-file", str(folder / "mlperf_log_accuracy.json")),
                    *("--caption-path", str(folder / "captions.tsv")),
                    *("--output-file", str(folder / "results.json")),
                ],
                folder,
            )
            scores = _scores(folder / "results.json")
        return Score(
            metric=self.metric,
            value=float(scores["CLIP_SCORE"]),
            unit="",
            samples=total,
            line=f"Accuracy Results: {scores}, scored by {scorer.version}",
            details={name.lower(): float(text) for name, text in scores.items()},
            scorer=scorer.scorer,
        )


def pixels_of(payload: bytes) -> bytes:
    """Returns an image's pixels as rows of RGB. The empty answer for a failed sample becomes a black image.

    Raises a ValueError if the payload is not an image.
    """
    expected = SIDE * SIDE * 3
    if not payload:
        return bytes(expected)
    if len(payload) == expected:
        return payload
    try:
        file = payload if payload.startswith(_PNG) else b64decode(payload, validate=True)
    except ValueError:
        file = b""
    if not file.startswith(_PNG):
        raise ValueError(f"it is neither RGB of {expected:,} bytes, nor PNG, nor PNG in base64")
    return np.asarray(_opened(file)).tobytes()


def _opened(file: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(file), formats=("PNG",)) as image:
        if image.size != (SIDE, SIDE):
            raise ValueError(f"it has {image.width} x {image.height} pixels")
        return image.convert("RGB")


def _pixels(answers: Iterable[Answer]) -> Iterator[tuple[int, bytes]]:
    """Yields each sample's number and pixels, one image at a time."""
    for index, payload in answers:
        try:
            pixels = pixels_of(payload)
        # Pillow raises these errors for a broken PNG.
        except (OSError, ValueError, SyntaxError) as e:
            what = f"an image of {SIDE} x {SIDE} pixels"
            raise UnusableAnswer(
                f"the answer to sample {index} is not {what}: {one_line(e)}"
            ) from e
        yield index, pixels


def _write_captions(path: Path, labels: Mapping[int, object]) -> None:
    """Writes the captions in the format that the script reads, where line i + 2 belongs to sample i."""
    rows = [text_of(i, labels[i]) if i in labels else "" for i in range(max(labels) + 1)]
    quoted = ('"{}"'.format(text.replace('"', '""')) for text in rows)
    path.write_text("caption\n" + "".join(f"{text}\n" for text in quoted), encoding="utf-8")


def _scores(path: Path) -> dict[str, str]:
    """Returns both scores as the script printed them. Raises a ValueError if the output does not contain the scores."""
    try:
        content = json.loads(path.read_bytes())
        scores = {name: str(content[name]) for name in ("FID_SCORE", "CLIP_SCORE")}
        is_finite = all(math.isfinite(float(text)) for text in scores.values())
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise ValueError(f"{SCRIPT} wrote no {' and '.join(SCORES)}") from e
    if not is_finite:
        raise ValueError(f"{SCRIPT} wrote scores that are not numbers: {scores}")
    return scores


_: type[Metric] = ClipFid
