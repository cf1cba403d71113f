"""Builds a grid's axes from the lists on the command line and from defaults."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.config.run_config import RunConfig
from harness.core.registry import check_name
from harness.errors import ConfigError
from harness.machine import cores
from harness.models.made import operators
from harness.models.manifest.defaults import default_dataset
from harness.models.manifest.lookup import is_path, load_model
from harness.models.precision.ways import BASELINE
from harness.search.grid.cells.options import DATA, DEFAULT_BATCHES, Axes, GridOptions


def axes_of(lists: Mapping[str, tuple[Any, ...]], config: RunConfig, options: GridOptions) -> Axes:
    """Builds the axes. lists: the result of options.take_lists. Raises a ConfigError that lists every problem."""
    models = lists.get("model", (config.model,))
    problems = list(unknown(models, lists.get("backend", ())))
    if options.ops and "model" in lists:
        problems.append("--ops replaces --model: drop one")
    if problems:
        raise ConfigError("\n".join(problems))
    models = tuple(str(Path(name).absolute()) if is_path(name) else name for name in models)
    if options.ops:
        models = tuple(str(path) for path in operators.make(options.ops))
    datasets = (config.dataset or default_dataset(load_model(model)) for model in models)
    real = all(name != "synthetic" for name in datasets)
    if options.data is not None and "real" in options.data and not real:
        raise ConfigError("--data real needs real data for every model: pass --dataset")
    own_shape = tuple(f"{n}={'x'.join(map(str, shape))}" for n, shape in config.input_shape)
    return Axes(
        model=models,
        backend=lists.get("backend", (config.backend,)),
        precision=options.precision or (BASELINE,),
        batch=options.batch or DEFAULT_BATCHES,
        threads=lists.get("threads", (config.threads or cores.available().planned,)),
        shape=lists.get("shape") or (own_shape,),
        data=options.data or (DATA[:1] if real else DATA[1:]),
    )


def unknown(models: Iterable[str], backends: Iterable[str]) -> Iterator[str]:
    """Yields one line for each unknown name."""
    checks: list[Callable[[], object]] = [partial(check_name, "backend", name) for name in backends]
    checks += [partial(load_model, name) for name in models]
    for check in checks:
        try:
            check()
        except ConfigError as e:
            yield str(e)
