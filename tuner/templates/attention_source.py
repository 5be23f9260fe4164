"""The Triton program of an attention that takes some keys at a time.

Notation: s are the scores of a row for these keys, m the largest score so far, l the sum of exp(s - m) over the keys so far,
o that of exp(s - m) V.

    block: some rows of one batch
      for some keys after others
        s, by tensor cores, with what is made of the products
        m' = max(m, max s);  l = l exp(m - m') + sum exp(s - m');  o = o exp(m - m') + exp(s - m') V;  m = m'
      o / l, and what follows

which is what softmax(s) V is of all keys (Milakov and Gimelshein, 2018; Dao et al., 2022). The shares exp(s - m') are
rounded to half precision before they are divided by l, where the workload rounds them after it.

A row of which all scores so far are minus infinity has m = 0 in the exponents, so that they are zero and not undefined; if
all of its scores are, o / l is 0 / 0, as in the workload, or zero where the workload says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pitchpipe.errors import InvalidTrace
from tuner.templates.attention import Attention
from tuner.templates.contraction import Axis
from tuner.templates.kernel_source import BOTH, TemplateSource, number
from tuner.templates.operators import TYPES
from tuner.templates.printer import Value
from tuner.templates.row_source import LEAST, RowWriter
from tuner.templates.rows import Stage


def write_attention(found: Attention, arguments: Mapping[str, int]) -> TemplateSource:
    """The kernel of an attention for arguments of `rows-1` that say how many keys it takes at a time.

    Raises InvalidTrace where the arguments do not fit the workload, NotPrintable.
    """
    if arguments["rows"] < LEAST:
        raise InvalidTrace(f"products take {LEAST} rows at least, not {arguments['rows']}")
    return TemplateSource(kernels=(AttentionWriter(found, arguments).kernel(),), workspaces=())


class AttentionWriter(RowWriter):
    """Writes the kernel."""

    def __init__(self, found: Attention, arguments: Mapping[str, int]) -> None:
        super().__init__(found.chain, arguments)
        self.attention, self.at_once = found, arguments["keys"]

    def _stages(self) -> None:
        found, printer = self.attention, self.printer
        queries = self._tile(found.products.summed, with_rows=True)
        value = self._value(found.products.value, found.products.summed, queries)
        query = self._operand(found.products.value, queries, found.products.summed, 1, value)
        columns = self._width(found.values.columns)
        printer.line(f"largest = tl.full(({self.rows}, 1), float('-inf'), tl.float32)")
        printer.line(f"total = tl.zeros(({self.rows}, 1), tl.float32)")
        printer.line(f"sums = tl.zeros(({self.rows}, {columns}), tl.float32)")
        printer.line(f"for first in range(0, {found.keys}, {self.at_once}):")
        self.printer = printer.nested()
        self._turn(query)
        printer.lines += self.printer.lines
        self.printer = printer
        read = "tl.where(largest == float('-inf'), 0.0, sums / total)" if found.hides else "sums / total"
        last = Value(text=printer.let(read), dtype="float32", axes=BOTH)
        self.computed = [(found.values.buffer, found.values.columns, last)]
        self._stage(found.result)

    def _turn(self, query: str) -> None:
        """What is done for some keys."""
        found, printer = self.attention, self.printer
        products, values = found.products, found.values
        scores = printer.let(f"tl.dot({query}, {self._other(products)}, out_dtype=tl.float32)")
        self.computed = [(products.buffer, products.columns, Value(text=scores, dtype="float32", axes=BOTH))]
        tile = self._tile(products.columns, with_rows=True)
        score = self._full(self._value(found.score, products.columns, tile), tile)
        if (known := self._columns_inside(products.columns, 1)) is not None:
            score = printer.let(f"tl.where({known.text}, {score}, float('-inf'))")
        printer.line(f"larger = _larger(largest, tl.reduce({score}, 1, _larger, keep_dims=True))")
        printer.line("base = tl.where(larger == float('-inf'), 0.0, larger)")
        printer.line("less = tl.exp(largest - base)")
        printer.line(f"shares = tl.exp({score} - base)")
        printer.line("total = total * less + tl.sum(shares, axis=1, keep_dims=True)")
        printer.line("largest = larger")
        printer.line(f"narrow = shares.to(tl.{TYPES[str(values.value.ty.dtype)]})")
        printer.line(f"sums = tl.dot(narrow, {self._other(values)}, sums * less, out_dtype=tl.float32)")

    def _other(self, product: Stage) -> str:
        """The second operand of a product: of these keys."""
        tile = self._tile(product.columns, with_rows=False, above=product.summed)
        return self._operand(product.other, tile, product.summed, 0, self._value(product.other, (), tile))

    def _width(self, axes: Sequence[Axis]) -> int:
        return self.at_once if self._are_keys(axes) else super()._width(axes)

    def _flat(self, axes: Sequence[Axis], axis: int) -> Value:
        flat = super()._flat(axes, axis)
        return number(self.printer.let(f"first + {flat.text}"), axis) if self._are_keys(axes) else flat

    def _are_keys(self, axes: Sequence[Axis]) -> bool:
        return tuple(axes) == self.attention.products.columns
