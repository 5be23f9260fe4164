"""The register tile of a product: R rows of A by V vectors of columns of B, over the whole reduction.

For every element of the reduction a tile loads V vectors of B and R elements of A, each broadcast, and makes R * V
multiply-adds, each into an accumulator of its own. So

    R * V + V + operands <= registers or accumulators spill and nothing of this helps;
    R * V >= latency * FMAs a cycle   or they wait for themselves;
    R * V >= R + V                    or loads, two a cycle as FMAs are, take longer than they;
    R large                           for B comes from the L2 cache and each of its vectors serves R FMAs;
    R lines of A in the L1 cache      which holds eight where rows are a multiple of 4 KiB apart.

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
class Product:
    """What tiles are wanted for: rows x columns, `tasks` times."""

    rows: int
    columns: int
    tasks: int = 1
    group: int
    """Columns that read the same A: a width divides them."""
    pads_rows: bool = False
    """Rows beyond the last are computed and thrown away; else the height divides the rows."""
    pads_columns: bool = False
    """Likewise; else the width divides the group."""
    step: int = 1
    """Heights are multiples of it."""
    max_rows: int = 1 << 30


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


def micro_kernels(product: Product, unit: VectorUnit, cores: int) -> list[MicroKernel]:
    """The best tile of each number of vectors, best first; then the others, best first."""
    found: list[MicroKernel] = []
    rows = product.rows
    for vectors, lanes in _widths(product, unit):
        panels = math.ceil(product.columns / (vectors * lanes))
        fit = max(1, (unit.registers - unit.operands - vectors) // vectors)
        for height in range(product.step, min(rows, fit, product.max_rows) + 1, product.step):
            if rows % height and not product.pads_rows:
                continue
            tiles = math.ceil(rows / height)
            cycles = max(height * vectors, height + vectors, LATENCY) + FROM_L2 * vectors
            tasks = product.tasks * panels * tiles
            busy = tasks / (math.ceil(tasks / cores) * cores)
            cost = tiles * cycles * panels * unit.lanes / (rows * product.columns * busy)
            found.append(MicroKernel(rows=height, vectors=vectors, lanes=lanes, cost=cost))
    found.sort(key=lambda kernel: kernel.cost)
    best = {kernel.vectors: kernel for kernel in reversed(found)}
    return sorted(found, key=lambda kernel: best[kernel.vectors] is not kernel)


def _widths(product: Product, unit: VectorUnit) -> Iterator[tuple[int, int]]:
    """(vectors, lanes) of the panels offered."""
    most = MAX_VECTORS_ALONE if product.rows * MAX_VECTORS < LATENCY else MAX_VECTORS
    lanes = unit.lanes if product.pads_columns else _lanes(product.group, unit)
    for vectors in range(1, most + 1):
        fits = (
            vectors <= math.ceil(product.columns / lanes)
            if product.pads_columns
            else not product.group % (vectors * lanes)
        )
        if fits:
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
