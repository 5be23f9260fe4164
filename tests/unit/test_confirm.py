"""The confirming run's verdict, from made-up times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import (
    BASELINE_TRACE,
    Candidate,
    CheckVerdict,
    Failed,
    FailureKind,
    Measurement,
    SampleRule,
    Stop,
    Timed,
)
from tuner.measure.timing import later_interval, median_interval
from tuner.tuning.confirm import WORTHWHILE, MeasuredBatch, choose_best, undecided
from tuner.tuning.testing import fake_task

TASK = fake_task("t")
FAST, FASTER = '[["fast"],[]]', '[["faster"],[]]'


def timed(
    trace: str, run_secs: Sequence[float], processes: int = 1, reference_ratio: float | None = None
) -> Measurement:
    return Timed(
        candidate=Candidate.of(TASK.workload.digest, trace).digest,
        run_secs=tuple(run_secs),
        check=CheckVerdict(passed=True, max_abs_error=0, tolerance=1e-3, input_sets=1),
        build_secs=0.1,
        rule=SampleRule(stop=Stop.CONFIRMED, calls=1, processes=processes),
        reference_ratio=reference_ratio,
    )


def failed(trace: str, kind: FailureKind = FailureKind.RUN_TIMEOUT) -> Measurement:
    return Failed(candidate=Candidate.of(TASK.workload.digest, trace).digest, kind=kind)


def batch(results: dict[str, Measurement], **changes: object) -> MeasuredBatch:
    found = MeasuredBatch(
        task=0,
        purpose=Purpose.CONFIRM,
        candidates=tuple(Candidate.of(TASK.workload.digest, trace) for trace in results),
        results=tuple(results.values()),
        records=tuple(f"rec_{n}" for n in range(len(results))),
        whole=True,
        device_class=sha256(b"device"),
        toolchain="tvm-0.27",
    )
    return MeasuredBatch(**{**vars(found), **changes})


def around(secs: float, spread: float = 0.01, samples: int = 15) -> list[float]:
    """Samples whose median is `secs`, up to `spread` away from it."""
    return [secs * (1 + spread * (2 * n / (samples - 1) - 1)) for n in range(samples)]


def test_the_fastest_that_is_surely_faster_than_the_baseline_is_served() -> None:
    results = {
        BASELINE_TRACE: timed(BASELINE_TRACE, around(2e-3)),
        FAST: timed(FAST, around(1e-3)),
        FASTER: timed(FASTER, around(0.9e-3)),
    }
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert (best.trace, best.record) == (FASTER, "rec_2")
    assert best.secs == pytest.approx(0.9e-3)
    assert best.baseline_secs == pytest.approx(2e-3)
    assert (best.secs_low, best.secs_high) == later_interval(*median_interval(around(0.9e-3)))
    assert (best.device_class, best.toolchain) == (sha256(b"device"), "tvm-0.27")


def test_the_order_of_the_candidates_decides_nothing() -> None:
    results = {
        FASTER: timed(FASTER, around(0.9e-3)),
        FAST: timed(FAST, around(1e-3)),
        BASELINE_TRACE: timed(BASELINE_TRACE, around(2e-3)),
    }
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert (best.trace, best.record) == (FASTER, "rec_0")


def test_a_lower_median_within_the_noise_does_not_win() -> None:
    results = {
        BASELINE_TRACE: timed(BASELINE_TRACE, around(1e-3, spread=0.2)),
        FAST: timed(FAST, around(0.95e-3, spread=0.2)),
    }
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert (best.trace, best.record) == (BASELINE_TRACE, None)
    assert best.secs == best.baseline_secs


@pytest.mark.parametrize(("secs", "served"), [(0.95e-3, FAST), (1.05e-3, BASELINE_TRACE)])
def test_where_nothing_is_shown_the_default_schedule_is_served_rather_than_a_slower_baseline(
    secs: float, served: str
) -> None:
    task = TASK.model_copy(update={"fixed": FAST})
    results = {
        BASELINE_TRACE: timed(BASELINE_TRACE, around(1e-3, spread=0.2)),
        FAST: timed(FAST, around(secs, spread=0.2)),
        FASTER: timed(FASTER, around(0.9e-3, spread=0.2)),
    }
    best = choose_best(task, batch(results))
    assert best is not None
    assert best.trace == served
    assert best.secs == min(secs, 1e-3)
    assert not undecided(task, batch(results), best)


def test_a_default_schedule_that_was_not_shown_to_be_faster_is_tried_again_after_a_load() -> None:
    task = TASK.model_copy(update={"fixed": FAST})
    results = {
        trace: timed(trace, around(secs, 0.2), reference_ratio=1.3)
        for trace, secs in ((BASELINE_TRACE, 1e-3), (FAST, 0.9e-3))
    }
    assert undecided(task, batch(results), choose_best(task, batch(results)))


def test_the_lowest_median_with_a_wide_interval_loses_to_a_sure_one() -> None:
    results = {
        BASELINE_TRACE: timed(BASELINE_TRACE, around(1e-3)),
        FAST: timed(FAST, around(0.8e-3)),
        FASTER: timed(FASTER, around(0.7e-3, spread=0.9)),
    }
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert best.trace == FAST


def test_equal_times_leave_the_baseline() -> None:
    results = {t: timed(t, [1e-3] * 10) for t in (BASELINE_TRACE, FAST)}
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert best.trace == BASELINE_TRACE


def test_what_is_surely_faster_but_by_next_to_nothing_does_not_win() -> None:
    gains = {FAST: 1 - WORTHWHILE / 2, FASTER: 1 - 2 * WORTHWHILE}
    for trace, factor in gains.items():
        results = {
            BASELINE_TRACE: timed(BASELINE_TRACE, around(1e-3, spread=1e-4)),
            trace: timed(trace, around(factor * 1e-3, spread=1e-4)),
        }
        best = choose_best(TASK, batch(results))
        assert best is not None
        assert (best.trace == trace) == (trace == FASTER)


def test_processes_of_the_baseline_that_disagree_do_not_lose_to_one_that_agrees_with_the_faster_of_them() -> None:
    by_process = [1.00e-3, 1.10e-3, 1.11e-3]
    results = {
        BASELINE_TRACE: timed(BASELINE_TRACE, by_process * 6, processes=3),
        FAST: timed(FAST, around(1.01e-3, samples=18), processes=3),
    }
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert best.trace == BASELINE_TRACE
    assert best.secs_low < 1e-3 < best.secs_high


def test_slower_or_failed_candidates_leave_the_baseline() -> None:
    results = {
        BASELINE_TRACE: timed(BASELINE_TRACE, around(1e-3)),
        FAST: timed(FAST, around(3e-3)),
        FASTER: failed(FASTER),
    }
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert (best.trace, best.record) == (BASELINE_TRACE, None)


def test_without_a_baseline_or_with_a_broken_one_nothing_is_decided() -> None:
    fast = timed(FAST, around(1e-3))
    broken = failed(BASELINE_TRACE, FailureKind.RUN_ERROR)
    assert choose_best(TASK, batch({BASELINE_TRACE: broken, FAST: fast})) is None
    assert choose_best(TASK, batch({FAST: fast})) is None


def test_a_baseline_that_runs_out_of_time_loses_to_the_fastest_that_does_not() -> None:
    late = failed(BASELINE_TRACE)
    results = {BASELINE_TRACE: late, FAST: timed(FAST, around(2.0)), FASTER: timed(FASTER, around(1.0))}
    best = choose_best(TASK, batch(results))
    assert best is not None
    assert (best.trace, best.record, best.baseline_secs) == (FASTER, "rec_2", None)
    assert choose_best(TASK, batch({BASELINE_TRACE: late, FAST: failed(FAST)})) is None


def test_a_run_torn_over_two_leases_decides_nothing() -> None:
    results = {BASELINE_TRACE: timed(BASELINE_TRACE, around(2e-3)), FAST: timed(FAST, around(1e-3))}
    assert choose_best(TASK, batch(results, whole=False)) is None


@pytest.mark.parametrize("unknown", ["device_class", "toolchain"])
def test_times_of_an_unknown_device_or_compiler_decide_nothing(unknown: str) -> None:
    results = {BASELINE_TRACE: timed(BASELINE_TRACE, around(2e-3)), FAST: timed(FAST, around(1e-3))}
    assert choose_best(TASK, batch(results, **{unknown: None})) is None


def test_the_baseline_is_the_one_the_task_names() -> None:
    task = TASK.model_copy(update={"baseline": FAST})
    results = {FAST: timed(FAST, around(2e-3)), FASTER: timed(FASTER, around(1e-3))}
    best = choose_best(task, batch(results))
    assert best is not None
    assert (best.trace, best.baseline_secs) == (FASTER, pytest.approx(2e-3))


@pytest.mark.parametrize(
    ("candidate_secs", "spread", "reference_ratio", "again"),
    [
        pytest.param(0.9e-3, 0.2, 1.3, True, id="looked faster while busy"),
        pytest.param(0.9e-3, 0.2, 1.1, False, id="looked faster in quiet"),
        pytest.param(0.9e-3, 0.2, None, False, id="looked faster, nobody knows in what"),
        pytest.param(0.9e-3, 0.001, 1.3, False, id="won while busy"),
        pytest.param(0.99e-3, 0.001, 1.3, False, id="hardly faster while busy"),
        pytest.param(3e-3, 0.2, 1.3, False, id="lost while busy"),
    ],
)
def test_a_run_is_undecided_where_a_load_may_have_kept_a_candidate_from_winning(
    candidate_secs: float, spread: float, reference_ratio: float | None, again: bool
) -> None:
    results = {
        trace: timed(trace, around(secs, spread), reference_ratio=reference_ratio)
        for trace, secs in ((BASELINE_TRACE, 1e-3), (FAST, candidate_secs))
    }
    run = batch(results)
    assert undecided(TASK, run, choose_best(TASK, run)) is again


@pytest.mark.parametrize(
    ("late", "other", "reference_ratio", "again"),
    [
        pytest.param(FAST, BASELINE_TRACE, None, True, id="a candidate"),
        pytest.param(BASELINE_TRACE, FAST, 1.1, False, id="the baseline in quiet"),
        pytest.param(BASELINE_TRACE, FAST, 1.3, True, id="the baseline while busy"),
    ],
)
def test_whether_a_run_is_undecided_where_one_ran_out_of_time(
    late: str, other: str, reference_ratio: float | None, again: bool
) -> None:
    run = batch({late: failed(late), other: timed(other, around(1e-3), reference_ratio=reference_ratio)})
    assert undecided(TASK, run, choose_best(TASK, run)) is again


def test_a_run_torn_over_two_leases_is_undecided() -> None:
    run = batch({BASELINE_TRACE: timed(BASELINE_TRACE, around(1e-3))}, whole=False)
    assert undecided(TASK, run, choose_best(TASK, run))
