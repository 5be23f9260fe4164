"""Workers, leases and reports."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from pitchpipe.wire._base import Digest, Instant, Seconds, Wire
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain


class WorkerState(StrEnum):
    """Lifecycle: active -> draining -> gone; active or draining -> lost when it stops answering; lost -> active."""

    ACTIVE = "active"
    DRAINING = "draining"
    GONE = "gone"
    LOST = "lost"


class WorkerRegistration(Wire):
    """What a worker says of itself; the same `name` registers again as the same worker."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")
    device: DeviceFingerprint
    target: Target
    toolchain: Toolchain
    roofline: Roofline | None = Field(default=None, description="of the device; absent keeps what is known of it")
    goes_on: bool = Field(
        default=False,
        description="the process that registered before describes itself anew and keeps its leases; else they are lost",
    )


class Steadiness(Wire):
    """How evenly a worker times a fixed reference workload: whether its timings can be trusted now."""

    reference_secs: Seconds = Field(description="the newest time of the reference")
    usual_secs: Seconds = Field(description="what the reference usually takes on this device")
    ratio: float = Field(gt=0, description="reference_secs over usual_secs")
    noisy: bool = Field(description="the newest time is so much longer than usual that timings beside it are too long")
    beats: int = Field(ge=0, description="times the reference was timed since the worker started")
    repeated: int = Field(ge=0, description="batches timed again because the reference drifted, since it started")


class WorkerSeconds(Wire):
    """Where a worker's seconds went since it started, by its own clock. The rest of `total_secs` it had nothing to measure,
    or was between two parts of a batch."""

    total_secs: float = Field(ge=0, lt=1e11)
    prepare_secs: float = Field(default=0.0, ge=0, lt=1e11, description="inputs and reference outputs of workloads")
    build_secs: float = Field(default=0.0, ge=0, lt=1e11, description="candidates were built and nothing was timed")
    check_secs: float = Field(
        default=0.0,
        ge=0,
        lt=1e11,
        description="outputs were compared; of a search, those of candidates that were right",
    )
    time_secs: float = Field(
        default=0.0,
        ge=0,
        lt=1e11,
        description="timing, with the reference workload; on a GPU others are built beside it",
    )
    wait_secs: float = Field(
        default=0.0, ge=0, lt=1e11, description="until other processes of its host let it compute or time"
    )


class WorkerView(Wire):
    """A worker as the service knows it."""

    id: str
    name: str
    state: WorkerState
    device: DeviceFingerprint
    target: Target
    toolchain: Toolchain
    last_seen_at: Instant
    trials: int = Field(ge=0, description="candidates measured since it registered")
    steadiness: Steadiness | None = Field(default=None, description="as it last reported; absent until it has")
    seconds: WorkerSeconds | None = Field(default=None, description="as it last reported; absent until it has")
    roofline: Roofline | None = Field(default=None, description="of its device; absent until it was measured")


class Purpose(StrEnum):
    """Why a batch is measured."""

    SEARCH = "search"
    """Candidates of the search: each is a trial."""
    REPLAY = "replay"
    """What was measured under other circumstances, measured again: each is a trial. To a worker it is a SEARCH."""
    CONFIRM = "confirm"
    """The best candidates and the baseline, timed interleaved; the first candidate is the baseline. Not trials."""

    @property
    def charged(self) -> bool:
        """Whether its candidates are trials."""
        return self is not Purpose.CONFIRM


class WorkerStateRequest(Wire):
    """What a worker, or its operator, wants of it: `draining` takes no new lease, `gone` has left."""

    state: Literal[WorkerState.DRAINING, WorkerState.GONE]


class LeaseRequest(Wire):
    """Asks for candidates that the worker can measure."""

    worker: str
    max_candidates: int = Field(default=32, ge=1, le=256)
    wait_secs: float = Field(default=20.0, ge=0, le=60, description="long poll: how long to wait for work")


class LeaseGrant(Wire):
    """The right to measure a batch until the lease expires; every heartbeat renews it.

    `fence` is strictly larger than that of every grant before it; reports and heartbeats with an older one are refused.
    """

    lease: str
    fence: int = Field(ge=1)
    ttl_secs: float = Field(gt=0)
    purpose: Purpose
    workload: Digest
    target: Target
    config: MeasureConfig
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    incumbent_secs: float | None = Field(default=None, gt=0, description="best median known for the workload")
    traceparent: str | None = Field(
        default=None,
        description="W3C trace context of the lease, which the worker's spans continue; absent without a trace",
    )


class LeaseResponse(Wire):
    """`grant` is absent when there was no work within the wait."""

    grant: LeaseGrant | None = None


class Heartbeat(Wire):
    """Renews a lease."""

    fence: int = Field(ge=1)


class HeartbeatResponse(Wire):
    """The lease was renewed."""

    ttl_secs: float
    cancelled: bool = Field(
        description="the job ended, or its batch was withdrawn: measure no more of it, report what is done"
    )


class Report(Wire):
    """Results of some or all candidates of a lease. Idempotent by (lease, fence, candidate)."""

    fence: int = Field(ge=1)
    results: tuple[Measurement, ...] = Field(max_length=256)
    final: bool = Field(description="nothing more will be reported: candidates without a result are queued again")
    steadiness: Steadiness | None = Field(default=None, description="of the worker, now; not part of the results")
    seconds: WorkerSeconds | None = Field(default=None, description="of the worker, so far; not part of the results")


class ReportResponse(Wire):
    """What became of a report."""

    accepted: int = Field(ge=0, description="results stored by this call")
    duplicates: int = Field(ge=0, description="results that were already stored, unchanged")
    lease_open: bool
    cancelled: bool = Field(default=False, description="the results that are missing are not wanted any more")


class WorkloadView(Wire):
    """The program that a lease's traces apply to."""

    digest: Digest
    ir: str
