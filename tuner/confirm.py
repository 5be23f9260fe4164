"""The confirming run's verdict: which candidate is served.

A candidate is served only if the 95 % interval of its median lies below that of the untuned baseline, both timed
interleaved in one run; among those the lowest median wins. Otherwise the baseline is served (never slower).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pitchpipe.wire.measure import Candidate, Measurement, Timed
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task
from tuner.measure.timing import median_interval


def choose_best(
    task: Task,
    candidates: Sequence[Candidate],
    results: Sequence[Measurement],
    device_class: str,
    toolchain: str,
) -> Best | None:
    """The verdict on a confirming batch that holds `task.baseline`; None when the baseline itself could not be timed."""
    traces = {candidate.digest: candidate.trace for candidate in candidates}
    timed = [result for result in results if isinstance(result, Timed)]
    baseline = next((result for result in timed if traces[result.candidate] == task.baseline), None)
    if baseline is None:
        return None
    baseline_low, _ = median_interval(baseline.run_secs)
    faster = [result for result in timed if median_interval(result.run_secs)[1] < baseline_low]
    winner = min(faster, key=lambda result: result.secs, default=baseline)
    low, high = median_interval(winner.run_secs)
    return Best(
        record=None,
        trace=traces[winner.candidate],
        secs=winner.secs,
        secs_low=low,
        secs_high=high,
        baseline_secs=baseline.secs,
        device_class=device_class,
        toolchain=toolchain,
        confirmed_at=datetime.now(UTC),
    )
