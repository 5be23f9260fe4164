"""The confirming run's verdict: which candidate is served.

A candidate is served only if the interval of its median lies below that of the untuned baseline by at least
WORTHWHILE, both timed interleaved in one run, each in several fresh processes; among those the lowest median wins.
Otherwise the baseline is served (never slower). How often that errs is said where the interval is made
(tuner/measure/timing.py, run_interval) and measured by benchmarks/false_wins.py: a baseline dueling itself. A baseline that
runs out of time is slower than what does not: all have the same limit, and none is asked for fewer calls than it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, Measurement, Timed
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task
from tuner.measure.drift import drifted
from tuner.measure.timing import later_interval, run_interval

WORTHWHILE = 0.02
"""Share of the baseline's time that a candidate must save for certain. Less is not worth another schedule, and is what
is left of a false win when both sides happen to get processes of one kind each."""


@dataclass(frozen=True, kw_only=True)
class MeasuredBatch:
    """A batch whose candidates have all ended. Its results are in the record store already."""

    task: int
    """Its place in the job's list of tasks."""
    purpose: Purpose
    candidates: tuple[Candidate, ...]
    results: tuple[Measurement, ...]
    """In the order of the candidates, as are `records`; a candidate that was cancelled is in none of the three."""
    records: tuple[str, ...]
    """Record ids."""
    whole: bool
    """All of it was measured under one lease, so its times may be compared as one interleaved run."""
    device_class: str | None
    """Of the device that measured the first timed candidate; None when nothing was timed."""
    toolchain: str | None
    """The toolchain's line, likewise."""
    driver: str | None = None
    """Of that device; None where nobody told."""


def choose_best(task: Task, batch: MeasuredBatch) -> Best | None:
    """The verdict on a confirming batch that holds `task.baseline`.

    None when the run decides nothing: the baseline failed (but not by running out of time while another did not), or the
    times come from more than one lease.
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
        limit = _interval(baseline)[0] * (1 - WORTHWHILE)
        faster = [entry for entry in timed if _interval(entry[0])[1] < limit] or [(baseline, task.baseline, None)]
    elif timed and baseline is not None and baseline.kind is FailureKind.RUN_TIMEOUT:
        faster = timed
    else:
        return None
    winner, trace, record = min(faster, key=lambda entry: entry[0].secs)
    low, high = later_interval(*_interval(winner))
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
    """Whether the same run, made again, may end better than with this verdict.

    It may where its times come from more than one lease, and where a load kept from winning what might have won: it takes
    the cores from one timing in two, which leaves no interval clear of the baseline's, and ends what waits too long. What
    won all the same has won, unless it was that load that ended the baseline.
    """
    if not batch.whole:
        return True
    if best is not None and best.trace != task.baseline:
        return best.baseline_secs is None and any(map(_busy, batch.results))
    limit_secs = math.inf if best is None else best.secs * (1 - WORTHWHILE)
    return any(
        _kept_from_winning(result, limit_secs)
        for candidate, result in zip(batch.candidates, batch.results, strict=True)
        if candidate.trace != task.baseline
    )


def _kept_from_winning(result: Measurement, limit_secs: float) -> bool:
    if isinstance(result, Failed):
        return result.kind is FailureKind.RUN_TIMEOUT
    return _busy(result) and result.secs < limit_secs


def _busy(result: Measurement) -> bool:
    return isinstance(result, Timed) and result.reference_ratio is not None and drifted(result.reference_ratio)


def _result_of(trace: str, batch: MeasuredBatch) -> Measurement | None:
    paired = zip(batch.candidates, batch.results, strict=True)
    return next((result for candidate, result in paired if candidate.trace == trace), None)


def _interval(timed: Timed) -> tuple[float, float]:
    """Of its run, by the samples: a worker of an older version counts no processes."""
    return run_interval(timed.run_secs, timed.rule.processes if timed.rule is not None else 1)
