"""The Triton programs of a product whose sums are divided and of the chain of rows that reads its result, as two kernels.

The product's writes its parts. The chain's adds them and does what follows the sums where it would have read the result.
What it computes is the same to the bit: each element is rounded to the result's type on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.templates.ahead import read_ahead
from tuner.templates.contraction import Axis, Contraction, is_zero
from tuner.templates.kernel_source import BOTH, TemplateSource
from tuner.templates.printer import NotPrintable, Printer, Tile, Value
from tuner.templates.row_source import RowWriter, width
from tuner.templates.rows import Rows
from tuner.templates.source import Writer
from tuner.templates.text import CONTRACTION_TMA, Chosen
from tuner.templates.tma_source import write_with_tma

MAX_BYTES = 64 << 10
"""Of the parts that a block of the chain reads: beyond it, more blocks than the chain has are faster at adding them."""


def write_joined(
    product: Contraction, chosen: Chosen, chain: Rows, then: Chosen, *, reads: int, keeps: bool
) -> TemplateSource:
    """The two kernels, whose parameters are those of the product and behind them those of the chain.

    reads: which of the chain's parameters is the product's result. keeps: whether the result is written as well. Raises
    InvalidTrace where the sums are not divided, or the chain does not read each element of the result once in its place.
    """
    parts = chosen.arguments["parts"]
    if parts == 1 or chain.multiplies:
        raise InvalidTrace("no chain that adds parts of sums")
    if then.arguments["rows"] * width(chain, chain.stages[0].columns) * parts * 4 > MAX_BYTES:
        raise InvalidTrace("a block of the chain would read too many parts")
    alone = Chosen(template=chosen.template, arguments={**chosen.arguments, "cluster": 0})
    params = (*product.params, *chain.params)
    first, *_ = _write(product, alone).kernels
    places = tuple(len(params) if at == len(product.params) else at for at in first.arguments)
    writer = RowWriter(chain, then.arguments, params)
    result = _Result(writer.printer, product, chain, parts, keeps)
    writer.printer.made = {chain.params[reads]: result}
    kernel = writer.kernel(("parts", product.sum_dtype))
    if not result.is_read:
        raise InvalidTrace("the chain does not read the result")
    size = parts * product.extent("sij") * 4
    return TemplateSource(kernels=(replace(first, arguments=places), kernel), workspaces=(size,))


def _write(product: Contraction, chosen: Chosen) -> TemplateSource:
    if chosen.template == CONTRACTION_TMA:
        return write_with_tma(product, chosen.arguments)
    return Writer(product, chosen.arguments).source()


class _Result:
    """A product's result where the chain's kernel computes it."""

    def __init__(self, printer: Printer, product: Contraction, chain: Rows, parts: int, keeps: bool) -> None:
        self._printer, self._product, self._chain = printer, product, chain
        self._parts, self._unwritten = parts, keeps
        self.is_read = False

    def read(self, indices: Sequence[Any], tile: Tile, given: Sequence[Value]) -> Value:
        """The elements at these indices."""
        if given:
            raise NotPrintable("the result is read under a condition")
        printer, product = self._printer, self._product
        own_tile = self._tile(indices, tile)
        before, printer.sums = printer.sums, {product.sums: self._total(own_tile)}
        value = printer.expression(product.value, own_tile)
        printer.sums = before
        if self._unwritten:
            at = next(at for at, param in enumerate(product.params) if param.same_as(product.output))
            printer.read.add(at)
            printer.store(product.output, f"p{at}", product.indices, value, own_tile)
            self._unwritten = False
        self.is_read = True
        return value

    def ahead(self, indices: Sequence[Any], tile: Tile) -> None:
        """Reads the weights that follow the sums."""
        read_ahead(self._printer, self._product.value, self._product.weights, self._tile(indices, tile))

    def _tile(self, indices: Sequence[Any], tile: Tile) -> Tile:
        """The same tile, of the product's axes."""
        self._check_places(indices)
        places = zip(self._product.indices, indices, strict=True)
        variables = {own: self._printer.expression(index, tile) for own, index in places if not is_zero(own)}
        if 1 not in variables[self._axes()[-1].variable].axes:
            raise NotPrintable("neighbours in the result are no neighbours in a row")
        return Tile(shape=tile.shape, variables=variables, inside=tile.inside)

    def _check_places(self, indices: Sequence[Any]) -> None:
        """Raises NotPrintable unless elements are read one by one, all of them, and those of a row by one block."""
        chain = self._chain
        axes = [*chain.batch, *chain.rows, *(axis for stage in chain.stages for axis in stage.columns)]
        left = list(zip(self._product.indices, indices, self._product.output.ty.shape, strict=True))
        used = list[Axis]()
        for own, index, extent in left:
            if is_zero(own) and int(extent) == 1:
                continue
            axis = next((axis for axis in axes if axis.variable.same_as(index)), None)
            known = next((one for one in self._axes() if one.variable.same_as(own)), None)
            if axis is None or known is None or not axis.extent == known.extent == int(extent) or axis in used:
                raise NotPrintable("the result is not read element by element")
            used.append(axis)
        if not all(axis in used for axis in (*chain.batch, *chain.rows)):
            raise NotPrintable("an element of the result is read by more than one block")

    def _axes(self) -> tuple[Axis, ...]:
        return (*self._product.s, *self._product.i, *self._product.j)

    def _total(self, tile: Tile) -> Value:
        """The sums of all parts, in their order."""
        printer, product = self._printer, self._product
        stride, terms, axes = 1, list[str](), frozenset[int]()
        for axis in reversed(self._axes()):
            value = tile.variables[axis.variable]
            terms.append(value.text if stride == 1 else f"{value.text} * {stride}")
            axes |= value.axes
            stride *= axis.extent
        place = printer.let(f"parts + ({' + '.join(reversed(terms))})")
        total = printer.let(f"tl.zeros({tile.shape}, tl.{product.sum_dtype})")
        for part in range(self._parts):
            there = f"{place} + {part * math.prod(axis.extent for axis in self._axes())}"
            total = printer.let(f"{total} + {printer.fetched(there, axes, product.sum_dtype, tile).text}")
        return Value(text=total, dtype=product.sum_dtype, axes=BOTH)
