"""From a Triton program to PTX: with assembler.py the only module that knows Triton's ways.

Triton's own `compile` keeps results in files and starts its assembler; here its stages are run one after another, in memory,
up to PTX. A GPU, a driver and torch are not needed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import linecache
import re
import sys
import threading
from dataclasses import dataclass
from typing import Any

from pitchpipe.gpu.program import Swizzle
from tuner.templates import assembler
from tuner.templates.kernel_source import KernelSource

INSTALL = "pip install 'pitchpipe[cuda]'"
_LINES = re.compile(r"^\s*\.(?:loc|file)\s.*\n|^\s*\.section\s+\.debug_\w+\s*\{[^{}]*\}", re.MULTILINE)
"""Where in the source the instructions come from: half of a cubin would be that."""
HIDDEN_PARAMETERS = 2
"""Pointers behind a kernel's own: to global scratch memory and to that of a profiler, neither of which is used here."""
_MATRIX_PARAMETERS = 5
"""Of a kernel for each of its matrices: a tensor map, two extents and two strides."""
_DESCRIBED = {"float16": "fp16", "bfloat16": "bf16", "tfloat32": "fp32"}
_LABEL = re.compile(r"^(\$L\w+):", re.MULTILINE)
_FROM_REGISTERS = re.compile(r"wgmma\.mma_async\S+\s*\{[^{}]*\},\s*\{")
"""A product of which both the sums and the first operand are registers."""
_PACKED = re.compile(r"\badd\.s16x2\s+(%\w+), (%\w+), (%\w+);")
_ONE_BY_ONE = (
    r"{ .reg .b16 %one<6>; mov.b32 {%one0, %one1}, \2; mov.b32 {%one2, %one3}, \3; "
    r"add.s16 %one4, %one0, %one2; add.s16 %one5, %one1, %one3; mov.b32 \1, {%one4, %one5}; }"
)
_WAIT = re.compile(r"(wgmma\.wait_group\.sync\.aligned\s+)\d+")
_reading = threading.Lock()
"""Held while a text is in the cache of sources, and while it is parsed. Two tensor functions may have kernels of one text,
compiled in threads; and CPython 3.11 counts the depth of a tree for all threads at once, so that one that parses while
another does may be refused."""
_ALIGNED = 16
"""Bytes at whose multiples all buffers begin (CALLER_ALIGNMENT of pitchpipe/gpu/program.py)."""


class NotCompiled(Exception):
    """Triton is not here, or refuses the program."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A kernel in PTX."""

    ptx: str
    name: str
    threads: int
    shared_bytes: int
    copied: tuple[tuple[tuple[int, ...], Swizzle], ...]
    """Of each matrix: columns and rows that one copy brings, and how they lie in shared memory."""


@functools.cache
def available() -> bool:
    """Whether Triton is installed. Does not import it."""
    return sys.platform == "linux" and importlib.util.find_spec("triton") is not None


def version() -> str:
    """Triton's version. Raises NotCompiled without it."""
    return str(_triton().__version__)


def describe() -> str:
    """Triton's version, for the doctor. Raises NotCompiled without it."""
    return f"{version()} for templates"


def warm_up(arch: str) -> None:
    """Imports what compiling needs, for a process that will be forked. Starts no thread and keeps no process."""
    _triton()
    assembler.version(assembler.machine(arch))


def to_ptx(source: KernelSource, arch: str) -> Compiled:
    """Compiles a kernel for an architecture such as sm_90a. Raises NotCompiled."""
    _triton()
    compiling = importlib.import_module("triton.compiler.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    ir = importlib.import_module("triton._C.libtriton").ir
    target = backends.GPUTarget("cuda", assembler.capability(arch), 32)
    backend = compiling.make_backend(target)
    major, minor = assembler.version(assembler.machine(arch))
    wanted: dict[str, Any] = {"num_warps": source.warps, "num_stages": source.stages, "launch_pdl": source.early}
    # Said, since versions differ in what they assume; the second holds for Gluon, which cannot be told it in a text.
    wanted |= {"enable_fp_fusion": True, "default_dot_input_precision": "tf32"}
    options = backend.parse_options(
        {
            **wanted,
            "ptx_version": importlib.import_module("triton.backends.nvidia.compiler").ptx_get_version(
                f"{major}.{minor}"
            ),
        }
    )
    try:
        function = jitted(source)
        names = function.arg_names
        matrices = [
            f"tensordesc<{_DESCRIBED[one.dtype]}[{one.tile[0]},{one.tile[1]}],{one.layout}>" for one in source.matrices
        ]
        kind = importlib.import_module("triton.experimental.gluon._runtime").GluonASTSource if matrices else None
        ast = (kind or compiling.ASTSource)(
            fn=function,
            signature=dict(zip(names, [*matrices, *source.types], strict=True)),
            attrs={(at,): [["tt.divisibility", _ALIGNED]] for at in range(len(matrices), len(names))},
        )
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        metadata: dict[str, Any] = dict(options.__dict__)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, ast.language)
        functions = backend.get_codegen_implementation(options)
        with _reading:
            module = ast.make_ir(target, options, functions, backend.get_module_map(), context)
        for name, stage in stages.items():
            if name == "cubin":
                break
            module = stage(module, metadata)
    except Exception as error:  # Triton raises whatever its passes met
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
        raise NotCompiled(f"Triton refuses {source.name}: {reason}") from error
    _check_parameters(module, metadata, source)
    return Compiled(
        ptx=awaited(apart(_LINES.sub("", module))),
        name=str(metadata["name"]),
        threads=32 * int(metadata["num_warps"]),
        shared_bytes=int(metadata["shared"]),
        copied=tuple(
            (tuple(reversed(one["block_size"])), tuple(Swizzle)[one["swizzle"]])
            for one in metadata.get("tensordesc_meta") or ()
        ),
    )


def awaited(ptx: str) -> str:
    """The PTX with loops at whose end all products are done that read registers.

    Triton 3.6 waits there for the first of those that it divides a product into, and the next turn writes the registers of
    the others while they may still be read (https://github.com/triton-lang/triton/issues/9433).
    """
    if not _FROM_REGISTERS.search(ptx):
        return ptx
    for label in reversed(list(_LABEL.finditer(ptx))):
        start, end = label.end(), ptx.rfind(f"{label[1]};")  # of the loop, where something behind the label leads back
        waits = list(_WAIT.finditer(ptx, start, end)) if end > start else []
        if waits and _FROM_REGISTERS.search(ptx, start, end):
            ptx = f"{ptx[: waits[-1].start()]}{waits[-1][1]}0{ptx[waits[-1].end() :]}"
    return ptx


def apart(ptx: str) -> str:
    """The PTX with sums of two packed numbers of 16 bits made one after the other.

    Where one of the two is not read, the assembler adds 0 in place of a constant (CUDA 12.8 to 13.0, for Hopper and later):
    the window of a convolution with strides was cut off at wrong places.
    """
    return _PACKED.sub(_ONE_BY_ONE, ptx)


def jitted(source: KernelSource) -> Any:
    """Triton's function of a kernel."""
    # Triton reads sources through `inspect`, which looks into this cache; a name of its own for each text.
    file = f"<template {hashlib.sha256(source.text.encode()).hexdigest()}>"
    space: dict[str, Any] = {"__name__": "pitchpipe_template"}
    with _reading:
        linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
        exec(compile(source.text, file, "exec"), space)
        del linecache.cache[file]
    return space[source.name]


def _check_parameters(ptx: str, metadata: dict[str, Any], source: KernelSource) -> None:
    """Raises NotCompiled unless the kernel takes its matrices, its pointers and the hidden ones, of which it uses none."""
    entry = re.search(r"\.entry\s+\w+\((.*?)\)", ptx, re.DOTALL)
    count = len(re.findall(r"\.param\b", entry[1])) if entry else 0
    wanted = len(source.matrices) * _MATRIX_PARAMETERS + len(source.types) + HIDDEN_PARAMETERS
    used = any(metadata.get(name) for name in ("global_scratch_size", "profile_scratch_size"))
    if count != wanted or used or len(metadata.get("tensordesc_meta") or ()) != len(source.matrices):
        raise NotCompiled(f"a kernel takes {count} arguments where {wanted} were expected")


def _triton() -> Any:
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise NotCompiled(f"Triton is not here: {INSTALL}") from error
