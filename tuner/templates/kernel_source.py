"""A kernel's text in Triton, made of printed statements, and its launch: what all templates share.

Kernels whose launch may begin early wait for the one before them before they read anything; whatever they read then is
written. What they do until then changes no result: they ask the L2 cache for weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.templates.contraction import Axis
from tuner.templates.operators import definitions
from tuner.templates.printer import NotPrintable, Printer, Value

BOTH = frozenset((0, 1))
EARLIEST = 90
"""The compute capability from which on launches may begin early."""
LINE_BYTES = 128
"""Of the L2 cache."""
_HEAD = "import triton\nimport triton.language as tl\n"
_GLUON = """\
from triton.experimental import gluon
import triton.experimental.gluon.language as tl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
"""
_EARLY = """
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
"""
_FETCH = """
@triton.jit
def _fetch(pointers):
    # The L2 cache gets the lines; nobody waits for them.
    asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,l", [pointers.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)
"""
_MEET = """
@triton.jit
def _meet():
    # Behind this each block of the cluster sees what the others wrote before it.
    asm: tl.constexpr = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
"""
_POINTERS = {
    **{f"float{bits}": f"*fp{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"*i{bits}" for bits in (8, 16, 32, 64)},
    "bfloat16": "*bf16",
    "bool": "*i8",
    "uint8": "*u8",
}


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A parameter as a matrix, of which a kernel has tiles copied."""

    parameter: int
    """Its place among the workload's parameters."""
    dtype: str
    rows: int
    columns: int
    """Elements that lie side by side."""
    stride: int
    """Elements from a row to the next."""
    tile: tuple[int, int]
    """Rows and columns of what is copied at a time."""
    layout: str
    """Of a tile in shared memory, as Gluon writes it."""


@dataclass(frozen=True, kw_only=True)
class KernelSource:
    """A kernel in Triton, and its launch. One that takes matrices is written in Triton's dialect Gluon."""

    text: str
    name: str
    arguments: tuple[int, ...]
    """Places of its pointers among the workload's parameters and, behind them, its workspaces."""
    types: tuple[str, ...]
    """Of these, as Triton writes them."""
    grid: tuple[int, int, int]
    warps: int
    stages: int
    early: bool
    cluster: int = 1
    """Blocks along the grid's second axis that are one cluster."""
    matrices: tuple[Matrix, ...] = ()
    """What it takes before its pointers: m0, m1, ..."""


@dataclass(frozen=True, kw_only=True)
class TemplateSource:
    """The kernels of a workload, in their order."""

    kernels: tuple[KernelSource, ...]
    workspaces: tuple[int, ...]
    """Bytes of each."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a kernel is launched."""

    grid: tuple[int, int, int]
    warps: int
    stages: int
    early: bool
    cluster: int = 1


def begin(printer: Printer, early: bool) -> None:
    """The first statements of a kernel. What reads or writes what other kernels write comes behind `wait`."""
    if early:
        printer.line("gdc_launch_dependents()")


def wait(printer: Printer, early: bool) -> None:
    """Until the kernel before has ended, and all that it wrote is there."""
    if early:
        printer.line("gdc_wait()")


def written(
    printer: Printer,
    params: Sequence[Any],
    name: str,
    shape: Shape,
    workspace: tuple[str, str] | None = None,
    matrices: tuple[Matrix, ...] = (),
) -> KernelSource:
    """The kernel of a printer's statements. workspace: name and element type of the first one, where the kernel takes it.

    Raises NotPrintable for a parameter that Triton has no type for.
    """
    places = sorted(printer.read)
    names, types = [f"p{at}" for at in places], [_pointer(str(params[at].ty.dtype)) for at in places]
    if workspace is not None:
        places, names, types = [*places, len(params)], [*names, workspace[0]], [*types, _pointer(workspace[1])]
    body = "\n".join(printer.lines)
    helpers = (_EARLY if shape.early else "") + definitions(body)
    helpers += _FETCH if "_fetch(" in body else ""
    helpers += _MEET if "_meet(" in body else ""
    text = f"{_HEAD}{helpers}\n\n@triton.jit\ndef {name}({', '.join(names)}):\n{body}\n"
    if matrices:
        taken = "".join(f"m{at}, " for at in range(len(matrices)))
        text = text.replace(_HEAD, _GLUON).replace("@triton.jit", "@gluon.jit").replace(f"{name}(", f"{name}({taken}")
    return KernelSource(
        text=text,
        name=name,
        arguments=tuple(places),
        types=tuple(types),
        grid=shape.grid,
        warps=shape.warps,
        stages=shape.stages,
        early=shape.early,
        cluster=shape.cluster,
        matrices=matrices,
    )


def meet(printer: Printer) -> None:
    """Until all blocks of the cluster are here, and what they wrote is there for each of them."""
    printer.line("_meet()")


def number(text: str, *axes: int) -> Value:
    """A whole number that varies along these axes of a tile."""
    return Value(text=text, dtype="int32", axes=frozenset(axes))


def unravelled(printer: Printer, axes: Sequence[Axis], flat: Value) -> dict[Any, Value]:
    """The values of axes from their place in row-major order."""
    found, below = {}, math.prod(axis.extent for axis in axes)
    for at, axis in enumerate(axes):
        below //= axis.extent
        text = flat.text if below == 1 else f"{flat.text} // {below}"
        text = text if at == 0 else f"{text} % {axis.extent}"
        found[axis.variable] = flat if text == flat.text else printer.value(text, "int32", flat)
    return found


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below the number."""
    return 1 << (least - 1).bit_length()


def _pointer(dtype: str) -> str:
    if dtype not in _POINTERS:
        raise NotPrintable(f"Triton has no numbers of type {dtype} here")
    return _POINTERS[dtype]
