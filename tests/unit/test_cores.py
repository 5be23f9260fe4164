from __future__ import annotations

import os
from pathlib import Path

import pytest

from pitchpipe.processes import cores
from pitchpipe.processes.cores import processor_quota, usable_cores, with_tvm_threads


def machine(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A list of groups, and a mount with these files."""
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "membership", folder / "cgroup"


V1 = "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3.0),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "100000 50000\n"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "300000 100000\n", "other/cpu.max": "100000 100000\n"}, 3.0),
        ("0::/../../x\n", {"cpu.max": "400000 100000\n"}, 4.0),
        ("0::/the/host/says/so\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        (
            V1,
            {
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "cpu/docker/abc/cpu.cfs_quota_us": "50000\n",
                "cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n"}, None),
    ],
)
def test_the_least_quota_on_the_way_to_the_root_counts(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float | None
) -> None:
    assert processor_quota(*machine(tmp_path, membership, files)) == quota


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert processor_quota(tmp_path / "none", tmp_path / "nowhere") is None


@pytest.mark.parametrize(("quota", "cores"), [("max", 4), ("250000", 2), ("50000", 1), ("900000", 4)])
def test_cores_are_those_of_the_mask_as_far_as_the_quota_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 2, 5, 7}, raising=False)
    assert usable_cores(*machine(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100000\n"})) == cores


def test_where_there_is_no_mask_all_cores_are_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(*machine(tmp_path, "0::/\n", {})) == 6


@pytest.mark.parametrize(
    ("mask", "given", "threads", "expected"),
    [
        (range(8), {}, None, ("8", "1")),
        (range(8), {}, 2, ("2", "0")),
        (range(8), {"TVM_NUM_THREADS": "2"}, 8, ("2", "0")),
        (range(8), {"TVM_BIND_THREADS": "1"}, 2, ("2", "1")),
        (range(4, 8), {}, 4, ("4", "0")),
        (range(4, 8), {}, 8, ("8", "0")),
    ],
)
def test_tvm_binds_threads_only_where_there_is_one_for_each_core_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
    mask: range,
    given: dict[str, str],
    threads: int | None,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: set(mask))
    monkeypatch.setattr(cores, "usable_cores", lambda: len(mask))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    found = with_tvm_threads({"A": "1", **given}, threads)
    assert (found["TVM_NUM_THREADS"], found["TVM_BIND_THREADS"]) == expected
    assert found["A"] == "1"
