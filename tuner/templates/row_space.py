"""The arguments of `rows-1` that are worth trying for a chain of stages, ranked by an analytic estimate of the time.

Notation. A block computes r rows with w warps, a multiprocessor holds o blocks of the P there are of it:

    waves = ceil(batches * ceil(rows / r) / (P * o))
    time  = launch + max(bytes / B, waves * (latency + stages * step + r * work / F))

where `work` are the operations of a row on tensor cores, padded to tiles, F those of a multiprocessor in a second, and a
step what one reduction between the threads of a block takes. An attention that takes some keys at a time has the steps of
its softmax and its products anew for each of these turns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress

from pitchpipe.wire.target import Target
from tuner.templates.attention import Attention, find_attention
from tuner.templates.contraction import ITEM_BYTES, NotRecognised
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
LEAST_KEYS = 128
"""Of an attention that takes some at a time: so many and fewer are there at once."""
MAX_SCORES = 128
"""Of scores and sums in the registers of a thread, at most, of an attention that takes some keys at a time."""
STEP_SECS = 0.15e-6
"""Of a reduction between the warps of a block, or of the latency of a product."""
ELEMENT_SECS = 4e-9
"""Of what a thread does with an element of a tile."""
SCRATCH_BYTES = 4096
"""Of shared memory, for reductions."""


def row_space(found: Rows, target: Target) -> list[Ranked]:
    """The points of `rows-1` for a chain, the best by the estimate first.

    Those that take whole rows alternate with those that take some keys at a time: what the estimate says of one kind beside
    the other is not to be believed.
    """
    limit = min(target.max_shared_memory_per_block or SHARED_BYTES, SHARED_BYTES)
    early = 0
    if capability(target) >= EARLIEST:
        early = FETCHES if found.constant and not found.multiplies else 1
    whole = [
        (estimate_secs(found, rows, warps, early), {"rows": rows, "warps": warps, "early": early})
        for rows, warps in _points(found)
        if shared_bytes(found, rows) <= limit
    ]
    parts = list[tuple[float, dict[str, int]]]()
    with suppress(NotRecognised):
        attention = find_attention(found)
        parts = [
            (attention_secs(attention, one, early), {**one, "early": early})
            for one in _attention_points(attention)
            if attention_bytes(attention, one) <= limit
        ]
    turns = itertools.zip_longest(*(sorted(points, key=_by_estimate) for points in (whole, parts)))
    return [
        Ranked(text=checked(ROWS, one[1]).text, estimate_secs=one[0])
        for pair in turns
        for one in pair
        if one is not None
    ]


def _by_estimate(point: tuple[float, Mapping[str, int]]) -> tuple[float, list[tuple[str, int]]]:
    return point[0], sorted(point[1].items())


def attention_bytes(found: Attention, point: Mapping[str, int]) -> int:
    """Shared memory of a block that takes some keys at a time, at most: its queries and shares, and the keys and values that
    are being copied."""
    heads = [width(found.chain, axes) for axes in (found.products.summed, found.values.columns)]
    item = ITEM_BYTES[str(found.values.value.ty.dtype)]
    held = point["rows"] * (heads[0] + point["keys"]) + point["keys"] * sum(heads) * point["depth"]
    return held * item + SCRATCH_BYTES


def attention_secs(found: Attention, point: Mapping[str, int], early: int) -> float:
    """The formula of the module's docstring, of a block that takes some keys at a time."""
    chain, rows, keys, warps = found.chain, point["rows"], point["keys"], point["warps"]
    blocks = chain.extent("batch") * -(-chain.extent("rows") // rows)
    waves, beside = _waves(blocks, attention_bytes(found, point), warps)
    turns = -(-found.keys // keys)
    heads = sum(width(chain, axes) for axes in (found.products.summed, found.values.columns))
    rate = FLOPS["float16"] * (1.0 if rows >= 16 * warps else NARROW)
    turn = 2.0 * rows * keys * heads / rate + rows * (3 * keys + heads) / (32 * warps) * ELEMENT_SECS
    steps = STEP_SECS * (3 + (point["depth"] == 1))
    block = LATENCY_SECS + turns * (steps + turn * beside)
    return LAUNCH_SECS - EARLY_SAVES_SECS * bool(early) + max(_moved(chain) / BANDWIDTH, waves * block)


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
    waves, beside = _waves(blocks, shared_bytes(found, rows), warps)
    flops, elements = 0.0, 0.0
    for stage in found.stages:
        elements += rows * width(found, stage.columns)
        if stage.kind == "product":
            flops += 2.0 * rows * width(found, stage.columns) * width(found, stage.summed)
    computing = flops / (FLOPS["float16"] * NARROW) + elements / (32 * min(warps, 16)) * ELEMENT_SECS
    block = LATENCY_SECS + STEP_SECS * len(found.stages) + computing * beside
    return LAUNCH_SECS - EARLY_SAVES_SECS * bool(early) + max(_moved(found) / BANDWIDTH, waves * block)


def _waves(blocks: int, block_bytes: int, warps: int) -> tuple[int, int]:
    """(waves, blocks that share a multiprocessor) of so many blocks with so much shared memory and so many warps each."""
    held = max(1, min(SHARED_BYTES // (block_bytes + RESERVED_BYTES), WARPS // warps, BLOCKS))
    return -(-blocks // (MULTIPROCESSORS * held)), min(held, -(-blocks // MULTIPROCESSORS))


def _moved(found: Rows) -> int:
    """Bytes that are read and written."""
    return sum(
        math.prod(int(extent) for extent in param.ty.shape) * ITEM_BYTES.get(str(param.ty.dtype), 4)
        for param in found.params
    )


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


def _attention_points(found: Attention) -> Iterator[dict[str, int]]:
    """The points of an attention that takes some keys at a time, where there are many."""
    most = 1 << (found.chain.extent("rows") - 1).bit_length()
    heads = width(found.chain, found.values.columns)
    for rows, keys, warps, depth in itertools.product((16, 32, 64, 128), TEMPLATES[ROWS]["keys"], (2, 4, 8), (2, 3)):
        held = rows * (keys + heads) / (32 * warps)
        if found.keys > LEAST_KEYS and keys > 0 and rows <= max(most, LEAST) and LEAST_ELEMENTS <= held <= MAX_SCORES:
            yield {"rows": rows, "keys": keys, "warps": warps, "depth": depth}


def _widest(found: Rows) -> int:
    """Columns of the widest tile of the rows."""
    return max(width(found, axes) for stage in found.stages for axes in (stage.columns, stage.summed))
