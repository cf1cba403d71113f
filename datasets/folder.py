"""Reads any folder of images. The labels come from the names of sub-folders or from labels.csv."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from harness.core.units import counted
from harness.datasets.parts.classes import class_names, numbered
from harness.datasets.parts.image.preprocessed import ImageDataset
from harness.datasets.parts.listing import Sample, plain, twice
from harness.datasets.parts.sources import given_folder, refuse
from harness.errors import ConfigError, say_once
from harness.types import Dataset, DatasetSetup

SUFFIXES = {
    *(".jpeg", ".jpg", ".jpe", ".jfif", ".jif"),
    *(".png", ".webp", ".bmp", ".dib", ".ppm", ".pgm", ".pbm", ".pnm"),
}
UNREAD = {
    *(".tif", ".tiff", ".gif", ".avif", ".heic", ".heif", ".jxl", ".jp2", ".j2k", ".jpx", ".svg"),
    *(".ico", ".tga", ".psd", ".dds", ".exr", ".hdr", ".dng", ".raw", ".apng", ".pcx"),
}
"""Suffixes of images that are refused, because not all decoders can read them or because a file may contain several
images.
"""

_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*", b"P5\n", b"P6\n")
"""The first bytes of image files. A file that begins with one of these strings counts as an image, even if its suffix
is unknown.
"""

_SHOWN_EMPTY = 5

_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]*)?")

_NOT_DATA = {"Thumbs.db", "desktop.ini", "__MACOSX", "@eaDir"}
"""Names of files and folders that file managers create. These files and folders are skipped, as are all names that
begin with a dot.
"""

LABELS = "labels.csv"
EXPECTED = f"one sub-folder of images per class, or images and {LABELS} (file,label)"


class FolderDataset(ImageDataset):
    """Images whose label is the number of a class. The sorted names of sub-folders are the classes 0, 1, ...

    The first line of labels.csv names the columns file and label. Labels are whole numbers or strings; the sorted
    strings are the classes 0, 1, ... The samples are in the order of labels.csv. Images that labels.csv does not list,
    and images with an unsupported format or suffix, are errors.
    """

    name = "folder"

    def __init__(self, setup: DatasetSetup) -> None:
        folder = given_folder(setup, self.name, f"a folder with {EXPECTED}")
        labels = folder / LABELS
        has_labels = labels.exists() or labels.is_symlink()
        samples = _from_csv(folder, labels) if has_labels else _from_folders(folder)
        if has_labels:
            self._class_names = class_names(sample.label for sample in samples)
        else:
            self._class_names = dict(enumerate(_classes(folder)))
        used = {sample.label for sample in samples}
        self._empty = [n for i, n in self._class_names.items() if not {i, n} & used]
        super().__init__(folder, samples, setup)

    def _notes(self) -> list[str]:
        empty = ", ".join(self._empty[:_SHOWN_EMPTY])
        count = counted(len(self._empty), "sub-folder")
        return [
            *([f"{count} without an image, e.g. {empty}"] if self._empty else []),
            *super()._notes(),
        ]

    def class_names(self) -> Mapping[int, str]:
        return self._class_names


def _classes(folder: Path) -> list[str]:
    """Returns the sorted names of the sub-folders."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not _is_skipped(p.name))


def _from_folders(folder: Path) -> list[Sample]:
    """Returns the samples, sorted by class and then by name."""
    entries = [p for p in folder.iterdir() if not _is_skipped(p.name)]
    refuse([f"{p} is a broken link: repair or remove it" for p in entries if _dangles(p)])
    classes = _classes(folder)
    loose = _images(folder, entries)
    if loose:
        raise ConfigError(
            f"{folder / loose[0]} has no label: put images in one sub-folder per class, or "
            f"write {folder / LABELS} with the columns file and label"
        )
    _check_order(folder, classes)
    inside = [sorted((folder / name).rglob("*")) for name in classes]
    refuse(say_once([*_unread(folder, entries), *_unread(folder, chain.from_iterable(inside))]))
    return [
        Sample(file, label) for label, paths in enumerate(inside) for file in _images(folder, paths)
    ]


def _check_order(folder: Path, classes: list[str]) -> None:
    """Refuses folder names that are numbers if their alphabetical order differs from the numerical order (10 before 2)."""
    if not all(_is_count(name) for name in classes):
        return
    for i, (name, by_number) in enumerate(zip(classes, sorted(classes, key=int), strict=True)):
        if int(name) != int(by_number):
            raise ConfigError(
                f"{folder}: its sub-folders are numbers, but in alphabetical order {name!r} would be class "
                f"{i}: pad them with zeros to the same length, or write {LABELS}"
            )


def _images(folder: Path, paths: Iterable[Path]) -> list[str]:
    """Returns the names of images. The names include broken links, which are reported later."""
    return sorted(
        name
        for p, name in _named(folder, paths)
        if p.suffix.lower() in SUFFIXES and (p.is_file() or _dangles(p))
    )


def _named(folder: Path, paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yields the paths that are not skipped, each with its name relative to the folder."""
    for path in paths:
        relative = path.relative_to(folder)
        if not any(map(_is_skipped, relative.parts)):
            yield path, relative.as_posix()


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in _NOT_DATA


def _unread(folder: Path, paths: Iterable[Path]) -> Iterator[str]:
    """Yields a problem for each image that cannot be read, and for each link to a folder."""
    advice = "convert it to JPEG or PNG, or move it away"
    for path, name in _named(folder, paths):
        suffix = path.suffix.lower()
        if path.is_dir():
            if path.is_symlink() and "/" in name:
                yield f"{path} is a link to a folder, and links are not followed: copy the folder"
        elif suffix in UNREAD:
            yield f"{path}: {suffix} is not supported: {advice}"
        elif suffix not in SUFFIXES and path.is_file() and _begins_as_image(path):
            yield f"{path} is an image without an image suffix: add one, e.g. .jpg"


def _begins_as_image(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(8).startswith(_BEGINNINGS)
    except OSError:
        return False


def _dangles(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _from_csv(folder: Path, path: Path) -> list[Sample]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, ValueError, csv.Error) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from e
    if not rows or not {"file", "label"} <= set(rows[0]):
        raise ConfigError(f"{path}: its first line must be file,label, then one line per image")
    labels = [(row["label"] or "").strip() for row in rows]
    are_numbers = all(_NUMBER.fullmatch(label) for label in labels if label)
    problems = [
        f"{path}, row {i} has the label {label!r}, which is not a class number: number the classes 0, 1, ..."
        if label
        else f"{path}, row {i} has no label"
        for i, label in enumerate(labels, 1)
        if not label or (are_numbers and not _is_count(label))
    ]
    files = [plain(row["file"] or "") for row in rows]
    problems += twice(f"{path} names", files)
    paths = sorted(folder.rglob("*"))
    unnamed = sorted(set(_images(folder, paths)) - set(files))
    problems += [
        f"{folder / name} is not in {path.name}: add it, or move it away" for name in unnamed
    ]
    refuse([*problems, *say_once([*_unread(folder, paths)])])
    classes = map(int, labels) if are_numbers else numbered(labels)
    return [Sample(file, label) for file, label in zip(files, classes, strict=True)]


def _is_count(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit()


_: type[Dataset] = FolderDataset
