"""Writes model files with torch, in a separate process because torch's exporters print warnings and leave threads
behind.

python -m tests.builders.models.torch_files FOLDER
"""

import sys
from pathlib import Path
from typing import Any

from tests.builders.models.foreign_nets import from_torch


def write(folder: Path) -> None:
    """Writes net.onnx with external data, two.pt2 with two inputs and two outputs, and rows.pt with a table of rows."""
    import torch

    class Two(torch.nn.Module):  # type: ignore[misc] # torch may not be installed
        def forward(self, ids: Any, mask: Any) -> Any:
            return ids * mask, mask.sum(1)

    class Rows(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)

        def forward(self, ids: Any) -> Any:
            return self.table(ids)

    from_torch(folder / "net.onnx")
    ones = torch.ones(2, 8, dtype=torch.int64)
    batch = torch.export.Dim("batch", min=1, max=64)
    sizes = ({0: batch}, {0: batch})
    two = torch.export.export(Two(), (ones, ones.clone()), dynamic_shapes=sizes)
    torch.export.save(two, folder / "two.pt2")
    torch.jit.trace(Rows().eval(), ones).save(folder / "rows.pt")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
