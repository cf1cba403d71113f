"""Reads ImageNet's validation set in MLPerf's layout: a folder of images and val_map.txt.

The samples are in the order of val_map.txt, as in mlcommons/inference,
vision/classification_and_detection/python/imagenet.py (commit 270360d).
"""

from pathlib import Path

from harness.datasets.parts.image.preprocessed import ImageDataset
from harness.datasets.parts.listing import Sample, plain, twice
from harness.datasets.parts.sources import given_folder, refuse
from harness.errors import ConfigError
from harness.types import Dataset, DatasetSetup

LABELS = "val_map.txt"
_SUFFIXES = (".jpeg", ".jpg", ".jpe", ".jfif")
EXPECTED = f"{LABELS} (one line per image: its file name, a space, its class) and the images"


class ImagenetDataset(ImageDataset):
    """Images next to val_map.txt, or in a sub-folder val/. The label of an image is its class number in val_map.txt."""

    name = "imagenet"

    def __init__(self, setup: DatasetSetup) -> None:
        folder = given_folder(setup, self.name, f"a folder with {EXPECTED}")
        super().__init__(folder, _samples(folder), setup)


def _samples(folder: Path) -> list[Sample]:
    path = folder / LABELS
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; the dataset needs {EXPECTED}") from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    refuse(
        [
            f"{path}, line {number}: {' '.join(words)!r} is not a file name and a class"
            for number, words in rows
            if len(words) != 2 or not (words[1].isascii() and words[1].isdigit())
        ]
    )
    names = [plain(name) for _, (name, _) in rows]
    is_beside = not names or (folder / names[0]).exists()
    inside = "" if is_beside or not (folder / "val").is_dir() else "val/"
    problems = twice(f"{path} names", names)
    listed = {f"{inside}{name}" for name in names}
    unnamed = sorted(name for name in _jpegs(folder, inside) if name not in listed)
    problems += [f"{folder / name} is not in {LABELS}: add it, or move it away" for name in unnamed]
    refuse(problems)
    labels = [int(label) for _, (_, label) in rows]
    return [Sample(f"{inside}{name}", label) for name, label in zip(names, labels, strict=True)]


def _jpegs(folder: Path, inside: str) -> list[str]:
    return [
        f"{inside}{p.name}" for p in (folder / inside).iterdir() if p.suffix.lower() in _SUFFIXES
    ]


_: type[Dataset] = ImagenetDataset
