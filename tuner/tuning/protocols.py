"""What the tuning loop asks of whoever measures for it, and of whoever trains its cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pitchpipe.wire.lease import Purpose
from tuner.search.requests import Proposal
from tuner.tuning.confirm import MeasuredBatch


class Measurer(Protocol):
    """Queues candidates for measurement and collects the results. One thread calls it."""

    def submit(self, task: int, purpose: Purpose, proposals: Sequence[Proposal], incumbent_secs: float | None) -> int:
        """Queues a batch durably; returns how many candidates were new. Zero queues nothing."""

    def collect(self) -> list[MeasuredBatch]:
        """Batches that ended since the last call, each exactly once; never blocks."""

    def has_capacity(self, waiting: int) -> bool:
        """Whether another batch should be started, when `waiting` batches are being searched for."""

    def withdraw(self, purposes: Sequence[Purpose]) -> None:
        """Cancels the candidates for these purposes that nobody measures yet, and stops trials that are measured, where it
        can; their batches end without them."""

    def parallel(self) -> int:
        """Batches that are measured side by side: the workers that are there, at least one."""


class Predictor(Protocol):
    """Provides the newest cost model. It is advisory: without one the search goes on at random."""

    def latest(self) -> bytes | None:
        """Serialised model, or None."""

    def observe(self, measured: int) -> None:
        """Tells that `measured` results have arrived, so that a new training may start. Never blocks."""
