"""Small data sets for MLPerf's generative benchmarks, in the original formats, drawn from a seed, with known right
answers.
"""

import hashlib
import io
import json
import re
import struct
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RATE_HZ = 16_000
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "cats",
    "watch",
    "from",
    "under",
    "an",
    "old",
    "oak",
]
CATEGORIES = (
    "Home > Kitchen > Pans",
    "Home > Garden > Hoses",
    "Clothing > Shirts",
    "Toys > Trains",
)


def speech(
    folder: Path,
    count: int,
    seconds: float = 0.2,
    heard: Callable[[np.ndarray], str] | None = None,
) -> Mapping[str, str]:
    """Writes clips and their list in the format of MLPerf's download for Whisper; returns the texts by digest of the
    sound.

    heard: returns the right text for a sound (float32 in [-1, 1]); if omitted, the text is drawn at random.
    """
    draw = np.random.default_rng(1)
    sounds = folder / "dev-all-repack"
    sounds.mkdir(parents=True)
    entries, texts = [], {}
    for number in range(count):
        # Every value is odd, so that no sound ends in a zero.
        values = draw.integers(-3000, 3000, int(seconds * RATE_HZ)) | 1
        text = " ".join(draw.choice(WORDS, 6).tolist()) + f" {number}"
        if heard is not None:
            values = _chord(number, len(values))
            text = heard((values / 32768).astype(np.float32))
        path = sounds / f"{number}-1_0.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
            file.writeframes(struct.pack(f"<{len(values)}h", *values.tolist()))
        sound = values.astype("<i2").tobytes()
        texts[hashlib.sha256(sound.rstrip(b"\0")).hexdigest()] = text
        about = {"fname": f"/data/dev-all-repack/{path.name}", "speed": 1, "duration": seconds}
        entries.append({"transcript": text, "files": [about], "original_duration": seconds})
    (folder / "dev-all-repack.json").write_text(json.dumps(entries, indent=2))
    return texts


def _chord(number: int, length: int) -> np.ndarray:
    times_s = np.arange(length) / RATE_HZ
    waves = [
        np.sin(2 * np.pi * 110 * (number % 9 + 1) * harmonic * times_s) for harmonic in (1, 2, 3)
    ]
    return np.rint(6000 * np.minimum(1, times_s * (number + 1)) * sum(waves)).astype(np.int64) | 1


def coco(folder: Path, count: int) -> None:
    """Writes captions in the format of MLPerf's download of COCO 2014."""
    path = folder / "captions/captions.tsv"
    path.parent.mkdir(parents=True)
    head = "id\timage_id\tcaption\theight\twidth\tfile_name\tcoco_url\n"
    rows = [
        f'{i}\t{i}\t"A ""{WORDS[i % 16]}"" picture {i}."\t480\t640\t{i}.jpg\tu\n'
        for i in range(count)
    ]
    path.write_text(head + "".join(rows))


def prompts(path: Path, count: int) -> None:
    """Writes video prompts, one per line."""
    path.write_text("".join(f"a {WORDS[i % 16]} in scene {i}\n" for i in range(count)))


def products(folder: Path, count: int, rows_per_group: int = 5) -> Callable[[Any], str]:
    """Writes products in the format of the Hugging Face Hub, in two splits. Returns a function that answers a chat and
    is wrong for a tenth of the samples.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for i in range(count):
        picture = io.BytesIO()
        kind = ("JPEG", "PNG")[i % 2]
        Image.new("RGB", (8, 8), (i % 256, 90, 10)).save(picture, format=kind)
        rows.append(
            {
                "product_title": f"Product {i}",
                "product_description": f'<p>"Soft" & {WORDS[i % 16]}</p>',
                "product_image": {"bytes": picture.getvalue(), "path": None},
                "potential_product_categories": list(CATEGORIES),
                "ground_truth_category": CATEGORIES[i % 4],
                "ground_truth_brand": f"brand {i % 7}",
                "ground_truth_is_secondhand": i % 3 == 0,
            }
        )
    data = folder / "data"
    data.mkdir(parents=True)
    half = count * 2 // 3
    for name, part in (("train", rows[:half]), ("test", rows[half:])):
        table = pa.Table.from_pylist(part)
        pq.write_table(
            table, data / f"{name}-00000-of-00001.parquet", row_group_size=rows_per_group
        )

    def right(asked: Any) -> str:
        text = asked["messages"][1]["content"][0]["text"]
        row = rows[int(text.split("Product ", 1)[1].split("\n", 1)[0])]
        number = int(row["product_title"].split()[1])
        category = str(row["ground_truth_category"])
        if number % 10 == 9:
            category = "Other"
        answer = {"category": category, "brand": row["ground_truth_brand"], "is_secondhand": False}
        return json.dumps(answer)

    return right


def functions(folder: Path, sizes: Mapping[str, int]) -> Callable[[Any], Any]:
    """Writes BFCL's files. sizes: number of samples by subset. Returns a function that answers a chat and is wrong for
    a tenth of the samples.
    """
    answers = folder / "possible_answer"
    answers.mkdir(parents=True)
    for subset, count in sizes.items():
        called = "irrelevance" not in subset
        several = 2 if "parallel" in subset else 1
        asked, right = [], []
        for i in range(count):
            parameters = {
                "type": "dict",
                "properties": {"number": {"type": _type_of(subset), "description": "n"}},
                "required": ["number"],
            }
            function = {"name": "math.double", "description": "Doubles.", "parameters": parameters}
            other = {**function, "name": "math.half"}
            text = f"Call {i} of {subset}" if called else f"Sing {i} of {subset}"
            question = [[{"role": "user", "content": text}]]
            offered = [other, function] if "multiple" in subset else [function]
            asked.append({"id": f"{subset}_{i}", "question": question, "function": offered})
            wanted = [_wanted(subset, i + n) for n in range(several)]
            truth = [{"math.double": {"number": [value]}} for value in wanted]
            right.append({"id": f"{subset}_{i}", "ground_truth": truth})
        name = f"BFCL_v4_{subset}.json"
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in asked))
        if called:
            (answers / name).write_text("".join(json.dumps(row) + "\n" for row in right))

    def answer(request: Any) -> Any:
        known = re.fullmatch(r"Call (\d+) of (\w+)", request["messages"][0]["content"])
        names = [tool["function"]["name"] for tool in request["tools"]]
        assert "math_double" in names
        if known is None:
            return "I cannot sing."
        number, subset = known.groups()
        first = int(number) + (1 if int(number) % 10 == 9 else 0)
        count = 2 if "parallel" in subset else 1
        given = [_given(subset, first + n) for n in range(count)]
        return [("math_double", {"number": value}) for value in given]

    return answer


def _type_of(subset: str) -> str:
    return "long" if subset == "simple_java" else "integer"


def _wanted(_subset: str, number: int) -> int:
    return number


def _given(subset: str, number: int) -> Any:
    """Returns the arguments of a call; in Java and JavaScript they are source text."""
    return {"simple_java": f"{number}L", "simple_javascript": str(number)}.get(subset, number)
