"""Which cores this process may use, fewer than the machine has where an affinity mask or a container says so, and what TVM
is told of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def usable_cores(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> int:
    """Cores of the affinity mask, capped by the control groups' quota rounded down; at least 1.

    `membership` and `mount` are for tests: see `processor_quota`.
    """
    cores = len(allowed_cores())
    quota = processor_quota(membership, mount)
    return cores if quota is None else max(1, min(cores, int(quota)))


def allowed_cores() -> set[int]:
    """The numbers of the cores of the affinity mask."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def with_tvm_threads(environment: Mapping[str, str], threads: int | None = None) -> dict[str, str]:
    """The environment variables and, where they are absent, those that TVM reads when it starts its threads: how many they
    are, by default one for each usable core, and whether TVM binds each to a core.

    TVM binds to the first cores of the machine, outside of the affinity mask too: of eight processes with two threads each,
    all would compute on the same two cores. So it binds only where there is a thread for each core of the machine.
    """
    told = {"TVM_NUM_THREADS": str(threads or usable_cores()), **environment}
    whole = told["TVM_NUM_THREADS"] == str(os.cpu_count()) == str(len(allowed_cores()))
    return {"TVM_BIND_THREADS": str(int(whole)), **told}


def processor_quota(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> float | None:
    """Processors that this process's control groups grant, or None without a limit.

    `membership` is the kernel's list of the groups that the process is in, `mount` the folder of their hierarchies. A
    quota holds for all groups below it, so the least one on the way to the root counts.
    """
    paths = _groups(membership)
    quotas = [_quota_v2(group) for group in _ways(mount, paths.get("", "/"))]
    quotas += [_quota_v1(group) for group in _ways(mount / "cpu", paths.get("cpu", "/"))]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(membership: Path) -> dict[str, str]:
    """Controller of version 1, or "" for version 2 -> path of the group in its hierarchy."""
    found = {}
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _ways(root: Path, path: str) -> Iterator[Path]:
    """The root's folder, and those of the groups down to `path`.

    A container often sees its own group as the root while it is told the path that the host sees: folders may be absent.
    """
    yield root
    parts = PurePosixPath(path.lstrip("/")).parts
    if ".." not in parts:  # else the group lies outside of what this namespace shows
        for count in range(len(parts)):
            yield root.joinpath(*parts[: count + 1])


def _quota_v2(group: Path) -> float | None:
    with suppress(OSError, ValueError):
        allowed, period = (group / "cpu.max").read_text().split()
        return None if allowed == "max" else int(allowed) / int(period)
    return None


def _quota_v1(group: Path) -> float | None:
    with suppress(OSError, ValueError):
        allowed_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        return allowed_us / period_us if allowed_us > 0 else None
    return None
