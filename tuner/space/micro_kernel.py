"""The register tile of a product: R rows of A by V vectors of columns of B, over the whole reduction.

For every element of the reduction a tile loads V vectors of B and R elements of A, each broadcast, and makes R * V
multiply-adds, each into an accumulator of its own. So

    R * V + V + operands <= registers or accumulators spill and nothing of this helps;
    R * V >= latency * FMAs a cycle   or they wait for themselves;
    R * V >= R + V                    or loads, two a cycle as FMAs are, take longer than they;
    R large                           for B comes from the L2 cache and each of its vectors serves R FMAs.

A ranking by these costs, edges and idle cores counted, leaves a few tiles to try: Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication" (2008), section 6; Low et al., "Analytical Modeling Is Enough for High-Performance
BLIS" (2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.space.processor import VectorUnit

MAX_VECTORS = 4
"""Of a tile with rows enough to keep the FMA units busy."""
MAX_VECTORS_ALONE = 8
"""Of a tile with one or two rows: its columns alone are independent."""
LATENCY = 8
"""Multiply-adds in flight: four cycles, two a cycle."""
FROM_L2 = 0.6
"""Cost of a vector of B beyond its load, in multiply-adds."""


@dataclass(frozen=True, kw_only=True)
class MicroKernel:
    rows: int
    vectors: int
    lanes: int
    """Elements of a vector: the target's, or what divides the columns."""
    cost: float
    """Of the whole product, relative to the multiply-adds it needs at least on all cores; 1 is peak."""

    @property
    def width(self) -> int:
        """Columns."""
        return self.vectors * self.lanes


def micro_kernels(
    rows: int, columns: int, group: int, unit: VectorUnit, *, tasks: int, cores: int, pads_columns: bool, step: int = 1
) -> list[MicroKernel]:
    """The best tile of each number of vectors, best first.

    The product is rows x columns, `tasks` times. Rows need not divide: the rest gets a smaller tile, and then only
    panels of columns are spread over the cores. Widths divide `group`, columns that read the same A, unless columns may
    be padded. Heights are multiples of `step`.
    """
    best: dict[int, MicroKernel] = {}
    for vectors, lanes in _widths(columns, group, unit, rows, pads_columns):
        panels = math.ceil(columns / (vectors * lanes))
        for height in range(step, min(rows, max(1, (unit.registers - unit.operands - vectors) // vectors)) + 1, step):
            tiles, edge = divmod(rows, height)
            cycles = tiles * _cycles(height, vectors) + (_cycles(edge, vectors) if edge else 0.0)
            spread = tasks * panels * (1 if edge else tiles)
            busy = spread / (math.ceil(spread / cores) * cores)
            cost = cycles * panels * unit.lanes / (rows * columns * busy)
            if vectors not in best or cost < best[vectors].cost:
                best[vectors] = MicroKernel(rows=height, vectors=vectors, lanes=lanes, cost=cost)
    return sorted(best.values(), key=lambda kernel: kernel.cost)


def _cycles(rows: int, vectors: int) -> float:
    """Of one step of the reduction, in multiply-adds."""
    return max(rows * vectors, rows + vectors, LATENCY) + FROM_L2 * vectors


def _widths(columns: int, group: int, unit: VectorUnit, rows: int, pads: bool) -> Iterator[tuple[int, int]]:
    """(vectors, lanes) of the panels offered."""
    most = MAX_VECTORS_ALONE if rows * MAX_VECTORS < LATENCY else MAX_VECTORS
    lanes = unit.lanes if pads else _lanes(group, unit)
    for vectors in range(1, most + 1):
        if (pads and vectors <= math.ceil(columns / lanes)) or (not pads and group % (vectors * lanes) == 0):
            yield vectors, lanes


def _lanes(group: int, unit: VectorUnit) -> int:
    """The target's vector, halved until it divides the columns; for a number with few twos the largest divisor that
    fits a register: LLVM makes a vector of 13 of one of 8, one of 4 and an element."""
    lanes = unit.lanes
    while lanes > 2 and group % lanes:
        lanes //= 2
    if lanes >= min(4, unit.lanes) and group % lanes == 0:
        return lanes
    return max(divisor for divisor in range(1, unit.lanes + 1) if group % divisor == 0)
