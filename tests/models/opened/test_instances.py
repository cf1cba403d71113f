"""Instances x threads x batch are planned from the cores, and only the user may exceed the number of cores."""

import json
from typing import Any

import pytest

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.plan import InstanceGroup
from harness.machine.cores import Cores
from harness.models.manifest.lookup import load_model
from harness.models.opened import instances
from tests.builders.refusals import refusal

TWO = Cores(((0,), (1,)))
EIGHT = Cores(tuple((n,) for n in range(8)))
SMT = Cores(((0, 4), (1, 5), (2, 6), (3, 7)))


def planned(cores: Cores, scenario: str = "offline", **asked: Any) -> InstanceGroup:
    config = RunConfig(scenario=scenario, **asked)
    return instances.plan(config, registry.load("scenario", scenario), load_model("digits"), cores)


@pytest.mark.parametrize(
    ("cores", "scenario", "asked", "plan"),
    [
        (TWO, "offline", {}, (2, 1)),
        (TWO, "server", {}, (2, 1)),
        (TWO, "single-stream", {}, (1, 2)),
        (TWO, "offline", {"instances": 1}, (1, 2)),
        (TWO, "offline", {"threads": 2}, (1, 2)),
        (TWO, "offline", {"threads": 1}, (2, 1)),
        (EIGHT, "offline", {}, (8, 1)),
        (EIGHT, "server", {}, (7, 1)),
        (EIGHT, "server", {"threads": 2}, (3, 2)),
        (EIGHT, "server", {"instances": 2}, (2, 3)),
        (EIGHT, "server", {"instances": 8}, (8, 1)),
        (EIGHT, "multi-stream", {}, (1, 8)),
        (SMT, "offline", {}, (4, 1)),
        (SMT, "offline", {"instances": 8}, (8, 1)),
        (EIGHT._replace(quota=3.5), "offline", {}, (3, 1)),
        (EIGHT._replace(quota=3.5), "server", {}, (3, 1)),
        (EIGHT._replace(quota=0.5), "server", {}, (1, 1)),
        (Cores(((5,),)), "server", {}, (1, 1)),
        (Cores(((5,),)), "single-stream", {}, (1, 1)),
    ],
)
def test_the_plan_fits_the_cores(
    cores: Cores, scenario: str, asked: dict[str, Any], plan: tuple[int, int]
) -> None:
    found = planned(cores, scenario, **asked)
    assert (found.instances, found.threads) == plan
    assert found.instances * found.threads <= cores.threads
    assert not found.pinned
    assert not found.issuer


@pytest.mark.parametrize(
    ("cores", "scenario", "asked", "plan"),
    [
        (EIGHT, "offline", {}, (4, 2, 64)),
        (EIGHT, "server", {}, (3, 2, 64)),
        (EIGHT, "single-stream", {}, (1, 4, 1)),
        (EIGHT, "multi-stream", {}, (1, 4, 8)),
        (EIGHT, "offline", {"device": "cuda:0,1"}, (8, 1, 64)),
        (EIGHT, "offline", {"instances": 2}, (2, 4, 64)),
        (EIGHT, "offline", {"threads": 3, "max_batch": 7}, (2, 3, 7)),
        (TWO, "offline", {}, (2, 1, 64)),
        (EIGHT, "offline", {"backend": "ort"}, (1, 4, 64)),
        (EIGHT, "offline", {"backend": "ort", "device": "cuda:0,1"}, (2, 4, 64)),
    ],
)
def test_a_gpu_has_a_few_instances_and_large_batches(
    cores: Cores, scenario: str, asked: dict[str, Any], plan: tuple[int, int, int]
) -> None:
    """Bug: on a machine with 16 cores and one GPU, the plan was 16 instances with batches of 8."""
    config = RunConfig(**{"scenario": scenario, "device": "cuda", "backend": "torch", **asked})
    model = load_model("mobilenet")  # this manifest does not mention batches
    found = instances.plan(config, registry.load("scenario", scenario), model, cores)
    assert (found.instances, found.threads, found.max_batch) == plan


@pytest.mark.parametrize(
    ("scenario", "asked", "said"),
    [
        ("single-stream", {}, "--device cuda:0,1: 1 instance cannot use 2 GPUs: name fewer GPUs"),
        (
            "offline",
            {"instances": 1},
            "--device cuda:0,1: 1 instance cannot use 2 GPUs: name fewer GPUs, or raise --instances",
        ),
    ],
)
def test_a_gpu_that_no_instance_would_use_is_refused(
    scenario: str, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{said}$"):
        planned(EIGHT, scenario, device="cuda:0,1", backend="torch", **asked)


def test_nodes_are_announced_as_nodes() -> None:
    """Bug: the text was "2 connections to each server"."""
    found = planned(TWO, nodes="local:2", node_urls=("http://a:1", "http://b:1"), max_batch=4)
    assert str(found) == "2 nodes, batch ≤ 4"
    assert str(found._replace(connections=1)) == "1 connection to each server, batch ≤ 4"


@pytest.mark.parametrize(
    ("asked", "connections"),
    [({}, 64), ({"concurrency": 100}, 100), ({"concurrency": 8}, 64), ({"concurrency": 100, "connections": 2}, 2)],
)  # fmt: skip
def test_every_user_of_a_closed_loop_has_a_connection(
    asked: dict[str, Any], connections: int
) -> None:
    """Bug: of 100 users, 36 waited in the client, because the default was 64 connections."""
    assert planned(TWO, "server", url=("http://a:1",), **asked).connections == connections


@pytest.mark.parametrize(
    ("cores", "asked", "told"),
    [
        (
            TWO,
            {"instances": 2, "threads": 2},
            (
                "2 instances x 2 threads need 4 threads, but 2 can compute at the same time (2 processors "
                "on 2 cores, no quota): lower --instances or --threads, or add --oversubscribe"
            ),
        ),
        (SMT, {"threads": 9}, "1 instance x 9 threads need 9 threads, but 8 can compute at the same"),
        (
            EIGHT._replace(quota=1.5),
            {"instances": 2},
            (
                "2 instances x 1 thread need 2 threads, but 1 can compute at the same time (8 processors "
                "on 8 cores, a quota of 1.5 cores): "
            ),
        ),
        (Cores(((5,),)), {"instances": 2}, "2 instances x 1 thread need 2 threads, but 1 can compute"),
    ],
)  # fmt: skip
def test_oversubscription_is_refused_with_its_numbers_unless_forced(
    cores: Cores, asked: dict[str, Any], told: str
) -> None:
    assert refusal(planned, cores, **asked).startswith(told)
    forced = planned(cores, oversubscribe=True, **asked)
    assert forced.instances * forced.threads > cores.threads


@pytest.mark.parametrize(
    ("cores", "scenario", "asked", "pinned", "issuer", "owns"),
    [
        (TWO, "offline", {}, ((0,), (1,)), (), True),
        (TWO, "server", {}, ((0,), (1,)), (), False),
        (TWO, "server", {"instances": 1, "threads": 1}, ((0,),), (1,), True),
        (TWO, "single-stream", {}, ((0, 1),), (0, 1), True),
        (EIGHT, "server", {"threads": 3}, ((0, 1, 2), (3, 4, 5)), (6, 7), True),
        (SMT, "server", {}, ((0,), (1,), (2,)), (3,), True),
        (SMT, "offline", {"instances": 2, "threads": 4}, ((0, 4, 1, 5), (2, 6, 3, 7)), (), True),
        # Both instances share the second core, so an instance that spins would take this core from the other instance.
        (SMT, "offline", {"instances": 2, "threads": 3}, ((0, 4, 1), (5, 2, 6)), (3, 7), False),
        (SMT, "server", {"instances": 1, "threads": 5}, ((0, 4, 1, 5, 2),), (6, 3, 7), False),
        (SMT, "server", {"instances": 1, "threads": 6}, ((0, 4, 1, 5, 2, 6),), (3, 7), True),
    ],
)
def test_pinned_instances_share_no_core_and_loadgen_has_the_rest(
    cores: Cores, scenario: str, asked: Any, pinned: Any, issuer: Any, owns: bool
) -> None:
    found = planned(cores, scenario, pin=True, **asked)
    assert (found.pinned, found.issuer, found.owns_cores) == (pinned, issuer, owns)
    assert InstanceGroup.from_json(found._asdict()) == found


@pytest.mark.parametrize(
    ("cores", "scenario", "asked", "owns"),
    [
        (TWO, "single-stream", {}, True),
        (TWO, "multi-stream", {"threads": 1}, True),
        (SMT, "single-stream", {}, True),
        # Some of eight threads would spin on SMT siblings.
        (SMT, "single-stream", {"threads": 8}, False),
        # Threads that spin would use up the quota of processor time.
        (TWO._replace(quota=2.0), "single-stream", {}, False),
        (TWO, "offline", {"instances": 1}, False),
        (TWO, "server", {"instances": 1}, False),
    ],
)
def test_a_stream_has_separate_cores_even_without_pinning(
    cores: Cores, scenario: str, asked: Any, owns: bool
) -> None:
    found = planned(cores, scenario, **asked)
    assert (found.pinned, found.owns_cores) == ((), owns)


@pytest.mark.parametrize(
    ("cores", "scenario", "asked", "wide"),
    [
        (TWO, "server", {}, (0, 1)),
        (EIGHT, "server", {}, tuple(range(7))),  # the eighth core belongs to LoadGen
        (SMT, "server", {}, (0, 1, 2)),
        # The plan has no wide instance, because the threads may move to other cores.
        (SMT, "server", {"instances": 2, "threads": 1}, ()),
        (TWO, "server", {"dispatch": "greedy"}, ()),
        (TWO, "server", {"instances": 1}, ()),
        # The plan has no wide instance, because each instance has three threads.
        (EIGHT, "server", {"instances": 2}, ()),
        (TWO, "offline", {}, ()),
        (TWO, "single-stream", {}, ()),
        (TWO._replace(quota=2.0), "server", {}, ()),
        (EIGHT, "server", {"device": "cuda:0", "backend": "ort"}, ()),
    ],
)
def test_queries_that_are_alone_may_have_the_cores_of_all_instances(
    cores: Cores, scenario: str, asked: Any, wide: tuple[int, ...]
) -> None:
    found = planned(cores, scenario, **asked)
    assert found.wide == wide
    assert found.workers == found.instances + bool(wide)
    assert InstanceGroup.from_json(json.loads(json.dumps(found._asdict()))) == found


def test_the_plan_is_one_line() -> None:
    assert str(planned(TWO, "server")) == "2 instances of 1 thread on 2 cores, batch ≤ 64"
    half = str(planned(EIGHT._replace(quota=0.5)))
    assert half == "1 instance of 1 thread on 0.5 cores, batch ≤ 64"
    stream = str(planned(TWO, "single-stream", pin=True))
    assert stream == "1 instance of 2 threads on 2 cores, pinned to 0,1, batch ≤ 1"
    pinned = str(planned(TWO, pin=True))
    assert pinned == "2 instances of 1 thread on 2 cores, pinned to 0 | 1, batch ≤ 64"


def test_one_thread_per_core_and_more_threads_than_cores_contradict() -> None:
    told = refusal(RunConfig, scenario="server", pin=True, oversubscribe=True)
    assert told == "--pin gives each thread a separate core, --oversubscribe shares cores: drop one"


@pytest.mark.parametrize(
    ("scenario", "model", "asked", "may_shrink"),
    [
        ("offline", "mobilenet", {}, True),
        ("offline", "mobilenet", {"max_batch": 8}, False),
        ("offline", "digits", {}, False),  # the manifest of the digits model sets the batch size
        ("server", "mobilenet", {}, False),
        ("multi-stream", "mobilenet", {}, False),
    ],
)
def test_only_offline_without_a_set_batch_may_shrink_it(
    scenario: str, model: str, asked: dict[str, Any], may_shrink: bool
) -> None:
    config = RunConfig(scenario=scenario, **asked)
    plugin = registry.load("scenario", scenario)
    assert instances.plan(config, plugin, load_model(model), TWO).may_shrink == may_shrink


@pytest.mark.parametrize(
    ("cores", "scenario", "asked", "may_drop"),
    [
        (TWO, "single-stream", {}, True),
        (TWO, "multi-stream", {}, True),
        (EIGHT, "single-stream", {"instances": 1}, True),
        (TWO, "single-stream", {"threads": 2}, False),
        (TWO, "single-stream", {"pin": True}, False),
        # A TensorFlow process cannot change its number of threads.
        (TWO, "single-stream", {"backend": "tensorflow"}, False),
        (TWO, "single-stream", {"backend": "tract"}, False),  # tract always uses one thread
        (TWO, "single-stream", {"device": "cuda:0", "backend": "torch"}, False),
        (Cores(((5,),)), "single-stream", {}, False),
        (TWO, "offline", {"instances": 1}, False),
        (TWO, "server", {"instances": 1}, False),
    ],
)
def test_only_streams_whose_threads_are_open_may_drop_some(
    cores: Cores, scenario: str, asked: Any, may_drop: bool
) -> None:
    assert planned(cores, scenario, **asked).may_drop_threads == may_drop
