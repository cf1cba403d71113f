"""Lists the run options that a submission refuses, and an option value that only `plan` accepts."""

from collections.abc import Mapping

ALL = "all"
"""Value of --benchmark with which `plan` lists the benchmarks that this machine can run within a day."""

_DECIDED = "is set by the round and the matrix"
_WATCHED = "is for a single run, and `submit run` opens no port"
_ARRIVALS = "sets when queries arrive, but in a submission LoadGen decides that"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("scenario", "mode", "out", "mlperf", "audit", "queries", "seed"), _DECIDED),
    "samples_per_query": _DECIDED,
    **dict.fromkeys(("arrivals", "concurrency"), _ARRIVALS),
    **dict.fromkeys(("metrics", "no_metrics", "metrics_linger", "metrics_push"), _WATCHED),
}
"""Maps an option's key to the reason why it is refused. `--help` omits these options."""
