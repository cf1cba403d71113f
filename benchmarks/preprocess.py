"""Measures image datasets: preprocessing, opening a cached dataset, and gathering a batch.

python benchmarks/preprocess.py [--rows NAME,...] [--quick]
"""

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs
from benchmarks.command import Noise, script
from benchmarks.pairs import MIN_PAIRS, estimate, ratio
from benchmarks.report import Row, absolute, command
from harness.datasets.folder import FolderDataset
from harness.datasets.parts.rows import LoadedRows
from harness.models.steps.steps import PREPROCESS
from harness.types import DatasetSetup, Step, TensorSpec

SIDE = 224
DECODED = 1_000
"""Number of images per decoding run, which then takes about half a second."""

CACHED = 10_000
BATCH = 8
GATHERS = 2_000
MEAN = (123.68, 116.78, 103.94)


def _step(name: str, **options: Any) -> Step:
    return Step(name, PREPROCESS[name](**options).model_dump())


def _dataset(folder: Path, decoder: str, dtype: str = "uint8", cache: Path | None = None) -> Any:
    """Opens the images as a dataset. uint8: the decoded pixels. float32: the pixels minus MLPerf's mean, channels
    first.
    """
    steps = [_step("decode", decoder=decoder)]
    shape: tuple[int | str, ...] = ("n", SIDE, SIDE, 3)
    if dtype == "float32":
        steps += [_step("normalise", mean=MEAN), _step("layout", order="nchw")]
        shape = ("n", 3, SIDE, SIDE)
    setup = DatasetSetup(
        inputs=(TensorSpec("x", dtype, shape),),
        steps={"x": tuple(steps)},
        data_dir=folder,
        cache_dir=cache,
    )
    return FolderDataset(setup)


def write_images(folder: Path, count: int) -> None:
    """Writes a hundred different crops of scikit-learn's two photographs, and repeats the crops up to `count`."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    random = np.random.default_rng(0)
    files = []
    for i in range(min(count, 100)):
        picture = photographs[i % 2]
        top, left = (int(random.integers(0, side - SIDE + 1)) for side in picture.shape[:2])
        file = io.BytesIO()
        part = picture[top : top + SIDE, left : left + SIDE]
        Image.fromarray(part).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    (folder / "images").mkdir()
    for i in range(count):
        (folder / f"images/{i:05}.jpg").write_bytes(files[i % len(files)])


def _bare(decoder: str, folder: Path) -> Callable[[], float]:
    """Returns the bare loop, in which two threads read and decode images and keep the pixels."""
    paths = sorted((folder / "images").iterdir())
    decode: Callable[[bytes], Any]
    if decoder == "opencv":
        import cv2

        def decode(data: bytes) -> Any:
            return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)

    else:
        import simplejpeg

        decode = simplejpeg.decode_jpeg

    def half(part: int) -> list[Any]:
        return [decode(path.read_bytes()) for path in paths[part::2]]

    def per_s() -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            kept = list(pool.map(half, range(2)))
        return sum(map(len, kept)) / (time.perf_counter() - start)

    return per_s


def _loading(dataset: Any) -> float:
    """Returns the samples/s of one call of `load` with all samples."""
    indices = range(len(dataset))
    start = time.perf_counter()
    dataset.load(indices)
    took_s = time.perf_counter() - start
    dataset.unload(indices)
    return len(dataset) / took_s


def decoding(decoder: str, count: int, noise: Noise) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, DECODED)
        dataset, floats = _dataset(folder, decoder), _dataset(folder, decoder, "float32")
        bare = _bare(decoder, folder)
        bare()
        seen = pairs.alternate(
            lambda: noise.quiet(lambda: _loading(dataset)), lambda: noise.quiet(bare), count
        )
        as_float = [noise.quiet(lambda: _loading(floats)) for _ in range(count)]
        filling = []
        for i in range(count):
            fresh = _dataset(folder, decoder, cache=folder / f"cache{i}")
            filling.append(noise.quiet(partial(_loading, fresh)))
    return [
        Row(
            name=f"preprocess-{decoder}",
            what=f"samples/s of load, {SIDE}x{SIDE} JPEGs, over a bare loop of two threads",
            unit="",
            limit="at least",
            bar=0.9,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={
                "load/s": estimate(seen.a).value,
                "bare/s": estimate(seen.b).value,
                "and written to the cache/s": estimate(filling).value,
                "MLPerf's float32 nchw/s": estimate(as_float).value,
            },
            runs={"load": seen.a, "bare": seen.b, "filling": filling, "float32": as_float},
        )
    ]


def opening(count: int, noise: Noise) -> list[Row]:
    """Measures opening a cached dataset in a separate process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        write_images(folder / "data", CACHED)
        dataset = _dataset(folder / "data", "opencv", cache=folder / "cache")
        part = dataset.performance_count
        for start in range(0, CACHED, part):
            dataset.load(range(start, min(start + part, CACHED)))
        ask = ("preprocess.py", "--open", str(folder))
        runs = [noise.quiet(lambda: script(*ask)) for _ in range(count)]
    what = f"{CACHED:,} cached images: dataset built, {part:,} held"
    seconds = [float(r["seconds"]) for r in runs]
    resident_mb = [float(r["peak_bytes"]) / 1e6 for r in runs]
    return [
        absolute("cached-opening", what, "s", 2.0, seconds, {}),
        absolute("cached-memory", f"peak of the process, {what}", "MB", 300.0, resident_mb, {}),
    ]


def open_once(folder: Path) -> None:
    """Prints one line of JSON: the seconds from the process's start until the dataset is loaded, and the process's peak
    memory.
    """
    start = time.perf_counter()
    dataset = _dataset(folder / "data", "opencv", cache=folder / "cache")
    dataset.describe()
    dataset.load(range(dataset.performance_count))
    seconds = time.perf_counter() - start
    # Does not use ru_maxrss, because ru_maxrss begins with the parent's peak.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes}))


def gathering(count: int, noise: Noise) -> list[Row]:
    held = np.random.default_rng(0).integers(0, 255, (1_000, SIDE, SIDE, 3), np.uint8)
    rows = LoadedRows(len(held))
    rows.hold(range(len(held)), {"x": held})
    batches = np.random.default_rng(1).integers(0, len(held), (GATHERS, BATCH)).tolist()

    def gather_us() -> float:
        start = time.perf_counter()
        for batch in batches:
            rows.batch(batch)
        return (time.perf_counter() - start) / GATHERS * 1e6

    def copy_us() -> float:
        start = time.perf_counter()
        for batch in batches:
            held[batch[0] // 2 : batch[0] // 2 + BATCH].copy()
        return (time.perf_counter() - start) / GATHERS * 1e6

    gather_us(), copy_us()
    seen = pairs.alternate(
        lambda: noise.quiet(gather_us), lambda: noise.quiet(copy_us), max(count, MIN_PAIRS)
    )
    return [
        Row(
            name="gather",
            what=f"a batch of {BATCH} scattered images over one numpy copy as large",
            unit="",
            limit="at most",
            bar=1.2,
            found=pairs.compared(seen, ratio),
            aa=pairs.same(seen, ratio),
            neutral=1.0,
            beside={"gather, us": estimate(seen.a).value, "copy, us": estimate(seen.b).value},
            runs={"gather_us": seen.a, "copy_us": seen.b},
        )
    ]


ROWS: Mapping[str, Callable[[int, Noise], list[Row]]] = {
    "preprocess-opencv": partial(decoding, "opencv"),
    "preprocess-simplejpeg": partial(decoding, "simplejpeg"),
    "cached": opening,
    "gather": gathering,
}


def main() -> int:
    if sys.argv[1:2] == ["--open"]:  # `opening` starts this branch in the process that it measures
        open_once(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    return command(ROWS, parser)


if __name__ == "__main__":
    sys.exit(main())
