"""What device this is: fingerprint, the target that fits it, toolchain. Imports no TVM; asks a child that does."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil

from pitchpipe.errors import InvalidTarget, MeasurementFailed
from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain

_ASK_SECS = 180.0
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SYSTEM = Path("/sys/devices/system/cpu")

_QUESTION = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tuner.tvm_compat import toolchain, tvm
print(json.dumps({
    "mcpu": str(tvm.target.codegen.llvm_get_system_cpu()),
    "toolchains": {kind: toolchain(kind).model_dump() for kind in ("llvm", "cuda")},
}))
"""


def fingerprint(kind: Literal["cpu", "cuda"] = "cpu") -> DeviceFingerprint:
    """Of the CPU, or of the first visible GPU; raises MeasurementFailed when there is none."""
    return _gpu() if kind == "cuda" else _cpu()


def _cpu() -> DeviceFingerprint:
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
        memory_bytes=psutil.virtual_memory().total,
        caches=_caches(),
        features=tuple(sorted(set(features))),
        driver=f"{platform.system()} {platform.release()}"[:256],
        clock_hz=nominal * 1e6 if nominal else None,
    )


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


def _caches_of(core: int) -> Iterator[tuple[str, int, str]]:
    """(name, bytes, the cores that share it) of the caches of a core."""
    for index in sorted((_SYSTEM / f"cpu{core}" / "cache").glob("index*")):
        with suppress(OSError, KeyError, ValueError):
            level = (index / "level").read_text().strip()
            suffix = {"Data": "d", "Instruction": "i", "Unified": ""}[(index / "type").read_text().strip()]
            size = (index / "size").read_text().strip()
            shared_by = (index / "shared_cpu_list").read_text().strip()
            yield f"L{level}{suffix}", int(size[:-1]) * _SIZES[size[-1]], shared_by


def _gpu() -> DeviceFingerprint:
    fields = ("name", "memory.total", "driver_version", "clocks.max.sm")
    values = _nvidia_smi(fields)
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
    """Of the first visible GPU, asked of the driver in a child: a CUDA context must not live in this process."""
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


@cache
def _compiler() -> dict[str, Any]:
    """What TVM knows of this host, asked of a child once per process. Raises MeasurementFailed."""
    root = str(Path(__file__).resolve().parents[1])
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _QUESTION, root], capture_output=True, text=True, timeout=_ASK_SECS, check=True
        )
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or ["no message"]
        raise MeasurementFailed(f"TVM does not start here: {last[-1]}") from error
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise MeasurementFailed(f"TVM does not answer here: {error}") from error
    return found


def detect_target(kind: str = "auto") -> Target:
    """The target of this machine: `llvm`, `cuda`, or `auto` for CUDA where a GPU is visible, else LLVM.

    Raises InvalidTarget for another kind, MeasurementFailed when the machine has no such device or TVM does not
    start.
    """
    if kind not in ("auto", "llvm", "cuda"):
        raise InvalidTarget(f"kind {kind!r} is none of auto, llvm, cuda")
    gpu = _nvidia_smi(("compute_cap",)) if kind != "llvm" else None
    if kind == "cuda" and gpu is None:
        raise MeasurementFailed("nvidia-smi names no GPU here")
    if gpu is not None:
        return cuda_target(gpu["compute_cap"])
    return Target.parse({"kind": "llvm", "mcpu": _compiler()["mcpu"], "num-cores": usable_cores()})


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


def toolchain(target: Target) -> Toolchain:
    """The versions that generate code for `target` on this machine. Raises MeasurementFailed if TVM does not start."""
    return Toolchain.model_validate(_compiler()["toolchains"][target.kind])
