"""Shows whether a framework holds the GIL, by comparing two instances in two threads with one instance in one thread.

    python benchmarks/gil.py [BACKEND...]       # default: the installed backends, with the digits model

If the framework releases the GIL, two instances do twice the work of one instance. If the framework holds the GIL, two
instances do no more than one instance, and only then would separate processes be faster than threads.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.pairs import MIN_PAIRS, alternate, compared, ratio, same
from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.errors import HarnessError
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import open_model
from harness.models.steps.postprocess import postprocessor
from harness.run.measured.answerer import Answerer
from harness.run.measured.calibration import calibrate_rate
from harness.run.measured.warm_up import warm_up

BATCH = 256
SECONDS = 0.5
HELD_BELOW = 1.5
"""If two threads do less than this multiple of one thread's work, the framework counts as holding the GIL."""


def line(backend: str) -> str:
    # Without this option, a backend that declares that it holds the GIL would run in two processes.
    processes = (("processes", "off"),)
    config = RunConfig(scenario="offline", backend=backend, backend_option=processes)
    model = load_model(registry.default_model(backend))
    output = model.output
    assert output is not None
    steps = postprocessor(output.postprocess, output.name, None)
    with ExitStack() as stack:
        group = InstanceGroup(2, 1, BATCH)
        _, backends, *_, dataset = open_model(config, model, "digits", group, stack)
        batch = list(range(BATCH))
        dataset.load(batch)
        two = [Answerer(each, dataset, steps) for each in backends]
        warm_up(two, [BATCH], lambda _: batch)

        def rate(instances: int) -> float:
            return float(
                calibrate_rate(two[:instances], BATCH, lambda _: batch, SECONDS)["rate_per_s"]
            )

        seen = alternate(lambda: rate(2), lambda: rate(1), MIN_PAIRS)
    found, noise = compared(seen, ratio), same(seen, ratio)
    verdict = (
        "threads are enough"
        if found.value >= HELD_BELOW
        else "it holds the GIL, or the cores are busy"
    )
    return (
        f"{backend}: two threads do {found.value:.2f} ({found.low:.2f}-{found.high:.2f}) times the work of "
        f"one, A/A {noise.value:.2f} ({noise.low:.2f}-{noise.high:.2f}): {verdict}"
    )


def main() -> None:
    names = sys.argv[1:] or [n for n, entry in registry.rows("backend") if entry.installed]
    for name in names:
        if name != "null":  # the backend null is left out, because it computes nothing
            try:
                print(line(name), flush=True)
            except HarnessError as e:
                print(f"{name}: {e}", flush=True)


if __name__ == "__main__":
    main()
