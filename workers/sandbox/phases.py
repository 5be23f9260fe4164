"""What the phases of batches say of a worker's seconds: a sum of each kind, and spans of OpenTelemetry."""

from __future__ import annotations

import time
from collections import defaultdict

from pitchpipe import telemetry
from pitchpipe.wire.lease import WorkerSeconds
from workers.sandbox.messages import Phase, PhaseName

_KIND: dict[PhaseName, str] = {
    "prepare": "prepare",
    "build": "build",
    "check": "check",
    "time": "time",
    "check and time": "time",
    "build, check and time": "time",
}
"""What a phase's seconds count as that it does not tell apart itself."""


class Spent:
    """The sums. One thread calls `take`; `seconds` may be read from any."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._secs: defaultdict[str, float] = defaultdict(float)

    def take(self, phase: Phase) -> None:
        """Adds a phase that is over."""
        wait_secs, check_secs = _parts(phase)
        self._secs["wait"] += wait_secs
        self._secs["check"] += check_secs
        self._secs[_KIND[phase.name]] += phase.ended - phase.began - wait_secs - check_secs

    @property
    def seconds(self) -> WorkerSeconds:
        """So far."""
        told = {f"{kind}_secs": secs for kind, secs in self._secs.copy().items()}
        return WorkerSeconds(total_secs=time.monotonic() - self._began, **told)


def record(phase: Phase) -> None:
    """Records the phase as spans of the current one: `wait` with which it began, and what it was for.

    Where candidates were checked and timed in turns, `check` and `time` have the seconds of all checks and of the rest, one
    after the other: a span for each turn would be thousands in a job.
    """
    wait_secs, check_secs = _parts(phase)
    began, parent = phase.began + wait_secs, telemetry.traceparent()
    if wait_secs:
        telemetry.record(parent, "wait", phase.began, began)
    if phase.name == "check and time" and check_secs:
        telemetry.record(parent, "check", began, began + check_secs, summed="true")
        telemetry.record(parent, "time", began + check_secs, phase.ended, summed="true")
    else:
        telemetry.record(parent, phase.name, began, phase.ended)


def _parts(phase: Phase) -> tuple[float, float]:
    """(seconds of waiting, seconds of checks), within those of the phase: a candidate's child tells those of its checks."""
    secs = max(0.0, phase.ended - phase.began)
    wait_secs = min(phase.wait_secs, secs)
    return wait_secs, min(phase.check_secs, secs - wait_secs)
