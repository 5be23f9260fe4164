"""The Triton program of a contraction: C[s, i, j] += A[s, i, k] * B[s, k, j], with what comes before and after it.

    block: a tile of rows x columns of one s, and one part of k
      for k, in steps
        the step's parts of A and B, zero outside of them, multiplied by tensor cores
      what follows the sums, on the way to memory

Where k is divided, blocks write their sums, and a second kernel adds these in the order of their parts and does what
follows, so that results do not depend on which block is first.

Kernels whose launch may begin early wait for the one before them first of all; whatever they read then is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.templates.contraction import MAX_ELEMENTS, Axis, Contraction
from tuner.templates.printer import TANH, NotPrintable, Printer, Tile, Value
from tuner.tvm_compat import ir

BOTH = frozenset((0, 1))
_HEAD = "import triton\nimport triton.language as tl\n"
_EARLY = """
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
"""
_POINTERS = {
    **{f"float{bits}": f"*fp{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"*i{bits}" for bits in (8, 16, 32, 64)},
    "bfloat16": "*bf16",
    "bool": "*i8",
    "uint8": "*u8",
}
SUM_ELEMENTS, SUM_WARPS = 1024, 4
"""Of a block of the kernel that adds parts."""


@dataclass(frozen=True, kw_only=True)
class KernelSource:
    """A kernel in Triton, and its launch."""

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


@dataclass(frozen=True, kw_only=True)
class TemplateSource:
    """The kernels of a workload, in their order."""

    kernels: tuple[KernelSource, ...]
    workspaces: tuple[int, ...]
    """Bytes of each."""


def write_contraction(found: Contraction, arguments: Mapping[str, int]) -> TemplateSource:
    """The kernels of a contraction for the arguments of `contraction-1`.

    Raises InvalidTrace where the arguments do not fit the workload, NotPrintable.
    """
    writer = _Writer(found, arguments)
    if writer.parts == 1:
        return TemplateSource(kernels=(writer.product(),), workspaces=())
    size = writer.parts * found.extent("sij") * 4
    return TemplateSource(kernels=(writer.product(), writer.sum_of_parts()), workspaces=(size,))


class _Writer:
    def __init__(self, found: Contraction, arguments: Mapping[str, int]) -> None:
        self.found, self.arguments = found, arguments
        self.rows, self.columns, self.step = (arguments[name] for name in ("rows", "columns", "step"))
        self.parts, self.early = arguments["parts"], bool(arguments["early"])
        self.m, self.n, self.k = found.extent("i"), found.extent("j"), found.extent("k")
        self.steps = -(-self.k // (self.step * self.parts))
        """Of each part; the last part may have fewer that do anything."""
        if (self.parts - 1) * self.steps * self.step >= self.k:
            raise InvalidTrace(f"{self.parts} parts of a sum of {self.k} in steps of {self.step}: some have nothing")
        if self.parts * found.extent("sij") > MAX_ELEMENTS:
            raise InvalidTrace("the parts have more elements than 32 bits count")

    # -- the product

    def product(self) -> KernelSource:
        printer = Printer(self.found.params)
        down, across = -(-self.m // self.rows), -(-self.n // self.columns)
        self._begin(printer)
        self._place(printer, down, across)
        outer = self._outer(printer, self.rows, self.columns)
        dtype = self.found.sum_dtype
        total = printer.let(f"tl.zeros(({self.rows}, {self.columns}), tl.{dtype})")
        printer.line(f"for step in range(0, {self.steps}):")
        body = printer.nested()
        number = body.let(f"part * {self.steps} + step" if self.parts > 1 else "step")
        a = self._operand(body, self.found.a, outer, number, 0)
        b = self._operand(body, self.found.b, outer, number, 1)
        precision = ""
        if self.found.dtype == "float32":
            precision = f', input_precision="{"tf32" if self.found.tf32 else "ieee"}"'
        body.line(f"{total} = tl.dot({a}, {b}, {total}{precision}, out_dtype=tl.{dtype})")
        printer.lines += body.lines
        tile = Tile(
            shape=(self.rows, self.columns), variables=outer, inside=self._inside(printer, self.rows, self.columns)
        )
        if self.parts == 1:
            self._finish(printer, Value(text=total, dtype=dtype, axes=BOTH), tile)
        else:
            target, mask = self._part_address(tile)
            printer.line(f"tl.store({target}, {total}{mask})")
        grid = (down * across, self.parts, self.found.extent("s"))
        return self._kernel(printer, "contraction", grid, self.arguments["warps"], self.arguments["stages"])

    def _begin(self, printer: Printer) -> None:
        if self.early:
            printer.line("gdc_launch_dependents()")
            printer.line("gdc_wait()")

    def _place(self, printer: Printer, down: int, across: int) -> None:
        """The tile of a block: blocks that run at the same time share operands."""
        group = self.arguments["group"]
        printer.line("block = tl.program_id(0)")
        if group and group < down:
            printer.line(f"first = block // {group * across} * {group}")
            printer.line(f"height = tl.minimum({down} - first, {group})")
            printer.line(f"tile_row = first + block % {group * across} % height")
            printer.line(f"tile_column = block % {group * across} // height")
        else:
            printer.line(f"tile_row = block % {down}")
            printer.line(f"tile_column = block // {down}")
        if self.parts > 1:
            printer.line("part = tl.program_id(1)")

    def _outer(self, printer: Printer, rows: int, columns: int) -> dict[Any, Value]:
        """The values of the axes s, i and j in a tile."""
        printer.line(f"row = tile_row * {rows} + tl.arange(0, {rows})[:, None]")
        printer.line(f"column = tile_column * {columns} + tl.arange(0, {columns})[None, :]")
        printer.line("batch = tl.program_id(2)")
        return {
            **_unravelled(printer, self.found.s, _number("batch")),
            **_unravelled(printer, self.found.i, _number("row", 0)),
            **_unravelled(printer, self.found.j, _number("column", 1)),
        }

    def _inside(self, printer: Printer, rows: int, columns: int) -> tuple[Value, ...]:
        inside = []
        if self.m % rows:
            inside.append(printer.value(f"row < {self.m}", "bool", _number("row", 0)))
        if self.n % columns:
            inside.append(printer.value(f"column < {self.n}", "bool", _number("column", 1)))
        return tuple(inside)

    def _operand(self, printer: Printer, expression: Any, outer: Mapping[Any, Value], number: str, which: int) -> str:
        """The part of A (0) or B (1) in a step of that number."""
        axis = 1 - which
        """Along which k varies."""
        steps = f"tl.arange(0, {self.step}){'[None, :]' if axis == 1 else '[:, None]'}"
        shape = (self.rows, self.step) if which == 0 else (self.step, self.columns)
        variables = {**outer, **self._summed(printer, number, steps, axis)}
        inside = []
        if which == 0 and self.m % self.rows:
            inside.append(printer.value(f"row < {self.m}", "bool", _number("row", 0)))
        if which == 1 and self.n % self.columns:
            inside.append(printer.value(f"column < {self.n}", "bool", _number("column", 1)))
        beyond = self.steps * self.parts * self.step != self.k
        if beyond:
            flat = printer.let(f"{number} * {self.step} + {steps}")
            inside.append(printer.value(f"{flat} < {self.k}", "bool", _number("", axis)))
        tile = Tile(shape=shape, variables=variables, inside=tuple(inside))
        value = printer.expression(expression, tile)
        text = printer.spread(value.text, BOTH, tile) if value.axes != BOTH else value.text
        if beyond and not isinstance(expression, ir.TensorLoad):
            zero = f"tl.full((), 0, tl.{self.found.dtype})"
            text = f"tl.where({inside[-1].text}, {text}, {zero})"
        return printer.let(text)

    def _summed(self, printer: Printer, number: str, steps: str, axis: int) -> dict[Any, Value]:
        """The values of the axes k in a step of that number, as Triton sees what lies side by side and aligned."""
        *others, last = self.found.k or (None,)
        if last is None:
            return {}
        if others and last.extent % self.step == 0:
            # A step lies within the last axis, so that the others are the same for all of it.
            within = last.extent // self.step
            inner = printer.value(f"{number} % {within} * {self.step} + {steps}", "int32", _number("", axis))
            start = printer.value(f"{number} // {within}", "int32")
            return {**_unravelled(printer, others, start), last.variable: inner}
        flat = printer.value(f"{number} * {self.step} + {steps}", "int32", _number("", axis))
        return _unravelled(printer, self.found.k, flat)

    # -- what follows

    def _finish(self, printer: Printer, total: Value, tile: Tile) -> None:
        printer.sums = {self.found.sums: total}
        value = printer.expression(self.found.value, tile)
        place = next(at for at, param in enumerate(self.found.params) if param.same_as(self.found.output))
        printer.read.add(place)
        printer.store(self.found.output, f"p{place}", self.found.indices, value, tile)

    def _part_address(self, tile: Tile) -> tuple[str, str]:
        """(pointers to the sums of a part, the text of the mask)."""
        batches = self.found.extent("s")
        start = f"(part * {batches} + batch) * {self.m * self.n}"
        names = [one.text for one in tile.inside]
        mask = f", mask={' & '.join(names)}" if names else ""
        target = f"parts + {start} + (row * {self.n} + column)"
        return target, mask

    def sum_of_parts(self) -> KernelSource:
        columns = min(_power_of_two(self.n), 128)
        rows = min(_power_of_two(self.m), SUM_ELEMENTS // columns)
        printer = Printer(self.found.params)
        down, across = -(-self.m // rows), -(-self.n // columns)
        self._begin(printer)
        printer.line("block = tl.program_id(0)")
        printer.line(f"tile_row = block // {across}")
        printer.line(f"tile_column = block % {across}")
        outer = self._outer(printer, rows, columns)
        tile = Tile(shape=(rows, columns), variables=outer, inside=self._inside(printer, rows, columns))
        dtype = self.found.sum_dtype
        total = printer.let(f"tl.zeros(({rows}, {columns}), tl.{dtype})")
        printer.line(f"for part in tl.static_range({self.parts}):")
        target, mask = self._part_address(tile)
        printer.line(f"    {total} += tl.load({target}{mask}{', other=0' if mask else ''})")
        self._finish(printer, Value(text=total, dtype=dtype, axes=BOTH), tile)
        return self._kernel(printer, "sum_of_parts", (down * across, 1, self.found.extent("s")), SUM_WARPS, 1)

    def _kernel(self, printer: Printer, name: str, grid: tuple[int, int, int], warps: int, stages: int) -> KernelSource:
        params, places = self.found.params, sorted(printer.read)
        names, types = [f"p{at}" for at in places], [_pointer(str(params[at].ty.dtype)) for at in places]
        if self.parts > 1:
            places, names = [*places, len(params)], [*names, "parts"]
            types.append(_pointer(self.found.sum_dtype))
        body = "\n".join(printer.lines)
        helpers = (_EARLY if self.early else "") + (TANH if "_tanh(" in body else "")
        return KernelSource(
            text=f"{_HEAD}{helpers}\n\n@triton.jit\ndef {name}({', '.join(names)}):\n{body}\n",
            name=name,
            arguments=tuple(places),
            types=tuple(types),
            grid=grid,
            warps=warps,
            stages=stages,
            early=self.early,
        )


def _number(text: str, *axes: int) -> Value:
    return Value(text=text, dtype="int32", axes=frozenset(axes))


def _unravelled(printer: Printer, axes: Sequence[Axis], flat: Value) -> dict[Any, Value]:
    """The values of axes from their place in row-major order."""
    found, below = {}, math.prod(axis.extent for axis in axes)
    for number, axis in enumerate(axes):
        below //= axis.extent
        text = flat.text if below == 1 else f"{flat.text} // {below}"
        text = text if number == 0 else f"{text} % {axis.extent}"
        found[axis.variable] = flat if text == flat.text else printer.value(text, "int32", flat)
    return found


def _pointer(dtype: str) -> str:
    if dtype not in _POINTERS:
        raise NotPrintable(f"Triton has no numbers of type {dtype} here")
    return _POINTERS[dtype]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
