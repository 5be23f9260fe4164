"""The Triton program of a contraction: C[s, i, j] += A[s, i, k] * B[s, k, j], with what comes before and after it.

    block: a tile of rows x columns of one s, and one part of k
      for k, in steps
        the step's parts of A and B, zero outside of them, multiplied by tensor cores
      what follows the sums, on the way to memory

Where k is divided, blocks write their sums to a workspace, and these are added in the order of their parts, so that results
do not depend on which block is first. A second kernel does that and what follows, or the blocks of a tile's parts are a
cluster: they wait for each other, and each does it for some rows of the tile.

Triton's tiles have sides that are powers of two. A block whose tile has 96 or 192 columns computes two of these, side by
side, from one tile of A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.templates.ahead import ask_ahead, read_ahead
from tuner.templates.contraction import ITEM_BYTES, MAX_ELEMENTS, Axis, Contraction, stride_of
from tuner.templates.kernel_source import (
    BOTH,
    LINE_BYTES,
    KernelSource,
    Matrix,
    Shape,
    TemplateSource,
    begin,
    meet,
    number,
    power_of_two,
    unravelled,
    wait,
    written,
)
from tuner.templates.printer import Printer, Tile, Value
from tuner.templates.text import COLUMNS, FETCHES

SUM_ELEMENTS, SUM_WARPS = 1024, 4
"""Of a block of the kernel that adds parts."""
CLUSTERS = (2, 4, 8)
"""Parts whose blocks may be a cluster: as many as every device takes, among which rows are divided evenly."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a block's tile that are a tile of Triton's: a power of two of them."""

    number: int
    """Of that tile among those of the block."""
    first: int
    count: int
    among: int
    """Columns of the block's tile."""

    def named(self, what: str) -> str:
        """What the variable is called that holds this tile's own."""
        return f"{what}{self.number or ''}"


def divided(columns: int) -> tuple[Columns, ...]:
    """The columns of a block's tile in as few of Triton's tiles as there may be, the widest first."""
    found, first = list[Columns](), 0
    for count in (1 << bit for bit in reversed(range(columns.bit_length())) if columns >> bit & 1):
        found.append(Columns(number=len(found), first=first, count=count, among=columns))
        first += count
    return tuple(found)


WHOLE_COLUMNS = tuple(columns for columns in COLUMNS if len(divided(columns)) == 1)
"""Of tiles that are one of Triton's, whose rows the blocks of a cluster can share out among them."""


def may_be_clusters(arguments: Mapping[str, int]) -> bool:
    """Whether the blocks of a tile's parts can be a cluster."""
    return arguments["parts"] in CLUSTERS and arguments["columns"] in WHOLE_COLUMNS


def write_contraction(found: Contraction, arguments: Mapping[str, int]) -> TemplateSource:
    """The kernels of a contraction for the arguments of `contraction-1`.

    Raises InvalidTrace where the arguments do not fit the workload, NotPrintable.
    """
    return Writer(found, arguments).source()


class Writer:
    """Writes the kernels of a contraction for the arguments of a template."""

    def __init__(self, found: Contraction, arguments: Mapping[str, int]) -> None:
        self.found, self.arguments = found, arguments
        self.rows, self.columns, self.step = (arguments[name] for name in ("rows", "columns", "step"))
        self.pieces = divided(self.columns)
        self.parts, self.early = arguments["parts"], bool(arguments["early"])
        self.m, self.n, self.k = found.extent("i"), found.extent("j"), found.extent("k")
        self.steps = -(-self.k // (self.step * self.parts))
        """Of each part; the last part may have fewer that do anything."""
        if (self.parts - 1) * self.steps * self.step >= self.k:
            raise InvalidTrace(f"{self.parts} parts of a sum of {self.k} in steps of {self.step}: some have nothing")
        if self.parts * found.extent("sij") > MAX_ELEMENTS:
            raise InvalidTrace("the parts have more elements than 32 bits count")
        self.cluster = bool(arguments["cluster"])
        if self.cluster and not may_be_clusters(arguments):
            raise InvalidTrace(f"the blocks of {self.parts} parts, of {self.columns} columns, are no cluster")

    def source(self) -> TemplateSource:
        """The product, and what adds the parts of its sums where they are divided."""
        size = self.parts * self.found.extent("sij") * 4
        last = () if self.parts == 1 or self.cluster else (self.sum_of_parts(),)
        return TemplateSource(kernels=(self.product(), *last), workspaces=(size,) if self.parts > 1 else ())

    # -- the product

    def product(self) -> KernelSource:
        """The kernel of the module's docstring."""
        printer = Printer(self.found.params)
        down, across = -(-self.m // self.rows), -(-self.n // self.columns)
        begin(printer, self.early)
        self.place(printer, down, across)
        if self.arguments["early"] == FETCHES:
            self._fetch(printer, 0, "tile_column", across, f"tile_row * {self.rows}", self.rows)
            for piece in self.pieces:
                self._fetch(printer, 1, "tile_row", down, _first(piece), piece.count)
        tiles = [
            Tile(
                shape=(self.rows, piece.count),
                variables=self.outer(printer, self.rows, piece),
                inside=self.inside(printer, self.rows, piece),
            )
            for piece in self.pieces
        ]
        if self.arguments["early"] == FETCHES:
            for tile in tiles:
                self.weights_ahead(printer, tile)
        wait(printer, self.early)
        dtype = self.found.sum_dtype
        totals = [piece.named("total") for piece in self.pieces]
        for total, tile in zip(totals, tiles, strict=True):
            printer.line(f"{total} = tl.zeros({tile.shape}, tl.{dtype})")
        printer.line(f"for step in range(0, {self.steps}):")
        body = printer.nested()
        turn = body.let(f"part * {self.steps} + step" if self.parts > 1 else "step")
        a = self._rounded(body, self.found.a, self._operand(body, self.found.a, tiles[0], turn, 0))
        precision = ""
        if self.found.dtype == "float32":
            precision = f', input_precision="{"tf32" if self.found.tf32 else "ieee"}"'
        for total, tile in zip(totals, tiles, strict=True):
            b = self._rounded(body, self.found.b, self._operand(body, self.found.b, tile, turn, 1))
            body.line(f"{total} = tl.dot({a}, {b}, {total}{precision}, out_dtype=tl.{dtype})")
        printer.lines += body.lines
        for piece, total, tile in zip(self.pieces, totals, tiles, strict=True):
            self.end(printer, piece, Value(text=total, dtype=dtype, axes=BOTH), tile)
        return self.kernel(printer)

    def _rounded(self, printer: Printer, expression: Any, operand: str) -> str:
        """An operand's tile, of which tensor cores would cut bits off, rounded."""
        return operand if self.found.is_rounded(expression) else printer.let(f"_nearest({operand})")

    def weights_ahead(self, printer: Printer, tile: Tile) -> None:
        """Reads the weights that follow the sums, or asks for them where that is done in another tile."""
        if self.parts == 1:
            read_ahead(printer, self.found.value, self.found.weights, tile, axes=1)
        elif self.cluster:
            ask_ahead(printer, self.found.value, self.found.weights, tile)

    def end(self, printer: Printer, columns: Columns, total: Value, tile: Tile, layout: str = "") -> None:
        """What follows the sums of a tile, or their way to the workspace.

        layout: in Gluon, of the rows that a block of a cluster finishes.
        """
        if self.parts == 1:
            self._finish(printer, total, tile)
            return
        target, mask = self._part_address(tile, columns, "part")
        printer.line(f"tl.store({target}, {total.text}{mask})")
        if self.cluster:
            self._share_out(printer, layout)

    def kernel(self, printer: Printer, matrices: tuple[Matrix, ...] = ()) -> KernelSource:
        """The product's kernel, of whose statements none is missing."""
        shape = Shape(
            grid=(-(-self.m // self.rows) * -(-self.n // self.columns), self.parts, self.found.extent("s")),
            warps=self.arguments["warps"],
            stages=self.arguments["stages"],
            early=self.early,
            cluster=self.parts if self.cluster else 1,
        )
        return self._kernel(printer, "contraction", shape, matrices)

    def _share_out(self, printer: Printer, layout: str) -> None:
        """What follows the sums of a tile, by the blocks of a cluster: rows for each."""
        rows = self.rows // self.parts
        meet(printer)
        everywhere = ""
        if layout:
            printer.line(f"shared_out: tl.constexpr = {layout}")
            printer.line(f"whole = tl.full(({rows}, {self.columns}), True, tl.int1, layout=shared_out)")
            layout, everywhere = "shared_out", "whole"
        printer = printer.afresh()
        printer.line(f"tile_row = tile_row * {self.parts} + part")
        (columns,) = self.pieces
        tile = Tile(
            shape=(rows, columns.count),
            variables=self.outer(printer, rows, columns, layout),
            inside=self.inside(printer, self.rows, columns),
            everywhere=everywhere,
        )
        self._finish(printer, self._sum(printer, columns, tile, layout, ', cache_modifier=".cg"'), tile)

    def place(self, printer: Printer, down: int, across: int) -> None:
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
        printer.line("batch = tl.program_id(2)")

    def outer(self, printer: Printer, rows: int, columns: Columns, layout: str = "") -> dict[Any, Value]:
        """The values of the axes s, i and j in a tile. layout: of the tile, in Gluon."""
        down, across = (f", layout=tl.SliceLayout({axis}, {layout})" if layout else "" for axis in (1, 0))
        printer.line(f"row = tile_row * {rows} + tl.arange(0, {rows}{down})[:, None]")
        column = columns.named("column")
        printer.line(f"{column} = {_first(columns)} + tl.arange(0, {columns.count}{across})[None, :]")
        return {
            **unravelled(printer, self.found.s, number("batch")),
            **unravelled(printer, self.found.i, number("row", 0)),
            **unravelled(printer, self.found.j, number(column, 1)),
        }

    def _fetch(self, printer: Printer, which: int, own: str, turns: int, first: str, side: int) -> None:
        """Asks the L2 cache for the weights that A (0) or B (1) reads in this block, if any: for one element of each line,
        and for the last one in place of those beyond the end. The blocks that read the same ones take the steps in turn.

        own: the name of a block's number among these. turns: how many there are. first: the first row or column for which
        they are read. side: how many.
        """
        load = self.found.weights_in((self.found.a, self.found.b)[which])
        if load is None:
            return
        extent, axes = ((self.m, self.found.i), (self.n, self.found.j))[which]
        fastest = [one for one in (axes, self.found.k) if one and stride_of(load, one[-1].variable) == 1]
        if not fastest or str(load.source.ty.dtype) not in ITEM_BYTES:
            return

        every = {id(fastest[0]): LINE_BYTES // ITEM_BYTES[str(load.source.ty.dtype)]}

        def places(
            body: Printer, start: str, count: int, end: int, kind: Sequence[Axis], axis: int
        ) -> dict[Any, Value]:
            apart = every.get(id(kind), 1)
            lanes = f"tl.arange(0, {max(1, count // apart)}){('[:, None]', '[None, :]')[axis]} * {apart}"
            flat = body.value(f"tl.minimum({start} + {lanes}, {end - 1})", "int32", number("", axis))
            return unravelled(body, kind, flat)

        outer = places(printer, first, side, extent, axes, which)
        outer |= unravelled(printer, self.found.s, number("batch"))
        printer.line(f"for turn in range(0, {-(-self.steps // turns)}):")
        body = printer.nested()
        step = f"{f'part * {self.steps} + ' if self.parts > 1 else ''}turn * {turns} + {own}"
        summed = places(body, f"({step}) * {self.step}", self.step, self.k, self.found.k, 1 - which)
        lanes = Tile(shape=(1, 1), variables=outer | summed, inside=())  # Nothing is repeated along an axis.
        place = next(at for at, param in enumerate(self.found.params) if param.same_as(load.source))
        body.read.add(place)
        pointers, _ = body.address(load.source, f"p{place}", load.indices, lanes)
        body.line(f"_fetch({pointers})")
        printer.lines += body.lines

    def inside(self, printer: Printer, rows: int, columns: Columns) -> tuple[Value, ...]:
        """Where a tile's elements are those of the result."""
        inside = []
        if self.m % rows:
            inside.append(printer.value(f"row < {self.m}", "bool", number("row", 0)))
        if self.n % columns.among:
            column = columns.named("column")
            inside.append(printer.value(f"{column} < {self.n}", "bool", number(column, 1)))
        return tuple(inside)

    def _operand(self, printer: Printer, expression: Any, tile: Tile, turn: str, which: int) -> str:
        """The part of A (0) or B (1) that a tile of the result needs in a step of that number."""
        axis = 1 - which
        """Along which k varies."""
        steps = f"tl.arange(0, {self.step}){'[None, :]' if axis == 1 else '[:, None]'}"
        shape = (self.rows, self.step) if which == 0 else (self.step, tile.shape[1])
        variables = {**tile.variables, **self._summed(printer, turn, steps, axis)}
        inside = [one for one in tile.inside if one.axes == {which}]
        beyond = self.steps * self.parts * self.step != self.k
        if beyond:
            flat = printer.let(f"{turn} * {self.step} + {steps}")
            inside.append(printer.value(f"{flat} < {self.k}", "bool", number("", axis)))
        tile = Tile(shape=shape, variables=variables, inside=tuple(inside))
        value = printer.expression(expression, tile)
        text = printer.spread(value.text, BOTH, tile) if value.axes != BOTH else value.text
        if beyond and inside[-1].text not in value.zero_unless:
            zero = f"tl.full((), 0, tl.{self.found.dtype})"
            text = f"tl.where({inside[-1].text}, {text}, {zero})"
        return printer.let(text)

    def _summed(self, printer: Printer, turn: str, steps: str, axis: int) -> dict[Any, Value]:
        """The values of the axes k in a step of that number, as Triton sees what lies side by side and aligned."""
        *others, last = self.found.k or (None,)
        if last is None:
            return {}
        if others and last.extent % self.step == 0:
            # A step lies within the last axis, so that the others are the same for all of it.
            within = last.extent // self.step
            inner = printer.value(f"{turn} % {within} * {self.step} + {steps}", "int32", number("", axis))
            start = printer.value(f"{turn} // {within}", "int32")
            return {**unravelled(printer, others, start), last.variable: inner}
        flat = printer.value(f"{turn} * {self.step} + {steps}", "int32", number("", axis))
        return unravelled(printer, self.found.k, flat)

    # -- what follows

    def _finish(self, printer: Printer, total: Value, tile: Tile) -> None:
        printer.sums = {self.found.sums: total}
        value = printer.expression(self.found.value, tile)
        place = next(at for at, param in enumerate(self.found.params) if param.same_as(self.found.output))
        printer.read.add(place)
        printer.store(self.found.output, f"p{place}", self.found.indices, value, tile)

    def _part_address(self, tile: Tile, columns: Columns, part: str) -> tuple[str, str]:
        """(pointers to the sums of a part, the text of the mask)."""
        batches = self.found.extent("s")
        start = f"({part} * {batches} + batch) * {self.m * self.n}"
        names = [one.text for one in tile.inside]
        mask = f", mask={' & '.join(names)}" if names else ""
        target = f"parts + {start} + (row * {self.n} + {columns.named('column')})"
        return target, mask

    def sum_of_parts(self) -> KernelSource:
        (columns,) = divided(min(power_of_two(self.n), 128))
        rows = min(power_of_two(self.m), SUM_ELEMENTS // columns.count)
        printer = Printer(self.found.params)
        down, across = -(-self.m // rows), -(-self.n // columns.count)
        begin(printer, self.early)
        printer.line("block = tl.program_id(0)")
        printer.line(f"tile_row = block // {across}")
        printer.line(f"tile_column = block % {across}")
        printer.line("batch = tl.program_id(2)")
        tile = Tile(
            shape=(rows, columns.count),
            variables=self.outer(printer, rows, columns),
            inside=self.inside(printer, rows, columns),
        )
        if self.arguments["early"]:
            read_ahead(printer, self.found.value, self.found.weights, tile)
        wait(printer, self.early)
        self._finish(printer, self._sum(printer, columns, tile), tile)
        grid = (down * across, 1, self.found.extent("s"))
        return self._kernel(printer, "sum_of_parts", Shape(grid=grid, warps=SUM_WARPS, stages=1, early=self.early))

    def _sum(self, printer: Printer, columns: Columns, tile: Tile, layout: str = "", modifier: str = "") -> Value:
        """The sums of all parts of a tile, which are in the workspace. modifier: of the loads."""
        dtype = self.found.sum_dtype
        placed = f", layout={layout}" if layout else ""
        total = printer.let(f"tl.zeros({tile.shape}, tl.{dtype}{placed})")
        printer.line(f"for each in tl.static_range({self.parts}):")
        target, mask = self._part_address(tile, columns, "each")
        printer.line(f"    {total} += tl.load({target}{mask}{', other=0' if mask else ''}{modifier})")
        return Value(text=total, dtype=dtype, axes=BOTH)

    def _kernel(self, printer: Printer, name: str, shape: Shape, matrices: tuple[Matrix, ...] = ()) -> KernelSource:
        workspace = ("parts", self.found.sum_dtype) if self.parts > 1 else None
        return written(printer, self.found.params, name, shape, workspace, matrices)


def _first(columns: Columns) -> str:
    """The place of the first one in the result."""
    return f"tile_column * {columns.among}" + (f" + {columns.first}" if columns.first else "")
