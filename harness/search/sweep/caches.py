"""Prepares the states of a server's prompt cache that a sweep measures at each rate.

The cache may be empty (cold), filled with the run's prompts (warm), or empty before prompts that share some of their
tokens. Before a cold run, either --before-run empties the cache, or the prompts are new to the server (--backend-option
fresh). A warm run repeats the cold run's prompts, without --before-run and without new prompts.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from random import Random

from harness.core.config.run_config import RunConfig
from harness.search.options import COLD, WARM, cache_share
from harness.search.sweep.content import Content

_PREFIX = "prefix"
_DRAW, _MOST_DRAW = "draw", 1_000_000
_FRESH = "fresh"
_DATASET = "synthetic-prompts"


def problems(config: RunConfig, caches: tuple[str, ...]) -> Iterator[str]:
    """Yields a problem for each option that cannot be combined with these states."""
    if not caches:
        return
    if config.backend != "openai" or not config.url:
        yield "--cache is about the prompts that a server keeps: add --backend openai and --url"
    if _FRESH in dict(config.backend_option):
        yield "--cache draws a new beginning of the prompts at each rate: drop --backend-option fresh"
    shares = [cache for cache in caches if cache_share(cache) is not None]
    if shares and config.dataset != _DATASET:
        yield f"--cache {shares[0]} is a share of generated prompts: add --dataset {_DATASET}, or write cold,warm"
    elif shares and _PREFIX in dict(config.dataset_option):
        yield f"--cache {shares[0]} sets the common share of the prompts: drop --dataset-option prefix"
    if shares and _DRAW in dict(config.dataset_option):
        yield f"--cache {shares[0]} draws new prompts for each run: drop --dataset-option draw"


def config_of(config: RunConfig, cache: str, beginning: str) -> RunConfig:
    """Returns the configuration for a run with the cache state `cache`.

    beginning: text for `fresh`. A warm run uses the same text as its cold run. If `beginning` is `on`, each run chooses
    its text. The tokens of this text would lengthen the part that prompts share, so a run with a shared part draws new
    prompts instead.
    """
    share = cache_share(cache)
    if config.before_run is not None:
        config = replace(config, before_run=None) if cache == WARM else config
    elif share is None or beginning == "on":
        config = replace(config, backend_option=_with(config.backend_option, _FRESH, beginning))
    else:
        draw = str(Random(f"{beginning} {cache}").randint(2, _MOST_DRAW))
        config = replace(config, dataset_option=_with(config.dataset_option, _DRAW, draw))
    if share is None:
        return config
    return replace(config, dataset_option=_with(config.dataset_option, _PREFIX, f"{share:g}"))


def _with(
    options: tuple[tuple[str, str], ...], name: str, value: str
) -> tuple[tuple[str, str], ...]:
    return tuple({**dict(options), name: value}.items())


def missing(caches: Sequence[str], measured: Container[str]) -> list[str]:
    """Returns the states that have not been measured yet. Before a warm run, its cold run is repeated, because the
    server's cache may have lost the prompts.
    """
    left = [cache for cache in caches if cache not in measured]
    return [cache for cache in caches if cache in left or (cache == COLD and WARM in left)]


def folder_name(cache: str, rate: float) -> str:
    """Returns the name of a run's folder. cache: "" if --cache is not set."""
    share = cache_share(cache) if cache else None
    word = cache if share is None else f"{_PREFIX}{share * 100:g}"
    return f"{word}-{rate:g}" if word else f"{rate:g}"


def cache_in(name: str) -> str:
    """Returns the cache state in a folder's name; "" if the name does not contain a state."""
    word, dash, _ = name.partition("-")
    if not dash or word[:1].isdigit():
        return ""
    return word if word in (COLD, WARM) else f"{word.removeprefix(_PREFIX)}%"


def parts(content: Content) -> Iterator[tuple[str, Content]]:
    """Yields each state with the sweep's content, as if only this state had been measured.

    If the sweep has no cache states, yields the state "".
    """
    by_cache = content.get("by_cache") or {}
    if not by_cache:
        yield "", content
    for cache, own in by_cache.items():
        points = [point for point in content["points"] if point["cache"] == cache]
        yield cache, {**content, **own, "points": points}
