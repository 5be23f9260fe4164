"""What NVIDIA's driver says of its devices. A program of its own: it prints JSON, and needs the standard library alone.

The driver starts threads in whoever asks it, and a process with threads must not fork; so it is asked in a child that ends
(tuner/target_kinds/cuda/device.py). Nothing is allocated on a device and no context is made. Devices are those that
CUDA_VISIBLE_DEVICES leaves, in the driver's order.
"""

from __future__ import annotations

import ctypes
import json
import sys
from contextlib import suppress
from typing import Any

ATTRIBUTES = {
    "max_threads_per_block": 1,
    "static_shared_bytes": 8,
    "warp_size": 10,
    "registers_per_block": 12,
    "clock_khz": 13,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_bytes": 97,
    "clusters": 120,
}
"""Name -> number of a CUdevice_attribute of the driver's API; `shared_bytes` is what a block may ask for ("opt in")."""


class DriverError(Exception):
    """A call of the driver failed."""


def devices(library: Any) -> list[dict[str, Any]]:
    """Of each device its name, UUID, bytes of memory and ATTRIBUTES; `library` is the driver's. Raises DriverError."""
    count = ctypes.c_int()
    _call(library, "cuInit", 0)
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    return [_device(library, ordinal) for ordinal in range(count.value)]


def _device(library: Any, ordinal: int) -> dict[str, Any]:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    _call(library, "cuDeviceGet", ctypes.byref(device), ordinal)
    _call(library, "cuDeviceGetName", name, len(name), device)
    _call(library, "cuDeviceGetUuid_v2", uuid, device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    found: dict[str, Any] = {"name": name.value.decode(), "uuid": bytes(uuid).hex(), "memory_bytes": memory.value}
    for attribute, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        _call(library, "cuDeviceGetAttribute", ctypes.byref(value), number, device)
        found[attribute] = value.value
    return found


def driver_version(management: Any) -> str:
    """The driver's version, such as 580.95.05, from NVIDIA's management library."""
    text = ctypes.create_string_buffer(96)
    if management.nvmlInit_v2() or management.nvmlSystemGetDriverVersion(text, len(text)):
        raise DriverError("the management library does not tell the driver's version")
    return text.value.decode()


def _call(library: Any, name: str, *arguments: Any) -> None:
    if code := getattr(library, name)(*arguments):
        raise DriverError(f"{name}: error {code}")


def main() -> int:
    """Prints {"driver": version, "devices": [...]}, or says on stderr what is missing."""
    try:
        found = {"driver": "", "devices": devices(ctypes.CDLL("libcuda.so.1"))}
    except (OSError, DriverError) as error:
        print(error, file=sys.stderr)
        return 1
    with suppress(OSError, AttributeError, DriverError):
        found["driver"] = driver_version(ctypes.CDLL("libnvidia-ml.so.1"))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
