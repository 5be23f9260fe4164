"""What a replay proves: when the earlier effort still counts, and what is told of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Replay
from pitchpipe.wire.measure import BASELINE_TRACE, FailureKind
from pitchpipe.wire.record import Best
from tuner.tuning.replay import KEEPS, outcome, still_holds
from tuner.tuning.testing import fake_task

TASK = fake_task("a")
HERE, THERE = sha256(b"this device"), sha256(b"that device")


def best(
    secs: float,
    baseline_secs: float | None = 10.0,
    *,
    trace: str = "[[],[1]]",
    device: str = THERE,
) -> Best:
    won = trace == BASELINE_TRACE
    return Best(
        record=None if won else "rec",
        trace=trace,
        secs=secs,
        secs_low=secs,
        secs_high=secs,
        baseline_secs=baseline_secs,
        device_class=device,
        toolchain="t",
        confirmed_at=datetime.now(UTC),
    )


EARLIER = best(2.0)
BASELINE = best(10.0, trace=BASELINE_TRACE)


@pytest.mark.parametrize(
    ("earlier", "now", "holds"),
    [
        (EARLIER, best(1.0, 5.0, device=HERE), True),  # Five times as fast, as it was.
        (EARLIER, best(1.0, 5.0 * KEEPS, device=HERE), True),
        (EARLIER, best(1.0, 4.9 * KEEPS, device=HERE), False),
        (EARLIER, best(2.0, 3.0), True),  # On the same device class: as fast as ever, beside a faster baseline.
        (EARLIER, best(2.3, 3.0), False),
        (EARLIER, best(4.0, None, device=HERE), True),  # The baseline runs out of time here.
        (best(2.0, None), best(1.0, 5.0, device=HERE), False),  # There it did, and it was not known by how much.
        (EARLIER, BASELINE, False),
        (BASELINE, BASELINE, True),
        (BASELINE, best(9.0, device=HERE), True),
        (EARLIER, None, False),
        (None, best(1.0), False),
    ],
)
def test_a_replay_holds_where_it_keeps_nearly_all_of_what_the_effort_had_found(
    earlier: Best | None, now: Best | None, holds: bool
) -> None:
    assert still_holds(earlier, now, [None, FailureKind.BUILD_ERROR]) is holds
    assert not still_holds(earlier, now, [None, FailureKind.WRONG_OUTPUT])


@pytest.mark.parametrize(
    ("earlier", "now", "failures", "told"),
    [
        (EARLIER, best(1.0), [None], Replay.KEPT),
        (EARLIER, best(1.0, trace="[[],[2]]"), [None], Replay.CHANGED),
        (None, best(1.0), [None], Replay.CHANGED),
        (EARLIER, BASELINE, [None, FailureKind.RUN_ERROR], Replay.LOST),
        (EARLIER, BASELINE, [FailureKind.RUN_ERROR, FailureKind.BUILD_TIMEOUT], Replay.FAILED),
        (EARLIER, BASELINE, [], Replay.LOST),
        (BASELINE, BASELINE, [FailureKind.RUN_ERROR], Replay.KEPT),
        (EARLIER, None, [None], Replay.UNDECIDED),
    ],
)
def test_what_became_of_it_has_a_name(
    earlier: Best | None, now: Best | None, failures: list[FailureKind | None], told: Replay
) -> None:
    assert outcome(TASK, earlier, now, failures) is told
