"""Times a bare PyTorch loop on a GPU as the yardstick: `bare_gpu.py MODEL SECONDS PRECISION LAYOUT BATCH` prints JSON.

The script measures the samples/s of two alternating streams, each with a CUDA graph of one batch and pinned inputs and
outputs, and the p50 of single samples. Batches cycle through SAMPLES different samples, because repeated samples stay
in the cache and are copied several times as fast. For a fair comparison, run the harness with SAMPLES as
`--performance-count`.
"""

import itertools
import json
import random
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.export.passes import move_to_device_pass

DTYPES = {"f32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

SAMPLES = 512


class Lane:
    """A CUDA stream with its graph: host rows -> pinned memory -> GPU -> module -> pinned memory."""

    def __init__(
        self, module: Any, pool: torch.Tensor, batch: int, dtype: torch.dtype, layout: Any
    ) -> None:
        batches = [*pool.split(batch)[: len(pool) // batch]]
        if batch == 1:  # single samples come in random order, because LoadGen draws them at random
            random.Random(0).shuffle(batches)
        self.batches = itertools.cycle(batches)
        rows = next(self.batches)
        self.pinned = rows.clone().pin_memory()
        self.stream, self.done = torch.cuda.Stream(), torch.cuda.Event()
        self.graph = torch.cuda.CUDAGraph()
        # The attribute keeps the array alive, because the graph reads the array.
        self.device = rows.cuda()

        def run() -> torch.Tensor:
            self.device.copy_(self.pinned, non_blocking=True)
            x = self.device.to(dtype) if self.device.is_floating_point() else self.device
            return module(x.to(memory_format=layout) if x.dim() == 4 else x).float()

        with torch.cuda.stream(self.stream):
            for _ in range(3):
                run()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.output = run()
        self.answer = torch.empty(self.output.shape, pin_memory=True)

    def begin(self) -> None:
        self.pinned.copy_(next(self.batches))
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            self.answer.copy_(self.output, non_blocking=True)
            self.done.record()

    def end(self) -> None:
        self.done.synchronize()


def main(path: str, seconds: float, precision: str, layout: str, batch: int) -> dict[str, float]:
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    dtype = DTYPES[precision]
    order = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    program = torch.export.load(path)
    placeholder = next(
        n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs
    )
    example = placeholder.meta["val"]
    module = move_to_device_pass(program, "cuda").module()
    module = module.to(dtype)
    if layout == "channels-last":
        module = module.to(memory_format=order)
    shape = [int(size) for size in example.shape[1:]]

    size = (SAMPLES, *shape)
    floats = example.dtype.is_floating_point
    pool = torch.randn(size) if floats else torch.randint(0, 1000, size, dtype=example.dtype)
    with torch.inference_mode():
        lanes = [Lane(module, pool, batch, dtype, order) for _ in range(2)]
        begin, count = time.perf_counter(), 0
        for lane in lanes:
            lane.begin()
        while time.perf_counter() < begin + seconds:
            for lane in lanes:
                lane.end()
                lane.begin()
                count += batch
        for lane in lanes:
            lane.end()
            count += batch
        rate = count / (time.perf_counter() - begin)
        alone = Lane(module, pool, 1, dtype, order)
        times, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            started = time.perf_counter_ns()
            alone.begin()
            alone.end()
            times.append(time.perf_counter_ns() - started)
    return {
        "samples_per_s": rate,
        "p50_ns": float(np.median(times)),
        "p99_ns": float(np.percentile(times, 99)),
    }


if __name__ == "__main__":
    words = sys.argv[1:]
    print(json.dumps(main(words[0], float(words[1]), words[2], words[3], int(words[4]))))
