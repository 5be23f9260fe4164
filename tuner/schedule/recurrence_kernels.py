"""A rewrite of recurrent layers (tuner/schedule/recurrence.py) into kernels of a GPU.

A thread block computes a tile of R rows and U units. Its threads are U x P: neighbours read the weights of neighbouring
units, and each of P groups adds up every P-th product of the sums, for all rows and gates of the tile at once, in registers.
The parts of a sum meet in shared memory and are added in the order of the groups; then each thread computes states of its
unit. Sums and gates are float32. Beyond the last row the last one is read again; beyond the last unit nothing is read.

Steps wait for each other in one of two ways:

    a kernel a step     the loop over steps is the host's, which becomes a list of launches (tuner/measure/gpu_code.py); the
                        tiles of a step are thread blocks
    held                one kernel holds the loop; a thread block computes all units of its rows, tile after tile, and its
                        threads meet at a barrier after every step
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.recurrence import (
    DTYPE,
    Recurrence,
    State,
    Tensors,
    all_steps,
    constant,
    find_recurrence,
    function_of,
    next_states,
    opaque_block,
    tensors_of,
    wide,
)
from tuner.schedule.statements import bound_to_threads, buffer, integer, loop
from tuner.tvm_compat import IRModule, tirx, tvm

SUM_BYTES = 4
"""Of a part of a sum."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """How a layer is divided among threads."""

    rows: int
    """R."""
    units: int
    """U."""
    parts: int
    """P."""
    held: bool
    """Whether one kernel holds the loop over steps."""

    @property
    def threads(self) -> int:
        """Of a thread block."""
        return self.units * self.parts

    def shared_bytes(self, layer: Recurrence) -> int:
        """Shared memory of a thread block, for the parts of the sums."""
        return SUM_BYTES * self.parts * self.rows * layer.gates * self.units


def in_kernels(mod: Any, kernels: Kernels) -> Any:
    """The workload `mod`, a recurrent layer, computed by kernels; parameters and results stay the same.

    Deterministic: equal modules give equal modules. Raises InvalidTrace where the workload is no recurrent layer.
    """
    layer = find_recurrence(mod["main"])
    if layer is None:
        raise InvalidTrace("the workload is no recurrent layer")
    tensors = tensors_of(layer)
    body = _held(layer, tensors, kernels) if kernels.held else _a_kernel_a_step(layer, tensors, kernels)
    function = function_of(tensors, [opaque_block("recurrence", body, tensors.params)])
    return IRModule({"main": function.with_attrs(dict(mod["main"].attrs or {}))})


def _a_kernel_a_step(layer: Recurrence, tensors: Tensors, kernels: Kernels) -> Any:
    def step(now: Any, state: State, carried: Any) -> Any:
        blocks = {"blockIdx.x": -(-layer.rows // kernels.rows), "blockIdx.y": -(-layer.units // kernels.units)}

        def tile(rows: Any, units: Any, lane: Any, part: Any) -> Any:
            return _tile(layer, tensors, kernels, (rows, units), (lane, part), now, state, carried)

        return bound_to_threads({**blocks, **_threads(kernels)}, tile)

    return all_steps(layer, tensors, step)


def _held(layer: Recurrence, tensors: Tensors, kernels: Kernels) -> Any:
    def whole(rows: Any, lane: Any, part: Any) -> Any:
        def step(now: Any, state: State, carried: Any) -> Any:
            def tile(units: Any) -> Any:
                return _tile(layer, tensors, kernels, (rows, units), (lane, part), now, state, carried)

            tiles = loop("units", -(-layer.units // kernels.units), tile)
            return tirx.SeqStmt([tiles, tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))])

        return all_steps(layer, tensors, step)

    return bound_to_threads({"blockIdx.x": -(-layer.rows // kernels.rows), **_threads(kernels)}, whole)


def _threads(kernels: Kernels) -> dict[str, int]:
    return {"threadIdx.x": kernels.units, "threadIdx.y": kernels.parts}


def _tile(
    layer: Recurrence,
    tensors: Tensors,
    kernels: Kernels,
    tile: tuple[Any, Any],
    thread: tuple[Any, Any],
    now: Any,
    state: State,
    carried: Any,
) -> Any:
    """One step of a tile (rows, units), as one thread (lane, part) computes it. now, state, carried: as `all_steps` says."""
    (lane, part), count, gates = thread, kernels.rows, layer.gates
    unit = tile[1] * kernels.units + lane
    sums = buffer("sums", (count, gates), DTYPE, "local")
    parts = buffer("parts", (kernels.parts, count, gates, kernels.units), DTYPE, "shared")
    total = buffer("total", (1, gates, 1), DTYPE, "local")
    weights = buffer("weights", (gates,), DTYPE, "local")

    def each(body: Callable[[Any, Any], Any]) -> Any:
        return _unrolled("row", count, lambda row: _unrolled("gate", gates, lambda gate: body(row, gate)))

    def read_row(row: Any) -> Any:
        n = tile[0] * count + row
        return n if layer.rows % count == 0 else tirx.min(n, integer(layer.rows - 1))

    def multiply(k: Any) -> Any:
        def weight(gate: Any) -> Any:
            return tirx.BufferStore(weights, wide(tensors.w[k, gate * layer.units + unit]), [gate])

        def add(row: Any) -> Any:
            value = wide(state(read_row(row), k))
            return _unrolled(
                "gate",
                gates,
                lambda gate: tirx.BufferStore(sums, sums[row, gate] + value * weights[gate], [row, gate]),
            )

        return tirx.SeqStmt([_unrolled("gate", gates, weight), _unrolled("row", count, add)])

    def products(turn: Any) -> Any:
        k = turn * kernels.parts + part
        return _where(_within(k, layer.units, kernels.parts), multiply(k))

    def finish(turn: Any) -> Any:
        row = turn * kernels.parts + part

        def clear(gate: Any) -> Any:
            return tirx.BufferStore(total, constant(0.0), [integer(0), gate, integer(0)])

        def join(other: Any, gate: Any) -> Any:
            joined = total[0, gate, 0] + parts[other, row, gate, lane]
            return tirx.BufferStore(total, joined, [integer(0), gate, integer(0)])

        joined = loop("other", kernels.parts, lambda other: _unrolled("gate", gates, lambda gate: join(other, gate)))
        n = tile[0] * count + row
        at, to = (integer(0), integer(0)), (now, n, unit)
        states = next_states(layer, tensors, total, at, to, state(n, unit), carried)
        condition = [*_within(row, count, kernels.parts), *_within(n, layer.rows, count), *in_layer]
        return _where(condition, tirx.SeqStmt([_unrolled("gate", gates, clear), joined, states]))

    in_layer = _within(unit, layer.units, kernels.units)
    body = [
        each(lambda row, gate: tirx.BufferStore(sums, constant(0.0), [row, gate])),
        _where(in_layer, loop("k", -(-layer.units // kernels.parts), products)),
        each(lambda row, gate: tirx.BufferStore(parts, sums[row, gate], [part, row, gate, lane])),
        loop("turn", -(-count // kernels.parts), finish),
    ]
    block = tvm.s_tir.SBlock([], [], [], "tile", tirx.SeqStmt(body), None, [sums, parts, total, weights], [], {})
    return tvm.s_tir.SBlockRealize([], True, block)


def _unrolled(name: str, extent: int, body: Callable[[Any], Any]) -> Any:
    return loop(name, extent, body, tirx.ForKind.UNROLLED)


def _within(value: Any, extent: int, divisor: int) -> list[Any]:
    """The conditions for a value to be below an extent: none where tiles of that many divide it."""
    return [] if extent % divisor == 0 else [value < extent]


def _where(conditions: list[Any], body: Any) -> Any:
    for condition in conditions:
        body = tirx.IfThenElse(condition, body, None)
    return body
