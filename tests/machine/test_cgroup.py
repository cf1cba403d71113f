"""The harness reads the limits of containers from both versions of cgroups."""

from pathlib import Path

import pytest

from harness.machine import cgroup

V2 = "0::/pod/run\n"
V1 = "7:cpu,cpuacct:/pod/run\n4:memory:/pod/run\n0::/\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path / "fs")
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    return tmp_path


def written(root: Path, own: str, files: dict[str, str]) -> None:
    (root / "own").write_text(own)
    for name, content in files.items():
        path = root / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        (V2, {"pod/cpu.max": "150000 100000", "pod/run/cpu.max": "max 100000"}, 1.5),
        (V2, {"pod/cpu.max": "50000 100000", "pod/run/cpu.max": "200000 100000"}, 0.5),
        (V2, {"cpu.max": "300000 100000"}, 3.0),
        (V2, {"pod/run/cpu.max": "max 100000"}, None),
        (V1, {"cpu/pod/cpu.cfs_quota_us": "20000", "cpu/pod/cpu.cfs_period_us": "100000"}, 0.2),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
)
def test_the_lowest_quota_of_the_group_and_its_parents_applies(
    own: str, files: dict[str, str], cores: float | None, root: Path
) -> None:
    written(root, own, files)
    assert cgroup.cpu_limit() == cores


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        (V2, {"pod/run/memory.max": "1000", "pod/run/memory.current": "400"}, 600),
        (V2, {"pod/run/memory.max": "max", "pod/run/memory.current": "400"}, None),
        (V2, {"pod/run/memory.max": "1000", "pod/run/memory.current": "900", "pod/run/memory.stat": "anon 200\ninactive_file 600\nactive_file 100\n"}, 700),
        (V1, {"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "800", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n"}, 600),
        (V1, {"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "1"}, 899),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"}, None),
    ],
)  # fmt: skip
def test_memory_left_is_counted_to_the_nearest_limit(
    own: str, files: dict[str, str], left: int | None, root: Path
) -> None:
    written(root, own, files)
    assert cgroup.memory_left_bytes() == left
    assert (cgroup.memory_limit_bytes() is None) == (left is None)


@pytest.mark.parametrize(
    ("own", "files", "seconds"),
    [
        (V2, {"pod/run/cpu.stat": "usage_usec 9\nthrottled_usec 1500000"}, 1.5),
        (V1, {"cpu/pod/run/cpu.stat": "nr_throttled 3\nthrottled_time 2500000000"}, 2.5),
        (V2, {"pod/run/cpu.stat": "usage_usec 9"}, None),
    ],
)
def test_throttled_time_is_read_from_both_versions_of_cgroups(
    own: str, files: dict[str, str], seconds: float | None, root: Path
) -> None:
    written(root, own, files)
    assert cgroup.throttled_s() == seconds
