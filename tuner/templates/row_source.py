"""The Triton program of a chain of stages that share rows: softmax, norms, attention.

    block: some rows of one batch, with all columns of every stage
      a reduction       along the rows of a tile, what lies beyond the columns left out
      a product         of a tile of the rows with an operand that all blocks of the batch read, by tensor cores
      the last stage    on the way to memory

Nothing is written in between. Tiles have a power of two of columns, at least 16 where a stage is a product. What two stages
read of a row is read once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.templates.ahead import loads_in, read_ahead
from tuner.templates.contraction import Axis
from tuner.templates.kernel_source import (
    BOTH,
    KernelSource,
    Shape,
    TemplateSource,
    begin,
    number,
    power_of_two,
    unravelled,
    wait,
    written,
)
from tuner.templates.printer import Printer, Tile, Value
from tuner.templates.rows import WEAKEST, Rows, Stage
from tuner.templates.text import FETCHES
from tuner.tvm_compat import ir

LEAST = 16
"""Rows, columns and summed elements of a product of tiles, at least."""
_EXTREMA = {"max": "_larger", "min": "_smaller"}
"""Kind of a reduction -> the function of two numbers by which Triton reduces, where it has none of its own."""


def write_rows(found: Rows, arguments: Mapping[str, int]) -> TemplateSource:
    """The kernel of a chain for the arguments of `rows-1`.

    Raises InvalidTrace where the arguments do not fit the workload, NotPrintable.
    """
    if found.multiplies and arguments["rows"] < LEAST:
        raise InvalidTrace(f"products take {LEAST} rows at least, not {arguments['rows']}")
    return TemplateSource(kernels=(RowWriter(found, arguments).kernel(),), workspaces=())


def width(found: Rows, axes: Sequence[Axis]) -> int:
    """Columns of the tile for these axes."""
    extent = math.prod(axis.extent for axis in axes)
    return max(LEAST if found.multiplies else 1, power_of_two(extent))


class RowWriter:
    """Writes the kernel of a chain. params: those that the kernel's pointers are of, where they are not the chain's own."""

    def __init__(self, found: Rows, arguments: Mapping[str, int], params: Sequence[Any] = ()) -> None:
        self.found, self.rows = found, arguments["rows"]
        self.params = tuple(params) or found.params
        self.warps, self.early, self.depth = arguments["warps"], bool(arguments["early"]), arguments["depth"]
        self.reads_ahead = arguments["early"] == FETCHES and not found.multiplies
        self.printer = Printer(self.params)
        self.computed: list[tuple[Any, tuple[Axis, ...], Value]] = []
        """A stage's buffer, its axes beside the rows, and its value."""
        self.shared: dict[Any, Value] = {}
        self.along: dict[Any, Value] = {}

    def kernel(self, workspace: tuple[str, str] | None = None) -> KernelSource:
        """The kernel. workspace: as `written` takes it."""
        printer = self.printer
        begin(printer, self.early)
        printer.line(f"row = tl.program_id(0) * {self.rows} + tl.arange(0, {self.rows})[:, None]")
        printer.line("batch = tl.program_id(2)")
        self.shared = unravelled(printer, self.found.batch, number("batch"))
        self.along = unravelled(printer, self.found.rows, number("row", 0))
        if self.reads_ahead:
            for stage in self.found.stages:
                self._read_ahead(stage)
        wait(printer, self.early)
        self._stages()
        grid = (-(-self.found.extent("rows") // self.rows), 1, self.found.extent("batch"))
        shape = Shape(grid=grid, warps=self.warps, stages=self.depth, early=self.early)
        return written(printer, self.params, "rows", shape, workspace)

    def _stages(self) -> None:
        """What the kernel computes."""
        for stage in self.found.stages:
            self._stage(stage)

    def _read_ahead(self, stage: Stage) -> None:
        tile = self._tile(stage.columns, with_rows=True)
        read_ahead(self.printer, stage.value, self.found.weights, tile)
        for load in loads_in(stage.value):
            if (maker := self.printer.maker(load)) is not None:
                maker.ahead(load.indices, tile)

    def _stage(self, stage: Stage) -> None:
        printer = self.printer
        if stage.kind == "product":
            self.computed.append((stage.buffer, stage.columns, self._product(stage)))
            return
        tile = self._tile(stage.columns, with_rows=True)
        value = self._value(stage.value, stage.columns, tile)
        if stage.kind == "write":
            place = next(at for at, param in enumerate(self.params) if param.same_as(stage.buffer))
            printer.read.add(place)
            printer.store(stage.buffer, f"p{place}", stage.indices, value, tile)
            return
        start = self.printer.literal(stage.start, value.dtype)
        full = Value(text=self._full(value, tile), dtype=value.dtype, axes=BOTH)
        if (beyond := self._columns_inside(stage.columns, 1)) is not None:
            full = printer.value(f"tl.where({beyond.text}, {full.text}, {start.text})", full.dtype, full)
        if (function := _EXTREMA.get(stage.kind)) is None:
            text = printer.let(f"tl.{stage.kind}({full.text}, axis=1, keep_dims=True)")
        else:
            text = printer.let(f"tl.reduce({full.text}, 1, {function}, keep_dims=True)")
            text = text if stage.start == WEAKEST[stage.kind] else printer.let(f"{function}({text}, {start.text})")
        self.computed.append((stage.buffer, (), Value(text=text, dtype=value.dtype, axes=frozenset((0,)))))

    def _product(self, stage: Stage) -> Value:
        left = self._tile(stage.summed, with_rows=True)
        right = self._tile(stage.columns, with_rows=False, above=stage.summed)
        a = self._operand(stage.value, left, stage.summed, 1, self._value(stage.value, stage.summed, left))
        b = self._operand(stage.other, right, stage.summed, 0, self._value(stage.other, (), right))
        precision = ""
        if str(stage.value.ty.dtype) == "float32":
            precision = f', input_precision="{"tf32" if self.found.tf32 else "ieee"}"'
            if self.found.tf32:
                a, b = (self.printer.let(f"_nearest({one})") for one in (a, b))
        text = self.printer.let(f"tl.dot({a}, {b}{precision}, out_dtype=tl.float32)")
        return Value(text=text, dtype="float32", axes=BOTH)

    def _operand(self, expression: Any, tile: Tile, summed: Sequence[Axis], axis: int, value: Value) -> str:
        """An operand of a product, zero beyond the end of the sum."""
        text = self._full(value, tile)
        beyond = self._columns_inside(summed, axis)
        is_loaded = isinstance(expression, ir.TensorLoad) and not self._is_computed(expression.source)
        if beyond is None or is_loaded:
            return text
        typed = self.printer.let(f"tl.full((), 0, tl.{expression.ty.dtype})")
        return self.printer.let(f"tl.where({beyond.text}, {text}, {typed})")

    def _is_computed(self, buffer: Any) -> bool:
        return any(buffer.same_as(other) for other, _, _ in self.computed)

    def _value(self, expression: Any, columns: Sequence[Axis], tile: Tile) -> Value:
        """The value of an expression, in which stages stand for what they computed in tiles of the same columns."""
        fitting = [one for one in self.computed if one[1] in ((), tuple(columns))]
        self.printer.sums = {buffer: value for buffer, _, value in fitting}
        return self.printer.expression(expression, tile)

    def _full(self, value: Value, tile: Tile) -> str:
        if value.axes == BOTH and not value.literal:
            return value.text
        return self.printer.let(self.printer.spread(self.printer.typed(value).text, BOTH, tile))

    def _tile(self, columns: Sequence[Axis], *, with_rows: bool, above: Sequence[Axis] = ()) -> Tile:
        """The tile of these columns: of the block's rows, or with the axes `above` in the place of rows."""
        printer = self.printer
        variables = {**self.shared, **unravelled(printer, columns, self._flat(columns, 1))}
        inside = [self._columns_inside(columns, 1)]
        if with_rows:
            variables |= self.along
            height, count = self.rows, self.found.extent("rows")
            inside.append(printer.value(f"row < {count}", "bool", number("row", 0)) if count % height else None)
        else:
            variables |= unravelled(printer, above, self._flat(above, 0))
            height = self._width(above)
            inside.append(self._columns_inside(above, 0))
        shape = (height, self._width(columns))
        return Tile(shape=shape, variables=variables, inside=tuple(one for one in inside if one is not None))

    def _flat(self, axes: Sequence[Axis], axis: int) -> Value:
        """The place of each element of a tile along these axes."""
        place = "[None, :]" if axis == 1 else "[:, None]"
        return number(self.printer.let(f"tl.arange(0, {self._width(axes)}){place}"), axis)

    def _width(self, axes: Sequence[Axis]) -> int:
        """Elements of a tile along these axes."""
        return width(self.found, axes)

    def _columns_inside(self, axes: Sequence[Axis], axis: int) -> Value | None:
        extent = math.prod(one.extent for one in axes)
        if extent % self._width(axes) == 0:
            return None
        flat = self._flat(axes, axis)
        return self.printer.value(f"{flat.text} < {extent}", "bool", flat)
