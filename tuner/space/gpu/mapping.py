"""How many threads a chain of stages gets (rows.py), and which of its rows and columns each takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.space.gpu.limits import BLOCK_THREADS, MULTIPROCESSORS, Limits, power_of_two

THREAD_VECTORS, THREAD_COLUMNS = 4, 16
"""Vectors of columns that a thread takes where a row may have more threads, and columns, at least; more threads would wait
for each other longer than for memory."""
SEGMENT = 16
"""Columns that the threads of a row read at once, at least: a sector of memory."""
SHORT_ROW = 16
"""Columns up to which one thread does a row alone."""
WINDOW = 32
"""Columns up to which a thread does its rows alone where rows lie side by side: windows of pooling and of depthwise
convolutions."""
SHARING_THREADS = 512
"""Threads of a block that share their partial results where rows lie side by side: four blocks fill a multiprocessor."""
SMALL = 1 << 20
"""Elements up to which it matters less that threads read lines which they use little of than that there are many threads."""
STATIC_BYTES = 48 << 10
"""Of shared memory that a block has without asking for more."""
RESULT_BYTES = 8
"""Of what a thread found in a row, at most, but for places beside extrema."""
FULL = MULTIPROCESSORS * 1024
"""Threads that keep the device half full: enough where each has several loads in flight."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A block of the chain."""

    block: Any
    rows: tuple[Any, ...]
    """The variables of its row axes, in the order of the chain."""
    reduces: bool
    columns: int
    """1 where it has no axes but the rows."""
    lanes: int
    """Of a vector of columns."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Stages that share their rows."""

    stages: tuple[Stage, ...]
    row_extents: tuple[int, ...]
    """Of the row axes, in their order."""
    side_by_side: bool
    """Whether rows lie side by side in memory, else columns do."""
    lanes: int
    """Of a vector of rows; 1 unless rows lie side by side."""
    shuffled: bool
    """Whether threads may exchange all that is reduced through registers."""

    @property
    def rows(self) -> int:
        return math.prod(self.row_extents)

    @property
    def columns(self) -> int:
        return max(stage.columns for stage in self.stages)


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """How the rows and columns of a chain meet threads."""

    rows: int
    """Threads of a block along rows."""
    threads: int
    """Threads of a row."""
    lanes: int
    """Rows of a thread, in a vector."""


def mapping_of(chain: Chain, limits: Limits) -> Mapping:
    """Enough threads a row for few vectors each, and enough rows a block for few idle threads."""
    if chain.side_by_side:
        return _side_by_side_mapping(chain, limits)
    wide = [stage for stage in chain.stages if stage.columns > 1]
    threads = 1
    if chain.columns > SHORT_ROW:
        # Every thread has a vector of every stage: what it sums up is initialised with the first.
        most = 1 << min(min(stage.columns // stage.lanes for stage in wide), limits.threads).bit_length() - 1
        least = max(-(-stage.columns // max(THREAD_VECTORS * stage.lanes, THREAD_COLUMNS)) for stage in wide)
        together = max(-(-SEGMENT // stage.lanes) for stage in wide)
        threads = min(power_of_two(max(least, together)), most)
        while threads < most and (
            chain.rows * threads < FULL or _rows_of_block(chain, threads, limits) * threads < limits.warp
        ):
            threads *= 2
    return Mapping(rows=_rows_of_block(chain, threads, limits), threads=threads, lanes=1)


def _rows_of_block(chain: Chain, threads: int, limits: Limits) -> int:
    wanted = max(min(BLOCK_THREADS, limits.threads) // threads, 1)
    while wanted > 1 and wanted * threads > limits.warp and chain.rows < wanted * 2 * MULTIPROCESSORS:
        wanted //= 2
    if threads == 1:
        return wanted
    # Barriers stand in no guard, so rows of several threads are divided without remainder.
    even = [n for n in range(1, wanted + 1) if chain.rows % n == 0]
    return max(n for n in even if chain.shuffled or _fits(chain, n, threads))


def _side_by_side_mapping(chain: Chain, limits: Limits) -> Mapping:
    if chain.columns > WINDOW and chain.rows < FULL and divides_columns(chain, limits):
        lanes = row_lanes(chain, limits)
        if not _fits(chain, lanes * math.gcd(chain.rows // lanes, limits.warp), SHARING_THREADS // limits.warp):
            lanes = 1
        rows = chain.rows // lanes
        width, threads = math.gcd(rows, limits.warp), 1  # Barriers stand in no guard.
        while not _fits(chain, width * lanes, SHARING_THREADS // width):
            width //= 2
        most = min(SHARING_THREADS, limits.threads) // width
        while threads < most and 4 * threads < chain.columns and rows * threads < FULL:
            threads *= 2
        if width * threads >= limits.warp:  # else rows are many: each is one thread's
            return Mapping(rows=width, threads=threads, lanes=lanes)
    width, lanes = limits.warp, chain.lanes
    while lanes > 1 and chain.rows // lanes < 2 * MULTIPROCESSORS * limits.warp:
        lanes //= 2
    while width < min(BLOCK_THREADS, limits.threads) and chain.rows // lanes >= 4 * width * MULTIPROCESSORS:
        width *= 2
    return Mapping(rows=width, threads=1, lanes=lanes)


def _fits(chain: Chain, count: int, threads: int) -> bool:
    """Whether the partial results of `count` rows of a block, each of so many threads, fit into its shared memory.

    Where the rows of a block are no range of every axis, TVM 0.27 keeps a place for those of all blocks in each.
    """
    left = count
    for extent in reversed(chain.row_extents):
        if left % extent:
            return extent % left == 0 or chain.rows * threads * RESULT_BYTES <= STATIC_BYTES
        left //= extent
    return True


def divides_columns(chain: Chain, limits: Limits) -> bool:
    """Whether several threads may take the columns of rows that lie side by side."""
    return chain.rows % limits.warp == 0 or (chain.shuffled and chain.rows * chain.columns <= SMALL)


def row_lanes(chain: Chain, limits: Limits) -> int:
    """Rows side by side that a thread takes where several threads take their columns."""
    return 2 if chain.lanes > 1 and chain.rows % (2 * limits.warp) == 0 else 1
