"""Schedules by record: what a lock file pins, and what the service says of it. And what is pinned for a whole project."""

from __future__ import annotations

from pydantic import Field

from pitchpipe.wire._base import Digest, Seconds, Wire
from pitchpipe.wire.target import Target


class Pin(Wire):
    """A record that was served for a workload when the lock was written."""

    workload: Digest
    record: str = Field(min_length=1, max_length=64)


class PinRequest(Wire):
    """Which records are wanted, to run on which target."""

    target: Target
    pins: tuple[Pin, ...] = Field(min_length=1, max_length=4096)


class PinnedSchedule(Wire):
    """A record that may be run there, or why it may not; `trace` is absent exactly then."""

    workload: Digest
    record: str
    trace: str | None = None
    secs: Seconds | None = Field(default=None, description="median seconds in its confirming run")
    served: bool = Field(
        default=False, description="a look-up may still answer with it; false: something took its place"
    )
    reason: str = ""


class PinResponse(Wire):
    """In the asked order."""

    schedules: tuple[PinnedSchedule, ...]


class ServedPin(Wire):
    """A served schedule that nothing is to replace, or no longer."""

    workload: Digest
    target: Target
    device_class: Digest
    pinned: bool = True
