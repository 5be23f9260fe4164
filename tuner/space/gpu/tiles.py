"""Which tile a product is computed in, by an estimate of its cycles.

Notation as in operands.py: C[s, i, j] += A[s, i, k] * B[s, k, j]. A thread block computes a tile of i x j; for every step of
k it has parts of A and B in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tuner.space.gpu.limits import MULTIPROCESSORS, Limits, NoSchedule

WARP = 32
SIDE = 16
"""Of a fragment, the unit of tensor cores."""
PAD = 8
"""Elements between rows of shared memory beyond a multiple of 16, so that the rows of a fragment lie in different banks."""
SUM_PAD = 4
"""The same for sums in single precision."""
SUM_LANES = 4
"""Sums of a vector."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """The extents of a product's four axes."""

    s: int
    i: int
    j: int
    k: int
    run: int
    """Of the innermost axis that is summed: the channels of a convolution."""

    @property
    def lanes(self) -> int:
        """Elements of A that a thread copies at once."""
        return VECTOR if self.run == self.k else next(n for n in (VECTOR, VECTOR // 2, 1) if self.run % n == 0)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What a block computes, and what part of it a thread does."""

    i: int
    j: int
    k: int
    """Of a step."""
    rows: int
    columns: int
    """Of a thread; of a warp where tensor cores are used."""
    warps: tuple[int, int, int] = (0, 0, 0)
    """Warps of a block along i, j and k, where it uses tensor cores."""
    stages: int = 1
    """Steps whose parts of A and B are in shared memory at a time, all but one of them on their way."""
    parts: int = 1
    """Into how many kernels' worth of blocks k is divided; a second kernel sums what they found."""

    @property
    def threads(self) -> int:
        return WARP * math.prod(self.warps) or (self.i // self.rows) * (self.j // self.columns)

    @property
    def step_bytes(self) -> int:
        """Of the parts of A and B of a step, in half precision."""
        return (self.i + self.j) * self.k * 2

    @property
    def shared_bytes(self) -> int:
        """Of a block that uses tensor cores: parts of both operands, then sums of the warps along k, in the same place."""
        operands = (self.i * (self.k + PAD) + max(self.j * (self.k + PAD), self.k * (self.j + PAD))) * 2
        return max(self.stages * operands, self.warps[2] * self.i * (self.j + SUM_PAD) * 4)


PLAIN_STEP = 16
TILES = tuple(
    Tile(i=i, j=j, k=PLAIN_STEP, rows=rows, columns=columns)
    for i, j, rows, columns in (
        (128, 128, 8, 8),
        (128, 64, 8, 4),
        (64, 128, 4, 8),
        (64, 64, 4, 4),
        (32, 64, 4, 4),
        (64, 32, 4, 4),
        (32, 32, 2, 4),
        (16, 64, 2, 4),
    )
)
"""For plain cores."""


STEPS = (32, 64, 128, 256)
"""Of k, on tensor cores."""


def _tensor_tiles() -> Iterator[Tile]:
    sides, counts = (16, 32, 64, 128), (1, 2, 4, 8)
    for i, j, k, a, b, c in ((i, j, k, *w) for i in sides for j in sides for k in STEPS for w in _shares(counts)):
        if i % (SIDE * a) or j % (SIDE * b) or k % (SIDE * c):
            continue
        threads = WARP * a * b * c
        vectors = 128 // SIDE * threads
        rows_of_sums = threads // min(j // SUM_LANES, WARP)
        if i * k % vectors or j * k % vectors or i % rows_of_sums or i // a * (j // b) > MOST_SUMS:
            continue
        for stages in (2, 3, 4):
            yield Tile(i=i, j=j, k=k, rows=i // a, columns=j // b, warps=(a, b, c), stages=stages)


def _shares(counts: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    for a in counts:
        for b in counts:
            for c in counts:
                if 2 <= a * b * c <= 8:
                    yield a, b, c


MOST_SUMS = 64 * 32
"""Of a warp, of which every thread has its 32nd part in registers."""
TENSOR_TILES = tuple(_tensor_tiles())
"""For operands of half precision: every division of a tile among warps in which vectors of operands and of sums come out
even."""
PARTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)
LEAST_STEPS = 4
"""Of a part of k."""
MUCH = 1.5
"""How many times faster two kernels have to be than one: a launch more is a boundary at which the device empties."""

# Cycles of a multiprocessor at 1.7 GHz, from data sheets and from kernels that were measured on an H200.
CORES = 128
"""Multiplications and additions of a multiprocessor in one cycle."""
TENSOR_CORES = 1024
"""The same of its tensor cores in half precision, as far as instructions of a warp get them to."""
SHARED_BYTES = 128
"""Bytes that all warps of a multiprocessor load from shared memory in a cycle."""
COPY_BYTES = 48
"""Bytes that a multiprocessor gets from the L2 cache in a cycle ..."""
CACHE_BYTES = 3000
"""... and all together."""
LATENCY = 800
"""From the request of a step's parts to their arrival, mostly from memory."""
STEP_CYCLES = 1200
"""A step on plain cores: its parts are loaded, then used, and nothing overlaps within a block. Products of 13 to 16 steps,
whose blocks had a multiprocessor each, took 1200 to 1900 of an H200."""
BARRIERS = 120
"""Two of a block for each step, and the first fragments."""
FRAGMENT_CYCLES = 40
"""From a fragment's load to its product."""
SECOND_KERNEL = 4000
"""A launch, and what it waits for."""
VECTOR = 8
"""Elements of 16 bytes in half precision."""
CHAIN_CYCLES = 250
"""Of a thread for one copy out of a window of fewer elements than that: whose place it is, whether that is in the image,
and the load, before the next one. Windows of 3 x 3 took 150 to 250 of an H200, and of 5 x 7 x 7 470."""
CHAIN_INSTRUCTIONS = 60
ISSUED = 4 * WARP
"""Instructions of threads that a multiprocessor begins in a cycle."""
OVERLAP = 0.1
"""Of what a step does beside its slowest part, the share that does not overlap with it."""
REGISTERS = 40
"""Of a thread beside its sums and fragments."""
THREADS = 2048
"""Of a multiprocessor."""


def best_tile(product: Product, limits: Limits, *, tensor_cores: bool) -> Tile:
    """The tile, and the parts of k, with the least estimated time. k is divided among two kernels only where the estimate
    is MUCH better than that of the best single kernel. Raises NoSchedule where no tile fits."""
    tiles = TENSOR_TILES if tensor_cores else TILES
    fitting = [tile for tile in tiles if tile.threads <= limits.threads and tile.shared_bytes <= limits.shared_bytes]
    if not fitting:
        raise NoSchedule("no tile fits into a thread block")
    whole = min(fitting, key=lambda tile: cycles(product, tile, limits))
    divided = [
        replace(tile, parts=parts)
        for tile in fitting
        for parts in PARTS[1:]
        if product.k % parts == 0 and product.k // parts >= LEAST_STEPS * tile.k
    ]
    best = min(divided, key=lambda tile: cycles(product, tile, limits), default=whole)
    return best if cycles(product, best, limits) * MUCH < cycles(product, whole, limits) else whole


def cycles(product: Product, tile: Tile, limits: Limits) -> float:
    """Estimated cycles of a product in tiles, from the first instruction to the last of all blocks.

    Blocks run in turns, as many side by side as multiprocessors have room for. A step of a block takes as long as the
    slowest of these, and a little more: getting its parts from the L2 cache (whose bandwidth busy multiprocessors share, and
    of which one gets no more than it has asked for in advance, by Little's law), finding elements that do not lie together,
    loading fragments from shared memory, multiplying, and the latencies of one after another. Where k is divided, the parts'
    sums are written and read again by a second kernel.
    """
    blocks = product.s * -(-product.i // tile.i) * -(-product.j // tile.j) * tile.parts
    steps = -(-(product.k // tile.parts) // tile.k)
    again = SECOND_KERNEL + product.s * product.i * product.j * tile.parts * 8 / CACHE_BYTES if tile.parts > 1 else 0
    if not tile.warps[0]:
        return _plain_cycles(tile, blocks, steps) + again
    a, b, c = tile.warps
    fragments, sums = (tile.rows + tile.columns) // SIDE, tile.rows * tile.columns // SIDE**2
    registers = tile.threads * (REGISTERS + 8 * (fragments + sums))
    room = max(min(limits.shared_bytes // tile.shared_bytes, THREADS // tile.threads, (1 << 16) // registers), 1)
    beside = min(room, -(-blocks // MULTIPROCESSORS))
    turns = -(-blocks // (MULTIPROCESSORS * room))
    asked = beside * (tile.stages - 1) * tile.step_bytes / LATENCY
    rate = min(COPY_BYTES, CACHE_BYTES / min(blocks, MULTIPROCESSORS), asked)
    deep = tile.k // SIDE // c
    alone = tile.i * tile.k // product.lanes if product.lanes < VECTOR else 0
    parts = (
        max(beside * alone * CHAIN_INSTRUCTIONS / ISSUED, alone / tile.threads * CHAIN_CYCLES),
        beside * tile.step_bytes / rate,
        beside * a * b * c * deep * fragments * SIDE**2 * 2 / SHARED_BYTES,
        beside * tile.i * tile.j * tile.k / TENSOR_CORES,
        BARRIERS + deep * (FRAGMENT_CYCLES + 16 * sums),
    )
    step = max(parts) + OVERLAP * (sum(parts) - max(parts))
    result = tile.i * tile.j * (8 * c + 8) / SHARED_BYTES
    return turns * (LATENCY + steps * step + beside * result) + again


def _plain_cycles(tile: Tile, blocks: int, steps: int) -> float:
    turns = -(-blocks // MULTIPROCESSORS)
    # A thread loads rows + columns numbers from shared memory for rows * columns multiplications.
    useful = 1 / (1 + 1.5 * (tile.rows + tile.columns) / (tile.rows * tile.columns))
    computing = turns * tile.i * tile.j * steps * tile.k / (CORES * useful)
    copied = (tile.i + tile.j) * tile.k * 4 / COPY_BYTES
    return max(computing, steps * (STEP_CYCLES + copied) * max(1, turns / 4))
