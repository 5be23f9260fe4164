"""When to stop timing a candidate: pure decisions over a function `call(n) -> seconds of n calls`.

A sample is the mean of `n` calls in a row, `n` chosen so that a sample fills `target_sample_secs`. The statistic is
the median of the samples. Every call reads the same buffers, so caches are warm, except for large tensors, which are evicted
before each call (candidate.py).

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
"""Sampling ends when the interval of the median is narrower than this share of the median."""
CLOSE = 1.03
"""Sampling ends as well when the whole interval lies above CLOSE * inc: the candidate is certainly slower."""
HOPELESS_FACTOR = 4.0
"""A first call that takes longer than so many times inc ends the timing: see `hopeless`."""
COLD_START_SECS = 2e-3
"""Seconds that a first call may take besides the kernel: threads start, pages are allocated."""
MAX_CALLS = 1_000_000
CONFIRM_ROUNDS = 12
"""Samples of an interleaved run before its interval is looked at; 12 give x_(3)..x_(10) as the interval."""
CONFIRM_SAMPLE_FACTOR = 2
"""A sample of a confirming run takes so many times as long as one of a search."""
CONFIRM_PROCESSES = 3
"""Fresh processes that time a candidate in a confirming run."""
CONFIRM_SAMPLES_EACH = 6
"""Samples that each of these processes takes at least."""
FAR_BEHIND_FACTOR = 20.0
"""A baseline that takes longer than so many times the fastest candidate needs no interval: see `far_behind`."""
HICCUP_SECS = 0.02
"""What else the host does for a moment could make a call so long: a shorter one alone never shows that a candidate is
hopeless, or a baseline far behind."""
MOMENT = 0.05
"""Share by which a device's speed changes from one minute to another, beyond the variation within a run, while nobody else
computes on it."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The samples of a candidate."""

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

    Fresh processes with the same machine code differ by more than the samples of one, because their memory is placed at
    random. So this interval is the smallest that contains both the interval of all samples and that of the processes'
    medians, which are independent even where samples are not. With the three of CONFIRM_PROCESSES the latter is their
    range, widened by its own length on both sides.

    Error rates, simulated (tests/unit/test_timing.py) with three processes of six samples. False win: the interval of A
    lies below that of B though both are one program. Coverage: the interval of A contains the median of another run of A.

        processes' speeds                              false wins    coverage
        normal, standard deviation 0.3 to 5 %          0.2 %         92 to 95 %
        one process in five slower by 9 %              0.4 %         89 %
        one process in two slower by 9 % (worst case)  1.6 %
        the samples' interval alone                    5 to 7 %      55 to 60 %

    Measured: benchmarks/false_wins.py.
    """
    low, high = median_interval(samples)
    if processes > 1 and len(samples) >= processes:
        lowest, highest = median_interval([statistics.median(samples[i::processes]) for i in range(processes)])
        low, high = min(low, lowest), max(high, highest)
    return low, high


def later_interval(low: float, high: float) -> tuple[float, float]:
    """The interval that contains the median of a later run 19 times in 20, after a run with the interval (low, high).

    Measured: benchmarks/agreement.py.
    """
    return low / (1 + MOMENT), high * (1 + MOMENT)


def calls_per_sample(config: MeasureConfig, call_secs: float, most: int = MAX_CALLS) -> int:
    """Number of calls, of `call_secs` each, that fill a sample; at most `most`."""
    return max(1, min(most, math.ceil(config.target_sample_secs / max(call_secs, 1e-9))))


def hopeless(first_secs: float, incumbent_secs: float | None) -> bool:
    """Whether the first call alone shows that a candidate is too slow to be timed further.

    A candidate as fast as the incumbent is dropped by this rule only if something delays its first call by three times
    its own duration plus COLD_START_SECS, and where that is short (HICCUP_SECS) a second one as well. Its time is then that
    of the faster of them.
    """
    return incumbent_secs is not None and first_secs > HOPELESS_FACTOR * incumbent_secs + COLD_START_SECS


def far_behind(secs: float, own_secs: float, fastest_secs: float | None) -> bool:
    """Whether one call of the baseline shows that it has lost to a candidate of `fastest_secs` a call.

    own_secs: the processor time of the thread that called it, in which nobody delays it: a baseline as fast as that
    candidate would itself have to compute for 19 times as long as it does, and for 20 ms.
    """
    return fastest_secs is not None and min(secs, own_secs) > max(FAR_BEHIND_FACTOR * fastest_secs, HICCUP_SECS)


def slow(samples: Sequence[float], config: MeasureConfig, incumbent_secs: float | None) -> bool:
    """Whether the first `min_samples` samples show that a candidate is too slow: all of them exceed slow_factor * inc.

    A candidate whose true median is at most slow_factor * inc exceeds it in each sample with probability at most 1/2,
    so it is stopped wrongly with probability at most 2^-min_samples (1/8 at 3), whatever the distribution, if samples
    are independent. One that is truly as fast as the incumbent is stopped only if `min_samples` samples in a row are each
    disturbed by a tenth of their duration: with probability 1.3e-4 where one sample in twenty is. A candidate that is
    stopped keeps the samples taken so far.
    """
    return (
        incumbent_secs is not None
        and len(samples) >= config.min_samples
        and min(samples) > config.slow_factor * incumbent_secs
    )


def precise(samples: Sequence[float], config: MeasureConfig, incumbent_secs: float | None) -> bool:
    """Whether enough samples were taken: the interval is narrow, or lies above CLOSE * inc. Never before six samples."""
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
    most_calls: int = MAX_CALLS,
) -> Sampled:
    """Times a candidate; at least one sample is taken.

    first_secs: seconds of the first call, with cold caches, if the caller made one; else it is made here.
    promising: called once, when the first `min_samples` samples did not show the candidate to be slow, or time runs out
    before them: the place for expensive checks. What it raises ends the timing.
    limit_secs: bounds the seconds spent in `call`, even before `min_samples` samples are taken.
    most_calls: of a sample.
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
    if hopeless(first, incumbent_secs) and first <= HICCUP_SECS:
        first = min(first, timed(1))
    if hopeless(first, incumbent_secs):
        return ended([first], Stop.HOPELESS)
    if first > limit_secs / (config.min_samples + 1):
        promising()
        return ended([first], Stop.SPENT)
    calls = calls_per_sample(config, first, most_calls)
    if calls > 1 or first < config.target_sample_secs * 10:
        # The first call was cold: the number of calls follows from warm ones.
        calls = calls_per_sample(config, timed(calls), most_calls)
    samples: list[float] = []
    told = False
    while True:
        samples.append(timed(calls))
        if len(samples) == 1 and (better := calls_per_sample(config, samples[0], most_calls)) > 2 * calls:
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
    """The orders of an interleaved run's rounds over `count` candidates: forward and backward in turn, so that a drift of
    the device's speed affects all alike."""
    forward = tuple(range(count))
    while True:
        yield forward
        yield forward[::-1]


def confirmed(samples: Sequence[float], calls: int, config: MeasureConfig, processes: int = 1) -> bool:
    """Whether a candidate in an interleaved run has enough samples, of all its processes together.

    At least CONFIRM_ROUNDS samples are taken, then more until the interval is narrow or `max_samples` are reached. A
    candidate that has taken three times `max_secs` needs `min_samples` only: a baseline may take tenths of a second a call.
    """
    m = len(samples)
    if m < config.min_samples:
        return False
    enough = max(CONFIRM_ROUNDS, CONFIRM_SAMPLES_EACH * processes)
    if sum(samples) * calls >= 3 * config.max_secs or m >= max(config.max_samples, enough):
        return True
    return m >= enough and precise(samples, config, None)
