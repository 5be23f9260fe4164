"""Neighbours of a trace in a design space."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.compiler import programs
from tuner.schedule.trace import encode_trace
from tuner.space import space_of


@pytest.mark.long
def test_equal_traces_have_equal_neighbours_wherever_they_lie_in_memory() -> None:
    space = space_of(programs.conv(), programs.TARGET)
    kept = []
    for sketch in space.sketches:
        for seed in range(6):
            found = set()
            for _ in range(4):
                schedule = space.applied(sketch, 5)
                trace = schedule.trace.simplified(True)
                neighbour = space.neighbour(trace, np.random.default_rng(seed))
                kept.append((schedule, trace, neighbour))  # So that no address is used twice.
                found.add(None if neighbour is None else encode_trace(neighbour))
            assert len(found) == 1


def test_a_neighbour_tiles_the_same_loops_and_differs() -> None:
    space = space_of(programs.conv(), programs.TARGET)
    trace = space.drawn(0, 5).trace.simplified(True)
    before = dict(json.loads(encode_trace(trace))[1])
    changed = 0
    for seed in range(20):
        neighbour = space.neighbour(trace, np.random.default_rng(seed))
        if neighbour is None:
            continue
        after = dict(json.loads(encode_trace(neighbour))[1])
        assert before.keys() == after.keys()
        for at, decision in after.items():
            if isinstance(decision, list):
                assert math.prod(decision) == math.prod(before[at])
        changed += after != before
    assert changed > 10


def test_a_neighbour_may_differ_in_a_factor_drawn_from_a_list() -> None:
    space = space_of(programs.conv(14, 64, 64), programs.TARGET)
    sketches = [sketch for sketch in space.sketches if not any("PerfectTile" in i.kind.name for i in sketch.insts)]
    drawn = set()
    for sketch in sketches:
        trace = space.applied(sketch, 5).trace.simplified(True)
        neighbours = [space.neighbour(trace, np.random.default_rng(seed)) for seed in range(20)]
        drawn |= {encode_trace(neighbour) for neighbour in neighbours if neighbour is not None} - {encode_trace(trace)}
    assert drawn
