"""An analytic estimate of the time of each point of a template of contractions.

Notation. A block computes a tile of r x c in steps of d iterations of k; p parts, g stages, w warps. On a GPU with P
multiprocessors a multiprocessor holds o blocks at a time, bounded by its shared memory, registers and threads:

    blocks = s * ceil(i / r) * ceil(j / c) * p,     waves = ceil(blocks / (P * o)),     steps = ceil(k / (d * p))
    step   = max(2 r c d * o / F,  (r + c) d e * o / L,  (r + c) d e * o / (A min(4, w o)),  latency / (g - 1))
    time   = launch + max(bytes / B, waves * (latency + steps * step))
             + (parts written and read / B2 + latency + what is between, if p > 1)

F and L are operations and bytes from the L2 cache of a multiprocessor in a second, A bytes whose copies a quarter of it
issues, B the bandwidth of memory, B2 that of the L2 cache, e the bytes of an element. Kernels of `contraction-tma-1` issue
nothing, so that they lack that term. Between parts and their sum is a launch, or a barrier of a cluster, whose blocks run at
the same time within a group of multiprocessors, so that some of these are idle. It only ranks: times are measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.templates.contraction import ITEM_BYTES, Contraction
from tuner.templates.points import SHARED_BYTES, Numbers, Points, shared_bytes, steps_of

MULTIPROCESSORS = 132
"""Of the devices that the estimate is for; others rank much alike."""
REGISTERS, WARPS, BLOCKS = 65536, 64, 32
"""Of a multiprocessor."""
RESERVED_BYTES = 1 << 10
"""Of shared memory, for each block."""
FLOPS = {"float16": 5.0e12, "bfloat16": 5.0e12, "float32": 2.2e12, "int8": 9.0e12}
"""Of a multiprocessor with operands in shared memory, multiplications and additions counted."""
PLAIN_FLOPS = 0.3e12
"""The same in strict float32, without tensor cores."""
NARROW = 0.55
"""Share of FLOPS that is left in tiles of fewer than 64 rows for each four warps, which get older instructions."""
CACHE_BYTES, CACHE_BANDWIDTH, BANDWIDTH = 110e9, 5.0e12, 3.6e12
"""Bytes in a second: from the L2 cache to a multiprocessor, from it to all, from memory."""
ISSUED_BYTES = 90e9
"""Of the copies that one of the four parts of a multiprocessor issues in a second: 512 in some ten cycles."""
LATENCY_SECS, LAUNCH_SECS = 0.7e-6, 1.0e-6
EARLY_SAVES_SECS = 0.6e-6
"""What a launch that may begin early costs less."""
BARRIER_SECS = 0.2e-6
"""Of a cluster."""
GROUP = 16
"""Multiprocessors among which a cluster lies."""


def held_blocks(found: Contraction, points: Points) -> Numbers:
    """Blocks that a multiprocessor holds at a time (o of the notation)."""
    warps = points["warps"]
    registers = points["rows"] * points["columns"] // (32 * warps) + 64
    by_shared = SHARED_BYTES // (shared_bytes(found, points) + RESERVED_BYTES)
    by_registers = REGISTERS // (registers * 32 * warps)
    held: Numbers = np.clip(np.minimum(by_shared, by_registers), 1, np.minimum(WARPS // warps, BLOCKS))
    return held


def blocks_of(found: Contraction, points: Points) -> Numbers:
    """Blocks of a launch."""
    m, n, batch = found.extent("i"), found.extent("j"), found.extent("s")
    blocks: Numbers = batch * -(-m // points["rows"]) * -(-n // points["columns"]) * points["parts"]
    return blocks


def estimate_secs(found: Contraction, points: Points) -> NDArray[np.float64]:
    """The formula of the module's docstring, for each point."""
    rows, columns, step, parts = (points[name] for name in ("rows", "columns", "step", "parts"))
    warps, item = points["warps"], ITEM_BYTES[found.dtype]
    m, n, k, batch = found.extent("i"), found.extent("j"), found.extent("k"), found.extent("s")
    blocks, held = blocks_of(found, points), held_blocks(found, points)
    multiprocessors = np.where(points["cluster"] == 1, MULTIPROCESSORS // GROUP * GROUP, MULTIPROCESSORS)
    together = np.minimum(held, -(-blocks // multiprocessors))
    waves = -(-blocks // (multiprocessors * held))
    flops = FLOPS[found.dtype] if found.dtype != "float32" or found.tf32 else PLAIN_FLOPS
    narrow = (rows * 4 < 64 * warps) & (found.dtype != "float32")
    computing = 2 * rows * columns * step * together / (flops * np.where(narrow, NARROW, 1.0))
    copying = (rows + columns) * step * item * together / CACHE_BYTES
    issuing = (rows + columns) * step * item * together / (ISSUED_BYTES * np.minimum(4, warps * together))
    if points.tma:
        issuing = np.zeros(len(points))  # by the accelerator
    waiting = LATENCY_SECS / np.maximum(1, np.minimum(points["stages"], 5) - 1)
    steps = steps_of(found, points)
    moved = (m * k + k * n + m * n) * batch * item
    cached = blocks * steps * (rows + columns) * step * item / CACHE_BANDWIDTH
    each = LATENCY_SECS + steps * np.maximum.reduce([computing, copying, issuing, waiting])
    secs = np.maximum.reduce([np.full(len(points), moved / BANDWIDTH), cached, waves * each])
    launch = LAUNCH_SECS - np.where(points["early"] > 0, EARLY_SAVES_SECS, 0.0)
    between = np.where(points["cluster"] == 1, BARRIER_SECS, launch)
    divided = LATENCY_SECS + between + 8 * parts * batch * m * n / CACHE_BANDWIDTH
    whole: NDArray[np.float64] = secs + np.where(parts > 1, divided, 0.0) + launch
    return whole
