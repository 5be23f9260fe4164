"""The processor of this machine. Imports no TVM."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.target import DeviceFingerprint

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SYSTEM = Path("/sys/devices/system/cpu")


def fingerprint() -> DeviceFingerprint:
    """Of the cores that this process may use."""
    info = _cpuinfo()
    # Arm names parts by number; on both, the features decide which code can run.
    model = info.get("model name") or " ".join(
        f"{key} {info[key]}" for key in ("CPU implementer", "CPU architecture", "CPU part") if key in info
    )
    features = (info.get("flags") or info.get("Features") or "").split()
    frequencies = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    nominal = frequencies.max if frequencies is not None and frequencies.max else None
    return DeviceFingerprint(
        kind="cpu",
        model=(model or platform.machine())[:256],
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        caches=_caches(),
        features=tuple(sorted(set(features))),
        driver=f"{platform.system()} {platform.release()}"[:256],
        clock_hz=nominal * 1e6 if nominal else None,
    )


def memory_bytes() -> int:
    """Of the host."""
    return int(psutil.virtual_memory().total)


def data_caches(cores: int) -> list[tuple[str, int]]:
    """(name, bytes held together) of the data caches of so many of the cores this process may use, nearest first.

    A cache that cores share counts once.
    """
    found: dict[str, dict[str, int]] = {}
    for core in sorted(os.sched_getaffinity(0))[:cores]:
        for name, size, shared_by in _caches_of(core):
            if not name.endswith("i"):
                found.setdefault(name, {})[shared_by] = size
    return [(name, sum(sizes.values())) for name, sizes in sorted(found.items())]


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if not line.strip() and found:
                break
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    return found


def _caches() -> dict[str, int]:
    """Name -> bytes of the caches of the first core this process may use."""
    return {name: size for name, size, _ in _caches_of(min(os.sched_getaffinity(0)))}


def _caches_of(core: int) -> Iterator[tuple[str, int, str]]:
    """(name, bytes, the cores that share it) of the caches of a core."""
    for index in sorted((_SYSTEM / f"cpu{core}" / "cache").glob("index*")):
        with suppress(OSError, KeyError, ValueError):
            level = (index / "level").read_text().strip()
            suffix = {"Data": "d", "Instruction": "i", "Unified": ""}[(index / "type").read_text().strip()]
            size = (index / "size").read_text().strip()
            shared_by = (index / "shared_cpu_list").read_text().strip()
            yield f"L{level}{suffix}", int(size[:-1]) * _SIZES[size[-1]], shared_by
