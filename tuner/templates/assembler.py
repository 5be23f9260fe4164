"""From PTX to machine code, by the assembler of Triton's wheel (ptxas).

A process that is about to confine itself starts its assemblers first, with `start`: each waits for its input on a pipe, so
that afterwards nothing has to be started any more. It reads and writes pipes and no file.
"""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
from typing import Any

MAX_PTX_BYTES = 16 << 20
_ARCH = re.compile(r"sm_(\d+)a?")
_VERSION = re.compile(r"release (\d+)\.(\d+)")
_waiting: dict[str, list[Any]] = {}
"""Architecture -> assemblers of this process that wait for their input."""


class AssemblerError(Exception):
    """The assembler refused a program, or there is none."""


def start(arch: str, count: int) -> None:
    """Starts so many assemblers that wait. Raises AssemblerError where there is none."""
    for _ in range(count):
        _waiting.setdefault(arch, []).append(_started(arch))


def assemble(ptx: str, arch: str) -> bytes:
    """The machine code (a cubin) of PTX, by an assembler that waits if there is one. Raises AssemblerError."""
    waiting = _waiting.get(arch) or [_started(arch)]
    process = waiting.pop()
    code, complaints = process.communicate(ptx.encode())
    if process.returncode != 0 or not code:
        reason = complaints.decode(errors="replace").strip().splitlines() or [f"it ended with {process.returncode}"]
        raise AssemblerError(f"the assembler refused the program: {reason[0][:300]}")
    return bytes(code)


@functools.cache
def version(arch: str) -> tuple[int, int]:
    """The CUDA version of the assembler for an architecture. Raises AssemblerError."""
    try:
        told = subprocess.run([_path(arch), "--version"], capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise AssemblerError(f"the assembler does not start: {error}") from error
    found = _VERSION.search(told)
    if found is None:
        raise AssemblerError(f"the assembler has no version: {told[:100]!r}")
    return int(found[1]), int(found[2])


def capability(arch: str) -> int:
    """90 for sm_90a. Raises AssemblerError for what is no architecture."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        raise AssemblerError(f"{arch} is no architecture that Triton compiles for")
    return int(found[1])


def machine(arch: str) -> str:
    """The architecture as Triton names it to the assembler: with all its features."""
    return str(_tools().sm_arch_from_capability(capability(arch)))


def _path(arch: str) -> str:
    try:
        return str(_tools().get_ptxas(capability(arch)).path)
    except (ImportError, RuntimeError) as error:
        raise AssemblerError(f"Triton's assembler is not here: {error}") from error


def _tools() -> Any:
    return importlib.import_module("triton.backends.nvidia.compiler")


def _started(arch: str) -> Any:
    options = [f"--gpu-name={arch}", "/dev/stdin", "--output-file", "/dev/stdout"]
    try:
        return subprocess.Popen(
            [_path(arch), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
        )
    except OSError as error:
        raise AssemblerError(f"the assembler does not start: {error}") from error
