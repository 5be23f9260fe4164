"""Recurrent layers as one tensor function: a workload, and a rewrite of it that keeps accumulators in registers.

Unrolled, a layer over T steps is T products with a few element-wise operators between them: hundreds of kernels that each
take a microsecond. Here the whole sequence is one function:

    x [T, N, G * H]   the inputs of the steps, already multiplied by the input's weights, with biases added
    w [H, G * H]      weights of the state, gate by gate
    b [H]             GRU only: the hidden bias of the candidate gate, which the reset gate multiplies
    h [N, H]          the initial state
    c [N, H]          LSTM only: the initial cell state
    y [T, N, H]       the states of all steps: the result, together with the LSTM's last cell state [N, H]

with T steps, N rows (the batch), H units and G gates: an LSTM has four (input, forget, candidate, output), a GRU three
(reset, update, candidate), a plain RNN one. The order of gates is PyTorch's. A backward layer processes step T - 1 - t where
a forward one processes step t. All tensors have one type, float32 or half precision; sums and gates are computed in float32,
and states are rounded in every step.

The workload computes the products of one row, then its gates. On a GPU it is rewritten into kernels (recurrence_kernels.py).
The rewrite for CPUs (`tiled`) does the same arithmetic in panels of units: sums of all gates of a panel stay in registers
for a few rows at once, and the states are computed from them, so that a step reads every weight once per block of rows and
writes only states. Weights are packed as [H / panel, H, G, panel] when they are bound. Panels may be divided among threads,
which are launched once and synchronise after every step. A step reads the states of the step before from y.

LSTM: Hochreiter and Schmidhuber (1997), with forget gates: Gers, Schmidhuber and Cummins (2000). GRU: Cho et al. (2014), the
reset gate applied after the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.packing import PREPROC
from tuner.schedule.statements import INDEX_TYPE, buffer, integer, loop, point, whole
from tuner.tvm_compat import IRModule, ir, tirx, tvm, tvm_ffi

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""Kind of cell -> number of gates G. The last two are plain RNNs with that activation."""
DTYPE = "float32"
"""What sums and gates are computed in, whatever type the tensors have."""
STATE_WEIGHTS = 1
"""The place of w among a layer's parameters."""
DTYPES = (DTYPE, "float16", "bfloat16")
"""Types of tensors that a layer may have."""


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """A recurrent layer in one direction."""

    cell: str
    """A key of GATES."""
    steps: int
    """T."""
    rows: int
    """N."""
    units: int
    """H."""
    backward: bool = False
    dtype: str = DTYPE
    """Of all tensors."""

    @property
    def gates(self) -> int:
        """G."""
        return GATES[self.cell]


@dataclass(frozen=True, kw_only=True)
class Panels:
    """The tiling of a layer. `rows` divides the layer's rows, `units` its units, and `lanes` divides `units`."""

    rows: int
    """Rows whose sums are in registers at the same time."""
    units: int
    """Units in a panel."""
    lanes: int
    """Units in a vector."""
    parallel: bool
    """Whether panels are divided among threads."""


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """The parameters of a layer's function; None for those that the kind of cell does not have."""

    x: Any
    w: Any
    b: Any
    h: Any
    c: Any
    y: Any
    last: Any
    """Cell states [N, H], which every step overwrites: at the end those of the last step."""

    @property
    def params(self) -> list[Any]:
        return [one for one in (self.x, self.w, self.b, self.h, self.c, self.y, self.last) if one is not None]


def workload(layer: Recurrence) -> Any:
    """The layer as a tensor function of those of (x, w, b, h, c, y, last cell state) that its kind of cell has."""
    tensors = tensors_of(layer)
    sums = buffer("sums", (1, layer.gates, layer.units), DTYPE)
    whole = Panels(rows=1, units=layer.units, lanes=1, parallel=False)
    body = _sequence(layer, tensors, whole, lambda _, k, gate, unit: tensors.w[k, gate * layer.units + unit], sums)
    return function_of(tensors, [opaque_block("stage0", body, tensors.params, [sums])])


def find_recurrence(function: Any) -> Recurrence | None:
    """The recurrent layer that a workload computes; None where its function equals `workload` of no layer."""
    shapes = [[int(extent) for extent in getattr(param, "shape", ())] for param in function.params]
    if len(shapes) < 4 or len(shapes[0]) != 3 or len(shapes[1]) != 2:
        return None
    (steps, rows, width), (units, also_width) = shapes[0], shapes[1]
    dtype = str(function.params[0].ty.dtype)
    if width != also_width or units == 0 or dtype not in DTYPES:
        return None
    for cell, gates in GATES.items():
        for backward in (False, True) if gates * units == width else ():
            layer = Recurrence(cell=cell, steps=steps, rows=rows, units=units, backward=backward, dtype=dtype)
            if _is(function, layer):
                return layer
    return None


def _is(function: Any, layer: Recurrence) -> bool:
    found, expected = (tirx.PrimFunc(one.params, one.body) for one in (function, workload(layer)))
    return bool(tvm_ffi.structural_equal(found, expected))


def tiled(mod: Any, panels: Panels) -> Any:
    """The workload `mod`, a recurrent layer, computed in panels; parameters and results stay the same.

    Deterministic: equal modules give equal modules. Raises InvalidTrace where the workload is no recurrent layer, the panels
    do not divide it, or a single panel is to be parallel.
    """
    layer = find_recurrence(mod["main"])
    if layer is None:
        raise InvalidTrace("the workload is no recurrent layer")
    if layer.rows % panels.rows or layer.units % panels.units or panels.units % panels.lanes:
        raise InvalidTrace(f"panels of {panels.rows} x {panels.units} do not divide {layer.rows} x {layer.units}")
    tensors = tensors_of(layer)
    count = layer.units // panels.units
    if panels.parallel and count == 1:
        raise InvalidTrace("one panel is not divided among threads")
    packed = buffer("packed", (count, layer.units, layer.gates, panels.units), layer.dtype)
    body = _sequence(layer, tensors, panels, lambda panel, k, gate, unit: packed[panel, k, gate, unit])
    read = [packed if one is tensors.w else one for one in tensors.params]
    stages = [_packing(tensors.w, packed, layer.units), opaque_block("recurrence", body, read)]
    attributes = {key: value for key, value in (mod["main"].attrs or {}).items() if key != "layout_free_buffers"}
    function = function_of(tensors, stages, [packed])
    return IRModule({"main": function.with_attrs(attributes)})


Load = Callable[[Any, Any, Any, Any], Any]
"""(panel, k, gate, unit in the panel) -> the weight's element, as an expression."""


def _sequence(layer: Recurrence, tensors: Tensors, panels: Panels, weight: Load, sums: Any = None) -> Any:
    """All steps. sums: buffer of the sums; None for one in each panel."""

    def step(now: Any, state: State, carried: Any) -> Any:
        return _step(layer, tensors, panels, weight, now, state, carried, sums)

    steps = all_steps(layer, tensors, step)
    return _launched(steps) if panels.parallel else steps


State = Callable[[Any, Any], Any]
"""(row, unit) -> the state of the step before, as an expression."""


def all_steps(layer: Recurrence, tensors: Tensors, step: Callable[[Any, State, Any], Any]) -> Any:
    """All steps, one after another. The first is peeled off, since it reads its states from h.

    step: (its index in x and y, the state before, buffer with the cell states before) -> the statement that computes it.
    """

    def at(t: Any) -> Any:
        return layer.steps - 1 - t if layer.backward else t

    first = step(at(integer(0)), lambda n, k: tensors.h[n, k], tensors.c)
    if layer.steps == 1:
        return first

    def following(t: Any) -> Any:
        before = at(t)
        now = before - 1 if layer.backward else before + 1
        return step(now, lambda n, k: tensors.y[before, n, k], tensors.last)

    return tirx.SeqStmt([first, loop("t", layer.steps - 1, following)])


def _launched(body: Any) -> Any:
    """Runs `body` in every thread of one parallel launch; the threads divide the parallel loops inside among themselves."""
    return tirx.AttrStmt(integer(0), "pragma_parallel_launch_point", integer(1), body)


def _with_barrier(parallel_loop: Any) -> Any:
    """The loop with a barrier of all threads after it."""
    return tirx.AttrStmt(integer(0), "pragma_parallel_barrier_when_finish", integer(1), parallel_loop)


def _step(
    layer: Recurrence,
    tensors: Tensors,
    panels: Panels,
    weight: Load,
    now: Any,
    state: State,
    carried: Any,
    shared: Any,
) -> Any:
    """One step. now: its index in x and y. state(row, unit): the state of the step before. carried: buffer with the cell
    states of the step before. shared: buffer of the sums; None for one in each panel."""

    def panel_of_rows(panel: Any, rows: Any) -> Any:
        sums = buffer("sums", (panels.rows, layer.gates, panels.units), DTYPE) if shared is None else shared

        def each(body: Callable[[Any, Any, Any], Any], *, by_gate: bool = True) -> Any:
            """Loops over (row, gate, unit) of the panel: the units in vectors, all loops around them unrolled. With
            `by_gate` False, over (row, unit)."""
            vector = ir.Var("lane", INDEX_TYPE)

            def in_gate(row: Any, gate: Any) -> Any:
                if panels.lanes == 1:
                    return loop("unit", panels.units, lambda unit: body(row, gate, unit))
                return loop(
                    "vector",
                    panels.units // panels.lanes,
                    lambda v: _vectorized(vector, panels.lanes, body(row, gate, v * panels.lanes + vector)),
                    tirx.ForKind.UNROLLED,
                )

            def in_row(row: Any) -> Any:
                if not by_gate:
                    return in_gate(row, integer(0))
                return loop("gate", layer.gates, lambda gate: in_gate(row, gate), _unrolled(panels))

            return loop("row", panels.rows, in_row, _unrolled(panels))

        def clear(row: Any, gate: Any, unit: Any) -> Any:
            return tirx.BufferStore(sums, constant(0.0), [row, gate, unit])

        def multiply(k: Any) -> Any:
            def add(row: Any, gate: Any, unit: Any) -> Any:
                product = wide(state(rows * panels.rows + row, k)) * wide(weight(panel, k, gate, unit))
                return tirx.BufferStore(sums, sums[row, gate, unit] + product, [row, gate, unit])

            return each(add)

        def become_states(row: Any, _gate: Any, unit: Any) -> Any:
            n, i = rows * panels.rows + row, panel * panels.units + unit
            return next_states(layer, tensors, sums, (row, unit), (now, n, i), state(n, i), carried)

        body = tirx.SeqStmt(
            [each(clear), loop("k", layer.units, multiply), each(become_states, by_gate=False)],
        )
        if shared is not None:
            return body
        block = tvm.s_tir.SBlock([], [], [], "panel", body, None, [sums], [], {})
        return tvm.s_tir.SBlockRealize([], True, block)

    def in_panel(panel: Any) -> Any:
        return loop("rows", layer.rows // panels.rows, lambda rows: panel_of_rows(panel, rows))

    count = layer.units // panels.units
    if panels.parallel:
        return _with_barrier(loop("panel", count, in_panel, tirx.ForKind.PARALLEL))
    return loop("panel", count, in_panel)


def next_states(
    layer: Recurrence,
    tensors: Tensors,
    sums: Any,
    at: tuple[Any, Any],
    to: tuple[Any, Any, Any],
    state: Any,
    carried: Any,
) -> Any:
    """The statements that compute a unit's new state h' from its gates.

    sums: the products with the state; u below is sums[row, gate, unit], with (row, unit) = `at`. to: (step, row, unit) in y,
    and in x, where the gates' inputs are. state: h of the step before. carried: buffer with c of the step before. With s the
    sigmoid, and each gate's x + u written as its letter:

        LSTM    c' = s(f) c + s(i) tanh(g), h' = s(o) tanh(c')
        GRU     g = tanh(x_g + s(r) (u_g + b)), h' = g + s(z) (h - g)
        else    h' = tanh(x + u) or max(x + u, 0)
    """
    (row, unit), (now, n, i) = at, to
    x = [wide(tensors.x[now, n, gate * layer.units + i]) for gate in range(layer.gates)]
    u = [sums[row, gate, unit] for gate in range(layer.gates)]

    def keep(value: Any) -> Any:
        return tirx.BufferStore(tensors.y, _narrow(value, layer.dtype), [now, n, i])

    if layer.cell == "lstm":
        forgotten = tirx.sigmoid(x[1] + u[1]) * wide(carried[n, i])
        grown = forgotten + tirx.sigmoid(x[0] + u[0]) * tirx.tanh(x[2] + u[2])
        carry = tirx.BufferStore(tensors.last, _narrow(grown, layer.dtype), [n, i])
        return tirx.SeqStmt([carry, keep(tirx.sigmoid(x[3] + u[3]) * tirx.tanh(wide(tensors.last[n, i])))])
    if layer.cell == "gru":
        candidate = tirx.tanh(x[2] + tirx.sigmoid(x[0] + u[0]) * (u[2] + wide(tensors.b[i])))
        kept = tirx.BufferStore(sums, candidate, [row, integer(2), unit])
        return tirx.SeqStmt([kept, keep(u[2] + tirx.sigmoid(x[1] + u[1]) * (wide(state) - u[2]))])
    return keep(tirx.tanh(x[0] + u[0]) if layer.cell == "tanh" else tirx.max(x[0] + u[0], constant(0.0)))


def wide(value: Any) -> Any:
    """A value as sums and gates are computed."""
    return value if str(value.ty.dtype) == DTYPE else tirx.Cast(DTYPE, value)


def _narrow(value: Any, dtype: str) -> Any:
    """A value as it is stored."""
    return value if dtype == DTYPE else tirx.Cast(dtype, value)


def tensors_of(layer: Recurrence) -> Tensors:
    """New parameters of the layer's function."""
    state, width = (layer.rows, layer.units), layer.gates * layer.units
    is_lstm, dtype = layer.cell == "lstm", layer.dtype
    return Tensors(
        x=buffer("x", (layer.steps, layer.rows, width), dtype),
        w=buffer("w", (layer.units, width), dtype),
        b=buffer("b", (layer.units,), dtype) if layer.cell == "gru" else None,
        h=buffer("h", state, dtype),
        c=buffer("c", state, dtype) if is_lstm else None,
        y=buffer("y", (layer.steps, *state), dtype),
        last=buffer("last", state, dtype) if is_lstm else None,
    )


def _packing(w: Any, packed: Any, units: int) -> Any:
    """The block that packs w [H, G * H] as [panels, H, G, units of a panel], run when weights are bound."""
    extents = [int(extent) for extent in packed.shape]
    loops = [ir.Var(name, INDEX_TYPE) for name in ("p", "k", "g", "u")]
    axes = [ir.Var(f"v_{name}", INDEX_TYPE) for name in ("p", "k", "g", "u")]
    p, k, g, u = axes
    source = [k, g * units + p * extents[3] + u]
    iters = [
        tirx.IterVar(ir.Range(integer(0), integer(extent)), axis, tirx.IterVar.DataPar)
        for axis, extent in zip(axes, extents, strict=True)
    ]
    store = tirx.BufferStore(packed, w[tuple(source)], axes)
    reads, writes = [point(w, source)], [point(packed, axes)]
    block = tvm.s_tir.SBlock(iters, reads, writes, "recurrence_weight", store, None, [], [], {PREPROC: True})
    nest: Any = tvm.s_tir.SBlockRealize(loops, True, block)
    for variable, extent in reversed(list(zip(loops, extents, strict=True))):
        nest = tirx.For(variable, integer(0), integer(extent), tirx.ForKind.SERIAL, nest)
    return nest


def opaque_block(name: str, body: Any, buffers: Sequence[Any], allocated: Sequence[Any] = ()) -> Any:
    """An opaque block, whose loops no schedule may transform, because every step depends on the one before."""
    results = [one for one in buffers if one.name in ("y", "last")]
    reads = [whole(one) for one in buffers]
    block = tvm.s_tir.SBlock([], reads, [whole(one) for one in results], name, body, None, list(allocated), [], {})
    return tvm.s_tir.SBlockRealize([], True, block)


def function_of(tensors: Tensors, stages: Sequence[Any], allocated: Sequence[Any] = ()) -> Any:
    """A function of the layer's parameters."""
    body = stages[0] if len(stages) == 1 else tirx.SeqStmt(list(stages))
    root = tvm.s_tir.SBlock([], [], [], "root", body, None, list(allocated), [], {})
    function = tirx.PrimFunc(tensors.params, tvm.s_tir.SBlockRealize([], True, root))
    return function.with_attrs({"tirx.noalias": True})


def _vectorized(variable: Any, lanes: int, body: Any) -> Any:
    return tirx.For(variable, integer(0), integer(lanes), tirx.ForKind.VECTORIZED, body)


def _unrolled(panels: Panels) -> Any:
    return tirx.ForKind.SERIAL if panels.lanes == 1 else tirx.ForKind.UNROLLED


def constant(value: float) -> Any:
    """A number in sums and gates."""
    return tirx.const(value, DTYPE)
