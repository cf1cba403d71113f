"""Declares the options that `profile` adds to the options of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

from harness.core.config.options import option
from harness.core.config.parse import MOST_RUNS, parse_http_url, parse_path, positive, words_of
from harness.core.otlp.values import TRACES

FROM_ENVIRONMENT = "env"
"""Value of --otlp: the collector that OpenTelemetry's environment variables name."""


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parses '1,2,4' into (1, 2, 4), in ascending order."""
    return tuple(sorted({positive(MOST_RUNS)(word) for word in text.split(",")}))


def parse_otlp(text: str) -> Path | str:
    """Parses a file, an OpenTelemetry collector's URL (default path /v1/traces) or FROM_ENVIRONMENT."""
    if text == FROM_ENVIRONMENT:
        return text
    if "://" not in text:
        return parse_path(text)
    parts = urlsplit(parse_http_url(text, "a collector", "http://127.0.0.1:4318"))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") or TRACES))


LEVELS = ("query", "batch", "stage", "model", "layer", "library")
"""Levels from the outermost to the innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    GROUP: ClassVar = "profile"

    levels: tuple[str, ...] = option(
        f"levels to measure: {', '.join(LEVELS)} (default: all)",
        parse=words_of(LEVELS),
        default=LEVELS,
        metavar="LEVELS",
    )
    batch: int = option(
        "samples per call at the levels below the harness: model, layer, library (default 1)",
        parse=positive(MOST_RUNS),
        default=1,
        metavar="N",
    )
    batches: tuple[int, ...] | None = option(
        "batch sizes at the model level (default 1,2,4,8) and, if set, also at the layer level",
        parse=parse_sizes,
        metavar="LIST",
    )
    runs: int = option(
        "maximum number of calls per measurement (default 20)",
        parse=positive(MOST_RUNS),
        default=20,
        metavar="N",
    )
    counters: tuple[str, ...] = option(
        "counters of the library level: perf (default); valgrind simulates instructions and cache "
        "misses, which takes minutes",
        parse=words_of(("perf", "valgrind")),
        default=("perf",),
        metavar="LIST",
    )
    source: Path | None = option(
        "run nothing; print the tables of the folder of a profile or a run again (with --out DIR, also write the "
        "files)",
        name="from",
        parse=parse_path,
        metavar="DIR",
    )
    otlp: Path | str | None = option(
        "also export the spans to OpenTelemetry: to a new file of OTLP/JSON lines, to a collector's URL, or to the "
        "collector in OTEL_EXPORTER_OTLP_ENDPOINT (env)",
        parse=parse_otlp,
        metavar="FILE|URL|env",
    )
    table: str | None = option("print only this table, in full, e.g. layers", metavar="NAME")
