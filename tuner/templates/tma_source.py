"""The Gluon program of a contraction whose operands are matrices (matrices.py): one block's way through its tile is

      for each of the first stages: have the tiles of the weights copied
      read the weights that follow the sums
      wait for the launch before
      for each of the first stages: have the other operand's tiles copied
      for k, in steps
        wait for the step's two tiles, multiply them, and have those of a later step copied over the step's before
      what follows the sums, on the way to memory

Copies are made by the tensor memory accelerator, which one thread asks and which fills what lies beyond a matrix with zeros.
A barrier in shared memory counts the bytes of each stage. Gluon is Triton's dialect in which a program says where its
tiles lie; in Triton itself nothing that a loop copies can be asked for before the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pitchpipe.errors import InvalidTrace
from tuner.templates.ahead import ask_ahead, read_ahead, weights_in
from tuner.templates.contraction import ITEM_BYTES, Contraction
from tuner.templates.kernel_source import BOTH, KernelSource, Matrix, TemplateSource, begin, wait
from tuner.templates.matrices import DTYPES, OperandMatrix, operand_matrices
from tuner.templates.printer import Printer, Tile, Value
from tuner.templates.source import Columns, Writer

MOST_COLUMNS = 256
"""Of the tile that one instruction multiplies."""
SWIZZLES = (128, 64, 32)
"""Bytes within which pieces of a row may change places, the most first."""
LARGE_TILE = 128 * 128
"""Elements from which on a tile is rearranged before it is written, so that neighbouring threads write whole lines."""
VECTOR = 8
"""Elements that a thread writes at a time then."""
MOST_AHEAD = 64
"""Columns of a tile for which weights are in registers while it is multiplied: of each a thread has a quarter."""
FOUR = 4
"""Sums that a thread reads at a time: 16 bytes."""
SUMMED_BYTES = 32
"""Of an operand along the summed axes, that one instruction multiplies."""
LEAST_ROWS = 16
"""Of a warp's part of a tile."""


def write_with_tma(found: Contraction, arguments: Mapping[str, int]) -> TemplateSource:
    """The kernels of a contraction for the arguments of `contraction-tma-1`.

    Raises InvalidTrace where the arguments do not fit the workload, NotPrintable.
    """
    operands = operand_matrices(found)
    if operands is None:
        raise InvalidTrace("the operands are no matrices whose tiles can be copied")
    return _TmaWriter(found, arguments, operands).source()


class _TmaWriter(Writer):
    def __init__(
        self, found: Contraction, arguments: Mapping[str, int], operands: tuple[OperandMatrix, OperandMatrix]
    ) -> None:
        super().__init__(found, arguments)
        self.operands = operands
        self.item = ITEM_BYTES[found.dtype]
        self.stages = min(arguments["stages"], self.steps)
        self.warps = arguments["warps"]
        self.copied = ((0, 0, self.rows), *((1, piece.first, piece.count) for piece in self.pieces))
        """What a step copies: of A (0) and B (1), from a place of the block's tile on, so many places along its own axes."""
        if self.rows < LEAST_ROWS * self.warps:
            raise InvalidTrace(f"{self.warps} warps do not share {self.rows} rows")
        whole = self.steps * self.parts * self.step == self.k
        if not whole and not all(one.ends_in_zeros for one in operands):
            raise InvalidTrace("the steps end beyond the sum, where something else begins")
        for operand, extent, side in zip(operands, (self.m, self.n), (self.rows, self.columns), strict=True):
            if operand.span != extent and operand.span % side:
                raise InvalidTrace("a tile's rows do not lie in one piece")

    def product(self) -> KernelSource:
        printer = Printer(self.found.params)
        begin(printer, self.early)
        self.place(printer, -(-self.m // self.rows), -(-self.n // self.columns))
        matrices = tuple(self._matrix(which, own) for which, _, own in self.copied)
        kind = f"tl.{self.found.dtype}"
        for number, matrix in enumerate(matrices):
            printer.line(f"layout{number}: tl.constexpr = tl.{matrix.layout}")
            shape = [self.stages, *matrix.tile]
            printer.line(f"tiles{number} = tl.allocate_shared_memory({kind}, {shape}, layout{number})")
        printer.line(f"ready = tl.allocate_shared_memory(tl.int64, [{self.stages}, 1], mbarrier.MBarrierLayout())")
        stages = f"for stage in tl.static_range({self.stages}):"
        weights = [
            w for w, operand in enumerate((self.found.a, self.found.b)) if self.found.weights_in(operand) is not None
        ]
        others = [which for which in (0, 1) if which not in weights]
        _lines(printer, stages, ["mbarrier.init(ready.index(stage), count=1)"])
        expected = f"mbarrier.expect(ready.index(stage), {self._stage_bytes})"
        _lines(printer, stages, [expected, *self._copies(weights, "stage", "stage")])
        for piece in self.pieces:
            layout = f"tl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[{self.warps}, 1], "
            layout += f"instr_shape=[16, {min(piece.count, MOST_COLUMNS)}, {SUMMED_BYTES // self.item}])"
            printer.line(f"{piece.named('sums')}: tl.constexpr = {layout}")
        if self.early:
            self._follow_ahead(printer)
        wait(printer, self.early)
        _lines(printer, stages, list(self._copies(others, "stage", "stage")))
        for piece in self.pieces:
            zeros = f"tl.zeros(({self.rows}, {piece.count}), tl.float32, layout={piece.named('sums')})"
            printer.line(f"{piece.named('total')} = {zeros}")
        self._multiply(printer)
        printer.line(self._multiplied(0))
        for piece in self.pieces:
            self._end_piece(printer.afresh() if piece.first else printer, piece)
        return self.kernel(printer, matrices)

    def _end_piece(self, printer: Printer, piece: Columns) -> None:
        """What follows the sums of one of Triton's tiles."""
        layout, total = piece.named("sums"), piece.named("total")
        if self.rows * piece.count >= LARGE_TILE:
            layout = piece.named("lines")
            printer.line(f"{layout}: tl.constexpr = {self._in_lines(VECTOR, piece)}")
            printer.line(f"{total} = tl.convert_layout({total}, {layout})")
        value = Value(text=total, dtype="float32", axes=BOTH)
        self.end(printer, piece, value, self._tile(printer, layout, piece), self._in_lines(FOUR, piece))

    def _tile(self, printer: Printer, layout: str, piece: Columns) -> Tile:
        """One of Triton's tiles of the result in a layout."""
        printer.line(f"everywhere = tl.full(({self.rows}, {piece.count}), True, tl.int1, layout={layout})")
        return Tile(
            shape=(self.rows, piece.count),
            variables=self.outer(printer, self.rows, piece, layout),
            inside=self.inside(printer, self.rows, piece),
            everywhere="everywhere",
        )

    def _follow_ahead(self, printer: Printer) -> None:
        """Reads the weights that follow the sums, where registers hold them; else asks for them."""
        value, weights = self.found.value, self.found.weights
        if next(weights_in(value, weights), None) is None or (self.parts > 1 and not self.cluster):
            return
        if self.parts == 1 and self.columns <= MOST_AHEAD and self.rows * self.columns < LARGE_TILE:
            read_ahead(printer, value, weights, self._tile(printer, "sums", self.pieces[0]), axes=1)
            return
        for piece in self.pieces:
            asked = piece.named("asked")
            printer.line(f"{asked}: tl.constexpr = {self._in_lines(VECTOR, piece)}")
            afresh = printer.afresh()
            ask_ahead(afresh, value, weights, self._tile(afresh, asked, piece))

    def _in_lines(self, vector: int, piece: Columns) -> str:
        """A layout in which neighbouring threads have neighbouring elements of a row, so many each."""
        across = min(32, piece.count // vector)
        return f"tl.BlockedLayout([1, {vector}], [{32 // across}, {across}], [{self.warps}, 1], [1, 0])"

    @property
    def _stage_bytes(self) -> int:
        return (self.rows + self.columns) * self.step * self.item

    def _multiply(self, printer: Printer) -> None:
        """All steps of the block."""
        turned = (not self.operands[0].summed_last, self.operands[1].summed_last)
        tiles = [
            f"tiles{number}.index({{slot}})" + (".permute((1, 0))" if turned[which] else "")
            for number, (which, _, _) in enumerate(self.copied)
        ]
        totals = [piece.named("total") for piece in self.pieces]
        products = [
            f"{total} = warpgroup_mma({tiles[0]}, {b}, {total}, is_async=True)"
            for total, b in zip(totals, tiles[1:], strict=True)
        ]
        if self.stages == self.steps:
            ready = "mbarrier.wait(ready.index(step), 0)"
            body = [ready, *(one.format(slot="step") for one in products)]
            _lines(printer, f"for step in tl.static_range({self.steps}):", body)
            return
        body = [
            f"slot = step % {self.stages}",
            f"mbarrier.wait(ready.index(slot), step // {self.stages} & 1)",
            *(one.format(slot="slot") for one in products),
            self._multiplied(len(self.pieces)),
            f"later = step + {self.stages - 1}",
            f"free = later % {self.stages}",
            f"more = (step > 0) & (later < {self.steps})",
            f"mbarrier.expect(ready.index(free), {self._stage_bytes}, pred=more)",
            *self._copies((0, 1), "free", "later", ", pred=more"),
        ]
        _lines(printer, f"for step in range({self.steps}):", body)

    def _multiplied(self, running: int) -> str:
        """The statement behind which all products but so many of the last ones are done."""
        totals = ", ".join(piece.named("total") for piece in self.pieces)
        return f"{totals} = warpgroup_mma_wait({running}, deps=({totals},))"

    def _copies(self, operands: Sequence[int], slot: str, step: str, more: str = "") -> Iterator[str]:
        """What has a step's tiles of A (0) and B (1) copied to a slot."""
        turn = f"(part * {self.steps} + {step})" if self.parts > 1 else step
        summed = f"{turn} * {self.step}"
        for number, (which, first, _) in enumerate(self.copied):
            if which not in operands:
                continue
            operand = self.operands[which]
            own = f"{('tile_row', 'tile_column')[which]} * {(self.rows, self.columns)[which]}"
            own = f"({own} + {first})" if first else own
            begun = [("batch", operand.batch)]
            if operand.span != (self.m, self.n)[which]:
                begun.append((f"{own} // {operand.span}", operand.spans))
                own = f"{own} % {operand.span}"
            row, column = (own, summed) if operand.summed_last else (summed, own)
            for nth, steps in begun:
                row += f" + {nth} * {steps.rows}" if steps.rows else ""
                column += f" + {nth} * {steps.columns}" if steps.columns else ""
            place = f"ready.index({slot}), tiles{number}.index({slot})"
            yield f"tma.async_copy_global_to_shared(m{number}, [{row}, {column}], {place}{more})"

    def _matrix(self, which: int, own: int) -> Matrix:
        """Operand A (0) or B (1), of which tiles with so many places along its own axes are copied."""
        operand = self.operands[which]
        tile = (own, self.step) if operand.summed_last else (self.step, own)
        swizzle = next(one for one in SWIZZLES if one <= tile[1] * self.item)
        return Matrix(
            parameter=operand.parameter,
            dtype=DTYPES[self.found.dtype],
            rows=operand.rows,
            columns=operand.columns,
            stride=operand.stride,
            tile=tile,
            layout=f"NVMMASharedLayout(swizzle_byte_width={swizzle}, element_bitwidth={8 * self.item}, rank=2)",
        )


def _lines(printer: Printer, head: str, body: Sequence[str]) -> None:
    """A loop, unless it has nothing to do."""
    for text in [head, *(f"    {one}" for one in body)] if body else []:
        printer.line(text)
