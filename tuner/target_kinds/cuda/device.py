"""The first GPU that this process may see. Makes no CUDA context: the driver is asked by nvidia-smi and in a child."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pitchpipe.errors import MeasurementFailed
from pitchpipe.wire.target import DeviceFingerprint, Target

_DRIVER = Path("/proc/driver/nvidia")


def detect() -> Target | None:
    """Its target; None without a GPU."""
    found = _nvidia_smi(("compute_cap",))
    return None if found is None else cuda_target(found["compute_cap"])


def cuda_target(capability: str) -> Target:
    """The target of a GPU with that compute capability, such as `9.0`; without Hopper's `a` features: not portable."""
    return Target.parse(
        {
            "kind": "cuda",
            "arch": f"sm_{capability.replace('.', '')}",
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "registers_per_block": 65536,
            "thread_warp_size": 32,
        }
    )


def fingerprint() -> DeviceFingerprint:
    """Raises MeasurementFailed when there is no GPU."""
    values = _nvidia_smi(("name", "memory.total", "driver_version", "clocks.max.sm"))
    if values is None:
        raise MeasurementFailed("nvidia-smi names no GPU here")
    clock = re.match(r"[\d.]+", values["clocks.max.sm"])
    memory = re.match(r"[\d.]+", values["memory.total"])
    return DeviceFingerprint(
        kind="cuda",
        model=values["name"],
        cores=_multiprocessors() or 1,
        memory_bytes=int(float(memory.group()) * (1 << 20)) if memory else 0,
        driver=values["driver_version"],
        clock_hz=float(clock.group()) * 1e6 if clock else None,
    )


def identity() -> list[str]:
    """Texts that identify the GPUs: which ones this process may see, the driver's description of each, its version."""
    found = [os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    for path in [*sorted(_DRIVER.glob("gpus/*/information")), _DRIVER / "version"]:
        with suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return found


def _nvidia_smi(fields: tuple[str, ...]) -> dict[str, str] | None:
    """Of the first GPU this process may see; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", f"--id={visible}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in answer.splitlines()[0].split(",")] if answer.strip() else []
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else None


def _multiprocessors() -> int | None:
    """Asked of the driver in a child: a CUDA context must not live in this process."""
    question = (
        "import ctypes; d = ctypes.CDLL('libcuda.so.1'); n, i = ctypes.c_int(), ctypes.c_int(); d.cuInit(0); "
        "d.cuDeviceGet(ctypes.byref(i), 0); d.cuDeviceGetAttribute(ctypes.byref(n), 16, i); print(n.value)"
    )
    try:
        command = [sys.executable, "-c", question]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return int(answer.stdout) or None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
