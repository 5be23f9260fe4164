"""What is served of a task that no confirming run came to before a budget ended: what its search leaves no doubt about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pitchpipe.wire.measure import BASELINE_TRACE, MEASURE_VERSION, Timed
from pitchpipe.wire.record import Best, TuningRecord
from pitchpipe.wire.task import Task
from tuner.measure.drift import drifted
from tuner.measure.timing import later_interval
from tuner.tuning.confirm import interval_of

BEYOND_DOUBT = 1.5
"""How many times as fast as the baseline the intervals of a search must show a candidate to be. Each is of one process and
moment: the placement of memory makes 9 %, and a device that drifts is seen from 15 % on."""


def undoubted(task: Task, records: Sequence[TuningRecord]) -> Best | None:
    """The fastest candidate of those records, where the baseline was timed on such a device too and takes BEYOND_DOUBT times
    as long, by the ends of both intervals that are nearest. None where that is not so, or the device was not quiet, or the
    baseline is the naive program: what is faster than that may be slower than a default schedule."""
    if task.baseline == BASELINE_TRACE:
        return None
    timed = [(record, record.result) for record in records if isinstance(record.result, Timed) and _counts(record)]
    if not timed:
        return None
    record, result = min(timed, key=lambda pair: pair[1].secs)
    here = _circumstances(record)
    baselines = [other for each, other in timed if each.trace == task.baseline and _circumstances(each) == here]
    low, high = interval_of(result)
    if not baselines or min(interval_of(other)[0] for other in baselines) < BEYOND_DOUBT * high:
        return None
    low, high = later_interval(low, high)
    return Best(
        record=record.id,
        trace=record.trace,
        secs=result.secs,
        secs_low=low,
        secs_high=high,
        baseline_secs=min(other.secs for other in baselines),
        device_class=record.device.device_class,
        driver=record.device.driver or None,
        toolchain=record.toolchain.key,
        confirmed_at=datetime.now(UTC),
    )


def _counts(record: TuningRecord) -> bool:
    assert isinstance(record.result, Timed)
    quiet = record.result.reference_ratio is None or not drifted(record.result.reference_ratio)
    return quiet and record.measure_version == MEASURE_VERSION


def _circumstances(record: TuningRecord) -> tuple[str, str, str]:
    return record.device.device_class, record.device.driver, record.toolchain.key
