"""The timing policy against synthetic clocks: no compiler, no real time."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.wire.measure import MeasureConfig, Stop
from tuner.measure.timing import (
    COLD_START_SECS,
    CONFIRM_PROCESSES,
    CONFIRM_ROUNDS,
    CONFIRM_SAMPLES_EACH,
    abba,
    calls_per_sample,
    confirmed,
    later_interval,
    median_interval,
    run_interval,
    sample,
    slow,
)

CONFIG = MeasureConfig()


class Kernel:
    """A function `call` with given seconds per call, one value per invocation."""

    def __init__(self, secs: float | Iterable[float]) -> None:
        self._secs = itertools.repeat(secs) if isinstance(secs, float) else iter(secs)
        self.asked: list[int] = []

    def __call__(self, calls: int) -> float:
        self.asked.append(calls)
        return next(self._secs) * calls


def timed(kernel: Kernel, config: MeasureConfig, **options: Any) -> tuple[list[float], Stop]:
    """The samples, and why there are no more."""
    sampled = sample(kernel, config, **options)
    return list(sampled.secs), sampled.stop


def noisy(seed: int, secs: float, noise: float) -> Kernel:
    rng = random.Random(seed)
    return Kernel(secs * (1 + noise * rng.expovariate(1.0)) for _ in itertools.count())


def test_a_steady_kernel_needs_six_samples() -> None:
    samples, stop = timed(Kernel(1e-3), CONFIG)
    assert stop is Stop.PRECISE
    assert len(samples) == 6
    assert statistics.median(samples) == pytest.approx(1e-3)


def test_short_calls_are_repeated_to_fill_a_sample() -> None:
    kernel = Kernel(1e-6)
    sample(kernel, CONFIG)
    assert kernel.asked[-1] == calls_per_sample(CONFIG, 1e-6)
    assert kernel.asked[-1] == pytest.approx(CONFIG.target_sample_secs / 1e-6, abs=1)


def test_a_cold_first_call_does_not_shorten_the_samples() -> None:
    kernel = Kernel(itertools.chain([5e-3], itertools.repeat(1e-5)))
    samples, _ = timed(kernel, CONFIG)
    assert samples == pytest.approx([1e-5] * len(samples))
    assert kernel.asked[-1] >= CONFIG.target_sample_secs / 1e-5 / 2


def test_a_candidate_far_slower_than_the_incumbent_costs_one_call() -> None:
    kernel = Kernel(0.5)
    samples, stop = timed(kernel, CONFIG, incumbent_secs=1e-3)
    assert stop is Stop.HOPELESS
    assert samples == [0.5]
    assert kernel.asked == [1]


def test_a_first_call_that_only_was_cold_is_not_hopeless() -> None:
    kernel = Kernel(itertools.chain([COLD_START_SECS], itertools.repeat(1e-5)))
    _, stop = timed(kernel, CONFIG, incumbent_secs=1e-5)
    assert stop is Stop.PRECISE


def test_one_short_call_that_was_delayed_does_not_make_a_candidate_hopeless() -> None:
    kernel = Kernel(itertools.chain([5e-3], itertools.repeat(1e-5)))
    samples, stop = timed(kernel, CONFIG, incumbent_secs=1e-5)
    assert stop is Stop.PRECISE
    assert samples == pytest.approx([1e-5] * len(samples))
    _, stop = timed(slow := Kernel(5e-3), CONFIG, incumbent_secs=1e-5)
    assert (stop, slow.asked) == (Stop.HOPELESS, [1, 1])


def test_a_slower_candidate_stops_after_its_first_samples_and_is_not_promising() -> None:
    told: list[bool] = []
    samples, stop = timed(Kernel(2e-3), CONFIG, incumbent_secs=1e-3, promising=lambda: told.append(True))
    assert stop is Stop.SLOW
    assert len(samples) == CONFIG.min_samples
    assert not told


def test_a_promising_candidate_is_announced_once() -> None:
    told: list[bool] = []
    sample(Kernel(0.9e-3), CONFIG, incumbent_secs=1e-3, promising=lambda: told.append(True))
    assert told == [True]


def test_without_an_incumbent_every_candidate_is_promising() -> None:
    told: list[bool] = []
    sample(Kernel(0.2), CONFIG, promising=lambda: told.append(True))
    assert told == [True]


def test_a_noisy_kernel_gets_more_samples_than_a_steady_one_but_no_more_than_allowed() -> None:
    samples, stop = timed(noisy(1, 2e-3, 0.5), CONFIG)
    assert 6 < len(samples) <= CONFIG.max_samples
    assert stop is Stop.SPENT


def test_a_long_kernel_stops_at_the_time_allowed_with_the_fewest_samples() -> None:
    samples, stop = timed(Kernel(x * 0.3 for x in itertools.cycle([1.0, 1.2])), CONFIG)
    assert stop is Stop.SPENT
    assert len(samples) == CONFIG.min_samples


def test_a_kernel_that_barely_fits_the_run_limit_gets_one_sample() -> None:
    kernel = Kernel(6.0)
    samples, stop = timed(kernel, CONFIG, limit_secs=20.0)
    assert stop is Stop.SPENT
    assert samples == [6.0]


def test_time_spent_never_passes_the_run_limit_by_more_than_a_sample() -> None:
    kernel = Kernel(3.0)
    samples, _ = timed(kernel, CONFIG, limit_secs=14.0)
    assert len(samples) >= 1
    assert sum(kernel.asked) * 3.0 <= 14.0 + 3.0


def test_the_slow_rule_errs_as_rarely_as_its_docstring_says() -> None:
    # The worst case allowed: the candidate's true median is exactly slow_factor * incumbent.
    rng = random.Random(7)
    trials = 20_000
    stopped = sum(
        slow(
            [CONFIG.slow_factor * (1 + 0.1 * rng.choice([-1, 1]) * rng.random()) for _ in range(CONFIG.min_samples)],
            CONFIG,
            1.0,
        )
        for _ in range(trials)
    )
    assert stopped / trials <= 2**-CONFIG.min_samples * 1.1


def test_the_interval_covers_the_median_as_often_as_it_claims() -> None:
    rng = random.Random(11)
    trials = 4000
    covered = 0
    for _ in range(trials):
        low, high = median_interval([rng.lognormvariate(0, 0.3) for _ in range(12)])
        covered += low <= 1.0 <= high
    assert covered / trials >= 0.95


@given(st.lists(st.floats(1e-9, 10.0), min_size=1, max_size=60))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    low, high = median_interval(samples)
    assert 0 < low <= statistics.median(samples) <= high


@given(st.lists(st.floats(1e-9, 10.0), min_size=6, max_size=60))
def test_with_six_samples_or_more_the_interval_ends_at_samples(samples: list[float]) -> None:
    low, high = median_interval(samples)
    assert {low, high} <= set(samples)


def test_an_interleaved_run_goes_forward_and_backward() -> None:
    rounds = abba(3)
    assert [next(rounds) for _ in range(4)] == [(0, 1, 2), (2, 1, 0), (0, 1, 2), (2, 1, 0)]


def test_a_steady_candidate_is_confirmed_after_the_agreed_rounds() -> None:
    assert not confirmed([1e-3] * (CONFIRM_ROUNDS - 1), 2, CONFIG)
    assert confirmed([1e-3] * CONFIRM_ROUNDS, 2, CONFIG)


def test_a_very_long_candidate_is_confirmed_by_its_fewest_samples() -> None:
    assert not confirmed([2.0] * (CONFIG.min_samples - 1), 1, CONFIG)
    assert confirmed([2.0] * CONFIG.min_samples, 1, CONFIG)


def test_a_noisy_candidate_is_confirmed_when_the_samples_are_used_up() -> None:
    spread = [1e-3, 2e-3] * CONFIG.max_samples
    assert not confirmed(spread[: CONFIG.max_samples - 1], 1, CONFIG)
    assert confirmed(spread[: CONFIG.max_samples], 1, CONFIG)


def test_a_candidate_in_several_processes_is_confirmed_when_each_has_its_samples() -> None:
    enough = CONFIRM_PROCESSES * CONFIRM_SAMPLES_EACH
    assert not confirmed([1e-3] * (enough - 1), 2, CONFIG, CONFIRM_PROCESSES)
    assert confirmed([1e-3] * enough, 2, CONFIG, CONFIRM_PROCESSES)


def test_processes_that_differ_widen_the_interval_and_equal_ones_do_not() -> None:
    steady = [1.0, 1.01, 0.99] * 2
    assert run_interval(steady, 1) == median_interval(steady)
    apart = [1.0, 1.1, 1.0] * 6
    assert median_interval(apart) == (1.0, 1.1)
    assert run_interval(apart, 3) == pytest.approx((0.9, 1.2))
    assert run_interval([2.0, 3.0], 3) == median_interval([2.0, 3.0])


def simulated(rng: random.Random, offset: Callable[[random.Random], float]) -> list[float]:
    """A run of a program of one second: every process has an offset of its own, every sample a delay."""
    offsets = [offset(rng) for _ in range(CONFIRM_PROCESSES)]
    return [1 + own + rng.expovariate(100.0) for _ in range(CONFIRM_SAMPLES_EACH) for own in offsets]


def alike(rng: random.Random) -> float:
    return rng.gauss(0, 0.003)


def scattered(rng: random.Random) -> float:
    return rng.gauss(0, 0.05)


def one_in_five(rng: random.Random) -> float:
    return rng.gauss(0, 0.01) + (0.09 if rng.random() < 0.2 else 0.0)


def by_lot(rng: random.Random) -> float:
    return rng.gauss(0, 0.01) + (0.09 if rng.random() < 0.5 else 0.0)


@pytest.mark.parametrize(
    ("offset", "beaten", "covered"),
    [(alike, 0.004, 0.93), (scattered, 0.004, 0.90), (one_in_five, 0.008, 0.87), (by_lot, 0.02, 0.83)],
)
def test_the_interval_of_a_run_errs_as_rarely_as_its_docstring_says(
    offset: Callable[[random.Random], float], beaten: float, covered: float
) -> None:
    rng = random.Random(5)
    trials = 3000
    runs = [simulated(rng, offset) for _ in range(trials)]
    intervals = [run_interval(run, CONFIRM_PROCESSES) for run in runs]
    pairs = list(itertools.pairwise(zip(runs, intervals, strict=True)))
    assert sum(mine[1] < other[0] for (_, mine), (_, other) in pairs) / trials < beaten
    assert sum(low <= statistics.median(run) <= high for (run, _), (_, (low, high)) in pairs) / trials > covered


def test_processes_hidden_from_the_interval_make_it_err_often() -> None:
    rng = random.Random(5)
    intervals = [median_interval(simulated(rng, one_in_five)) for _ in range(2000)]
    assert sum(mine[1] < other[0] for mine, other in itertools.pairwise(intervals)) / 2000 > 0.03


@given(st.lists(st.floats(1e-9, 10.0), min_size=1, max_size=60), st.integers(1, 5))
def test_the_interval_of_a_run_and_that_of_later_ones_hold_its_median(samples: list[float], processes: int) -> None:
    low, high = run_interval(samples, processes)
    assert 0 < low <= statistics.median(samples) <= high
    assert later_interval(low, high)[0] < low <= high < later_interval(low, high)[1]


def test_one_sample_says_little() -> None:
    low, high = median_interval([1.0])
    assert (low, high) == (0.5, 2.0)
