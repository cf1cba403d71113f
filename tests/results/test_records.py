"""Reading a foreign completions.npz takes no more memory than the size of the file."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.results import records
from tests.builders.support import evidence, present


def _header(count: int) -> bytes:
    """Returns an .npy file that claims to contain `count` numbers but contains none."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<i8", "fortran_order": False, "shape": (count,)}
    )
    return file.getvalue()


def _bomb(path: Path) -> None:
    np.savez_compressed(path, order=np.zeros(10**7, np.int64))


def _claim(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("order.npy", _header(10**15))


@pytest.mark.parametrize(
    ("write", "said"), [(_bomb, "compressed"), (_claim, "not have the length")]
)
def test_columns_that_are_larger_than_their_file_are_refused(
    write: object, said: str, tmp_path: Path
) -> None:
    """Bug: a file of 80 kB took 80 MB of memory, and the attempt to allocate 8 PB ended with a traceback."""
    assert callable(write)
    run = evidence("server")
    records.write(tmp_path, run, (run.looks and "") or "")
    again = present(records.read(tmp_path, "Server"))
    assert len(present(again.done)) == 700
    write(tmp_path / records.COMPLETIONS)
    with pytest.raises(ConfigError, match=f"completions.npz cannot be read: order.npy .*{said}"):
        records.read(tmp_path, "Server")
