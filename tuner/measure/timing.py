"""When to stop timing a candidate: pure decisions over a function `call(n) -> seconds of n calls`.

A sample is the mean of `n` calls in a row, `n` chosen so that a sample fills `target_sample_secs`. The statistic is
the median of the samples. Caches are warm but for large tensors (candidate.py): every call reads the same buffers.

Notation: x_(1) <= ... <= x_(m) are the ordered samples, med their median, inc the incumbent's median seconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pitchpipe.wire.measure import MeasureConfig, Stop

CONFIDENCE = 0.95
PRECISION = 0.03
"""An interval of the median narrower than this share of the median is narrow enough."""
CLOSE = 1.03
"""A candidate whose interval lies above the incumbent's median by this factor needs no narrower one."""
HOPELESS_FACTOR = 4.0
COLD_START_SECS = 2e-3
"""What a first call may cost besides the kernel: starting threads, touching fresh pages."""
MAX_CALLS = 1_000_000
CONFIRM_ROUNDS = 12
"""Samples of an interleaved run before its interval is looked at; 12 give x_(3)..x_(10) as the interval."""
CONFIRM_SAMPLE_FACTOR = 2
"""A confirming sample is so many times as long as one of a search."""
CONFIRM_PROCESSES = 3
"""Fresh processes that time a candidate in a confirming run."""
CONFIRM_SAMPLES_EACH = 6
"""Samples of each of them, at least."""
MOMENT = 0.05
"""What a device's speed changes by between one minute and another, beyond what shows within a run, while nobody else
computes on it."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What timing a candidate gave."""

    secs: tuple[float, ...]
    """Seconds of one call, per sample."""
    calls: int
    """Calls in a sample."""
    stop: Stop


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """A distribution-free interval of the median: (x_(k), x_(m+1-k)) with the largest k whose coverage suffices.

    Its coverage is 1 - 2 * P(Binomial(m, 1/2) < k) for independent samples of any distribution. Fewer than six
    samples cannot give 95 %: their range is then widened by its own length on both sides, which is a convention,
    not a theorem.
    """
    if not samples:
        raise ValueError("no samples, no interval")
    ordered = sorted(samples)
    m = len(ordered)
    if m == 1:
        return ordered[0] / 2, ordered[0] * 2
    k, below = 0, 0.0
    while k < m // 2:
        below += math.comb(m, k) * 0.5**m
        if 1 - 2 * below < confidence:
            break
        k += 1
    if k == 0:
        spread = ordered[-1] - ordered[0]
        return max(ordered[0] - spread, ordered[0] / 2), ordered[-1] + spread
    return ordered[k - 1], ordered[m - k]


def run_interval(samples: Sequence[float], processes: int = 1) -> tuple[float, float]:
    """The interval of a candidate's median in a run: sample i was taken in process i modulo `processes`.

    Two fresh processes with the same machine code differ by more than their samples do: it is chance where their memory
    lies. So the interval holds that of the samples and that of the processes' medians, which are independent whatever
    the samples are; with the three of CONFIRM_PROCESSES the latter is their range, widened by its own length on both
    sides.

    How often an interval of A lies below one of B though both are one program, and how often it holds the median of
    another run of A, simulated (tests/unit/test_timing.py) with three processes of six samples: processes that differ
    by a normal sd of 0.3 to 5 %, 0.2 % and 92 to 95 %; one process in five slower by 9 %, 0.4 % and 89 %; the samples'
    interval alone has 5 to 7 % and 55 to 60 %. Equal processes that draw lots at one half are the worst case: 1.6 %.
    Measured: benchmarks/false_wins.py.
    """
    low, high = median_interval(samples)
    if processes > 1 and len(samples) >= processes:
        lowest, highest = median_interval([statistics.median(samples[i::processes]) for i in range(processes)])
        low, high = min(low, lowest), max(high, highest)
    return low, high


def later_interval(low: float, high: float) -> tuple[float, float]:
    """Where the median of a later run falls, 19 times in 20, after one with this interval; benchmarks/agreement.py."""
    return low / (1 + MOMENT), high * (1 + MOMENT)


def calls_per_sample(config: MeasureConfig, call_secs: float) -> int:
    """How many calls of `call_secs` fill a sample."""
    return max(1, min(MAX_CALLS, math.ceil(config.target_sample_secs / max(call_secs, 1e-9))))


def hopeless(first_secs: float, incumbent_secs: float | None) -> bool:
    """Whether a first call ends the timing.

    A candidate as fast as the incumbent is lost to this rule only if something delays its first call by three times
    its own duration and COLD_START_SECS more. It still gets a time, of that one call.
    """
    return incumbent_secs is not None and first_secs > HOPELESS_FACTOR * incumbent_secs + COLD_START_SECS


def slow(samples: Sequence[float], config: MeasureConfig, incumbent_secs: float | None) -> bool:
    """Whether the first `min_samples` samples condemn a candidate: all of them exceed slow_factor * inc.

    A candidate whose true median is at most slow_factor * inc exceeds it in each sample with probability at most 1/2,
    so it is stopped wrongly with probability at most 2^-min_samples (1/8 at 3), whatever the distribution, if samples
    are independent. One that is truly as fast as the incumbent must meet `min_samples` disturbances of a tenth of its
    own duration in a row: with one sample in twenty so disturbed, 1.3e-4. Either way it keeps the time it got.
    """
    return (
        incumbent_secs is not None
        and len(samples) >= config.min_samples
        and min(samples) > config.slow_factor * incumbent_secs
    )


def precise(samples: Sequence[float], config: MeasureConfig, incumbent_secs: float | None) -> bool:
    """Whether more samples would change nothing: the interval is narrow, or lies above CLOSE * inc."""
    if len(samples) < max(6, config.min_samples):
        return False
    low, high = median_interval(samples)
    if high - low <= PRECISION * statistics.median(samples):
        return True
    return incumbent_secs is not None and low > CLOSE * incumbent_secs


def sample(
    call: Callable[[int], float],
    config: MeasureConfig,
    *,
    incumbent_secs: float | None = None,
    first_secs: float | None = None,
    promising: Callable[[], None] = lambda: None,
    limit_secs: float = math.inf,
) -> Sampled:
    """Times a candidate.

    `first_secs` is the duration of a call made before, the coldest one; without it one is made here. `promising` is
    called once, before the samples of a candidate that `slow` did not stop go on: the place for expensive checks.
    `limit_secs` bounds the time spent: what is left of it decides over `min_samples`, but one sample is always taken.
    """
    spent = 0.0

    def timed(calls: int) -> float:
        nonlocal spent
        secs = call(calls)
        spent += secs
        return max(secs / calls, 1e-9)

    def ended(samples: Sequence[float], stop: Stop) -> Sampled:
        return Sampled(secs=tuple(samples), calls=calls, stop=stop)

    calls = 1
    first = timed(1) if first_secs is None else first_secs
    if hopeless(first, incumbent_secs):
        return ended([first], Stop.HOPELESS)
    if first > limit_secs / (config.min_samples + 1):
        promising()
        return ended([first], Stop.SPENT)
    calls = calls_per_sample(config, first)
    if calls > 1 or first < config.target_sample_secs * 10:
        # The first call was cold; a warm one says better how many fill a sample.
        calls = calls_per_sample(config, timed(calls))
    samples: list[float] = []
    told = False
    while True:
        samples.append(timed(calls))
        if len(samples) == 1 and (better := calls_per_sample(config, samples[0])) > 2 * calls:
            calls = better
            samples.clear()
            continue
        if slow(samples, config, incumbent_secs):
            return ended(samples, Stop.SLOW)
        if len(samples) >= config.min_samples and not told:
            told = True
            promising()
        if precise(samples, config, incumbent_secs):
            return ended(samples, Stop.PRECISE)
        if len(samples) >= config.max_samples:
            return ended(samples, Stop.SPENT)
        if len(samples) >= config.min_samples and spent >= config.max_secs:
            return ended(samples, Stop.SPENT)
        if spent + samples[-1] * calls > limit_secs:
            if not told:
                promising()
            return ended(samples, Stop.SPENT)


def abba(count: int) -> Iterator[tuple[int, ...]]:
    """The orders of an interleaved run's rounds: forward and backward in turn, so that a drift touches all alike."""
    forward = tuple(range(count))
    while True:
        yield forward
        yield forward[::-1]


def confirmed(samples: Sequence[float], calls: int, config: MeasureConfig, processes: int = 1) -> bool:
    """Whether a candidate in an interleaved run has enough samples, of all its processes together.

    It goes on to CONFIRM_ROUNDS, then until its interval is narrow or `max_samples` are taken. One that has spent three
    times `max_secs` ends as soon as it has `min_samples`: an untuned baseline takes tenths of a second a call.
    """
    m = len(samples)
    if m < config.min_samples:
        return False
    enough = max(CONFIRM_ROUNDS, CONFIRM_SAMPLES_EACH * processes)
    if sum(samples) * calls >= 3 * config.max_secs or m >= max(config.max_samples, enough):
        return True
    return m >= enough and precise(samples, config, None)
