"""What a cell's run needs first: its precision, made once; a look at what the model answers in it; and
the digests that model and data must keep all through a grid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.child import call
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import say
from harness.core.formats.strict_yaml import load_yaml
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.lookup import load_model
from harness.models.precision.ways import Way, way
from harness.results import run_folder
from harness.run.supervisor.preflight import obtain_model
from harness.search.grid.cells.cells import Cell, config_of
from harness.search.grid.cells.folder import PROBES, folder_of

LOG = "probes.log"
"""What was printed meanwhile."""


class Variants:
    """precisions: 'model precision', or 'model format precision' where the format is not ONNX -> what
    precision_files.make said of the file, kept in grid.json.
    """

    def __init__(
        self,
        common: RunConfig,
        folder: Path,
        precisions: dict[str, Any],
        calibration_dir: str | None,
        *,
        real: bool,
        quiet: bool,
    ) -> None:
        """common: of all cells. real: some of them answer real data, which int8 is calibrated for."""
        self._common = common
        self._folder = folder
        self.precisions = precisions
        self._calibration_dir = calibration_dir
        self._real = real
        self._quiet = quiet
        self._pinned: dict[tuple[str, ...], str] = {}

    def config(self, cell: Cell) -> RunConfig:
        """The cell's run. A HarnessError says why there can be none."""
        chosen = way(cell.backend, cell.precision)
        if chosen.absent:
            raise PluginUnavailable(chosen.absent)
        file = self._made(cell, chosen.file) if chosen.file else None
        self._probe(cell.variant, chosen, file)
        return replace(
            config_of(cell, self._common, chosen, file),
            model_sha256=self._pinned.get(_model_key(cell)),
            dataset_digest=self._pinned.get(_data_key(cell)),
        )

    def pin(self, cell: Cell) -> None:
        """A finished cell's model and data: with others, the next would be of another grid."""
        folder = folder_of(self._folder, cell)
        said = load_yaml(folder / run_folder.CONFIG) if folder is not None else None
        if isinstance(said, dict):
            keys = {"model_sha256": _model_key(cell), "dataset_digest": _data_key(cell)}
            for name, key in keys.items():
                if said.get(name):
                    self._pinned.setdefault(key, str(said[name]))

    def _made(self, cell: Cell, form: str) -> Path:
        name = " ".join([cell.model, *([] if form == "onnx" else [form]), cell.precision])
        kept = self.precisions.get(name)
        if kept is not None and kept.get("of_noise") and self._real:
            raise ConfigError(
                f"{cell.precision} was made for synthetic data in this grid, and real data want it "
                "calibrated with real samples: pass another --out"
            )
        if kept is None or not Path(kept["file"]).is_file():
            if not self._quiet and not missing_tool(form, cell.precision):
                say(f"{Path(cell.model).stem}: making {cell.precision} ({form}), once")
            data = "real" if self._real else "synthetic"
            common = config_of(cell.variant._replace(data=data), self._common, Way(), None)
            request = {
                "config": to_plain(common),
                "format": form,
                "precision": cell.precision,
                "synthetic": not self._real,
                "calibration_dir": self._calibration_dir,
            }
            kept = call("harness.models.precision.made:make", request, self._folder / LOG)
            kept["of_noise"] = cell.precision == "int8" and not self._real
            self.precisions[name] = kept
        return Path(kept["file"])

    def _probe(self, variant: Cell, chosen: Way, file: Path | None) -> None:
        path = self._folder / PROBES / f"{variant.key}.json"
        if path.is_file():
            return
        config = config_of(variant, self._common, chosen, file)
        if file is None:
            obtain_model(config, load_model(config.model))
        request = {"config": to_plain(config), "out": str(path.with_suffix(".npz").absolute())}
        found = call("harness.search.grid.same_network.probe:probe", request, self._folder / LOG)
        files.write_json(path, found)


def missing_tools(cells: Sequence[Cell]) -> Iterator[str]:
    """One line for each precision that cannot be made for these cells, known before any is measured."""
    whose: dict[str, dict[str, None]] = {}
    for cell in cells:
        chosen = way(cell.backend, cell.precision)
        if chosen.file and (why := missing_tool(chosen.file, cell.precision)):
            whose.setdefault(why, {})[f"{cell.backend} {cell.precision}"] = None
    for why, names in whose.items():
        yield f"{', '.join(names)} cannot be made here: {why}"


def missing_tool(form: str, precision: str) -> str:
    """Why no file of this format can be made in this environment; "" where it can."""
    from harness.models.precision.made import MAKERS

    try:
        MAKERS[form].require(precision)
    except PluginUnavailable as e:
        return str(e)
    return ""


def _model_key(cell: Cell) -> tuple[str, ...]:
    return ("model", cell.model, cell.backend, cell.precision)


def _data_key(cell: Cell) -> tuple[str, ...]:
    return ("data", cell.model, cell.data, *cell.shape)
