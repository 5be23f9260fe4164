"""Candidates and their measurements."""

from __future__ import annotations

import statistics
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pitchpipe.wire._base import Digest, Seconds, Wire
from pitchpipe.wire.ids import candidate_digest

MEASURE_VERSION = 2
"""Version of the way measurements are made; part of every record's key. Raise it when times stop being comparable.

2: large weights and activations are evicted from the caches before each call."""

BASELINE_TRACE = "[[],[]]"
"""The trace with no instruction: the baseline on targets where the unscheduled workload can run."""


class FailureKind(StrEnum):
    """Why a candidate has no time. Final kinds are the candidate's own fault; retryable ones are not."""

    INVALID_SCHEDULE = "invalid_schedule"
    """The trace does not apply to the workload."""
    BUILD_ERROR = "build_error"
    """The compiler refused or crashed."""
    BUILD_TIMEOUT = "build_timeout"
    """The compiler took longer than the limit."""
    RUN_ERROR = "run_error"
    """The compiled candidate crashed, was killed, or ran out of its memory limit."""
    RUN_TIMEOUT = "run_timeout"
    """The compiled candidate ran longer than the limit."""
    WRONG_OUTPUT = "wrong_output"
    """The outputs differ from the baseline's by more than the tolerance."""
    WORKER_LOST = "worker_lost"
    """Retryable: the worker stopped answering. Twice makes the candidate quarantined."""
    DEVICE_ERROR = "device_error"
    """Retryable: the device itself failed."""

    @property
    def retryable(self) -> bool:
        return self in (FailureKind.WORKER_LOST, FailureKind.DEVICE_ERROR)


class MeasureConfig(Wire):
    """How a batch is measured. Limits are per candidate."""

    version: int = MEASURE_VERSION
    build_timeout_secs: float = Field(default=20.0, gt=0, le=600)
    run_timeout_secs: float = Field(default=20.0, gt=0, le=600)
    memory_limit_bytes: int = Field(default=4 << 30, ge=64 << 20)
    min_samples: int = Field(default=3, ge=1, le=1000)
    max_samples: int = Field(default=30, ge=1, le=10_000)
    target_sample_secs: float = Field(default=5e-4, gt=0, le=10, description="calls are repeated to fill one sample")
    max_secs: float = Field(default=0.1, gt=0, le=60, description="timing stops after this much time in the kernel")
    slow_factor: float = Field(
        default=1.1, gt=1, description="a candidate this much slower than the incumbent stops early"
    )
    seed: int = Field(default=0, ge=0, description="of the input data")


class Candidate(Wire):
    """One schedule of a workload, proposed for measurement."""

    digest: Digest
    trace: str = Field(
        max_length=1 << 20,
        description="JSON text: [instructions, decisions], as MetaSchedule writes it, or a template with its arguments",
    )
    predicted: float | None = Field(default=None, description="the cost model's score, higher is better")

    @classmethod
    def of(cls, workload: Digest, trace: str, predicted: float | None = None) -> Candidate:
        return cls(digest=candidate_digest(workload, trace), trace=trace, predicted=predicted)


class CheckVerdict(Wire):
    """Outcome of the comparison of a candidate's outputs with the baseline's."""

    passed: bool
    max_abs_error: float = Field(ge=0, description="largest absolute difference; 1e308 stands for not finite")
    tolerance: float = Field(ge=0, description="largest allowed difference at the worst element")
    input_sets: int = Field(ge=1)


class Stop(StrEnum):
    """Why timing ended."""

    PRECISE = "precise"
    """The median's interval is narrow, or lies clear of the incumbent."""
    SPENT = "spent"
    """The samples or the seconds allowed are used up."""
    SLOW = "slow"
    """Its first samples are all clearly slower than the incumbent."""
    HOPELESS = "hopeless"
    """Its very first call was many times slower than the incumbent."""
    CONFIRMED = "confirmed"
    """The interleaved run of a confirmation ended."""


class SampleRule(Wire):
    """How the samples of a timing were taken."""

    stop: Stop
    calls: int = Field(ge=1, description="calls in a row that make one sample; the sample is their mean")
    processes: int = Field(
        default=1, ge=1, description="fresh processes that took turns: sample i was taken by process i modulo this"
    )
    flushed: bool = Field(default=False, description="the device's last-level cache was emptied before each sample")
    cold_bytes: int = Field(
        default=0, ge=0, description="of large weights and activations, evicted from the caches before each call"
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="coverage of the median's interval")


class Timed(Wire):
    """A candidate that built, gave the right outputs, and was timed. Records from before a field was known lack it."""

    outcome: Literal["timed"] = "timed"
    candidate: Digest
    run_secs: tuple[Seconds, ...] = Field(min_length=1, max_length=10_000, description="seconds of one run, per sample")
    check: CheckVerdict
    build_secs: float = Field(ge=0, lt=1e5)
    load: float | None = Field(default=None, ge=0, description="1-minute load average of the host while timing")
    secs_low: Seconds | None = Field(default=None, description="lower end of the 95 % interval of the median")
    secs_high: Seconds | None = Field(default=None, description="upper end")
    rule: SampleRule | None = Field(default=None, description="how the samples were taken")
    clock_hz: float | None = Field(
        default=None, gt=0, description="the device's clock while timing, where it is readable"
    )
    reference_ratio: float | None = Field(
        default=None,
        gt=0,
        description="the reference workload's time around this timing over its usual one; 1 is quiet",
    )

    @field_validator("check")
    @classmethod
    def _verified(cls, value: CheckVerdict) -> CheckVerdict:
        if not value.passed:
            raise ValueError("a candidate with wrong outputs has no time")
        return value

    @model_validator(mode="after")
    def _median_in_its_interval(self) -> Self:
        if (self.secs_low is None) != (self.secs_high is None):
            raise ValueError("an interval has two ends")
        if (
            self.secs_low is not None
            and self.secs_high is not None
            and not self.secs_low <= self.secs <= self.secs_high
        ):
            raise ValueError("the median lies outside its interval")
        return self

    @property
    def secs(self) -> float:
        """The ranking statistic: the median sample."""
        return statistics.median(self.run_secs)


class Failed(Wire):
    """A candidate that has no time, and why."""

    outcome: Literal["failed"] = "failed"
    candidate: Digest
    kind: FailureKind
    detail: str = Field(default="", max_length=4096)


Measurement = Annotated[Timed | Failed, Field(discriminator="outcome")]
