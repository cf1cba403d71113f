"""Prepares the cells' runs. Converts the model to each precision once, probes the converted model, and pins the
digests.

In every cell of a grid, the model and the data must have the same digests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from harness.search.grid.cells.cells import PROBES, Cell, config_of, folder_of

LOG = "probes.log"
"""File with the child processes' output."""


@dataclass(kw_only=True)
class Variants:
    common: RunConfig
    """Options that all cells share."""
    folder: Path
    precisions: dict[str, Any]
    """Descriptions of the converted files, by 'model precision', or by 'model format precision' for formats other than
    ONNX. The descriptions are stored in grid.json.
    """
    calibration_dir: str | None
    real: bool
    """Whether some cells use real data; if so, the real data also calibrate int8."""
    quiet: bool

    def __post_init__(self) -> None:
        self._pinned: dict[tuple[str, ...], str] = {}

    def config(self, cell: Cell) -> RunConfig:
        """Returns the configuration of the cell's run. Raises HarnessError if the cell cannot run."""
        chosen, file = self.made(cell)
        self._probe(cell.variant, chosen, file)
        return replace(
            config_of(cell, self.common, chosen, file),
            model_sha256=self._pinned.get(_model_key(cell)),
            dataset_digest=self._pinned.get(_data_key(cell)),
        )

    def made(self, cell: Cell) -> tuple[Way, Path | None]:
        """Returns how the backend computes in the cell's precision, and the model file for this precision, which is
        made only once.

        The file is None if the cell uses the model's own file. Raises HarnessError if the backend does not support the
        precision or the file cannot be created.
        """
        chosen = way(cell.backend, cell.precision)
        if chosen.absent:
            raise PluginUnavailable(chosen.absent)
        return chosen, self._file(cell, chosen.file) if chosen.file else None

    def pin(self, cell: Cell) -> None:
        """Stores the digests of a finished cell's model and data. Later cells must have the same digests."""
        folder = folder_of(self.folder, cell)
        config = load_yaml(folder / run_folder.CONFIG) if folder is not None else None
        if isinstance(config, dict):
            keys = {"model_sha256": _model_key(cell), "dataset_digest": _data_key(cell)}
            for name, key in keys.items():
                if config.get(name):
                    self._pinned.setdefault(key, str(config[name]))

    def _file(self, cell: Cell, form: str) -> Path:
        name = " ".join([cell.model, *([] if form == "onnx" else [form]), cell.precision])
        kept = self.precisions.get(name)
        if kept is not None and kept.get("of_noise") and self.real:
            raise ConfigError(
                f"this grid has {cell.precision} for synthetic data, but real data need {cell.precision} "
                "calibrated with real samples: pass a different --out"
            )
        if kept is None or not Path(kept["file"]).is_file():
            if not self.quiet and not missing_tool(form, cell.precision):
                say(f"{Path(cell.model).stem}: making {cell.precision} ({form}), once")
            data = "real" if self.real else "synthetic"
            common = config_of(cell.variant._replace(data=data), self.common, Way(), None)
            request = {
                "config": to_plain(common),
                "format": form,
                "precision": cell.precision,
                "synthetic": not self.real,
                "calibration_dir": self.calibration_dir,
            }
            kept = call("harness.models.precision.made:make", request, self.folder / LOG)
            kept["of_noise"] = cell.precision == "int8" and not self.real
            self.precisions[name] = kept
        return Path(kept["file"])

    def _probe(self, variant: Cell, chosen: Way, file: Path | None) -> None:
        path = self.folder / PROBES / f"{variant.key}.json"
        if path.is_file():
            return
        config = config_of(variant, self.common, chosen, file)
        if file is None:
            obtain_model(config, load_model(config.model))
        request = {"config": to_plain(config), "out": str(path.with_suffix(".npz").absolute())}
        content = call("harness.search.grid.same_network.probe:probe", request, self.folder / LOG)
        files.write_json(path, content)


def missing_tools(cells: Sequence[Cell]) -> Iterator[str]:
    """Yields a line for each precision that cannot be made for these cells; called before the first measurement."""
    ways: dict[str, dict[str, None]] = {}
    for cell in cells:
        chosen = way(cell.backend, cell.precision)
        if chosen.file and (why := missing_tool(chosen.file, cell.precision)):
            ways.setdefault(why, {})[f"{cell.backend} {cell.precision}"] = None
    for why, names in ways.items():
        yield f"{', '.join(names)} cannot be created here: {why}"


def missing_tool(form: str, precision: str) -> str:
    """Returns the reason why this environment cannot make a file in this format; "" if it can."""
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
