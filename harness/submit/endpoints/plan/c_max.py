"""Finds C_max, the largest concurrency that meets a latency bound, by a search with the harness's client."""

import shutil
from collections.abc import Callable
from pathlib import Path

from harness.core.files import read_json
from harness.errors import ConfigError
from harness.results.run_folder import PEAK
from harness.submit.endpoints.client.config import Template
from harness.submit.endpoints.plan.child import refuse_unmeasured, run_harness
from harness.submit.endpoints.plan.own import prepare
from harness.submit.endpoints.plan.saturation import known_saturation
from harness.submit.endpoints.request import Request
from harness.submit.endpoints.tables import limits

FOLDER = "c-max"
LOG = "c-max.log"


def known_c_max(request: Request, work: Path) -> int | None:
    """Returns the declared C_max, or the result of a finished search; None if neither exists."""
    if request.c_max:
        return request.c_max
    folder = work / FOLDER
    if not (folder / PEAK).is_file():
        return known_saturation(folder)
    content = read_json(folder / PEAK)
    found = content.get("peak")
    if content.get("unit") != "in flight" or not isinstance(found, int | float):
        raise ConfigError(
            f"the search in {folder} found no concurrency that meets {request.slo}: remove the folder, and raise --slo"
        )
    return int(found)


def find_c_max(
    request: Request, template: Template, work: Path, look: Callable[[float], None]
) -> int:
    """Searches with the bound from --slo, starting at the smallest allowed C_max. Raises a ConfigError if the search
    finds no C_max.
    """
    own = prepare(request, template, work)
    folder = work / FOLDER
    shutil.rmtree(folder.with_name(f"{FOLDER}.partial"), ignore_errors=True)
    begin = limits()["least_c_max"]
    words = ["peak", *own.words, "--concurrency", str(begin), "--out", str(folder)]
    words += ["--no-metrics", *(word for slo in request.slo.split() for word in ("--slo", slo))]
    status = run_harness(words, work / LOG, look)
    refuse_unmeasured("the search for C_max", status, work / LOG)
    found = known_c_max(request, work) if status == 0 else None
    if found is None:
        raise ConfigError(
            f"the search for C_max ended with status {status}: see {work / LOG}, or pass --c-max"
        )
    return found
