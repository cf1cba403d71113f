"""Writes small files in the real format of each dataset, and a model with a known score for each metric.

    python -m harness.models.build_examples OUT

The script needs the package `onnx`, and also writes Parquet and HuggingFace files if the packages for these formats are
installed. docs/datasets.md shows a run for each dataset. Each model applies the rule that generated its data, so the
score shows only whether the path from file to score is correct.
"""

import argparse
import json
import sys
import wave
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from harness.core.console import say
from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.types import Array

try:
    from harness.models import example_models as models
except PluginUnavailable as e:
    if __name__ != "__main__":
        raise
    say(str(e))
    sys.exit(e.exit_status)

COUNT = 24
COLOURS = ("red", "green", "blue")
CATEGORIES = (1, 18, 90)
"""The COCO class ids of the colours. The ids are not consecutive, because COCO's ids are not consecutive either."""

CITIES = ("oslo", "rome", "lima", "cairo", "delhi", "quito", "tunis", "hanoi")
ASIDES = ("where it often rains", "as everybody knows", "which is far away")
WORDS = ("the", "sky", "over", "is", "what", "colour", "today", "and", "people", "like", "it")
SENTENCES = ("THE SUN IS UP", "IT'S RAINING", "GO ON", "HELLO WORLD", "NO", "WE SAW A SHIP")
"""The transcripts of the recordings. The final letter of the last recording differs from the transcript."""


def pieces() -> list[str]:
    """Returns the texts' vocabulary, one entry per line of vocab.txt."""
    asides = {word for aside in ASIDES for word in aside.split()}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    return [*special, ".", "?", ",", *dict.fromkeys([*COLOURS, *CITIES, *WORDS, *sorted(asides)])]


def picture(bright: int) -> Array:
    """Returns an image of grey noise, twice as large as the model's input, in which one of six tiles is bright."""
    random = np.random.default_rng(bright)
    rows, columns = models.TILES
    side = 2 * models.TILE
    pixels = random.integers(20, 90, (rows * side, columns * side, 3), np.uint8)
    tile = bright % (rows * columns)
    top, left = side * (tile // columns), side * (tile % columns)
    pixels[top : top + side, left : left + side] += 140
    return pixels


def write_image(path: Path, pixels: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "JPEG", quality=95)


def write_images(out: Path) -> None:
    """Writes two datasets: `folder` contains a sub-folder per class, and `imagenet` contains val_map.txt and val/."""
    tiles = models.TILES[0] * models.TILES[1]
    lines = []
    for i in range(COUNT):
        write_image(out / f"folder/tile{i % tiles}/{i:02}.jpg", picture(i))
        name = f"ILSVRC2012_val_{i + 1:08}.JPEG"
        write_image(out / "imagenet/val" / name, picture(i))
        lines.append(f"{name} {i % tiles}\n")
    (out / "imagenet/val_map.txt").write_text("".join(lines), encoding="utf-8")


def write_coco(out: Path) -> None:
    """Writes images that contain up to three coloured tiles. Each tile is an object."""
    random = np.random.default_rng(0)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    side = models.GRID * models.TILE
    for i in range(1, COUNT + 1):
        pixels = np.zeros((side, side, 3), np.uint8)
        for tile in random.choice(models.GRID**2, i % 4, replace=False):
            top, left = (models.TILE * int(n) for n in divmod(tile, models.GRID))
            colour = int(random.integers(3))
            pixels[top : top + models.TILE, left : left + models.TILE, colour] = 255
            box = [left, top, models.TILE, models.TILE]
            one = {"image_id": i, "category_id": CATEGORIES[colour], "bbox": box, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "area": models.TILE**2, **one})
        name = f"{i:012}.jpg"
        write_image(out / "coco/val2017" / name, pixels)
        images.append({"id": i, "file_name": name, "height": side, "width": side})
    kinds = [{"id": c, "name": n} for c, n in zip(CATEGORIES, COLOURS, strict=True)]
    write_json(
        out / "coco/annotations/instances_val2017.json",
        {"images": images, "annotations": annotations, "categories": kinds},
    )


def write_json(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def weather() -> Iterator[tuple[str, str, str]]:
    """Yields (city, colour, sentence about the colour of the sky over the city)."""
    for i in range(COUNT):
        city, colour = CITIES[i % len(CITIES)], COLOURS[i % len(COLOURS)]
        aside = ASIDES[i % len(ASIDES)]
        yield city, colour, f"The sky over {city}, {aside}, is {colour} today. People like it."


def write_squad(out: Path) -> None:
    paragraphs = []
    for i, (city, colour, text) in enumerate(weather()):
        answer = {"text": colour, "answer_start": text.index(colour)}
        query = {"id": f"q{i}", "question": f"What colour is the sky over {city}?"}
        paragraphs.append({"context": text, "qas": [{**query, "answers": [answer]}]})
    data = [{"title": "weather", "paragraphs": paragraphs}]
    write_json(out / "squad/dev-v1.1.json", {"version": "1.1", "data": data})


def write_texts(out: Path) -> None:
    """Writes texts.csv, in which each summary resembles the first words of its text."""
    lines = ["text,label"]
    lines += [f'"{text}",the sky over {city} is {colour}' for city, colour, text in weather()]
    (out / "texts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_speech(out: Path) -> None:
    """Writes recordings in which each letter is represented by a tone. The loudness of the tone is the letter's
    position in SYMBOLS.
    """
    folder = out / "librispeech/7/3"
    folder.mkdir(parents=True, exist_ok=True)
    tone = np.sin(2 * np.pi * np.arange(models.SYMBOL_FRAMES) / 8)
    lines = []
    for i, sentence in enumerate(SENTENCES):
        spoken = sentence if i < len(SENTENCES) - 1 else sentence[:-1] + "N"
        levels = [models.SYMBOLS.index(letter) / models.LOUDEST for letter in spoken]
        samples = np.concatenate([level * tone for level in levels])
        with wave.open(str(folder / f"7-3-{i:04}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(models.RATE)
            file.writeframes((samples * 32767).astype("<i2").tobytes())
        lines.append(f"7-3-{i:04} {sentence}\n")
    (folder / "7-3.trans.txt").write_text("".join(lines), encoding="utf-8")


def write_vectors(out: Path) -> None:
    """Writes vectors.npz (inputs, with noisy outputs of the projection as labels), and the dataset `pairs` (two similar
    vectors per label).
    """
    random = np.random.default_rng(0)
    matrix = random.standard_normal((8, 4)).astype(np.float32)
    models.write_vectors(out, matrix)
    x = random.standard_normal((COUNT, 8)).astype(np.float32)
    right = x @ matrix + 0.1 * random.standard_normal((COUNT, 4))
    np.savez(out / "vectors.npz", x=x, labels=right)
    near = np.repeat(x, 2, axis=0) + 0.01 * random.standard_normal((2 * COUNT, 8))
    columns = {f"x{i}": near[:, i].tolist() for i in range(8)}
    labels = [i // 2 for i in range(2 * COUNT)]
    lines = [",".join([*columns, "label"])]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), labels, strict=True)]
    (out / "pairs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_tables(out, {**columns, "label": labels})


def write_tables(out: Path, columns: Mapping[str, list[float] | list[int]]) -> None:
    """Writes the columns of the dataset `pairs` in each table format whose package is installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(dict(columns)), out / "pairs.parquet")
    except ModuleNotFoundError:
        say(f"no {out}/pairs.parquet: {how_to_install('parquet')}")
    try:
        from datasets.arrow_dataset import Dataset  # noqa: TID251 - HuggingFace's

        Dataset.from_dict(dict(columns)).save_to_disk(str(out / "pairs"))
    except ModuleNotFoundError:
        say(f"no {out}/pairs/: {how_to_install('hf')}")


def write_volumes(out: Path) -> None:
    """Writes volumes with different shapes. The density of a voxel determines its label."""
    random = np.random.default_rng(0)
    for i in range(6):
        folder = out / f"kits/case_{i:05}"
        folder.mkdir(parents=True, exist_ok=True)
        classes = random.integers(0, 3, (4, 6, 6 + i), np.uint8)
        noise = random.uniform(-0.4, 0.4, classes.shape)
        np.save(folder / "imaging.npy", (classes + noise).astype(np.float32))
        np.save(folder / "segmentation.npy", classes)


def build(out: Path) -> None:
    """Writes all files into `out`, which may already exist."""
    out.mkdir(parents=True, exist_ok=True)
    (out / models.VOCABULARY).write_text("\n".join(pieces()) + "\n", encoding="utf-8")
    models.write_tiles(out)
    models.write_lights(out)
    models.write_spans(out, pieces(), COLOURS)
    models.write_summaries(out, pieces())
    models.write_letters(out)
    models.write_densities(out)
    for write in (write_images, write_coco, write_squad, write_texts, write_speech):
        write(out)
    write_vectors(out)
    write_volumes(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
