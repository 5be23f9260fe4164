"""Tuning records: the interface of their store, a store in memory, and the export to MetaSchedule's files.

Importing this module needs no compiler.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from pitchpipe.wire.measure import Timed
from pitchpipe.wire.record import Best, TuningRecord
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace

__all__ = [
    "InMemoryRecordStore",
    "RecordStore",
    "apply_trace",
    "decode_trace",
    "encode_trace",
    "export_metaschedule",
]


@runtime_checkable
class RecordStore(Protocol):
    """Where tuning records and served bests are kept.

    Contract. A key is (workload digest, target): a store never answers for another target, and two targets are the same
    exactly when their `key` is. When `add` and `set_best` return, what they were given is visible to every later call, and
    durable where the store is. `add` is idempotent by record id: a record that is stored already changes nothing. Any thread
    may call; answers are immutable. Errors are PitchpipeError.
    """

    def add(self, records: Sequence[TuningRecord]) -> None:
        """Stores all of the records, or none of them when it raises."""

    def for_task(self, workload: str, target: Target) -> list[TuningRecord]:
        """Every record of the key, failures included, in the order they were added."""

    def fastest(self, workload: str, target: Target, n: int) -> tuple[tuple[str, float | None], ...]:
        """(trace, least median seconds) of the `n` fastest candidates of the key, each once, fastest first.

        Candidates that were never timed (None) follow where fewer than `n` were, in the order they were added.
        """

    def best(self, workload: str, target: Target) -> Best | None:
        """The best that is served for the key; None where there is none."""

    def set_best(self, workload: str, target: Target, best: Best) -> None:
        """Replaces the best that is served for the key."""

    def seen(self, workload: str, target: Target) -> frozenset[str]:
        """Digests of all candidates of the key that need not be measured again."""


class InMemoryRecordStore:
    """A RecordStore in memory, for tests and for tuning without a database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._records: dict[tuple[str, str], list[TuningRecord]] = {}
        self._best: dict[tuple[str, str], Best] = {}

    def add(self, records: Sequence[TuningRecord]) -> None:
        with self._lock:
            for record in records:
                if record.id not in self._ids:
                    self._ids.add(record.id)
                    self._records.setdefault((record.workload, record.target.key), []).append(record)

    def for_task(self, workload: str, target: Target) -> list[TuningRecord]:
        with self._lock:
            return list(self._records.get((workload, target.key), ()))

    def fastest(self, workload: str, target: Target, n: int) -> tuple[tuple[str, float | None], ...]:
        least: dict[str, float | None] = {}
        for record in self.for_task(workload, target):
            before = least.setdefault(record.trace, None)
            if isinstance(record.result, Timed) and (before is None or record.result.secs < before):
                least[record.trace] = record.result.secs
        # A stable sort: those without a time stay in the order they were added.
        ranked = sorted(least.items(), key=lambda item: math.inf if item[1] is None else item[1])
        return tuple(ranked[:n])

    def best(self, workload: str, target: Target) -> Best | None:
        with self._lock:
            return self._best.get((workload, target.key))

    def set_best(self, workload: str, target: Target, best: Best) -> None:
        with self._lock:
            self._best[workload, target.key] = best

    def seen(self, workload: str, target: Target) -> frozenset[str]:
        return frozenset(record.result.candidate for record in self.for_task(workload, target))


def export_metaschedule(entries: Sequence[tuple[Workload, str, float]], target: Target, folder: Path) -> int:
    """Writes (workload, trace, seconds) as the pair of files that stock TVM reads; see
    tuner/ingest/metaschedule_files.py."""
    from tuner.ingest import metaschedule_files as exchange

    return exchange.export(entries, target, folder)
