"""Contestants timed in turns: the median seconds of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

TIMING_SECS = 3.0
"""Contestants run in turns until so many seconds are spent on them ..."""
MAX_ROUNDS = 40
"""... or they had so many turns each, which is enough for the median of a model that takes microseconds."""
TURN_SECS = 0.05
MAX_RUNS = 40
"""A turn lasts about so many seconds, or so many runs."""
WARM_RUNS = 2
"""Runs before those, not counted: another contestant has filled the caches."""


def interleaved(
    sides: Sequence[Callable[[int], list[float]]], clock: Callable[[], float] = time.monotonic
) -> list[float]:
    """Median seconds of a run of each side, which gives the seconds of as many runs as it is told to make.

    They take turns, forwards and backwards, so that what drifts meets all of them alike.
    """
    runs = [max(1, min(MAX_RUNS, int(TURN_SECS / min(side(WARM_RUNS))))) for side in sides]
    samples: list[list[float]] = [[] for _ in sides]
    started = clock()
    for turn in range(MAX_ROUNDS):
        for at in range(len(sides)) if turn % 2 == 0 else reversed(range(len(sides))):
            samples[at] += sides[at](WARM_RUNS + runs[at])[WARM_RUNS:]
        if turn and clock() - started > TIMING_SECS:
            break
    return [statistics.median(found) for found in samples]
