"""Idle tuning: the misses of deployments are tuned while workers have nothing else to do.

A miss becomes a task of an ordinary job, whose candidates are leased after those of users' jobs (store/batches.py). A first
job tries only schedules of similar workloads, re-fitted, so that something better than the baseline is served soon. Once
that was done for all misses, further jobs search. The project limits the trials of a day; the database grants them.
"""

from __future__ import annotations

import time

import structlog

from service.db import Database
from service.store import coordination, misses
from service.wake import Wake

log = structlog.get_logger()

LOOK_SECS = 1.0
"""Time between two looks for idle workers."""


class IdleTuning:
    """Makes jobs for misses. One thread of the active coordinator calls it."""

    def __init__(self, database: Database, wake: Wake, holder: str) -> None:
        self._database, self._wake, self._holder = database, wake, holder
        self._looked_at = -LOOK_SECS

    def step(self) -> None:
        """Once every LOOK_SECS: records the outcome of the misses whose jobs have ended, and makes at most one job for each
        project and target whose workers are idle. Raises RoleLost."""
        if time.monotonic() - self._looked_at < LOOK_SECS:
            return
        self._looked_at = time.monotonic()
        with self._database.reading() as session:
            ended, due = misses.at_work(session), misses.due(session)
        if ended:
            with self._database.transaction() as session:
                misses.close_ended(session)
        for project, target in due:
            with self._database.transaction() as session:
                # Two coordinators would make two jobs.
                coordination.assure(session, self._holder)
                job = misses.take(session, project, target)
            if job is not None:
                log.info("idle workers tune what was missed", job=job, project=project, target=target.key)
                self._wake.notify()
