"""Each verb ends with a result or one line when given foreign files, here the test models of the onnx package."""

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from harness.cli.explain import advise_options
from harness.cli.main import main
from harness.errors import ConfigError, HarnessError
from harness.explain.advise.options import AdviseOptions
from harness.explain.advise.subject import open_job
from harness.explain.baseline import Baseline, open_runner
from harness.explain.subjects import subjects
from harness.models.opened.template import manifest_of
from tests.builders.models import odd_files

DATA = Path(onnx.__file__).parent / "backend/test/data"
FOREIGN = re.compile(r"Traceback|Error: |pybind|object at 0x|NoneType|<class ")
"""Words of Python and C++ that must not begin a message."""


def init(path: Path) -> None:
    manifest_of(path, path.with_suffix(".yaml"), {})


def bricks(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["bricks", "--structure", str(path)]) in (0, 2)


def answers(path: Path) -> None:
    with ExitStack() as stack:
        (subject,) = subjects({"model": str(path)}, stack)
        Baseline(subject, 3, open_runner(subject, stack))


def advise(path: Path) -> None:
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        (subject,) = subjects({"model": str(path)}, stack)
        open_job(AdviseOptions(quiet=True, samples=3), subject, Path(folder), Path(folder))


def ended(arguments: list[str]) -> None:
    """Runs the command, and raises its refusal as an exception."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        status = main(arguments)
    if status:
        raise ConfigError(err.getvalue().removeprefix("harness: ").strip())


def profile(path: Path) -> None:
    out = str(path.with_suffix(".profile"))
    ended(["profile", "--model", str(path), "--levels", "model", "--quiet", "--out", out])


def cold(path: Path) -> None:
    few = ["--trials", "1", "--runs", "1", "--skip", "sharing", "--skip", "benefit", "--quiet"]
    ended(["cold", str(path), *few, "--out", str(path.with_suffix(".cold"))])


VERBS = (init, bricks, answers, advise)


def scanned(path: Path, verb: Callable[[Path], None]) -> str:
    """Returns the message of the verb's refusal, or '' if it succeeds; any exception but a HarnessError fails the test."""
    try:
        verb(path)
    except HarnessError as e:
        return str(e)
    return ""


def check(path: Path, *more: Callable[[Path], None]) -> None:
    for verb in (*VERBS, *more):
        line = scanned(path, verb)
        assert not FOREIGN.match(line), f"{verb.__name__} {path}: {line}"
        assert not re.search(r"raised [A-Z]\w*(:|$)|Traceback", line), f"{verb.__name__}: {line}"


def models(kind: str) -> list[Path]:
    return sorted((DATA / kind).rglob("*.onnx"))


@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator"])
def test_some_files_of_the_onnx_package_are_handled(kind: str, tmp_path: Path) -> None:
    for number, model in enumerate(models(kind)[::8]):
        check(Path(shutil.copy(model, tmp_path / f"{number}.onnx")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["light", "simple", "pytorch-converted", "pytorch-operator"])
def test_all_files_of_the_onnx_package_are_handled(kind: str, tmp_path: Path) -> None:
    found = models(kind)
    assert found
    for number, model in enumerate(found):
        check(Path(shutil.copy(model, tmp_path / f"{number}.onnx")))


def odd(folder: Path) -> Iterator[Path]:
    for number, size in enumerate(odd_files.OPEN_SIZES.values()):
        yield odd_files.pooled(folder / f"size{number}.onnx", size)
    for opset in (1, 5, 6, 7, 99):
        yield odd_files.of_opset(folder / f"opset{opset}.onnx", opset)
    yield odd_files.of_opset(folder / "ir.onnx", 17, ir=99)
    for write in (
        *(odd_files.two_texts, odd_files.quantised_shape, odd_files.classifier),
        *(odd_files.sequence, odd_files.of_sequence, odd_files.of_bfloat16),
        *(odd_files.recurrent, odd_files.without_inputs, odd_files.without_outputs),
        *(odd_files.reduced_to_one, odd_files.of_vendor),
    ):
        yield write(folder / f"{write.__name__}.onnx")
    for name, content in {
        "empty": b"",
        "page": b"<!DOCTYPE html><html></html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    }.items():
        (folder / f"{name}.onnx").write_bytes(content)
        yield folder / f"{name}.onnx"


def test_exported_and_damaged_files_are_handled(tmp_path: Path) -> None:
    for path in odd(tmp_path):
        check(path)


@pytest.mark.parametrize("batch", [2, 20])
def test_advise_says_which_batch_a_file_fixes(batch: int, tmp_path: Path) -> None:
    """Bug: the message was "input 'x' has 2 at axis 0, not 1"."""
    path = odd_files.fixed(tmp_path / "m.onnx", batch)
    assert scanned(path, advise) == (
        f"model 'm': the file fixes the batch at {batch}: pass --batch {batch}"
    )


@pytest.mark.parametrize(
    ("suffix", "about", "backend"),
    [
        (".tflite", "a LiteRT file", "litert"),
        (".pt2", "a torch.export program", "torch"),
        (".xml", "an OpenVINO IR", "openvino"),
    ],
)
def test_advise_names_no_option_that_it_lacks(
    suffix: str, about: str, backend: str, tmp_path: Path
) -> None:
    """Bug: the message advised "pass --backend litert", an option that advise does not have."""
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"1")
    with pytest.raises(ConfigError) as refusal:
        advise_options(["--model", str(path)])
    assert str(refusal.value) == (
        f"advise reads ONNX files, and m{suffix} is {about}: export the network to ONNX, or try settings "
        f"with `tune --backend {backend}`"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "write", [odd_files.classifier, odd_files.of_three, partial(odd_files.fixed, batch=2)]
)
def test_profile_and_cold_end_with_a_result_or_one_line(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    check(write(tmp_path / "m.onnx"), profile, cold)
