"""Heartbeats: what is usual, and what is too slow."""

from __future__ import annotations

from tuner.measure.drift import DRIFTED, REMEMBERED, Drift, drifted


def drift_of(*beats: float) -> Drift:
    drift = Drift()
    for beat in beats:
        drift.observe(beat)
    return drift


def test_nothing_is_usual_before_the_first_beat() -> None:
    assert drift_of().usual_secs is None
    assert drift_of().newest_secs is None


def test_slow_beats_do_not_change_what_is_usual() -> None:
    drift = drift_of(*[1.0] * 40, *[3.0] * 60)
    assert drift.usual_secs == 1.0
    assert drift.newest_secs == 3.0
    assert drifted(3.0)


def test_a_lucky_beat_does_not_make_the_others_drifted() -> None:
    drift = drift_of(0.5, *[1.0] * 20)
    assert drift.usual_secs == 1.0


def test_a_device_that_stays_slow_is_a_slower_device() -> None:
    drift = drift_of(*[1.0] * REMEMBERED, *[2.0] * REMEMBERED)
    assert drift.usual_secs == 2.0
    assert drift.beats == 2 * REMEMBERED


def test_the_threshold_itself_is_no_drift() -> None:
    assert not drifted(DRIFTED)
    assert drifted(DRIFTED * 1.001)
