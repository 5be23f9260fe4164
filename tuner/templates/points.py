"""The arguments that the templates of contractions may have for a workload on a device, as columns of numbers.

A space has some tens of thousands of points, so each argument is an array with a place for every point, and conditions and
estimates are computed for all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pitchpipe.wire.target import Target
from tuner.templates.contraction import ITEM_BYTES, MAX_ELEMENTS, Contraction
from tuner.templates.kernel_source import EARLIEST
from tuner.templates.matrices import OperandMatrix, operand_matrices
from tuner.templates.source import CLUSTERS, WHOLE_COLUMNS
from tuner.templates.text import CONTRACTION, CONTRACTION_TMA, FETCHES, TEMPLATES

SHARED_BYTES = 227 << 10
"""Of a multiprocessor."""
MAX_ACCUMULATORS, MAX_FRAGMENTS = 128, 64
"""Sums in the registers of a thread, at most, where four warps multiply from shared memory, and where operands are in
registers too: beyond it they are spilled, and the assembler takes long."""
LEAST_ACCUMULATORS = 4
"""Below it a thread is not worth its place."""
MAX_TILE = 1 << 15
"""Elements."""
LEAST_COPIED = 1024
"""Elements that a step brings into shared memory, at least."""
TMA_CAPABILITY = 90
"""Of the devices that multiply what `contraction-tma-1` says: wgmma is of this one alone."""
LEAST_TMA_ROWS = 32
"""Rows of a result from which on tiles of 64 are worth multiplying."""
STAGES, TMA_STAGES = (1, 2, 3, 4, 5, 6), (2, 3, 4, 5, 6, 8, 12, 16)
BARRIER_BYTES = 16
"""Of a stage, at most."""
PARTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)
GROUPS, LEAST_GROUPED = (0, 8), 8
"""Values of `group`, and the rows of tiles beyond which one of them is not all rows."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Points:
    """Points of one template."""

    template: str
    arguments: Mapping[str, Numbers]
    """Argument -> its value at each point."""

    def __len__(self) -> int:
        return len(self.arguments["rows"])

    def __getitem__(self, name: str) -> Numbers:
        return self.arguments[name]

    def where(self, chosen: NDArray[np.bool_]) -> Points:
        """Those that are chosen."""
        return Points(
            template=self.template, arguments={name: values[chosen] for name, values in self.arguments.items()}
        )

    def at(self, number: int) -> dict[str, int]:
        """The arguments of one point."""
        return {name: int(values[number]) for name, values in self.arguments.items()}

    @property
    def tma(self) -> bool:
        """Whether the tensor memory accelerator copies the operands."""
        return self.template == CONTRACTION_TMA


def points_of(found: Contraction, target: Target) -> list[Points]:
    """All points of each template for a contraction."""
    limit = min(target.max_shared_memory_per_block or SHARED_BYTES, SHARED_BYTES)
    early = 0
    if capability(target) >= EARLIEST:
        early = 1 if found.weights_in(found.a) is None and found.weights_in(found.b) is None else FETCHES
    spaces = [_of_pointers(found, early)]
    if capability(target) == TMA_CAPABILITY and (operands := operand_matrices(found)) is not None:
        spaces.append(_of_tma(found, operands))
    spaces = [points.where(shared_bytes(found, points) <= limit) for points in spaces]
    return [_with_clusters(points) if capability(target) >= EARLIEST else points for points in spaces if len(points)]


def capability(target: Target) -> int:
    """90 for sm_90a."""
    return int("".join(filter(str.isdigit, target.arch or "0")))


def steps_of(found: Contraction, points: Points) -> Numbers:
    """Steps of each part of the sum."""
    steps: Numbers = -(-found.extent("k") // (points["step"] * points["parts"]))
    return steps


def shared_bytes(found: Contraction, points: Points) -> Numbers:
    """Shared memory of a block, at most: a stage for each copy that is on its way."""
    stages = np.minimum(points["stages"], steps_of(found, points))
    tile = (points["rows"] + points["columns"]) * points["step"] * ITEM_BYTES[found.dtype]
    with_barriers: Numbers = (tile + BARRIER_BYTES) * stages
    return with_barriers if points.tma else np.maximum(tile * stages, points["rows"] * points["columns"] * 4)


def _of_pointers(found: Contraction, early: int) -> Points:
    """Of `contraction-1`: none whose tile is larger than the workload asks for."""
    values = TEMPLATES[CONTRACTION]
    m, n, k = found.extent("i"), found.extent("j"), found.extent("k")
    largest = {"rows": _covering(m), "columns": _covering(n), "step": _covering(k)}
    points = _every(
        CONTRACTION,
        **{name: [one for one in values[name] if one <= most] for name, most in largest.items()},
        parts=PARTS,
        warps=(2, 4, 8),
        stages=STAGES,
        group=GROUPS,
        early=(early,),
        cluster=(0,),
    )
    rows, columns, step, stages, warps = (points[name] for name in ("rows", "columns", "step", "stages", "warps"))
    steps = steps_of(found, points)
    sums = rows * columns // (32 * warps)
    most = np.where((warps >= 4) & (rows >= 64), MAX_ACCUMULATORS, MAX_FRAGMENTS)
    return points.where(
        _nothing_is_idle(found, points)
        & (rows * columns <= MAX_TILE)
        & (step >= min(32 if found.dtype == "int8" else 16, largest["step"]))
        & (step * (rows + columns) >= LEAST_COPIED)
        & (stages <= steps)
        & (sums >= LEAST_ACCUMULATORS)
        & (sums <= most)
    )


def _of_tma(found: Contraction, operands: tuple[OperandMatrix, OperandMatrix]) -> Points:
    """Of `contraction-tma-1`."""
    values = TEMPLATES[CONTRACTION_TMA]
    m, n, k = found.extent("i"), found.extent("j"), found.extent("k")
    points = _every(
        CONTRACTION_TMA,
        rows=[one for one in values["rows"] if one <= max(64, _covering(m))] if m > LEAST_TMA_ROWS else [],
        columns=[one for one in values["columns"] if one <= _covering(n)],
        step=[one for one in values["step"] if one <= _covering(k)],
        parts=PARTS,
        warps=values["warps"],
        stages=TMA_STAGES,
        group=GROUPS,
        early=(1,),
        cluster=(0,),
    )
    rows, columns, step, parts, warps = (points[name] for name in ("rows", "columns", "step", "parts", "warps"))
    sums = rows * columns // (32 * warps)
    fits = (
        _nothing_is_idle(found, points)
        & (rows >= 16 * warps)
        & (sums >= LEAST_ACCUMULATORS)
        & (sums <= MAX_ACCUMULATORS)
    )
    if not all(one.ends_in_zeros for one in operands):
        fits &= k % (step * parts) == 0
    for operand, extent, side in zip(operands, (m, n), (rows, columns), strict=True):
        if operand.span != extent:
            fits &= operand.span % side == 0
    points = points.where(fits)
    # More stages than steps are as many as there are steps.
    stages = np.minimum(points["stages"], steps_of(found, points))
    arguments = {**points.arguments, "stages": stages}
    _, first = np.unique(np.column_stack(list(arguments.values())), axis=0, return_index=True)
    return Points(template=CONTRACTION_TMA, arguments={name: one[np.sort(first)] for name, one in arguments.items()})


def _nothing_is_idle(found: Contraction, points: Points) -> NDArray[np.bool_]:
    """Where each part of the sum has something to do, and groups and stages are not idle."""
    k, rows, parts, step = found.extent("k"), points["rows"], points["parts"], points["step"]
    steps = steps_of(found, points)
    divided_well = (steps >= 2) & ((parts - 1) * steps * step < k) & (parts * found.extent("sij") <= MAX_ELEMENTS)
    grouped = -(-found.extent("i") // rows) > LEAST_GROUPED
    alone = (points["stages"] > 1) | (steps == 1)
    good: NDArray[np.bool_] = ((parts == 1) | divided_well) & ((points["group"] == 0) | grouped) & alone
    return good


def _with_clusters(points: Points) -> Points:
    """The points, and those again whose blocks of a tile's parts can be clusters."""
    clusters = points.where(np.isin(points["parts"], CLUSTERS) & np.isin(points["columns"], WHOLE_COLUMNS))
    both = {name: np.concatenate([one, clusters[name]]) for name, one in points.arguments.items()}
    both["cluster"][len(points) :] = 1
    return Points(template=points.template, arguments=both)


def _every(template: str, **values: Sequence[int]) -> Points:
    """The product of the arguments' values."""
    grid = np.meshgrid(*(np.array(one, dtype=np.int64) for one in values.values()), indexing="ij")
    return Points(template=template, arguments={name: one.ravel() for name, one in zip(values, grid, strict=True)})


def _covering(extent: int) -> int:
    """The side of the smallest tile that holds the extent, at least the smallest tile's."""
    return max(16, 1 << (extent - 1).bit_length())
