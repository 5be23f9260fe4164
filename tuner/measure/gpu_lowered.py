"""A scheduled tensor function, taken apart into the launches of its kernels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pitchpipe.gpu.program import TensorMap
from tuner.measure.device_compiler import NotCompiled
from tuner.templates.assembler import AssemblerError
from tuner.templates.compiler import NotCompiled as RefusedByTriton
from tuner.templates.kernels import compile_function, template_of


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """A launch as the host function of one workload writes it."""

    kernel: str
    arguments: tuple[int | bytes | TensorMap, ...]
    """Indices into the function's parameters, and after them its workspaces; scalars as the device reads them; tensor maps
    whose base's `buffer` is such an index."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory of a thread block."""
    programmatic: bool = False
    """Whether it may begin before the launch before it has ended."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Thread blocks of a cluster."""


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A scheduled tensor function, taken apart."""

    calls: tuple[KernelCall, ...]
    """In their order."""
    workspaces: tuple[int, ...]
    """Bytes of each buffer that carries intermediate results from one kernel to another."""
    source: str
    """CUDA C++ of the kernels; where a template made `code`, a text that no other code has."""
    code: bytes = b""
    """Machine code, where a template made it."""


def from_template(function: Any, arch: str) -> Lowered:
    """The kernels of a function that a template computes. Raises NotCompiled, or InvalidTrace where it does not apply."""
    try:
        found = compile_function(function, arch)
    except (RefusedByTriton, AssemblerError) as error:
        raise NotCompiled(str(error)) from error
    calls = tuple(
        KernelCall(
            kernel=launch.kernel,
            arguments=launch.arguments,
            grid=launch.grid,
            block=(launch.threads, 1, 1),
            shared_bytes=launch.shared_bytes,
            programmatic=launch.programmatic,
            cluster=launch.cluster,
        )
        for launch in found.launches
    )
    name = f"{template_of(function)} {hashlib.sha256(found.code).hexdigest()}"
    return Lowered(calls=calls, workspaces=found.workspaces, source=name, code=found.code)
