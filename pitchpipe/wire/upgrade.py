"""What is served from another toolchain, driver or device class than the workers have now, and its replay.

A job replays such schedules for its own tasks before it searches. An upgrade does it for all that a project serves, the
most valuable first: a job of the origin `upgrade` replays, and where that leaves a workload worse off than it had been,
one of the origin `retune` searches.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.record import Earlier
from pitchpipe.wire.target import Target

REPLAYED = 4
"""Candidates replayed of a task before a search is thought of: the smallest batch of a search, so that a replay that was in
vain has cost no more than one; a confirming run meets three of them."""
UPGRADED_PER_JOB = 16
"""Workloads of one job: it ends in minutes, and what is more valuable is done before the next one begins."""
RETUNE_TRIALS = 64
"""Of the search for a workload whose replay did not hold, unless somebody says otherwise: as for a miss."""


class UpgradeStage(StrEnum):
    """What is left to do for a workload."""

    REPLAY = "replay"
    """Nothing was confirmed on a worker of today."""
    RETUNE = "retune"
    """It was, and came out worse than before the upgrade; nobody has searched since."""


class Outdated(Wire):
    """A served workload that an upgrade is not done with."""

    workload: Digest
    target: Target
    stage: UpgradeStage
    value_secs: float = Field(
        ge=0,
        description="seconds that its schedule saved of one run of every model that has it, where it was confirmed",
    )
    served: Earlier = Field(description="what is served")
    reason: str = Field(description="in what it is not of today")


class OutdatedList(Wire):
    """The first of the list in the order in which they should be done: replays before searches, then by value."""

    items: tuple[Outdated, ...]
    total: int = Field(ge=0, description="of the whole list")


class UpgradeRequest(Wire):
    """A job on some workloads of an OutdatedList."""

    target: Target
    workloads: tuple[Digest, ...] = Field(min_length=1, max_length=UPGRADED_PER_JOB)
    stage: UpgradeStage
    trials: int = Field(default=RETUNE_TRIALS, ge=1, le=100_000, description="per workload, of a search")
