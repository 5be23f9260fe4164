"""Whether this device is as fast as it usually is: decisions over beats, each one timing of the reference workload.

A beat (tuner/measure/heartbeat.py) is timed under the same lock as the candidates beside it (tuner/measure/quiet.py): what
slows the beat (another tenant, a lower clock, heat) slowed them too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

DRIFTED = 1.15
"""Where a beat takes more than this many times the usual seconds, the timings beside it count as too long as well. A single
slow beat is never believed: the next one, taken at once, must be as slow."""
REMEMBERED = 256
"""Newest beats that decide what is usual. A device that is slow for three quarters of them is a slower device, and its usual
beat follows."""


class Drift:
    """The usual and the newest beat of this device, in seconds."""

    def __init__(self) -> None:
        self._beats: deque[float] = deque(maxlen=REMEMBERED)
        self.beats = 0

    def observe(self, secs: float) -> None:
        """Adds a beat, in seconds."""
        self._beats.append(secs)
        self.beats += 1

    @property
    def usual_secs(self) -> float | None:
        """The lower quartile of the beats remembered: noise only ever adds time. None before the first."""
        return sorted(self._beats)[len(self._beats) // 4] if self._beats else None

    @property
    def newest_secs(self) -> float | None:
        """The newest beat. None before the first."""
        return self._beats[-1] if self._beats else None


def believed_ratio(beat: Callable[[], float | None], usual_secs: float | None) -> float | None:
    """The ratio of a new beat to the usual one, in which the faster of two beats counts where the first is too slow.

    `beat` times one and returns its seconds. None where it returns None or nothing is usual yet.
    """
    secs = beat()
    if secs is None or usual_secs is None:
        return None
    if drifted(secs / usual_secs):
        secs = min(secs, beat() or secs)
    return secs / usual_secs


def drifted(ratio: float) -> bool:
    """Whether a beat that takes `ratio` times the usual seconds is too slow."""
    return ratio > DRIFTED
