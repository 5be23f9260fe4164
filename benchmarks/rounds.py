"""Several programs timed in turn: the order of the turns, and what their times say. Pure.

A run is `rounds` rounds; in each, every contestant computes for one block of runs. A contestant's time in a round is the
median of its block, which a disturbed run does not move; its time is the median over rounds. Samples of one block resemble
each other, so the interval is that of the rounds' medians (distribution-free, 95 %), and ratios are formed within rounds:
what slows the machine for longer than a round slows both sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.measure.timing import median_interval


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median over rounds with its 95 % interval."""

    value: float
    low: float
    high: float


def orders(contestants: int, rounds: int) -> list[tuple[int, ...]]:
    """The order of turns in each round: forward and backward in turn (ABBA), rotated by one place after each pair.

    So a drift within a round touches all alike, and nobody always has the same neighbours. Over 2 * contestants rounds
    everybody has every place equally often.
    """
    places = tuple(range(contestants))
    found = []
    for index in range(rounds):
        shift = index // 2 % max(contestants, 1)
        order = places[shift:] + places[:shift]
        found.append(order if index % 2 == 0 else order[::-1])
    return found


def estimate(values: Sequence[float]) -> Estimate:
    """Of one value per round. Raises ValueError without any."""
    low, high = median_interval(values)
    return Estimate(value=statistics.median(values), low=low, high=high)


def time_of(blocks: Sequence[Sequence[float]]) -> Estimate:
    """Seconds of a run, from the seconds of every run of every block."""
    return estimate([statistics.median(block) for block in blocks])


def ratio_of(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> Estimate:
    """How many times as long `over` takes as `under`, from the blocks of the same rounds."""
    return estimate(
        [statistics.median(a) / statistics.median(b) for a, b in zip(over, under, strict=True)],
    )


def geometric_mean(ratios: Sequence[float]) -> float:
    """Raises ValueError for none, and for one that is not positive."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def first_at_most(series: Sequence[tuple[float, float]], bound: float) -> float | None:
    """The first time whose value is at most `bound`, in a series of (seconds, value) in order of time; None if none is."""
    return next((secs for secs, value in series if value <= bound), None)
