"""The state of the worker's machine: its phase and the leases that it holds.

Frozen values; the docstring of `machine.py` draws the transitions.
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
    """The stage of a lease that the worker holds; drawn in machine.py."""

    WAITING = "waiting"
    MEASURING = "measuring"
    STOPPING = "stopping"
    CLOSING = "closing"


REPORT_AT = 8
"""Number of unsent results at which a report is sent without waiting for the next tick."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A lease that the worker holds."""

    grant: LeaseGrant
    stage: Stage
    measured: frozenset[str] = frozenset()
    """Candidates with a result."""
    unsent: tuple[Measurement, ...] = ()
    """Results that are in no report yet."""
    report: Report | None = None
    """The report that is being sent, if any: one at a time, so that they arrive in order."""
    disowned: bool = False
    """Whether the lease is no longer this worker's: nothing about it is sent, and it is dropped when measuring has ended."""

    @property
    def busy(self) -> bool:
        """Whether it occupies the device."""
        return self.stage in (Stage.MEASURING, Stage.STOPPING)

    @property
    def remaining(self) -> int:
        return len(self.grant.candidates) - len(self.measured)

    def sent(self, *, everything: bool = False) -> Held:
        """This lease with its next report being sent, if one is due; otherwise itself.

        everything: any unsent result makes a report due, not only REPORT_AT of them.
        """
        closing = self.stage is Stage.CLOSING
        due = closing or len(self.unsent) >= REPORT_AT or (everything and self.unsent)
        if self.report is not None or self.disowned or not due:
            return self
        report = Report(lease=self.grant.lease, fence=self.grant.fence, results=self.unsent, final=closing)
        return replace(self, report=report, unsent=())


@dataclass(frozen=True, kw_only=True)
class State:
    """All that the machine remembers between two events."""

    phase: Phase = Phase.REGISTERING
    worker: str | None = None
    registering: bool = False
    """Whether a Register is being sent or due."""
    held: tuple[Held, ...] = ()
    acquiring: bool = False
    """Whether an Acquire is being sent or due."""
    acquired_beside: str | None = None
    """The measured lease beside which another was asked for already: that is done once for each."""
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
        """The state with a new value of a lease that is held."""
        return replace(self, held=tuple(held if old.grant.lease == held.grant.lease else old for old in self.held))

    def drop(self, lease: str) -> State:
        """The state without that lease."""
        return replace(self, held=tuple(held for held in self.held if held.grant.lease != lease))
