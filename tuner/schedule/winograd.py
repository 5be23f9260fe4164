"""Winograd's minimal filtering F(m x m, 3 x 3): a rewrite of a convolution workload into one with fewer multiplications.

A schedule cannot change an algorithm, so a trace may begin with the name of this rewrite (tuner/schedule/trace.py); the rest
of the trace then applies to the rewritten workload. For m = 2 or 4 the rewrite makes a function with the same parameters and
results:

    D (padded)  --B' d B-->  V  --products over ci-->  M  --A' M A-->  Y  --epilogue as it was-->  output
                             U = G g G', computed once, when weights are bound

n = m + 2 rows and columns of the input give m rows and columns of the output, so a tile needs n * n products in place of
the 9 * m * m of a direct convolution: 2.25 times fewer for m = 2, 4 times fewer for m = 4. With TH x TW tiles,

    D [N, TH * m + 2, TW * m + 2, CI]     V [N, TH, TW * n * n, CI]     U [n * n, CI, CO]
    M [n * n, N, TH, TW, CO]              Y [N, TH * m, TW * m, CO]

The n * n values of a tile and the tile's column share one axis of V, so that TVM's compute_at can derive which tiles a
region needs. Tiles at the lower and right edge may extend beyond the output; the epilogue does not read these elements.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016). The interpolation points of m = 4 are 0,
+-sqrt(1/2), +-sqrt(2) and infinity: pairs of opposites share sums, and reciprocals keep the constants near one. With the
usual points 0, +-1, +-2 errors are three to four times as large and exceed the tolerance of tuner/measure/check.py on short
reductions; with these they stay below a third of it. On the choice of points: Barabasz, Anderson, Soodhalter and Gregg,
"Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.packing import PREPROC
from tuner.tvm_compat import IRModule, PrimFunc, ir, structural_walk, tirx, tvm, tvm_ffi

KERNEL = 3
"""Rows and columns of the filters that are rewritten."""
_P2, _Q2 = 0.5, 2.0
_P, _Q = _P2**0.5, _Q2**0.5
"""Points of F(4, 3), with their opposites, zero and infinity; _P * _Q = 1."""

_Let = Callable[[Any], Any]
_Transform = Callable[[Sequence[Any], _Let], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A 3 x 3 convolution of stride one over NHWC data in a workload."""

    position: int
    """Index of its loop nest among the statements of the root block."""
    data: Any
    """Buffer [N, H, W, CI]; after the padding where the workload pads."""
    weight: Any
    """Buffer of a parameter whose layout may be changed when it is bound."""
    weight_axes: tuple[str, ...]
    """Meaning of each dimension of `weight`: 'i' row and 'j' column of the filter, 'k' input and 'c' output channel."""
    result: Any
    """Buffer [N, OH, OW, CO]."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """N, OH, OW, CO."""
        n, height, width, channels = _extents(self.result)
        return n, height, width, channels

    @property
    def reduction(self) -> int:
        """CI."""
        return _extents(self.data)[3]


INDEX_TYPE = "int64"
"""Type of indices in lowered graphs and in the code generated here. TVM's own workloads have int32, and the types cannot be
mixed."""


def find_convolution(function: Any) -> Convolution | None:
    """The convolution of an unscheduled workload; None unless it is the only reduction and has the form of Convolution."""
    root = function.body
    if not isinstance(root, tvm.s_tir.SBlockRealize):
        return None
    found = []
    for position, statement in enumerate(_statements(root.block.body)):
        blocks: list[Any] = []
        structural_walk(statement, (tvm.s_tir.SBlock, blocks.append))
        if any(axis.iter_type == tirx.IterVar.CommReduce for block in blocks for axis in block.iter_vars):
            found.append((position, blocks))
    if len(found) != 1 or len(found[0][1]) != 1:
        return None
    position, (block,) = found[0]
    if str(block.iter_vars[0].var.ty.dtype) != INDEX_TYPE:
        return None
    return _convolution(function, position, block)


def _convolution(function: Any, position: int, block: Any) -> Convolution | None:
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    product = store.value.b
    if not isinstance(product, tirx.Mul) or not all(type(s).__name__ == "TensorLoad" for s in (product.a, product.b)):
        return None
    spatial = [axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.DataPar]
    reduction = {
        axis.var: int(axis.dom.extent) for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce
    }
    if len(spatial) != 4 or len(reduction) != 3 or not _same(store.indices, spatial):
        return None
    n, y, x, c = spatial
    for data, weight in ((product.a, product.b), (product.b, product.a)):
        if len(data.indices) != 4 or len(weight.indices) != 4:
            continue
        i, j, k = _offset(data.indices[1], y), _offset(data.indices[2], x), data.indices[3]
        if i is None or j is None or not data.indices[0].same_as(n):
            continue
        names = {i: "i", j: "j", k: "k", c: "c"} if isinstance(k, ir.Var) else {}
        axes = tuple(names.get(index, "") if isinstance(index, ir.Var) else "" for index in weight.indices)
        extents = [reduction.get(i), reduction.get(j)]
        buffers = (data.source, weight.source, store.buffer)
        if sorted(axes) != ["c", "i", "j", "k"] or extents != [KERNEL, KERNEL] or k not in reduction:
            continue
        if not _is_free(function, weight.source) or any(str(buffer.dtype) != "float32" for buffer in buffers):
            continue
        return Convolution(
            position=position, data=data.source, weight=weight.source, weight_axes=axes, result=store.buffer
        )
    return None


def winograd(mod: Any, m: int) -> Any:
    """The workload `mod` with its convolution computed by F(m x m, 3 x 3); parameters and results stay the same.

    Deterministic: equal modules give equal modules with equal names of blocks. Raises InvalidTrace where `find_convolution`
    finds none. New blocks are called winograd_pad (only where tiles extend beyond the padded input), winograd_input,
    winograd_weight, winograd_product, winograd_output and winograd_copy (only where there is no epilogue).
    """
    function = mod["main"]
    found = find_convolution(function)
    if found is None:
        raise InvalidTrace("the workload holds no convolution that Winograd's algorithm computes")
    root = function.body.block
    statements = _statements(root.body)
    n = m + KERNEL - 1
    batch, height, width, channels = found.shape
    rows, columns = -(-height // m), -(-width // m)
    reduction = found.reduction
    data = found.data
    stages: list[Any] = []
    allocated = [buffer for buffer in root.alloc_buffers if not buffer.same_as(found.result)]
    needed = (batch, rows * m + KERNEL - 1, columns * m + KERNEL - 1, reduction)
    if needed != _extents(data):
        data = _buffer("padded", needed)
        allocated.append(data)
        stages.append(_padding(found.data, data))
    v = _buffer("V", (batch, rows, columns * n * n, reduction))
    u = _buffer("U", (n * n, reduction, channels))
    products = _buffer("M", (n * n, batch, rows, columns, channels))
    y = _buffer("Y", (batch, rows * m, columns * m, channels))
    allocated += [v, u, products, y]
    stages += [
        _input(data, v, m, rows, columns),
        _weight(found, u, m),
        _product(v, u, products),
        _output(products, y, m),
    ]
    if any(found.result.same_as(param) for param in function.params):
        stages.append(_copy(y, found.result))
    rest = [_with_buffer(statement, found.result, y) for statement in statements[found.position + 1 :]]
    body = tirx.SeqStmt([*statements[: found.position], *stages, *rest])
    block = tvm.s_tir.SBlock([], [], [], "root", body, None, allocated, [], root.annotations)
    attributes = {key: value for key, value in (function.attrs or {}).items() if key != "layout_free_buffers"}
    realize = tvm.s_tir.SBlockRealize([], True, block)
    return IRModule({"main": PrimFunc(function.params, realize, function.ret_type).with_attrs(attributes)})


def _input_tile(d: Sequence[Any], let: _Let) -> list[Any]:
    """B' d for one row or column d of an input tile; `let` binds an expression to a variable."""
    if len(d) == 4:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[3] - d[1]]
    p2, q2 = _constant(_P2), _constant(_Q2)
    even_p, odd_p = let(d[4] - q2 * d[2]), let(_constant(_P) * (d[3] - q2 * d[1]))
    even_q, odd_q = let(d[4] - p2 * d[2]), let(_constant(_Q) * (d[3] - p2 * d[1]))
    both = _constant(_P2 + _Q2)
    ends = [d[0] - both * d[2] + d[4], d[1] - both * d[3] + d[5]]
    return [ends[0], even_p + odd_p, even_p - odd_p, even_q + odd_q, even_q - odd_q, ends[1]]


def _weight_tile(g: Sequence[Any], let: _Let, m: int) -> list[Any]:
    """G g for one row or column g of a filter."""
    if m == 2:
        half = _constant(0.5)
        even, odd = let(half * (g[0] + g[2])), let(half * g[1])
        return [g[0], even + odd, even - odd, g[2]]
    result = [g[0]]
    for point, square, norm in ((_P, _P2, 2 * _P2 * (_P2 - _Q2)), (_Q, _Q2, 2 * _Q2 * (_Q2 - _P2))):
        even = let(_constant(1 / norm) * g[0] + _constant(square / norm) * g[2])
        odd = let(_constant(point / norm) * g[1])
        result += [even + odd, even - odd]
    return [*result, g[2]]


def _output_tile(d: Sequence[Any], let: _Let) -> list[Any]:
    """A' d for one row or column d of the products."""
    if len(d) == 4:
        return [d[0] + d[1] + d[2], d[1] - d[2] + d[3]]
    even_p, odd_p, even_q, odd_q = let(d[1] + d[2]), let(d[1] - d[2]), let(d[3] + d[4]), let(d[3] - d[4])
    return [
        d[0] + even_p + even_q,
        _constant(_P) * odd_p + _constant(_Q) * odd_q,
        _constant(_P2) * even_p + _constant(_Q2) * even_q,
        _constant(_P * _P2) * odd_p + _constant(_Q * _Q2) * odd_q + d[5],
    ]


def _in_two_passes(
    load: Callable[[int, int], Any], side: int, transform: _Transform, store: Callable[[int, int, Any], Any]
) -> Any:
    """Statements for T x T' of a `side` x `side` square x: T is applied to every column, then to every row of the result.

    load(i, j): an element of x. store(i, j, value): the statement that stores an element of the result.
    """
    statements: list[Any] = []

    def let(value: Any) -> Any:
        variable = ir.Var(f"t{len(statements)}", "float32")
        statements.append(tirx.Bind(variable, value))
        return variable

    columns = [[let(v) for v in transform([let(load(i, j)) for i in range(side)], let)] for j in range(side)]
    for i in range(len(columns[0])):
        row = transform([column[i] for column in columns], let)
        statements += [store(i, j, value) for j, value in enumerate(row)]
    return tirx.SeqStmt(statements)


def _input(data: Any, v: Any, m: int, rows: int, columns: int) -> Any:
    n = m + KERNEL - 1
    batch, _, _, reduction = _extents(data)

    def body(b: Any, h: Any, w: Any, k: Any) -> tuple[Any, list[Any], list[Any]]:
        tile = _in_two_passes(
            lambda i, j: data[b, h * m + i, w * m + j, k],
            n,
            _input_tile,
            lambda i, j, value: tirx.BufferStore(v, value, [b, h, w * (n * n) + (i * n + j), k]),
        )
        return tile, [_region(data, b, (h * m, n), (w * m, n), k)], [_region(v, b, h, (w * (n * n), n * n), k)]

    return _nest("winograd_input", {"b": batch, "h": rows, "w": columns, "k": reduction}, body)


def _weight(found: Convolution, u: Any, m: int) -> Any:
    n = m + KERNEL - 1
    weight = found.weight
    _, reduction, channels = _extents(u)

    def body(k: Any, c: Any) -> tuple[Any, list[Any], list[Any]]:
        def load(i: int, j: int) -> Any:
            at = {"i": _integer(i), "j": _integer(j), "k": k, "c": c}
            return weight[tuple(at[axis] for axis in found.weight_axes)]

        tile = _in_two_passes(
            load,
            KERNEL,
            lambda g, let: _weight_tile(g, let, m),
            lambda i, j, value: tirx.BufferStore(u, value, [_integer(i * n + j), k, c]),
        )
        extents = {"i": (_integer(0), KERNEL), "j": (_integer(0), KERNEL), "k": k, "c": c}
        reads = [_region(weight, *(extents[axis] for axis in found.weight_axes))]
        return tile, reads, [_region(u, (_integer(0), n * n), k, c)]

    return _nest("winograd_weight", {"k": reduction, "c": channels}, body, annotations={PREPROC: True})


def _product(v: Any, u: Any, products: Any) -> Any:
    squares, batch, rows, columns, channels = _extents(products)
    reduction = _extents(u)[1]

    def body(s: Any, b: Any, h: Any, w: Any, c: Any, k: Any) -> tuple[Any, list[Any], list[Any]]:
        at = [s, b, h, w, c]
        column = w * squares + s
        value = products[tuple(at)] + v[b, h, column, k] * u[s, k, c]
        reads = [_region(v, b, h, column, k), _region(u, s, k, c)]
        return tirx.BufferStore(products, value, at), reads, [_region(products, *at)]

    extents = {"s": squares, "b": batch, "h": rows, "w": columns, "c": channels, "k": reduction}
    return _nest("winograd_product", extents, body, reduced="k")


def _output(products: Any, y: Any, m: int) -> Any:
    n = m + KERNEL - 1
    _, batch, rows, columns, channels = _extents(products)

    def body(b: Any, h: Any, w: Any, c: Any) -> tuple[Any, list[Any], list[Any]]:
        tile = _in_two_passes(
            lambda i, j: products[_integer(i * n + j), b, h, w, c],
            n,
            _output_tile,
            lambda i, j, value: tirx.BufferStore(y, value, [b, h * m + i, w * m + j, c]),
        )
        reads = [_region(products, (_integer(0), n * n), b, h, w, c)]
        return tile, reads, [_region(y, b, (h * m, m), (w * m, m), c)]

    return _nest("winograd_output", {"b": batch, "h": rows, "w": columns, "c": channels}, body)


def _padding(source: Any, padded: Any) -> Any:
    """The block that copies `source` into the larger `padded`, with zeros below and to the right."""
    _, height, width, _ = _extents(source)

    def body(*at: Any) -> tuple[Any, list[Any], list[Any]]:
        inside = tirx.all(at[1] < height, at[2] < width)
        value = tirx.if_then_else(inside, source[at], _constant(0.0))
        return tirx.BufferStore(padded, value, list(at)), [_region(source, *at)], [_region(padded, *at)]

    return _nest("winograd_pad", dict(zip("bhwk", _extents(padded), strict=True)), body)


def _copy(y: Any, result: Any) -> Any:
    def body(*at: Any) -> tuple[Any, list[Any], list[Any]]:
        return tirx.BufferStore(result, y[at], list(at)), [_region(y, *at)], [_region(result, *at)]

    return _nest("winograd_copy", dict(zip("bhwc", _extents(result), strict=True)), body)


def _nest(
    name: str,
    extents: dict[str, int],
    body: Callable[..., tuple[Any, list[Any], list[Any]]],
    *,
    reduced: str = "",
    annotations: dict[str, Any] | None = None,
) -> Any:
    """A block in a nest of serial loops, one for each axis. body: (axes) -> (statement, regions read, regions written)."""
    loops = [ir.Var(axis, INDEX_TYPE) for axis in extents]
    axes = [ir.Var(f"v_{axis}", INDEX_TYPE) for axis in extents]
    statement, reads, writes = body(*axes)
    iters = []
    for axis, extent, variable in zip(extents, extents.values(), axes, strict=True):
        kind = tirx.IterVar.CommReduce if axis == reduced else tirx.IterVar.DataPar
        iters.append(tirx.IterVar(ir.Range(_integer(0), _integer(extent)), variable, kind))
    init = tirx.BufferStore(statement.buffer, _constant(0.0), list(statement.indices)) if reduced else None
    block = tvm.s_tir.SBlock(iters, reads, writes, name, statement, init, [], [], annotations or {})
    nest: Any = tvm.s_tir.SBlockRealize(loops, True, block)
    for variable, extent in reversed(list(zip(loops, extents.values(), strict=True))):
        nest = tirx.For(variable, _integer(0), _integer(extent), tirx.ForKind.SERIAL, nest)
    return nest


def _buffer(name: str, shape: Sequence[int]) -> Any:
    return tirx.decl_buffer([_integer(extent) for extent in shape], "float32", name)


def _region(buffer: Any, *dimensions: Any) -> Any:
    """A region of a buffer. dimensions: for each an index, or the (begin, extent) of a range."""
    ranges = []
    for dimension in dimensions:
        begin, extent = dimension if isinstance(dimension, tuple) else (dimension, 1)
        ranges.append(ir.Range.from_min_extent(begin, _integer(extent)))
    return tirx.BufferRegion(buffer, ranges)


def _with_buffer(statement: Any, old: Any, new: Any) -> Any:
    return tvm_ffi.structural_map(statement, (ir.Var, lambda variable: new if variable.same_as(old) else variable))


def _is_free(function: Any, buffer: Any) -> bool:
    """Whether the buffer is a parameter whose layout may be changed when it is bound: a weight."""
    free = {int(index) for index in (function.attrs or {}).get("layout_free_buffers", [])}
    return any(buffer.same_as(param) for index, param in enumerate(function.params) if index in free)


def _offset(index: Any, base: Any) -> Any:
    """The variable that the index adds to `base`; None where the index is no such sum."""
    if not isinstance(index, tirx.Add):
        return None
    rest = index.b if index.a.same_as(base) else index.a if index.b.same_as(base) else None
    return rest if isinstance(rest, ir.Var) else None


def _same(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(found) == len(expected) and all(a.same_as(b) for a, b in zip(found, expected, strict=True))


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _extents(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)


def _constant(value: float) -> Any:
    return tirx.const(value, "float32")


def _integer(value: int) -> Any:
    return tirx.const(value, INDEX_TYPE)
