"""The arguments of `rows-1` that are worth trying for a chain of stages, ranked by an analytic estimate of the time.

Notation. A block computes r rows with w warps, a multiprocessor holds o blocks of the P there are of it:

    waves = ceil(batches * ceil(rows / r) / (P * o))
    time  = launch + max(bytes / B, waves * (latency + stages * step + r * work / F))

where `work` are the operations of a row on tensor cores, padded to tiles, F those of a multiprocessor in a second, and a
step what one reduction between the threads of a block takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pitchpipe.wire.target import Target
from tuner.templates.contraction import ITEM_BYTES
from tuner.templates.estimate import (
    BANDWIDTH,
    BLOCKS,
    EARLY_SAVES_SECS,
    FLOPS,
    LATENCY_SECS,
    LAUNCH_SECS,
    MULTIPROCESSORS,
    NARROW,
    RESERVED_BYTES,
    WARPS,
)
from tuner.templates.kernel_source import EARLIEST
from tuner.templates.points import SHARED_BYTES, capability
from tuner.templates.row_source import LEAST, width
from tuner.templates.rows import Rows
from tuner.templates.space import Ranked
from tuner.templates.text import FETCHES, ROWS, TEMPLATES, checked

MAX_ELEMENTS = 64
"""Of a tile in the registers of a thread, at most: a chain holds two or three tiles at a time."""
LEAST_ELEMENTS = 2
STEP_SECS = 0.15e-6
"""Of a reduction between the warps of a block, or of the latency of a product."""
SCRATCH_BYTES = 4096
"""Of shared memory, for reductions."""


def row_space(found: Rows, target: Target) -> list[Ranked]:
    """The points of `rows-1` for a chain, the best by the estimate first."""
    limit = min(target.max_shared_memory_per_block or SHARED_BYTES, SHARED_BYTES)
    early = 0
    if capability(target) >= EARLIEST:
        early = FETCHES if found.constant and not found.multiplies else 1
    points = [
        (estimate_secs(found, rows, warps, early), rows, warps)
        for rows, warps in _points(found)
        if shared_bytes(found, rows) <= limit
    ]
    return [
        Ranked(text=checked(ROWS, {"rows": rows, "warps": warps, "early": early}).text, estimate_secs=secs)
        for secs, rows, warps in sorted(points)
    ]


def shared_bytes(found: Rows, rows: int) -> int:
    """Shared memory of a block, at most: a tile that changes its layout, or the operands of a product, one after another."""
    tiles = [rows * _widest(found) * 4]
    for stage in found.stages:
        if stage.kind == "product":
            item = ITEM_BYTES[str(stage.value.ty.dtype)]
            tiles.append((rows + width(found, stage.columns)) * width(found, stage.summed) * item)
    return max(tiles) + SCRATCH_BYTES


def estimate_secs(found: Rows, rows: int, warps: int, early: int) -> float:
    """The formula of the module's docstring."""
    blocks = found.extent("batch") * -(-found.extent("rows") // rows)
    held = max(1, min(SHARED_BYTES // (shared_bytes(found, rows) + RESERVED_BYTES), WARPS // warps, BLOCKS))
    waves = -(-blocks // (MULTIPROCESSORS * held))
    moved = sum(
        math.prod(int(extent) for extent in param.ty.shape) * ITEM_BYTES.get(str(param.ty.dtype), 4)
        for param in found.params
    )
    flops, elements = 0.0, 0.0
    for stage in found.stages:
        elements += rows * width(found, stage.columns)
        if stage.kind == "product":
            flops += 2.0 * rows * width(found, stage.columns) * width(found, stage.summed)
    computing = flops / (FLOPS["float16"] * NARROW) + elements / (32 * min(warps, 16)) * 4e-9
    block = LATENCY_SECS + STEP_SECS * len(found.stages) + computing * min(held, -(-blocks // MULTIPROCESSORS))
    return LAUNCH_SECS - EARLY_SAVES_SECS * bool(early) + max(moved / BANDWIDTH, waves * block)


def _points(found: Rows) -> Iterator[tuple[int, int]]:
    """(rows, warps) whose tiles fit the registers, and leave no thread idle where that can be."""
    most = 1 << (found.extent("rows") - 1).bit_length()
    values = TEMPLATES[ROWS]
    sizes = [(rows, warps) for rows in values["rows"] for warps in values["warps"]]
    for rows, warps in sizes:
        each = rows * _widest(found) / (32 * warps)
        if rows > max(most, LEAST if found.multiplies else 1) or (found.multiplies and rows < LEAST):
            continue
        if each <= MAX_ELEMENTS and (each >= LEAST_ELEMENTS or (warps == 1 and each >= 1 / 8)):
            yield rows, warps


def _widest(found: Rows) -> int:
    """Columns of the widest tile of the rows."""
    return max(width(found, axes) for stage in found.stages for axes in (stage.columns, stage.summed))
