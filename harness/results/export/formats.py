"""Lists the formats that `export` supports, and writes a run in one of them."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from harness.core.console import output, show
from harness.core.files import atomic_file
from harness.errors import ConfigError


class Format(NamedTuple):
    module: str
    """Name of the module in this folder. The module's `write(run, out)` takes a text stream, or a path for a binary
    format.
    """
    about: str
    is_text: bool = True
    server: str = ""
    """Kind of server to which the module's `send(run, url)` sends the run; '' if the module cannot send runs."""


FORMATS: Mapping[str, Format] = {
    "parquet": Format("parquet", "one row per sample (extra parquet)", is_text=False),
    "csv": Format("csv_rows", "one row per sample"),
    "jsonl": Format("jsonl", "one object per sample"),
    "github": Format("github", "the format customSmallerIsBetter of github-action-benchmark"),
    "junit": Format("junit", "test results, with a failure for each reason"),
    "mlflow": Format(
        "mlflow",
        "a run in an MLflow file store, or on an MLflow server (--to; extra mlflow)",
        is_text=False,
        server="MLflow",
    ),
    "otlp": Format(
        "genai",
        "OpenTelemetry's generative AI metrics, for language models (--to: a collector)",
        server="OpenTelemetry",
    ),
    "benchmark-report": Format(
        "benchmark_report", "llm-d's Benchmark Report v0.2.1, for language models"
    ),
    "openmetrics": Format("openmetrics", "percentiles, verdict and score for Prometheus"),
}


def export(folder: Path, name: str, out: Path | None, server: str | None = None) -> str:
    """Writes a finished run to `out`, or, if `out` is None and the format is text, to stdout. Returns the run's
    verdict.

    server: address of the MLflow server or OpenTelemetry collector to send the run to. Raises a ConfigError if `out`
    already exists (except an mlflow store), is missing or cannot be written, or if the server does not accept the run.
    """
    # Imported only when a run is exported, because the import needs NumPy and `--help` must work without NumPy.
    from harness.results.run_files import read_files, reading_run

    chosen = FORMATS[name]
    module = import_module(f"harness.results.export.{chosen.module}")
    if server is not None and (not chosen.server or out is not None):
        named = " or ".join(known for known, one in FORMATS.items() if one.server)
        raise ConfigError(f"--to names a server: pass --format {named}, and no --out")
    if server is None and out is None and not chosen.is_text:
        more = ", or --to URL" if name == "mlflow" else ""
        raise ConfigError(f"--format {name} cannot be printed: pass --out{more}")
    run = read_files(folder)
    with reading_run(folder):
        try:
            if server is not None:
                show(module.send(run, server))
            elif out is None:
                with output() as stream:
                    module.write(run, stream)
            elif name == "mlflow":
                module.write(run, out)
            else:
                with atomic_file(out, new=True) as path:
                    if chosen.is_text:
                        with path.open("w", encoding="utf-8", newline="") as stream:
                            module.write(run, stream)
                    else:
                        module.write(run, path)
        except FileExistsError:
            raise ConfigError(
                f"{out} already exists and will not be overwritten: pass a different --out"
            ) from None
        except OSError as e:
            raise ConfigError(f"{out} cannot be written: {e.strerror or e}") from None
    return str(run.result["verdict"])
