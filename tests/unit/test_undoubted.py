"""What is served without a confirming run."""

from datetime import UTC, datetime

import pytest

from pitchpipe.wire.ids import new_id
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Failed, FailureKind
from pitchpipe.wire.record import TuningRecord
from tuner.tuning.testing import DEVICE, TARGET, TOOLCHAIN, fake_task, timed
from tuner.tuning.undoubted import BEYOND_DOUBT, undoubted

DEFAULT, SLOWER, FASTEST = '[["fixed"],[]]', '[["i",1],[]]', '[["i",0],[]]'
TASK = fake_task("a").model_copy(update={"fixed": DEFAULT, "baseline": DEFAULT})


def record(trace, secs, device=DEVICE, **more):
    candidate = Candidate.of(TASK.workload.digest, trace)
    result = timed(candidate, secs).model_copy(update=more) if secs else None
    return TuningRecord(
        id=new_id("rec"),
        workload=TASK.workload.digest,
        target=TARGET,
        trace=trace,
        result=result or Failed(candidate=candidate.digest, kind=FailureKind.RUN_ERROR),
        device=device,
        toolchain=TOOLCHAIN,
        worker="wrk_test",
        created_at=datetime.now(UTC),
    )


def test_the_fastest_is_served_with_an_interval_for_later_runs():
    records = [record(DEFAULT, 1.0), record(SLOWER, 0.2), record(FASTEST, 0.1), record('[["i",2],[]]', None)]
    best = undoubted(TASK, records)
    assert (best.trace, best.record, best.baseline_secs) == (FASTEST, records[2].id, records[0].result.secs)
    assert best.secs_low < 0.1 < best.secs < best.secs_high
    assert best.device_class == DEVICE.device_class


OTHER = DEVICE.model_copy(update={"model": "another"})
SLOW = {"reference_ratio": 1.3}


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(FASTEST, 0.1)],
        [record(DEFAULT, 1.0)],
        [record(DEFAULT, BEYOND_DOUBT * 0.1), record(FASTEST, 0.1)],
        [record(DEFAULT, 1.0), record(DEFAULT, 0.12), record(FASTEST, 0.1)],
        [record(DEFAULT, 1.0, **SLOW), record(FASTEST, 0.1)],
        [record(DEFAULT, 1.0), record(FASTEST, 0.1, **SLOW)],
        [record(DEFAULT, 1.0, OTHER), record(FASTEST, 0.1)],
    ],
)
def test_nothing_is_served_where_there_is_doubt(records):
    assert undoubted(TASK, records) is None


def test_to_be_faster_than_the_naive_program_is_not_enough():
    naive = TASK.model_copy(update={"baseline": BASELINE_TRACE})
    assert undoubted(naive, [record(BASELINE_TRACE, 1.0), record(FASTEST, 0.1)]) is None
