"""Whether this device is as fast as it usually is: decisions over heartbeats, the times of a reference workload.

A beat (tuner/measure/heartbeat.py) is taken inside the same quiet as the candidates beside it: what slows the beat
(another tenant, a lower clock, heat) slowed them too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

DRIFTED = 1.15
"""A beat that takes this many times as long as usual says that timings beside it are too long as well. A single beat
is never believed: the next one, taken at once, must say so too."""
REMEMBERED = 256
"""Beats that decide what is usual. A device that stays slow for three quarters of them is a slower device: what is
usual follows."""


class Drift:
    """What the reference usually takes on this device, and how far the newest beat is from it."""

    def __init__(self) -> None:
        self._beats: deque[float] = deque(maxlen=REMEMBERED)
        self.beats = 0

    def observe(self, secs: float) -> None:
        """A beat, in seconds."""
        self._beats.append(secs)
        self.beats += 1

    @property
    def usual_secs(self) -> float | None:
        """The lower quartile of the beats remembered: noise only ever adds time. None before the first."""
        return sorted(self._beats)[len(self._beats) // 4] if self._beats else None

    @property
    def newest_secs(self) -> float | None:
        """The newest beat."""
        return self._beats[-1] if self._beats else None


def believed_ratio(beat: Callable[[], float | None], usual_secs: float | None) -> float | None:
    """A beat, in seconds, over the usual one: the faster of two where the first is too slow. None where there is none."""
    secs = beat()
    if secs is None or usual_secs is None:
        return None
    if drifted(secs / usual_secs):
        secs = min(secs, beat() or secs)
    return secs / usual_secs


def drifted(ratio: float) -> bool:
    """Whether a beat this many times as long as usual is too slow."""
    return ratio > DRIFTED
