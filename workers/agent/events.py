"""The instructions that the worker's machine gives and the events that it gets: plain values, no behaviour.

Every call (Register, Acquire, Renew, Report, Declare) is answered by exactly one event: its success, or one of
Unreachable, Stale, Rejected, Forgotten and Refused. `after_secs` is how long the shell waits before it makes the call,
`attempt` counts from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from pitchpipe.wire.lease import LeaseGrant, WorkerState
from pitchpipe.wire.measure import Measurement

# Instructions


@dataclass(frozen=True, kw_only=True)
class Register:
    """Tell the service what this worker is."""

    after_secs: float = 0.0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Acquire:
    """Ask for a lease (long poll)."""

    worker: str
    after_secs: float = 0.0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class StartMeasuring:
    """Measure the candidates of a lease, one Measured event each, then one Finished or Faulted."""

    grant: LeaseGrant


@dataclass(frozen=True, kw_only=True)
class StopMeasuring:
    """End the present measurement early; Finished still follows."""

    lease: str


@dataclass(frozen=True, kw_only=True)
class Renew:
    """Renew a lease."""

    lease: str
    fence: int
    after_secs: float = 0.0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Report:
    """Send results; `final` also hands back whatever has no result."""

    lease: str
    fence: int
    results: tuple[Measurement, ...]
    final: bool
    after_secs: float = 0.0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Declare:
    """Tell the service this worker's state: draining, then gone."""

    worker: str
    state: WorkerState
    after_secs: float = 0.0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Exit:
    """End the process. Always the last instruction."""

    code: int
    reason: str


Call = Register | Acquire | Renew | Report | Declare
Instruction = Call | StartMeasuring | StopMeasuring | Exit


# Events


@dataclass(frozen=True, kw_only=True)
class Started:
    """The process is up."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    """The service knows this worker."""

    worker: str


@dataclass(frozen=True, kw_only=True)
class Granted:
    """A lease was granted."""

    grant: LeaseGrant


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """No work within the long poll."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A candidate has its result."""

    lease: str
    result: Measurement


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Nothing more of the lease will be measured, because all is done or because it was told to stop."""

    lease: str


@dataclass(frozen=True, kw_only=True)
class Faulted:
    """The sandbox itself failed, through no fault of a candidate; nothing more of the lease will be measured."""

    lease: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """The service renewed a lease, or says that its job was cancelled."""

    lease: str
    ttl_secs: float
    cancelled: bool


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A report was acknowledged."""

    lease: str
    final: bool
    lease_open: bool
    cancelled: bool = False
    """Whether nobody wants the results that are missing."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The service was told this worker's state."""

    state: WorkerState


@dataclass(frozen=True, kw_only=True)
class Expired:
    """By this host's clock the lease was not renewed for its whole life."""

    lease: str


@dataclass(frozen=True, kw_only=True)
class Stale:
    """The service says that the lease is no longer this worker's."""

    lease: str


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """The service refuses the report's content: sending it again cannot help."""

    lease: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Unreachable:
    """A call got no answer, or was asked to come back later."""

    call: Call
    retry_after_secs: float | None = None


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """The service does not know this worker (any more)."""

    call: Acquire | Declare


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The token is not valid, or the registration is not acceptable: no call will succeed."""

    code: int
    detail: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Some time has passed: send the results that are waiting."""


@dataclass(frozen=True, kw_only=True)
class Signalled:
    """SIGTERM, SIGINT, or the parent died."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A thread of the shell died, or the machine met an invalid transition; the worker cannot go on."""

    detail: str


Event = (
    Started | Registered | Granted | Nothing | Measured | Finished | Faulted | Renewed | Reported | Declared | Expired
) | (Stale | Rejected | Unreachable | Forgotten | Refused | Tick | Signalled | Broken)
