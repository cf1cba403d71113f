"""The affinity mask, the quota and SMT siblings determine which cores are available."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine import cgroup, cores
from harness.machine.cores import Cores


def machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mask: set[int],
    siblings: dict[int, str],
    quota: float | None = None,
    name: str = "core_cpus_list",
) -> Cores:
    for cpu, text in siblings.items():
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / name).write_text(text + "\n")
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    monkeypatch.setattr(cgroup, "cpu_limit", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: mask)
    return cores.available()


SMT = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_smt_siblings_are_one_core(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = machine(tmp_path, monkeypatch, set(range(8)), SMT, name=name)
    assert found.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert (found.logical, found.threads, found.planned, found.worth) == (8, 8, 4, 4)
    assert str(found) == "8 processors on 4 cores, no quota"


def test_processors_outside_the_affinity_mask_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = machine(tmp_path, monkeypatch, {1, 2, 6}, SMT)
    assert found.groups == ((1,), (2, 6))
    assert (found.threads, found.planned) == (3, 2)


def test_without_topology_every_processor_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine(tmp_path, monkeypatch, {0, 3}, {}).groups == ((0,), (3,))


@pytest.mark.parametrize(
    ("quota", "threads", "planned", "worth"),
    [(None, 8, 4, 4), (16.0, 8, 4, 4), (5.0, 5, 4, 4), (2.5, 2, 2, 2.5), (0.5, 1, 1, 0.5)],
)
def test_a_quota_limits_threads_to_whole_cores_and_at_least_one(
    quota: float | None,
    threads: int,
    planned: int,
    worth: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = machine(tmp_path, monkeypatch, set(range(8)), SMT, quota)
    assert (found.threads, found.planned, found.worth) == (threads, planned, worth)


def test_this_machine_has_a_core() -> None:
    found = cores.available()
    assert sorted(c for group in found.groups for c in group) == sorted(os.sched_getaffinity(0))
    assert 1 <= found.planned <= found.threads


def test_instances_get_whole_cores_before_siblings() -> None:
    found = Cores(((0, 4), (1, 5), (2, 6), (3, 7)))
    assert found.assigned(2, 2) == ((0, 1), (2, 3), ())
    assert found.assigned(1, 3) == ((0, 1, 2), (3,))
    assert found.assigned(3, 2) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert found.assigned(2, 4) == ((0, 4, 1, 5), (2, 6, 3, 7), ())


@pytest.mark.parametrize(
    ("instances", "threads", "apart"),
    [(2, 2, True), (2, 3, False), (3, 2, True), (1, 3, True), (1, 5, True), (8, 1, False)],
)
def test_apart_is_false_if_instances_share_a_core(
    instances: int, threads: int, apart: bool
) -> None:
    found = Cores(((0, 4), (1, 5), (2, 6), (3, 7)))
    *own, _ = found.assigned(instances, threads)
    assert found.apart(own) == apart


@given(
    groups=st.lists(st.integers(1, 2), min_size=1, max_size=6),
    instances=st.integers(1, 6),
    threads=st.integers(1, 6),
)
def test_no_processor_is_assigned_twice(groups: list[int], instances: int, threads: int) -> None:
    numbers = iter(range(12))
    found = Cores(tuple(tuple(next(numbers) for _ in range(size)) for size in groups))
    if instances * threads > found.logical:
        return
    *own, rest = found.assigned(instances, threads)
    given_away = [cpu for cpus in (*own, rest) for cpu in cpus]
    assert len(given_away) == len(set(given_away))
    assert all(len(cpus) == threads for cpus in own)
