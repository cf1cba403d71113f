"""Defines the request for an Endpoints submission. WORK/request.yaml stores the request between calls."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.core.config.address import parse_address
from harness.core.config.options import user_path
from harness.core.config.parse import parse_slos
from harness.core.config.schema import MAX_CONCURRENCY
from harness.core.formats.strict_yaml import load_mapping, write_yaml
from harness.errors import ConfigError, refuse
from harness.submit.endpoints.cohorts import Cohort, cohort_or_none
from harness.submit.endpoints.regions import REQUIRED, WORDS, Regions, regions
from harness.submit.endpoints.tables import Model, SeedSet, adoptable, limits, models
from harness.submit.rules.layout import REHEARSAL_SUBMITTER, REHEARSAL_SUFFIX

FILE = "request.yaml"
ELECTED, DEDICATED = "elected", "dedicated"
MIN_REHEARSAL_S = 1.0


@dataclass(frozen=True)
class Request:
    """Options for a submission. An empty value means that the user did not set the option."""

    submitter: str = ""
    system: str = ""
    division: str = ""
    model: str = ""
    cohort: str = ""
    url: tuple[str, ...] = ()
    served: str = ""
    """Model name that the server uses."""
    tokenizer: str = ""
    """Tokenizer folder that the client uses to count tokens."""
    template: str = ""
    """The client's YAML file that defines data sets, sampling and scores."""
    prompts: str = ""
    """JSONL file with prompts for the harness's client."""
    c_max: int = 0
    slo: str = ""
    """Latency bound in the search for C_max."""
    c_min: int = 0
    """Overrides C_min; 0 means the lowest point."""
    points: tuple[int, ...] = ()
    offline: str = ""
    seed_set: str = ""
    rehearsal: bool = False
    duration_s: float = 0.0
    """Duration of each point in a rehearsal; 0 means the duration that the rules require."""

    @property
    def of_round(self) -> Model | None:
        return models().get(self.model)

    @property
    def is_agentic(self) -> bool:
        return self.of_round is not None and self.of_round.is_agentic

    @property
    def offline_kind(self) -> str:
        """Either `elected` or `dedicated`; '' for agentic benchmarks."""
        return "" if self.is_agentic else self.offline or ELECTED

    @property
    def tree_names(self) -> tuple[str, str]:
        """Names of the submitter and the system in the tree; a rehearsal uses names that mark it as a rehearsal."""
        if not self.rehearsal:
            return self.submitter, self.system
        return REHEARSAL_SUBMITTER, f"{self.system}{REHEARSAL_SUFFIX}"

    @property
    def seeds(self) -> SeedSet:
        """Returns the seed set that the request names. Raises a ConfigError if the cohort may not use this set."""
        found = adoptable(Cohort.parse(self.cohort))
        wanted = [one for one in found if self.seed_set in ("", one.id)]
        if not wanted:
            known = ", ".join(f"{one.id} of {one.cohort}" for one in found) or "none yet"
            raise ConfigError(
                f"cohort {self.cohort} has no seed set{self.seed_set and f' {self.seed_set}'} (known: {known}): "
                "add newer seed sets to data/seeds.yaml"
            )
        return wanted[0]


def _problems(request: Request) -> Iterator[str]:
    for name in ("submitter", "system", "division", "model", "cohort"):
        if not getattr(request, name):
            yield f"--{name} is missing: see --help"
    for name in ("submitter", "system"):
        value = getattr(request, name)
        if value and not all(c.isascii() and (c.isalnum() or c in "_.-+") for c in value):
            yield f"--{name} {value!r} is not a folder name: use letters, digits and _ . -"
    if request.division and request.division not in limits()["divisions"]:
        yield f"--division {request.division}: choose from {', '.join(limits()['divisions'])}"
    if request.model and request.model not in models() and not request.rehearsal:
        yield f"--model {request.model}: choose from {', '.join(models())}, or pass --rehearsal"
    if request.cohort and cohort_or_none(request.cohort) is None:
        yield f"--cohort {request.cohort}: write the cohort as 2026-10-C1 (C0 or C1)"
    for url in request.url:
        yield from _fault("--url", parse_address, url)
    yield from _fault("--slo", parse_slos, request.slo)
    yield from _numbers(request)


def _fault(option: str, parse: Callable[[str], object], text: str) -> Iterator[str]:
    try:
        parse(text)
    except ValueError as e:
        yield f"{option}: {e}"


def _numbers(request: Request) -> Iterator[str]:
    most = limits()["ultra_low_most"]
    if request.c_max and request.c_max <= most:
        yield f"--c-max {request.c_max}: the rules require more than {most}"
    if max((request.c_max, *request.points)) > MAX_CONCURRENCY:
        yield f"--c-max and --points must be at most {MAX_CONCURRENCY:,}: write smaller numbers"
    if request.c_min and not 1 <= request.c_min <= most:
        yield f"--c-min {request.c_min}: choose from 1 to {most}"
    if request.c_min and request.points and request.c_min not in request.points:
        yield f"--c-min {request.c_min} is not in --points: add the point"
    if len(set(request.points)) < len(request.points) or any(p < 1 for p in request.points):
        yield "--points: write different numbers above 0, e.g. 1,4,16,64"
    if request.c_max and request.slo:
        yield "--c-max and --slo both set C_max: keep one"
    yield from _kinds(request)


def _kinds(request: Request) -> Iterator[str]:
    if request.offline not in ("", ELECTED, DEDICATED):
        yield f"--offline {request.offline}: choose from {ELECTED}, {DEDICATED}"
    if request.offline and request.is_agentic:
        yield "--offline is not for agentic benchmarks: drop it"
    if request.duration_s and not request.rehearsal:
        yield "--duration is for a rehearsal: drop it, or pass --rehearsal"
    if request.duration_s and request.duration_s < MIN_REHEARSAL_S:
        yield f"--duration {request.duration_s:g}s is too short: pass at least {MIN_REHEARSAL_S:g}s"


_PATHS = ("tokenizer", "template", "prompts")


def make_request(values: Mapping[str, Any]) -> Request:
    """Makes a request from the options. Raises a single ConfigError that lists every problem."""
    known = {f.name for f in fields(Request)}
    given = {k: v for k, v in values.items() if k in known and v not in (None, "", (), [])}
    for key in ("url", "points"):
        if key in given:
            given[key] = tuple(given[key])
    for key in _PATHS:
        if key in given:
            given[key] = str(user_path(given[key]).absolute())
    request = Request(**given)
    refuse(_problems(request))
    return request


def kept_request(work: Path, values: Mapping[str, Any]) -> Request:
    """Returns the request stored in `work`, combined with `values`, which are not written to disk. A value must equal
    the stored value.

    The call may add values that are not stored yet, such as --c-max after a search.
    """
    path = work / FILE
    if not path.exists():
        if not values:
            raise ConfigError(
                f"{work} has no {FILE}: pass --submitter, --system, --division, --model, --cohort and --url; see --help"
            )
        return make_request(values)
    kept = read_request(work)
    if not values:
        return kept
    asked = make_request({**asdict(kept), **values})
    changed = [
        f"--{name.removesuffix('_s').replace('_', '-')} is {getattr(asked, name)}, but {path} has {old}: "
        "edit the file, or pass a different --work"
        for name, old in asdict(kept).items()
        if old not in ("", (), 0, 0.0) and getattr(asked, name) != old
    ]
    refuse(changed)
    return asked


def write_request(work: Path, request: Request) -> None:
    content = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(request).items()
        if value not in ("", (), 0, 0.0, False)
    }
    try:
        work.mkdir(parents=True, exist_ok=True)
        write_yaml(work / FILE, content)
    except OSError as e:
        raise ConfigError(
            f"{work} cannot be written ({e.strerror}): pass a different --work"
        ) from e


def read_request(work: Path) -> Request:
    path = work / FILE
    content = load_mapping(path)
    unknown = [str(key) for key in content if key not in {f.name for f in fields(Request)}]
    if unknown:
        raise ConfigError(f"{path}: unknown keys {', '.join(unknown)}: correct them")
    refuse(f"{path}: {problem}" for problem in _mistyped(content))
    return make_request(content)


_LISTS: Mapping[str, type] = {"url": str, "points": int}
_KINDS: Mapping[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _mistyped(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each value that does not match the type of its field."""
    for key, value in content.items():
        kind = _LISTS.get(key, type(getattr(Request, key)))
        rows = value if key in _LISTS else [value]
        if not isinstance(rows, list) or not all(_is(kind, row) for row in rows):
            wanted = (
                f"a list in which each entry is {_KINDS[kind]}" if key in _LISTS else _KINDS[kind]
            )
            yield f"{key} is {value!r}: write {wanted}"


def _is(kind: type, value: object) -> bool:
    """Returns whether the value has this type. Integers count as floats, but true and false do not count as numbers."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (kind is float and isinstance(value, int))


def regions_of(request: Request, c_max: int, points: tuple[int, ...]) -> Regions:
    """Returns the regions for these points. Raises a ConfigError if C_max is too small or if a region is empty."""
    measured = [p for p in points if p <= limits()["ultra_low_most"]]
    c_min = request.c_min or min(measured, default=limits()["ultra_low_most"])
    try:
        found = regions(c_max, c_min, overridden=bool(request.c_min))
    except ValueError as e:
        raise ConfigError(f"no submission is possible: {e}") from None
    if empty := found.empty():
        names = " and ".join(WORDS[name] for name in empty)
        raise ConfigError(
            f"C_max {c_max} with C_min {c_min} leaves no concurrency for the region {names}, but every one of the "
            f"{len(REQUIRED)} regions needs a point: declare a larger C_max or a smaller C_min"
        )
    return found
