"""The workloads a worker measures, by digest: fetched once, kept while they are in use."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import Protocol

import structlog

from pitchpipe.errors import DeadlineExceeded, Overloaded, PitchpipeError, Unreachable
from pitchpipe.wire.lease import WorkloadView
from pitchpipe.wire.task import Workload
from workers.agent import machine

WORKLOADS_KEPT = 64
"""Workloads kept; one has a few hundred kilobytes of IR at most."""

log = structlog.get_logger("worker")


class Source(Protocol):
    """Where workloads come from; raises errors of pitchpipe.errors only."""

    def workload(self, digest: str) -> WorkloadView: ...


class Cancelled(Exception):
    """The measurement was told to stop before it began."""


class WorkloadCache:
    """Workloads by digest, fetched once, the least recently used forgotten. Thread-safe; a digest never goes stale."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: OrderedDict[str, Workload] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str, stop: threading.Event) -> Workload:
        """The workload, fetched unless it is kept. While the service cannot be reached it retries; raises Cancelled once
        `stop` is set."""
        for attempt in itertools.count(1):
            if stop.is_set():
                raise Cancelled
            try:
                return self._fetch(digest)
            except (Unreachable, Overloaded, DeadlineExceeded) as error:
                stop.wait(max(machine.backoff_secs(attempt), error.retry_after_secs or 0.0))
        raise AssertionError("count never ends")

    def warm(self, digest: str) -> None:
        """Fetches a workload ahead of `get`. An error is only logged, since `get` will fetch it again."""
        try:
            self._fetch(digest)
        except PitchpipeError as error:
            log.info("workload not fetched ahead", workload=digest, detail=error.detail)

    def _fetch(self, digest: str) -> Workload:
        with self._lock:
            if digest not in self._kept:
                view = self._source.workload(digest)
                self._kept[digest] = Workload(digest=view.digest, ir=view.ir)
            self._kept.move_to_end(digest)
            while len(self._kept) > WORKLOADS_KEPT:
                self._kept.popitem(last=False)
            return self._kept[digest]
