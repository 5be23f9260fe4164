"""What MetaSchedule's tiles leave to the innermost loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.compiler import programs
from tuner.space import space_of
from tuner.space.processor import VectorUnit
from tuner.space.vector_tile import spatial_tiles, wastes_vectors

UNIT = VectorUnit.of(programs.TARGET, 32)


@pytest.mark.parametrize(("columns", "longest"), [(64, 64), (24, 24), (20, 20), (6, 6), (13, 13), (67, 1)])
def test_the_innermost_tile_fills_half_a_register_or_what_the_axis_has(columns: int, longest: int) -> None:
    """A tile is 64 elements at most: of 67 columns, a prime number, it is one."""
    space = space_of(programs.dense(columns=columns), programs.TARGET)
    numbers = [i for i, schedule in enumerate(space.schedules) if spatial_tiles(schedule.trace)]
    assert numbers
    lengths = set()
    for number in numbers:
        for seed in range(1, 9):
            trace = space.drawn(number, seed).trace.simplified(True)
            changed = space.neighbour(trace, np.random.default_rng(seed))
            for found in [trace] if changed is None else [trace, changed]:
                assert not wastes_vectors(found, UNIT)
                ((*_, rows, last),) = spatial_tiles(found)
                tile = [int(factor) for factor in found.get_decision(last)]
                assert math.prod(tile) == columns
                assert int(found.get_decision(rows)[-1]) * math.ceil(tile[-1] / UNIT.lanes) < UNIT.registers
                lengths.add(tile[-1])
    assert min(lengths) >= min(UNIT.lanes // 2, longest)
    assert len(lengths) > 1 or columns in (6, 13, 67)


def test_a_target_without_vectors_wastes_none() -> None:
    space = space_of(programs.dense(), programs.TARGET)
    trace = next(s.trace for s in space.schedules if spatial_tiles(s.trace))
    ((*_, last),) = spatial_tiles(trace)
    short = trace.with_decision(last, [32, 1, 1, 1], True)
    assert wastes_vectors(short, UNIT)
    assert not wastes_vectors(short, None)
