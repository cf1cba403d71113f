"""Reads the web pages for the RAG benchmark's database, e2e-rag-db, from `doc_html` in MLCommons' download.

A sample is one page: its name and its HTML. The system under test splits the page, embeds the parts and stores them,
and then answers with the byte 1, or with 0 after a failure. After the last page, the system replies with the MD5 of the
database.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.datasets.parts import sources
from harness.datasets.parts.rows import LoadedRows
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

SUFFIX = ".html"
INPUTS = ("name", "html")
_MOST_BYTES = 64 * 2**20
"""Maximum size of a page in bytes. A larger page is refused."""


class DocumentsDataset(LoadedRows):
    """Web pages. --data-dir is the folder of the pages. The model's inputs are `html` and, optionally, `name`, both
    strings.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, "documents", ())
        self._inputs = [spec.name for spec in setup.inputs]
        of_text = all(spec.dtype == "string" and len(spec.shape) == 1 for spec in setup.inputs)
        if not of_text or "html" not in self._inputs or not {*self._inputs} <= {*INPUTS}:
            raise ConfigError(
                "dataset 'documents' needs a model with the input `html`, and optionally `name`, of dtype string and shape "
                "[batch]"
            )
        self._setup = setup
        self._root = sources.given_folder(setup, "documents", f"the pages, *{SUFFIX}")
        self._paths = sorted(self._root.glob(f"*{SUFFIX}"), key=lambda path: path.name)
        if not self._paths:
            raise ConfigError(
                f"{self._root} has no *{SUFFIX}: name the folder with the pages, `doc_html` of MLCommons' download"
            )
        large = [path for path in self._paths if path.stat().st_size > _MOST_BYTES]
        sources.refuse([f"{path} is larger than {_MOST_BYTES // 2**20} MiB" for path in large])
        super().__init__(len(self._paths))

    def load(self, indices: Sequence[int]) -> None:
        held = {name: np.empty(len(indices), object) for name in self._inputs}
        for row, index in enumerate(indices):
            path = self._paths[index]
            values = {"name": path.name.encode(), "html": self._html(index)}
            for name, array in held.items():
                array[row] = values[name]
        self.hold(indices, held)

    def _html(self, index: int) -> bytes:
        """Returns the page as UTF-8. Replaces invalid bytes with the replacement character."""
        path = self._paths[index]
        try:
            return path.read_bytes().decode("utf-8", "replace").encode()
        except OSError as e:
            raise sources.unreadable(path, e) from e

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([self._paths[i].stat().st_size for i in indices])

    def label(self, index: int) -> str:
        """Returns the name of the page."""
        return self._paths[index].name

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "documents",
            "count": len(self),
            "source": str(self._root),
            "digest": sources.digest({path.name: path for path in self._paths}, self._setup),
        }


_: type[Dataset] = DocumentsDataset
