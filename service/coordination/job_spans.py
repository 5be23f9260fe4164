"""The spans of a job in the coordinator: its split, its searches, its confirming runs, and what came to be served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, ParamSpec, TypeVar

from pitchpipe import telemetry
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.task import Task
from service.db import Database
from service.store import jobs
from tuner.tuning.confirm import MeasuredBatch

P = ParamSpec("P")
T = TypeVar("T")
_SPANS = {"split_ingested": "split", "propose": "search"}
"""Step -> name of its span."""


class JobSpans:
    """Continues the trace of a job's submission. Without one, or in a process that records no spans, it does nothing."""

    def __init__(self, database: Database, job: str) -> None:
        self._database, self._job = database, job

    @cached_property
    def _parent(self) -> str | None:
        if not telemetry.enabled():
            return None
        with self._database.reading() as session:
            return jobs.traceparent(session, self._job)

    def timed(self, executor: Executor) -> Executor:
        """The executor, with a span for each split and each search of the job."""
        return executor if self._parent is None else _TimedExecutor(executor, self)

    def step_ended(self, name: str, began: float, future: Future[Any]) -> None:
        """Records a step of the job that ended, but for one that was cancelled. began: Unix seconds."""
        try:
            error = future.exception()
        except CancelledError:
            return
        failure = None if error is None else f"{type(error).__name__}: {error}"
        telemetry.record(self._parent, name, began, time.time(), job=self._job, error=failure)

    def confirmed(self, batches: Iterable[MeasuredBatch], tasks: Sequence[Task]) -> None:
        """Records the confirming runs among batches that have ended. tasks: those of the job, as batches name them."""
        for batch in batches:
            if batch.purpose is Purpose.CONFIRM and batch.granted_at is not None and batch.ended_at is not None:
                telemetry.record(
                    self._parent,
                    "confirm",
                    batch.granted_at,
                    batch.ended_at,
                    job=self._job,
                    task=tasks[batch.task].name,
                    worker=batch.worker,
                )

    def span(self, name: str, task: Task) -> AbstractContextManager[None]:
        """A span around something that is done for a task."""
        return telemetry.continued(self._parent, name, job=self._job, task=task.name)


class _TimedExecutor(Executor):
    """An executor for the steps of one job."""

    def __init__(self, executor: Executor, spans: JobSpans) -> None:
        self._executor, self._spans = executor, spans

    @property
    def processes(self) -> int:
        """As tuner/execution/steps.py asks."""
        found: int = getattr(self._executor, "processes", 1)
        return found

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        began, future = time.time(), self._executor.submit(fn, *args, **kwargs)
        if (name := _SPANS.get(fn.__name__)) is not None:
            future.add_done_callback(partial(self._spans.step_ended, name, began))
        return future
