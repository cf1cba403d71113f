"""A backend of a GPU that is lost during LoadGen's run, as a plug-in: torch on the processor behind the stand-in for
torch.cuda.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from harness.backends.parts.torch_cuda import CudaModule, take_rows
from harness.backends.torch import TorchBackend
from tests.stand_ins import cuda

LOG = "LOST_GPU_LOG"
"""Environment variable with the path of LoadGen's log, which is empty until the run begins."""

ANSWERED = 200
"""Number of batches that the GPU computes in the run before it is lost."""


class _Event(cuda.Event):
    _left = ANSWERED

    def synchronize(self) -> None:
        log = Path(os.environ[LOG])
        if log.is_file() and log.stat().st_size:
            _Event._left -= 1
        if _Event._left < 0:
            raise RuntimeError("CUDA error: unspecified launch failure\nCompile with ...")


class _Cuda(cuda.FakeCuda):
    Event = _Event


class LostGpu(TorchBackend):
    def _load(self) -> Any:
        loaded = super()._load()
        self._on_gpu = CudaModule(
            *(self._call, torch.device("cpu")), largest=8, graphs=True, spins=False, cuda=_Cuda()
        )
        self.buffers, self.take = self._buffers, take_rows
        return loaded

    def describe(self) -> Mapping[str, object]:
        gpu: Any = self._on_gpu
        self._on_gpu = None  # the name of the device would come from CUDA
        about = {**super().describe(), **gpu.describe()}
        self._on_gpu = gpu
        return about
