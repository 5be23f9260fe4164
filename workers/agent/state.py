"""What the worker's machine remembers: its phase and the leases in its hands.

Frozen values; `machine.py` draws how they follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pitchpipe.wire.lease import LeaseGrant
from pitchpipe.wire.measure import Measurement
from workers.agent.events import Report


class Phase(StrEnum):
    """The worker as a whole; drawn in machine.py."""

    REGISTERING = "registering"
    WORKING = "working"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


class Stage(StrEnum):
    """A lease in the worker's hands; drawn in machine.py."""

    WAITING = "waiting"
    MEASURING = "measuring"
    STOPPING = "stopping"
    CLOSING = "closing"


REPORT_AT = 8
"""Results that are sent without waiting for the next tick."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A lease in the worker's hands."""

    grant: LeaseGrant
    stage: Stage
    measured: frozenset[str] = frozenset()
    """Candidates with a result."""
    unsent: tuple[Measurement, ...] = ()
    """Results that no report carries yet."""
    report: Report | None = None
    """The report on its way, if any: one at a time, so that they arrive in order."""
    disowned: bool = False
    """The lease is not ours any more: nothing about it is sent, it only waits for its measuring to end."""

    @property
    def busy(self) -> bool:
        """It occupies the device."""
        return self.stage in (Stage.MEASURING, Stage.STOPPING)

    @property
    def remaining(self) -> int:
        return len(self.grant.candidates) - len(self.measured)

    def sent(self, *, everything: bool = False) -> Held:
        """With its next report on its way, if one is due; otherwise itself."""
        closing = self.stage is Stage.CLOSING
        due = closing or len(self.unsent) >= REPORT_AT or (everything and self.unsent)
        if self.report is not None or self.disowned or not due:
            return self
        report = Report(lease=self.grant.lease, fence=self.grant.fence, results=self.unsent, final=closing)
        return replace(self, report=report, unsent=())


@dataclass(frozen=True, kw_only=True)
class State:
    phase: Phase = Phase.REGISTERING
    worker: str | None = None
    registering: bool = False
    """A Register is on its way or due."""
    held: tuple[Held, ...] = ()
    acquiring: bool = False
    """An Acquire is on its way or due."""
    acquired_beside: str | None = None
    """The lease beside which one was acquired already: one try each."""
    faults: int = 0
    exit_code: int = 0
    exit_reason: str = "drained"
    history: tuple[str, ...] = field(default=(), compare=False)

    @property
    def measuring(self) -> Held | None:
        """The lease that occupies the device."""
        return next((held for held in self.held if held.busy), None)

    def find(self, lease: str) -> Held | None:
        return next((held for held in self.held if held.grant.lease == lease), None)

    def put(self, held: Held) -> State:
        """With another value of a lease that is held."""
        return replace(self, held=tuple(held if old.grant.lease == held.grant.lease else old for old in self.held))

    def drop(self, lease: str) -> State:
        """Without a lease."""
        return replace(self, held=tuple(held for held in self.held if held.grant.lease != lease))
