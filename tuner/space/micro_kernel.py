"""The register tile of a product: R rows of A by V vectors of columns of B, over the whole reduction.

For every element of the reduction a tile loads V vectors of B and R elements of A, each broadcast, and makes R * V
multiply-adds, each into an accumulator of its own. So

    R * V + V + operands <= registers or accumulators spill and nothing of this helps;
    R <= registers / 2                for LLVM loads elements of A ahead, and with 16 registers 14 by 1 spilled them;
    R * V >= latency * FMAs a cycle   or an FMA waits for the one before on the same accumulator;
    R * V >= 1.2 * (R + V)            or the loads, of which there are fewer a cycle than FMAs, take longer than the FMAs;
    R large                           because B comes from the L2 cache and each of its vectors serves R FMAs;
    R lines of A in the L1 cache      which holds only eight where rows are a multiple of 4 KiB apart;
    R divides the rows                or the last tile has rows that nobody wants.

Ranked by these costs, with partial tiles at the edges and idle cores, a few tiles remain to be tried: Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication" (2008), section 6; Low et al., "Analytical Modeling Is Enough for
High-Performance BLIS" (2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.space.processor import VectorUnit

MAX_VECTORS = 4
"""Vectors of a tile with enough rows to keep the FMA units busy, at most."""
MAX_VECTORS_ALONE = 8
"""Vectors of a tile of a product with one or two rows, at most: only columns give independent multiply-adds there."""
LATENCY = 9
"""Multiply-adds in flight that keep the FMA units busy: four cycles of latency, two a cycle, and one more because they do
not start in step. This and the next are of tiles of all sizes on a Zen 5: one vector wide they took 1.2 to 1.3 times as long
as two or three wide, whatever their height, and 4 by 3 or 4 by 4 was as fast as 14 by 2."""
LOAD = 1.2
"""Cost of a load from the L1 cache, a vector of B or a broadcast element of A, in multiply-adds. Loads and multiply-adds
run beside each other."""
FROM_L2 = 0.2
"""Cost of loading a vector of B from the L2 cache rather than the L1, in multiply-adds: most of it is hidden."""
COPIED = 8.0
"""Cost of copying a row of A, in columns of the product: rows of 64 columns took a sixth longer, of 384 a thirtieth. Rows
that the height does not divide are copied where columns are padded, too."""
BEYOND_STEP, BEYOND_TILE = 0.1, 30.0
"""Cost of each row that the last tile has beyond the last row, in multiply-adds, in every tile: for each step of the
reduction, since it has an address of its own, and once, since it is written under a condition. 13 of them made a tile of 14
by 2 slower by a twentieth over 768 steps, 9 of them one of 11 by 2 by a sixth over 96."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """The product to tile: `chunks` independent ones of rows x columns."""

    rows: int
    columns: int
    steps: int
    """Of the reduction."""
    chunks: int = 1
    group: int
    """Number of neighbouring columns that read the same A."""
    pads_rows: bool = False
    """Whether rows beyond the last may be computed and dropped; else the height of a tile must divide the rows."""
    pads_columns: bool = False
    """The same of columns; else the width of a tile must divide the group."""
    step: int = 1
    """Heights of tiles are multiples of it."""
    max_rows: int = 1 << 30
    """Largest height of a tile."""


@dataclass(frozen=True, kw_only=True)
class MicroKernel:
    """A register tile of `rows` by `vectors` vectors of columns, and what the model says of it."""

    rows: int
    vectors: int
    lanes: int
    """Elements of a vector: the target's, or fewer where those do not divide the columns."""
    cost: float
    """Modelled time of the whole product over its time at the peak rate of all cores; 1 is best."""

    @property
    def width(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


def micro_kernels(product: Product, unit: VectorUnit, cores: int) -> list[MicroKernel]:
    """All tiles that fit the registers: first the best of each number of vectors, then the others, each by their cost."""
    found: list[MicroKernel] = []
    rows = product.rows
    for vectors, lanes in _widths(product, unit):
        panels = math.ceil(product.columns / (vectors * lanes))
        fit = max(1, (unit.registers - unit.operands - vectors) // vectors)
        for height in range(product.step, min(rows, fit, unit.registers // 2, product.max_rows) + 1, product.step):
            if rows % height and not product.pads_rows:
                continue
            tiles = math.ceil(rows / height)
            cycles = tile_cost(height, vectors)
            if not product.pads_columns:
                cycles += (tiles * height - rows) * (BEYOND_STEP + BEYOND_TILE / product.steps)
            chunks = product.chunks * panels * tiles
            busy = chunks / (math.ceil(chunks / cores) * cores)
            cost = tiles * cycles * panels * unit.lanes / (rows * product.columns * busy)
            if rows % height and product.pads_columns:
                cost += COPIED / product.columns
            found.append(MicroKernel(rows=height, vectors=vectors, lanes=lanes, cost=cost))
    found.sort(key=lambda kernel: kernel.cost)
    best = {kernel.vectors: kernel for kernel in reversed(found)}
    return sorted(found, key=lambda kernel: best[kernel.vectors] is not kernel)


def tile_cost(rows: int, vectors: int) -> float:
    """Time of a tile for one element of the reduction, in those of a multiply-add of a vector."""
    return max(rows * vectors, LOAD * (rows + vectors), LATENCY) + FROM_L2 * vectors


def _widths(product: Product, unit: VectorUnit) -> Iterator[tuple[int, int]]:
    """(vectors, lanes) of the tile widths offered."""
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
    """The target's lanes, halved until they divide the group; where fewer than four lanes would be left, the largest
    divisor of the group that fits a register. LLVM splits a vector of 13 into one of 8, one of 4 and one element."""
    lanes = unit.lanes
    while lanes > 2 and group % lanes:
        lanes //= 2
    if lanes >= min(4, unit.lanes) and group % lanes == 0:
        return lanes
    return max(divisor for divisor in range(1, unit.lanes + 1) if group % divisor == 0)
