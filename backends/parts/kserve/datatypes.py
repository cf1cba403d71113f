"""Names the Open Inference Protocol's datatypes, and the arrays that hold their values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.core.formats.kserve_tensors import DATATYPES
from harness.errors import ConfigError
from harness.types import TensorSpec

NAMES: Mapping[str, str] = {**DATATYPES, "BF16": "bfloat16"}
"""Datatype -> the name that manifests use."""

TEXT = "BYTES"
"""Each value is bytes of any length; an array of them holds Python's objects."""

ON_THE_WIRE: Mapping[str, np.dtype[Any]] = {
    **{
        datatype: np.dtype(name).newbyteorder("<")
        for datatype, name in NAMES.items()
        if datatype not in (TEXT, "BF16")
    },
    "BF16": np.dtype("<u2"),  # NumPy has no bfloat16: its bits
}
"""Datatype -> one value of a binary tensor; BYTES has no fixed size."""


class Tensor(NamedTuple):
    """An input or output in the server's metadata."""

    name: str
    datatype: str
    shape: tuple[int | None, ...] | None
    """None if the server states no shape; an entry is None if the size varies. The first is the batch."""

    def spec(self) -> TensorSpec:
        """The tensor as the harness names it. Raises a ConfigError if NumPy has no such array."""
        if self.datatype not in NAMES or self.datatype == "BF16":
            raise ConfigError(
                f"input {self.name!r} of the server's model has the datatype {self.datatype}, which no "
                "array of NumPy can hold: serve the model with another one, e.g. FP32"
            )
        return TensorSpec(self.name, NAMES[self.datatype], self.shape or ())


def declared(spec: TensorSpec) -> Tensor:
    """The input of a manifest, for a server that reports none. Raises a ConfigError like `Tensor.spec`."""
    datatypes = {name: datatype for datatype, name in NAMES.items()}
    shape = tuple(size if isinstance(size, int) else None for size in spec.shape)
    tensor = Tensor(spec.name, datatypes.get(spec.dtype, spec.dtype), shape)
    tensor.spec()
    return tensor
