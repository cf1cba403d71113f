"""Exports samples as a Parquet file, with facts about the run in its metadata."""

import json
from pathlib import Path

from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.results.export.samples import VERDICT, sample_columns
from harness.results.run_files import RunFiles

METADATA = b"mlperf-harness"
"""Key in the file's metadata. The value of this key is a JSON object that describes the run and holds the verdict,
reasons and doubts.
"""

_FACTS = ("started", "scenario", "backend", "model", "dataset", "verdict", "reasons", "doubts")


def write(run: RunFiles, out: Path) -> None:
    """Writes the columns with the same integer types as completions.npz. Raises PluginUnavailable if pyarrow is not
    installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as e:
        how = how_to_install("parquet")
        raise PluginUnavailable(f"--format parquet needs the module 'pyarrow': {how}") from e
    columns = sample_columns(run)
    rows = len(next(iter(columns.values())))
    verdict = pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int8()), rows), [run.result["verdict"]]
    )
    table = pa.table({**columns, VERDICT: verdict})
    facts = {"run": run.name, **{name: run.result.get(name) for name in _FACTS}}
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps(facts)}), out)
