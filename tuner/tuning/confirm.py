"""The confirming run's verdict: which candidate is served.

A candidate is served only if the interval of its median lies below that of the baseline by at least WORTHWHILE, both timed
interleaved in one run, each in several fresh processes; among those the lowest median wins. Where there is none, the
baseline is served, or the default schedule where its median is lower: that is what runs where nobody measured anything, and
a run that shows nothing does not put the naive program in its place (ADR 0112).

How often this verdict is wrong is stated where the interval is computed (tuner/measure/timing.py, run_interval), and
measured by benchmarks/false_wins.py, which compares a baseline with itself. A baseline that times out is slower than any
candidate that does not: all have the same limit, and no candidate makes fewer calls than the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, Measurement, Timed
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task
from tuner.measure.drift import drifted
from tuner.measure.timing import later_interval, run_interval

WORTHWHILE = 0.02
"""Share of the baseline's time that the intervals must show a candidate to save. Less is not worth another schedule, and a
difference as small may be one between the processes that the two were timed in."""
CONTENDS = 0.15
"""Share by which a candidate may be slower than the fastest and still turn out to be faster: the placement of memory makes
9 % between two processes (ADR 0014), and a search times a candidate in one."""


@dataclass(frozen=True, kw_only=True)
class MeasuredBatch:
    """A batch whose candidates have all ended. Its results are in the record store already."""

    task: int
    """The index of its task among those of the job."""
    purpose: Purpose
    candidates: tuple[Candidate, ...]
    results: tuple[Measurement, ...]
    """One for each candidate, in the same order, as in `records`. Cancelled candidates are in none of the three."""
    records: tuple[str, ...]
    """Ids of the tuning records."""
    whole: bool
    """Whether all of it was measured under one lease, so that its times are those of one interleaved run."""
    device_class: str | None
    """Of the device that measured the first timed candidate; None when nothing was timed."""
    toolchain: str | None
    """The toolchain of that measurement, as one line; None when nothing was timed."""
    driver: str | None = None
    """The driver of that device; None where it is not known."""
    withdrawn: int = 0
    """Candidates that were cancelled before they were measured."""
    worker: str | None = None
    """The id of the worker that had its last lease; None where nobody knows."""
    granted_at: float | None = None
    """When that lease was granted, in seconds of the database's clock."""
    ended_at: float | None = None
    """When its last result came, by the same clock."""


def contenders(measured: Sequence[tuple[str, float | None]]) -> list[str]:
    """The traces of those (trace, median seconds) that may be the fastest in truth, in their order."""
    times = [secs for _, secs in measured if secs is not None]
    return [trace for trace, secs in measured if secs is not None and secs <= (1 + CONTENDS) * min(times)]


def left_in(task: Task, batch: MeasuredBatch) -> list[str]:
    """The traces of the candidates that may win when the confirming run is repeated: those that contend, and those that
    have no time for a reason that may pass."""
    results = [
        (candidate.trace, result)
        for candidate, result in zip(batch.candidates, batch.results, strict=True)
        if candidate.trace != task.baseline
    ]
    contending = contenders([(trace, result.secs) for trace, result in results if isinstance(result, Timed)])
    return [trace for trace, result in results if trace in contending or _may_pass(result)]


def _may_pass(result: Measurement) -> bool:
    return isinstance(result, Failed) and (result.kind is FailureKind.RUN_TIMEOUT or result.kind.retryable)


def choose_best(task: Task, batch: MeasuredBatch) -> Best | None:
    """The verdict on a confirming batch that holds `task.baseline`.

    None when the run decides nothing: the times come from more than one lease, or the baseline failed (other than by a
    timeout where a candidate had none).
    """
    if not batch.whole or batch.device_class is None or batch.toolchain is None:
        return None
    timed: list[tuple[Timed, str, str | None]] = [
        (result, candidate.trace, record)
        for result, candidate, record in zip(batch.results, batch.candidates, batch.records, strict=True)
        if isinstance(result, Timed)
    ]
    baseline = _result_of(task.baseline, batch)
    if isinstance(baseline, Timed):
        unshown = [(baseline, task.baseline, None), *(entry for entry in timed if entry[1] == task.fixed)]
        faster = [entry for entry in timed if _shown_faster(entry[0], baseline)] or [min(unshown, key=_secs)]
    elif timed and baseline is not None and baseline.kind is FailureKind.RUN_TIMEOUT:
        faster = timed
    else:
        return None
    winner, trace, record = min(faster, key=_secs)
    low, high = later_interval(*interval_of(winner))
    return Best(
        record=record,
        trace=trace,
        secs=winner.secs,
        secs_low=low,
        secs_high=high,
        baseline_secs=baseline.secs if isinstance(baseline, Timed) else None,
        device_class=batch.device_class,
        driver=batch.driver,
        toolchain=batch.toolchain,
        confirmed_at=datetime.now(UTC),
    )


def undecided(task: Task, batch: MeasuredBatch, best: Best | None) -> bool:
    """Whether the confirming run should be repeated, because another run may end with a better verdict.

    That is so where the times come from more than one lease, and where other load on the device may have kept a candidate
    from winning: load disturbs some timings, so that no interval lies clear of the baseline's, and lets candidates time out.
    A candidate that won in spite of load has won, unless the baseline timed out under that load.
    """
    if not batch.whole:
        return True
    baseline = _result_of(task.baseline, batch)
    winner = None if best is None or best.trace == task.baseline else _result_of(best.trace, batch)
    if isinstance(winner, Timed) and not isinstance(baseline, Timed):
        return any(map(_busy, batch.results))
    if isinstance(winner, Timed) and isinstance(baseline, Timed) and _shown_faster(winner, baseline):
        return False
    limit_secs = baseline.secs * (1 - WORTHWHILE) if isinstance(baseline, Timed) else math.inf
    return any(
        _kept_from_winning(result, limit_secs)
        for candidate, result in zip(batch.candidates, batch.results, strict=True)
        if candidate.trace != task.baseline
    )


def _shown_faster(candidate: Timed, baseline: Timed) -> bool:
    return interval_of(candidate)[1] < interval_of(baseline)[0] * (1 - WORTHWHILE)


def _secs(entry: tuple[Timed, str, str | None]) -> float:
    return entry[0].secs


def _kept_from_winning(result: Measurement, limit_secs: float) -> bool:
    if isinstance(result, Failed):
        return result.kind is FailureKind.RUN_TIMEOUT
    return _busy(result) and result.secs < limit_secs


def _busy(result: Measurement) -> bool:
    return isinstance(result, Timed) and result.reference_ratio is not None and drifted(result.reference_ratio)


def _result_of(trace: str, batch: MeasuredBatch) -> Measurement | None:
    paired = zip(batch.candidates, batch.results, strict=True)
    return next((result for candidate, result in paired if candidate.trace == trace), None)


def interval_of(timed: Timed) -> tuple[float, float]:
    """Of its median, over samples and processes. Workers of older versions report no processes: it is one then."""
    return run_interval(timed.run_secs, timed.rule.processes if timed.rule is not None else 1)
