"""Lists the options of a run that a submission does not take, and a value that only `plan` takes."""

from collections.abc import Mapping

ALL = "all"
"""The value of `plan`'s --benchmark for a list of the benchmarks that fit on this machine."""

_DECIDED = "is set by the round and the matrix"
_WATCHED = "is for a single run, and `submit run` opens no port"
_ARRIVALS = "sets when queries arrive, but in a submission LoadGen decides that"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("scenario", "mode", "out", "mlperf", "audit", "queries", "seed"), _DECIDED),
    "samples_per_query": _DECIDED,
    **dict.fromkeys(("arrivals", "concurrency"), _ARRIVALS),
    **dict.fromkeys(("metrics", "no_metrics", "metrics_linger", "metrics_push"), _WATCHED),
}
"""Key of the option -> why it is refused. `--help` omits these options."""
