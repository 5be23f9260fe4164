"""The GPUs that this process may see. Makes no CUDA context: a child asks the driver (driver_query.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from pitchpipe.errors import MeasurementFailed
from pitchpipe.wire._base import Wire
from pitchpipe.wire.target import DeviceFingerprint, Target
from tuner.target_kinds.cuda import driver_query

_ASK_SECS = 60.0
_INFORMATION = Path("/proc/driver/nvidia")
OLDEST = (8, 0)
"""The oldest compute capability: Ampere's, with tensor cores for bfloat16 and TF32 and asynchronous copies."""
_SPECIFIC = 9
"""From this major compute capability on an architecture has features of its own, such as wgmma, under the suffix `a`."""


class Gpu(Wire):
    """One GPU, as its driver describes it."""

    name: str
    uuid: str
    """32 hexadecimal digits."""
    memory_bytes: int
    max_threads_per_block: int
    static_shared_bytes: int
    """Shared memory of a block that asks for none in particular."""
    warp_size: int
    registers_per_block: int
    clock_khz: int
    multiprocessors: int
    l2_bytes: int
    capability_major: int
    capability_minor: int
    shared_bytes: int
    """Most shared memory that a block may ask for."""
    clusters: int
    """1 where blocks can be launched in clusters, else 0."""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        return self.capability_major, self.capability_minor

    @property
    def arch(self) -> str:
        """What its code is compiled for: with the features of its own architecture, which no other one has."""
        return f"sm_{self.capability_major}{self.capability_minor}" + "a" * (self.capability_major >= _SPECIFIC)


class Driver(Wire):
    """NVIDIA's driver and the GPUs that this process may see."""

    driver: str
    """Its version; empty where it does not tell."""
    devices: tuple[Gpu, ...]


def driver() -> Driver:
    """Raises MeasurementFailed, with the reason, where there is no driver that answers."""
    return _ask(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))


@lru_cache(maxsize=8)
def _ask(visible: str | None, order: str | None) -> Driver:  # noqa: ARG001 - what the driver's answer depends on
    command = [sys.executable, "-P", "-S", driver_query.__file__]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECS, check=True).stdout
        return Driver.model_validate_json(answer)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip() or f"its exit status is {error.returncode}"
        raise MeasurementFailed(f"no NVIDIA driver answers: {reason}") from error
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        raise MeasurementFailed(f"no NVIDIA driver answers: {error}") from error


def visible() -> Driver | str:
    """The driver with its GPUs, or the reason why there is none."""
    try:
        return driver()
    except MeasurementFailed as error:
        return error.detail


def describe(found: Gpu) -> str:
    """One line for `pitchpipe doctor`. Raises MeasurementFailed for one that is older than OLDEST."""
    target = target_of(found)
    memory = f"{found.memory_bytes / (1 << 30):.0f} GiB, L2 {found.l2_bytes / (1 << 20):.0f} MiB"
    shared = f"{found.shared_bytes >> 10} KiB of shared memory a block"
    return f"{found.name}, {target.arch}, {found.multiprocessors} multiprocessors, {memory}, {shared}"


def gpu(ordinal: int = 0) -> Gpu:
    """Raises MeasurementFailed without a driver, or without that many GPUs."""
    found = driver().devices
    if ordinal >= len(found):
        raise MeasurementFailed(f"there is no GPU {ordinal}: the driver shows {len(found)}")
    return found[ordinal]


def detect(ordinal: int = 0) -> Target | None:
    """The target of a GPU; None where no driver answers or there are fewer GPUs.

    Raises MeasurementFailed for one that is older than OLDEST.
    """
    try:
        found = gpu(ordinal)
    except MeasurementFailed:
        return None
    return target_of(found)


def target_of(found: Gpu) -> Target:
    """The target of a GPU, with its real limits. Raises MeasurementFailed for one that is older than OLDEST."""
    if found.capability < OLDEST:
        told = f"{found.name} has compute capability {found.capability_major}.{found.capability_minor}"
        raise MeasurementFailed(f"{told}; {OLDEST[0]}.{OLDEST[1]} or later is needed")
    return Target(
        kind="cuda",
        arch=found.arch,
        max_threads_per_block=found.max_threads_per_block,
        max_shared_memory_per_block=found.shared_bytes,
        registers_per_block=found.registers_per_block,
        thread_warp_size=found.warp_size,
        l2_cache_size_bytes=found.l2_bytes,
    )


def fingerprint() -> DeviceFingerprint:
    """Of the first GPU. Raises MeasurementFailed without one."""
    found = gpu()
    return DeviceFingerprint(
        kind="cuda",
        model=found.name,
        cores=found.multiprocessors,
        memory_bytes=found.memory_bytes,
        caches={"L2": found.l2_bytes, "shared": found.shared_bytes},
        features=(found.arch, *(("clusters",) if found.clusters else ())),
        driver=driver().driver,
        clock_hz=found.clock_khz * 1e3 or None,
    )


def hold(ordinal: int) -> None:
    """Makes a GPU the only one that this process and its children see, before any of them makes a context.

    Raises MeasurementFailed without a driver, or without that many GPUs.
    """
    uuid = gpu(ordinal).uuid
    os.environ["CUDA_VISIBLE_DEVICES"] = f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"


def identity() -> list[str]:
    """Texts that identify the GPUs: which ones this process may see, the driver's description of each, its version."""
    found = [os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    for path in [*sorted(_INFORMATION.glob("gpus/*/information")), _INFORMATION / "version"]:
        with suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return found
