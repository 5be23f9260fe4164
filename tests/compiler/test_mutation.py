"""Neighbours of a trace in a design space."""

from __future__ import annotations

import json
import math

import numpy as np

from tests.compiler import programs
from tuner.space import space_of
from tuner.trace import encode_trace


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
    trace = space.applied(space.sketches[0], 5).trace.simplified(True)
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
