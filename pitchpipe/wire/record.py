"""Tuning records and the answers made of them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from pitchpipe.wire._base import SCHEMA_VERSION, Digest, Instant, Wire
from pitchpipe.wire.measure import MEASURE_VERSION, Measurement
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain


class TuningRecord(Wire):
    """One measured candidate, with everything needed to believe and repeat it. Failures are records too."""

    id: str
    workload: Digest
    target: Target
    trace: str
    result: Measurement
    device: DeviceFingerprint
    toolchain: Toolchain
    measure_version: int = MEASURE_VERSION
    worker: str
    created_at: Instant
    schema_version: int = SCHEMA_VERSION


class Tier(StrEnum):
    """How well a served schedule fits the asking device; best first."""

    EXACT = "exact"
    """Same target, device class and toolchain."""
    SAME_ARCH = "same_arch"
    """Same target; measured on another device class or with another toolchain."""
    COMPATIBLE_ISA = "compatible_isa"
    """Another target whose instructions the asking device has."""
    TRANSFERRED = "transferred"
    """Re-fitted from another workload."""
    NONE = "none"
    """Nothing fits: run the baseline."""


class Origin(StrEnum):
    """How a served schedule was found."""

    TUNED = "tuned"
    """By a search for its workload."""
    TRANSFERRED = "transferred"
    """From another workload's schedule, re-fitted, built, checked and timed for this one."""


class Best(Wire):
    """The served record of a (workload, target): verified, and confirmed against the baseline in an interleaved run."""

    record: str | None = Field(description="record id; none when the baseline itself won")
    trace: str
    secs: float = Field(gt=0, description="median seconds in the confirming run")
    secs_low: float = Field(gt=0, description="lower end of the interval for medians of later runs")
    secs_high: float = Field(gt=0, description="upper end")
    baseline_secs: float = Field(gt=0, description="median seconds of the untuned baseline in the same run")
    device_class: Digest
    toolchain: str
    confirmed_at: Instant
    origin: Origin = Origin.TUNED
    source: Digest | None = Field(
        default=None, description="of one that was transferred: the workload whose schedule was re-fitted"
    )


class LookupRequest(Wire):
    """Which workloads are wanted, for which target."""

    target: Target
    workloads: tuple[Digest, ...] = Field(min_length=1, max_length=4096)
    device_class: Digest | None = None
    toolchain: str | None = Field(default=None, max_length=256)


class ScheduleAnswer(Wire):
    """The answer for one workload. `best` is absent exactly when the tier is none."""

    workload: Digest
    tier: Tier
    reason: str
    best: Best | None = None


class LookupResponse(Wire):
    answers: tuple[ScheduleAnswer, ...]
