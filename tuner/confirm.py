"""The confirming run's verdict: which candidate is served.

A candidate is served only if the 95 % interval of its median lies below that of the untuned baseline, both timed
interleaved in one run; among those the lowest median wins. Otherwise the baseline is served (never slower).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, Measurement, Timed
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task
from tuner.measure.timing import median_interval


@dataclass(frozen=True, kw_only=True)
class MeasuredBatch:
    """A batch whose candidates have all ended. Its results are in the record store already."""

    task: int
    purpose: Purpose
    candidates: tuple[Candidate, ...]
    results: tuple[Measurement, ...]
    """In the order of the candidates, as are `records`."""
    records: tuple[str, ...]
    """Record ids."""
    whole: bool
    """All of it was measured under one lease, so its times may be compared as one interleaved run."""
    device_class: str | None
    """Of the device that measured it; None when nothing was timed."""
    toolchain: str | None


def choose_best(task: Task, batch: MeasuredBatch) -> Best | None:
    """The verdict on a confirming batch that holds `task.baseline`.

    None when the run decides nothing: the baseline has no time, or the times come from more than one lease.
    """
    if not batch.whole or batch.device_class is None or batch.toolchain is None:
        return None
    timed = [
        (result, candidate.trace, record)
        for result, candidate, record in zip(batch.results, batch.candidates, batch.records, strict=True)
        if isinstance(result, Timed)
    ]
    baseline = next((result for result, trace, _ in timed if trace == task.baseline), None)
    if baseline is None:
        return None
    limit, _ = median_interval(baseline.run_secs)
    faster = [entry for entry in timed if median_interval(entry[0].run_secs)[1] < limit]
    winner, trace, record = min(faster, key=lambda entry: entry[0].secs, default=(baseline, task.baseline, None))
    low, high = median_interval(winner.run_secs)
    return Best(
        record=record,
        trace=trace,
        secs=winner.secs,
        secs_low=low,
        secs_high=high,
        baseline_secs=baseline.secs,
        device_class=batch.device_class,
        toolchain=batch.toolchain,
        confirmed_at=datetime.now(UTC),
    )
