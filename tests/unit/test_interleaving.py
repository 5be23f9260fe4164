"""Which samples a confirming run still needs, from made-up times."""

from __future__ import annotations

import random

import pytest

from pitchpipe.wire.measure import MeasureConfig
from tuner.measure.interleaving import BEATEN, OUTCLASSED, OUTCLASSED_SAMPLES_EACH, Interleaving
from tuner.measure.timing import (
    CONFIRM_PROCESSES,
    CONFIRM_SAMPLES_EACH,
    FAR_BEHIND_FACTOR,
    HICCUP_SECS,
    far_behind,
    run_interval,
)
from tuner.tuning.confirm import WORTHWHILE

FULL = CONFIRM_PROCESSES * CONFIRM_SAMPLES_EACH
BASELINE = "baseline"


def run(secs: dict[str, list[float]], calls: int = 1) -> dict[str, list[float]]:
    """The samples of a run in which each side's processes always take these seconds."""
    going = Interleaving(MeasureConfig())
    for name, each in secs.items():
        going.add(name, calls=calls, warm_secs=each, baseline=name == BASELINE)
    going.begin()
    while going.going:
        for name in sorted(going.going):
            for process, taken in enumerate(secs[name]):
                going.take(name, process, taken)
        going.settle()
    return going.samples


def test_two_of_about_the_same_speed_get_all_their_samples() -> None:
    close = 1 + 0.8 * (OUTCLASSED - 1)
    samples = run({BASELINE: [1e-3] * 3, "same": [1.01e-3] * 3, "close": [close * 1e-3] * 3})
    assert {name: len(each) for name, each in samples.items()} == {BASELINE: FULL, "same": FULL, "close": FULL}


def test_samples_are_kept_in_the_order_of_the_processes() -> None:
    samples = run({"a": [1e-3, 1.01e-3, 0.99e-3]})
    assert samples["a"][:6] == [1e-3, 1.01e-3, 0.99e-3] * 2


def test_one_that_cannot_win_gets_as_many_samples_as_show_it() -> None:
    samples = run({BASELINE: [1e-3] * 3, "fast": [0.5e-3] * 3, "slow": [0.7e-3] * 3})
    assert len(samples["slow"]) == OUTCLASSED_SAMPLES_EACH * CONFIRM_PROCESSES
    assert len(samples["fast"]) == len(samples[BASELINE]) == FULL


def test_one_whose_processes_disagree_is_not_outclassed_by_the_slow_ones() -> None:
    samples = run({"fast": [0.5e-3] * 3, "scattered": [0.5e-3, 0.7e-3, 0.7e-3]})
    assert len(samples["scattered"]) >= FULL


def test_a_baseline_several_times_slower_gets_one_sample_of_each_process() -> None:
    samples = run({BASELINE: [1.1 * BEATEN * 1e-3] * 3, "fast": [1e-3] * 3})
    assert len(samples[BASELINE]) == CONFIRM_PROCESSES
    assert run_interval(samples[BASELINE], CONFIRM_PROCESSES)[0] * (1 - WORTHWHILE) > 1e-3, "and loses by it"
    assert len(run({BASELINE: [0.9 * BEATEN * 1e-3] * 3, "fast": [1e-3] * 3})[BASELINE]) == FULL


def test_a_baseline_of_long_calls_that_is_several_times_slower_has_made_its_samples_while_it_was_warming_up() -> None:
    slow = [0.31, 0.3, 0.32]
    going = Interleaving(MeasureConfig())
    going.add(BASELINE, calls=1, warm_secs=slow, baseline=True)
    going.add("fast", calls=1, warm_secs=[0.05, 0.06, 0.05], baseline=False)
    going.begin()
    assert going.going == {"fast"}
    assert going.samples[BASELINE] == slow
    assert run({BASELINE: [1e-3 * BEATEN] * 3, "fast": [1e-4] * 3})[BASELINE] == [1e-3 * BEATEN] * 3, "short: one round"


def test_a_baseline_beside_no_candidate_gets_all_its_samples() -> None:
    assert len(run({BASELINE: [0.03] * 3})[BASELINE]) >= MeasureConfig().min_samples


def test_a_candidate_that_fails_leaves_no_samples_and_the_others_go_on() -> None:
    going = Interleaving(MeasureConfig())
    for name in "ab":
        going.add(name, calls=1, warm_secs=[1e-3], baseline=False)
    going.begin()
    going.take("a", 0, 1e-3)
    going.drop("b")
    going.settle()
    assert going.samples == {"a": [1e-3]}
    assert going.going == {"a"}


@pytest.mark.parametrize("one_in", [2, 5])
def test_two_runs_of_one_program_hardly_ever_end_early(one_in: int) -> None:
    """Processes that are slower by 9 % by chance, and samples disturbed now and then, end no comparison of a program with itself."""
    rng = random.Random(3)
    early = 0
    for _ in range(500):
        offsets = {
            name: [rng.gauss(0, 0.01) + (0.09 if rng.random() < 1 / one_in else 0) for _ in range(3)] for name in "ab"
        }
        going = Interleaving(MeasureConfig())
        for name in "ab":
            going.add(name, calls=1, warm_secs=[1e-3] * 3, baseline=name == "a")
        going.begin()
        while going.going:
            for name in sorted(going.going):
                for process, own in enumerate(offsets[name]):
                    going.take(name, process, 1e-3 * (1 + own + rng.expovariate(100.0)))
            going.settle()
        early += any(len(each) < FULL for each in going.samples.values())
    assert early == 0


def test_far_behind_takes_a_hundred_times_as_long_and_more_than_what_a_busy_host_adds() -> None:
    assert far_behind(0.5, 0.5, 1e-3)
    assert not far_behind(0.5, 0.01, 1e-3), "something else kept it waiting"
    assert not far_behind(*[0.9 * FAR_BEHIND_FACTOR * 1e-3] * 2, 1e-3)
    assert not far_behind(*[0.9 * HICCUP_SECS] * 2, 1e-6)
    assert not far_behind(100.0, 100.0, None), "nothing is known that it could have lost to"
