"""The models section in result.json agrees with known events, and changed rows are detected."""

import re
from typing import Any

import numpy as np
import pytest

from harness.loadgen.plan import Loaded
from harness.models.cache.cache import LOADED, ORIGINS
from harness.models.cache.model_set import models_of
from harness.models.cache.residents import LRU, POLICIES, Residents
from harness.models.cache.trace import play
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions, summarise
from harness.results.models import witness
from harness.results.models.section import section
from harness.results.models.shown import shown
from harness.results.pages.models_tables import curve_table, models_table
from harness.results.pages.timeline import over_time
from harness.results.records import NOTHING_BESIDE
from tests.builders.support import evidence, present

SLOTS = [60, 30, 10]
SIZES = {0: 40, 1: 30, 2: 20}
QUERIES = 300
SEED = 3


def loaded(policy: str = LRU) -> Loaded:
    times = {"load_ns": 1000, "first_ns": 100, "run_ns": 10, "always": False}
    models = [
        {"name": f"m{i}", "bytes": SIZES[i], "share": slots / 100, "slots": slots, **times}
        for i, slots in enumerate(SLOTS)
    ]
    about: dict[str, Any] = {"seed": SEED, "policy": policy, "top_share": 0.6, "models": models}
    about |= {"capacity_bytes": 70, "local_capacity_bytes": None}
    about |= {"popularity": {"law": "zipf", "exponent": 1.0}}
    return Loaded((), 100, 100, None, False, {}, about, None, 0)


def served(policy: str = LRU) -> Evidence:
    """Returns a run with one worker, in which a hit takes 10 us and a load 1 ms."""
    index = np.random.default_rng(1).integers(0, 100, QUERIES)
    models = models_of(SLOTS, SEED)[index].tolist()
    play_by = list(play(models, SIZES, Residents(70, policy)))
    names = {"hit": "hit", "loaded": "local", "alone": "alone-local"}
    origin = np.array([ORIGINS.index(names[one.how]) for one in play_by])
    due_ns = np.arange(QUERIES) * 2_000_000
    wait_ns = np.where(origin == 0, 10_000, 1_000_000)
    columns: dict[str, Any] = {
        "order": np.arange(QUERIES),
        "index": index,
        "scheduled_ns": due_ns,
        "entry_ns": due_ns,
        "taken_ns": due_ns,
        "gathered_ns": due_ns,
        "acquired_ns": due_ns + wait_ns,
        **dict.fromkeys(("inferred_ns", "postprocessed_ns", "completed_ns"), due_ns + wait_ns),
        "worker": np.zeros(QUERIES, np.int16),
        "batch": np.arange(QUERIES),
        "batch_size": np.ones(QUERIES, np.int64),
        "failed": np.zeros(QUERIES, np.int64),
        "origin": origin,
        "evicted": np.array([len(one.evicted) for one in play_by]),
    }
    counted = [dict.fromkeys(("hits", "joined", "loads", "alone", "evictions", "failures"), 0)]
    counted = [dict(counted[0]) for _ in SIZES]
    for model, one in zip(models, play_by, strict=True):
        counted[model][
            "loads" if one.how == LOADED else "hits" if one.how == "hit" else one.how
        ] += 1
        for gone in one.evicted:
            counted[gone]["evictions"] += 1
    done = Completions(columns, QUERIES, answered_once=True)
    ended = {"models": {"resident": counted, "files": None}}
    return evidence("server", done=done, ended=ended)


def changed(run: Evidence, column: str, row: int, number: int) -> Evidence:
    assert run.done is not None
    columns = {**run.done.columns, column: run.done.columns[column].copy()}
    columns[column][row] = number
    done = Completions(columns, QUERIES, answered_once=True)
    return Evidence(**{**{f: getattr(run, f) for f in run.__slots__}, "done": done})


@pytest.mark.parametrize("policy", POLICIES)
def test_section_has_the_counts_of_the_rows(policy: str) -> None:
    run = served(policy)
    found = present(section(run, loaded(policy)))
    hits = int((present(run.done).columns["origin"] == 0).sum())
    assert (found["requests"], found["hits"], found["hit_rate"]) == (QUERIES, hits, hits / QUERIES)
    assert found["hits"] + found["loads"]["local"] + found["alone"]["local"] == QUERIES
    assert sum(each["requests"] for each in found["models"]) == QUERIES
    assert sum(each["evictions"] or 0 for each in found["models"]) == found["evictions"]
    at_capacity = {
        point["capacity_bytes"]: point["hit_rate"] for point in found["curve"][0]["points"]
    }
    assert at_capacity[70] == pytest.approx(found["hit_rate"])
    assert [curve["policy"] for curve in found["curve"]] == list(dict.fromkeys([policy, "lru"]))
    assert not list(witness.reasons(run, loaded(policy)))


def test_each_model_has_its_percentiles_and_the_gain_of_keeping_it() -> None:
    found = present(section(served(), loaded()))
    popular, rare = found["models"][0], found["models"][2]
    assert popular["latency_ns"] is not None
    assert rare["latency_ns"] is not None
    assert popular["latency_ns"]["p50"] == 10_000
    assert rare["latency_ns"]["p50"] == 1_000_000
    assert [each["saved_ns"] for each in found["models"]] == pytest.approx([600, 300, 100])
    assert [each["keep"] for each in found["models"]] == [True, True, False]
    assert found["expected_load_ns"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("column", "number", "text"),
    [
        ("origin", ORIGINS.index("joined"), r"^model 'm\d': the journal has \{"),
        ("evicted", 9, r"^the journal has \d+ evictions, but the cache counted \d+$"),
    ],
)
def test_rows_that_contradict_the_counts_of_the_cache_are_found(
    column: str, number: int, text: str
) -> None:
    found = list(witness.reasons(changed(served(), column, 100, number), loaded()))
    assert [reason.code for reason in found] == ["cache-differs", "cache-differs"]
    assert re.match(text, found[0].text)
    assert found[1].text.startswith("query 100: the journal has ")


def test_rows_of_another_set_are_refused() -> None:
    (found,) = witness.reasons(changed(served(), "index", 5, 100), loaded())
    assert found.text == "the journal's rows do not match the set of models"


def test_a_run_of_one_model_has_no_section() -> None:
    assert section(evidence("server"), loaded()) is None


def test_the_wait_for_a_model_is_a_stage_and_stages_add_up() -> None:
    run = served()
    stages = summarise(present(run.done))
    assert stages["acquire"]["share"] == pytest.approx(1.0)
    assert sum(stage["share"] for stage in stages.values()) == pytest.approx(1.0)


def test_a_line_and_two_tables_and_the_time_axis_show_the_models() -> None:
    run = served()
    assert run.done is not None
    result = {"models": section(run, loaded())}
    line = present(shown(result))
    assert " hits of 3 models in 70 B (lru), " in line
    models, rates = models_table(result), curve_table(result)
    assert models is not None
    assert rates is not None
    assert [row[0] for row in models.rows] == ["m0", "m1", "m2"]
    assert [row[-1] for row in models.rows] == ["keep", "keep", ""]
    assert rates.rows[-1][0] == 90
    assert [shown({}), models_table({}), curve_table({})] == [None] * 3
    figure = over_time(run, run.done.latency_ns, NOTHING_BESIDE)
    assert {"hits", "loads from a file", "evictions"} <= {line["name"] for line in figure.data}
