"""Tuning records and the answers made of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from pitchpipe.wire._base import SCHEMA_VERSION, Digest, Instant, Wire
from pitchpipe.wire.context import Context
from pitchpipe.wire.measure import BASELINE_TRACE, MEASURE_VERSION, Measurement
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import SignedWorkload


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


class WonInContext(Wire):
    """A context in which a record's schedule won, inside a model; see pitchpipe/wire/context.py."""

    context: Context
    model: str = Field(description="its name; a label")
    before_secs: float = Field(gt=0, description="median seconds of a run of that model with what was served before")
    after_secs: float = Field(gt=0, description="with the schedules that won, this one among them")
    stands: bool = Field(description="no other schedule won there since")
    at: Instant


class RecordView(Wire):
    """A record with all that it takes to build, check and time its candidate again."""

    record: TuningRecord
    ir: str = Field(description="TVM JSON of the workload, which the trace applies to")
    name: str | None = Field(
        default=None, description="of the task in the newest job that has it; absent where none has"
    )
    baseline: str = Field(default=BASELINE_TRACE, description="trace of that task's baseline")
    won_in: tuple[WonInContext, ...] = Field(default=(), description="contexts, the latest first")


class Tier(StrEnum):
    """How well a served schedule fits the asking device; best first."""

    EXACT = "exact"
    """Same target, device class and toolchain."""
    SAME_ARCH = "same_arch"
    """Same target; measured on another device class or with another toolchain."""
    COMPATIBLE_ISA = "compatible_isa"
    """Another target of the same kind and family, whose instructions and limits the asking one has for certain."""
    TRANSFERRED = "transferred"
    """Re-fitted from another workload, for this target or for one that it includes."""
    NONE = "none"
    """Nothing fits: a build has the default schedule where it was checked, else the baseline."""

    @property
    def is_miss(self) -> bool:
        """The definition of a miss, for all who report, count or explain them: the workload has no schedule that was
        found for it on the asked target. Nothing runs, or a schedule for another target or of another workload does, and a
        search would find a better one. One confirmed on another device class or with another toolchain is no miss: it is
        replayed (`pitchpipe schedules upgrade`), not searched for.
        """
        return self not in (Tier.EXACT, Tier.SAME_ARCH)

    def fits(self, least: Tier) -> bool:
        """Whether there is a schedule, and it fits at least as well as those of the tier `least`."""
        tiers = list(Tier)
        return self is not Tier.NONE and tiers.index(self) <= tiers.index(least)


class Origin(StrEnum):
    """How a served schedule was found."""

    TUNED = "tuned"
    """By a search for its workload."""
    TRANSFERRED = "transferred"
    """From another workload's schedule, re-fitted, built, checked and timed for this one."""


class Earlier(Wire):
    """Where a schedule was found before it was replayed: built, checked and timed again under other circumstances."""

    record: str | None = Field(description="record id there; none when the baseline itself had won")
    secs: float = Field(gt=0, description="median seconds there")
    device_class: Digest
    driver: str | None = Field(default=None, description="kernel release or GPU driver; absent where nobody told")
    toolchain: str
    measured_at: Instant = Field(description="when it was confirmed there, or measured if it never was confirmed")


class Best(Wire):
    """The served record of a (workload, target): verified, and confirmed against the baseline in an interleaved run, or,
    where a budget ended before one, beyond doubt by what the search timed (ADR 0094)."""

    record: str | None = Field(description="record id; none when the baseline itself won")
    trace: str
    secs: float = Field(gt=0, description="median seconds in the confirming run")
    secs_low: float = Field(gt=0, description="lower end of the interval for medians of later runs")
    secs_high: float = Field(gt=0, description="upper end")
    baseline_secs: float | None = Field(
        gt=0, description="median seconds of the baseline in the same run; none where it ran out of time"
    )
    device_class: Digest
    driver: str | None = Field(
        default=None, description="kernel release, or GPU driver version, of the device; absent where nobody told"
    )
    toolchain: str
    confirmed_at: Instant
    origin: Origin = Origin.TUNED
    source: Digest | None = Field(
        default=None, description="of one that was transferred: the workload whose schedule was re-fitted"
    )
    replayed_from: Earlier | None = Field(
        default=None,
        description="where it was found first, of one that was found with another toolchain, driver or device class "
        "and replayed for this one; all other fields are of the replay",
    )

    def provenance(self) -> Earlier:
        """What is told of this one once its schedule was replayed."""
        return Earlier(
            record=self.record,
            secs=self.secs,
            device_class=self.device_class,
            driver=self.driver,
            toolchain=self.toolchain,
            measured_at=self.confirmed_at,
        )


class Placed(Wire):
    """Where a workload will run; see pitchpipe/wire/context.py."""

    workload: Digest
    context: Digest = Field(description="digest of the Context")


class LookupRequest(Wire):
    """Which workloads are wanted, for which target."""

    target: Target
    workloads: tuple[Digest, ...] = Field(min_length=1, max_length=4096)
    device_class: Digest | None = None
    toolchain: str | None = Field(default=None, max_length=256)
    contexts: tuple[Placed, ...] = Field(
        default=(), max_length=4096, description="of workloads without one the best alone is the answer"
    )


class Provenance(Wire):
    """Where and for what an answer's schedule was confirmed; `best` says when, with which toolchain, by which record."""

    target: Target = Field(description="the one it was confirmed for")
    device_model: str | None = Field(default=None, description="hardware model of the device that timed it")
    worker: str | None = Field(default=None, description="id of the worker that measured the record")


class ScheduleAnswer(Wire):
    """The answer for one workload. `best` and `provenance` are absent exactly when the tier is none."""

    workload: Digest
    tier: Tier
    reason: str
    best: Best | None = None
    provenance: Provenance | None = None
    measured_here: bool = Field(
        default=False,
        description="the seconds are those of a device of the asking class with the asking toolchain; "
        "false: of the one in `provenance`, and other ones are to be expected here",
    )
    context: Digest | None = Field(
        default=None, description="of one that won inside a model: the asked context; absent of the best alone"
    )


class LookupResponse(Wire):
    """One answer for each workload that was asked for, in the same order."""

    answers: tuple[ScheduleAnswer, ...]


class ExplainRequest(LookupRequest):
    """A look-up whose answers that are not exact are to be explained.

    Signatures help with workloads that the service never saw.
    """

    signatures: tuple[SignedWorkload, ...] = Field(default=(), max_length=4096)


class Difference(Wire):
    """One thing in which a stored key is not the asked one."""

    subject: Literal["shape", "element type", "epilogue", "program", "target", "device", "toolchain"]
    asked: str
    stored: str
    detail: str = ""


class NearKey(Wire):
    """A stored schedule near to the asked one, and everything that keeps it from being the answer; nearest first."""

    workload: Digest
    operators: str | None = Field(default=None, description="of the stored workload; absent where it has no signature")
    target: Target
    device_model: str | None = None
    toolchain: str
    secs: float = Field(gt=0, description="median seconds where it was confirmed")
    replayed_from: Earlier | None = Field(default=None, description="where it was found first, if it was replayed")
    differences: tuple[Difference, ...]


class Explanation(Wire):
    """Why a workload has no exact answer."""

    workload: Digest
    operators: str | None = Field(default=None, description="of the workload; absent where it has no signature")
    tier: Tier
    reason: str
    nearest: tuple[NearKey, ...] = ()


class ExplainResponse(Wire):
    """Why workloads of a look-up have no exact answer, in the asked order. What has one is left out."""

    misses: tuple[Explanation, ...] = Field(description="the misses, and what is served with the tier same_arch")
