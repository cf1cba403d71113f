"""Breaks a file in ways drawn from a seed, as text, JSON, YAML, arrays or bytes."""

import copy
import io
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import yaml

_WORDS = (
    *b'null true -1 0 1e999 nan -inf [] {} "" :'.split(),
    *(b"\n", b"9" * 5000),
    *b"1e-400 -0 0x10".split(),
    *(b"\x00", b"\xff\xfe", b"\xf0\x9f\xa6\x8a"),
    *b'" ,'.split(),
    *(b"[" * 3000, b"{" * 3000),
    *b"9223372036854775808 18446744073709551616 !!python/x".split(),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "null", "x" * 10_000, "\x00", "\ud800"),
    *([], {}, [None], [[]], {"": None}, {"event": "x"}, [0, 1], [1, 2, 3], "server", "1-2-3"),
)
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def text(content: bytes, random: Random) -> bytes:
    """Returns `content` with up to six changed places, or in a different encoding."""
    if random.random() < 0.03:
        decoded = content.decode("utf-8", "replace")
        name = random.choice(["utf-16", "utf-8-sig", "utf-32", "cp037"])
        return decoded.encode(name, "replace")
    for _ in range(random.randint(1, 6)):
        content = random.choice(_CHANGES)(content, random)
    return content


def _place(content: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(content))
    return start, min(len(content), start + int(10 ** random.uniform(0, 2)))


def _flip(content: bytes, random: Random) -> bytes:
    if not content:
        return content
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randint(0, len(content))]


def _drop(content: bytes, random: Random) -> bytes:
    start, end = _place(content, random)
    return content[:start] + content[end:]


def _double(content: bytes, random: Random) -> bytes:
    start, end = _place(content, random)
    return content[:end] + content[start:]


def _word(content: bytes, random: Random) -> bytes:
    start, end = _place(content, random)
    end = random.choice([start, end])
    return content[:start] + random.choice(_WORDS) + content[end:]


def _number(content: bytes, random: Random) -> bytes:
    numbers = list(_NUMBER.finditer(content))
    if not numbers:
        return content
    at = random.choice(numbers)
    return content[: at.start()] + random.choice(_WORDS) + content[at.end() :]


def _lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return content
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    if random.random() < 0.5:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines.insert(other, lines[one])
    return b"".join(lines)


_CHANGES: Sequence[Callable[[bytes, Random], bytes]] = (
    _flip,
    _cut,
    _drop,
    _double,
    _word,
    _number,
    _lines,
)


def _replaced(content: Any, random: Random) -> Any:
    """Returns the document with one random value replaced, dropped or duplicated."""
    content = copy.deepcopy(content)
    place = content
    while isinstance(place, dict | list) and place:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = random.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or random.random() < 0.3:
            kind = random.random()
            if kind < 0.7:
                place[key] = random.choice(_VALUES)
            elif kind < 0.85 or isinstance(place, list):
                del place[key]
            else:
                place["x" + str(key)] = place[key]
            return content
        place = place[key]
    return random.choice(_VALUES)


def json_document(content: bytes, random: Random) -> bytes:
    """Returns a JSON document with changed values; sometimes also damaged as text."""
    return _document(content, random, json.loads, json.dumps)


def yaml_document(content: bytes, random: Random) -> bytes:
    """Returns a YAML document with changed values; sometimes also damaged as text."""
    return _document(content, random, yaml.safe_load, _dumped_yaml)


def _dumped_yaml(document: Any) -> str:
    return str(yaml.safe_dump(document, allow_unicode=True))


def _document(
    content: bytes, random: Random, load: Callable[[bytes], Any], dump: Callable[[Any], str]
) -> bytes:
    if random.random() < 0.3:
        return text(content, random)
    document = load(content)
    for _ in range(random.randint(1, 3)):
        document = _replaced(document, random)
    return dump(document).encode("utf-8", "replace")


_TYPES = ("<i8", "<i4", "<u2", "<f8", "<U3", "|b1", ">i8", "<M8[ns]", "<c16", "|V4")


def arrays(content: bytes, random: Random) -> bytes:
    """Returns an .npz file with changed values, types, shapes and names; sometimes also damaged as bytes."""
    if random.random() < 0.2:
        return text(content, random)
    with np.load(io.BytesIO(content)) as file:
        columns = dict(file)
    for _ in range(random.randint(1, 3)):
        name = random.choice(list(columns))
        columns[name] = _column(columns[name], random)
        if random.random() < 0.15:
            del columns[name]
        if not columns:
            break
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, column in columns.items():
            lies = random.random() < 0.05
            archive.writestr(
                f"{name}.npy", _npy(column, random.randrange(10**13) if lies else None)
            )
    return written.getvalue()


def _npy(column: Any, rows: int | None) -> bytes:
    """Returns the column as a .npy file. rows: the number that a lying header states."""
    written = io.BytesIO()
    np.save(written, column)
    content = written.getvalue()
    if rows is None:
        return content
    text = f"'shape': ({rows},), }}"
    header = re.sub(rb"'shape': \(.*?\), }", text.encode(), content[:128]).rstrip()
    return header[:127].ljust(127) + b"\n" + content[128:]


def _column(column: Any, random: Random) -> Any:
    kind = random.randrange(7)
    if not column.ndim or not column.size or kind == 0:
        return column[: random.randint(0, len(column))] if column.ndim else column
    if kind == 1:
        with np.errstate(all="ignore"):
            return np.resize(column, 8 * len(column)).view("i1").astype(random.choice(_TYPES[:3]))
    if kind == 2:
        return np.zeros(column.shape, random.choice(_TYPES))
    if kind == 3:
        return column.reshape(1, -1) if random.random() < 0.5 else np.asarray(column.reshape(-1)[0])
    if kind == 4:
        return np.resize(column, random.choice([0, 1, 2 * len(column), 1000]))
    changed = column.copy()
    at = random.randrange(len(changed))
    if changed.dtype.kind in "iu":
        limits = np.iinfo(changed.dtype)
        changed[at] = random.choice([limits.min, limits.max, 0, 1])
    if kind == 6:
        np.random.default_rng(random.randrange(2**32)).shuffle(changed)
    return changed
