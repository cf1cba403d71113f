"""Lists the Open Inference Protocol's datatypes, and the arrays that hold their values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.core.formats.kserve_tensors import DATATYPES
from harness.errors import ConfigError
from harness.types import TensorSpec

NAMES: Mapping[str, str] = {**DATATYPES, "BF16": "bfloat16"}
"""Maps a datatype to its name in manifests."""

TEXT = "BYTES"
"""The datatype of strings: each value consists of any number of bytes, and the array holds Python objects."""

ON_THE_WIRE: Mapping[str, np.dtype[Any]] = {
    **{
        datatype: np.dtype(name).newbyteorder("<")
        for datatype, name in NAMES.items()
        if datatype not in (TEXT, "BF16")
    },
    "BF16": np.dtype("<u2"),  # holds the bits, because NumPy has no bfloat16
}
"""Maps a datatype to the type of a value in a binary tensor. BYTES has no fixed size."""


class Tensor(NamedTuple):
    """An input or output in the server's metadata."""

    name: str
    datatype: str
    shape: tuple[int | None, ...] | None
    """The shape; None if the server does not state one. An entry is None if the size varies. The first entry is the
    batch.
    """

    def spec(self) -> TensorSpec:
        """Returns the tensor's specification. Raises a ConfigError if NumPy has no such type."""
        if self.datatype not in NAMES or self.datatype == "BF16":
            raise ConfigError(
                f"input {self.name!r} of the server's model has the datatype {self.datatype}, which no "
                "NumPy array can hold: serve the model with a different type, e.g. FP32"
            )
        return TensorSpec(self.name, NAMES[self.datatype], self.shape or ())


def declared(spec: TensorSpec) -> Tensor:
    """Converts an input in the manifest, for a server that does not report its inputs. Raises the same ConfigError as
    `Tensor.spec`.
    """
    datatypes = {name: datatype for datatype, name in NAMES.items()}
    shape = tuple(size if isinstance(size, int) else None for size in spec.shape)
    tensor = Tensor(spec.name, datatypes.get(spec.dtype, spec.dtype), shape)
    tensor.spec()
    return tensor
