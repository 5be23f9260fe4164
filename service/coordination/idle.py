"""Tune as you deploy: what deployments missed is tuned while workers have nothing else to do.

A miss becomes a task of an ordinary job, whose candidates come after everybody's (store/batches.py): first only what similar
workloads' schedules become here is tried, so that something better than the default is served soon; then, once all misses
have had that, there is a search. What a day may cost is the project's to say, and is granted in the database.
"""

from __future__ import annotations

import time

import structlog

from service.db import Database
from service.store import coordination, misses
from service.wake import Wake

log = structlog.get_logger()

LOOK_SECS = 1.0
"""Between two looks for idle workers."""


class IdleTuning:
    """Makes jobs for misses. One thread of the active coordinator calls it."""

    def __init__(self, database: Database, wake: Wake, holder: str) -> None:
        self._database, self._wake, self._holder = database, wake, holder
        self._looked_at = -LOOK_SECS

    def step(self) -> None:
        """A look, where one is due: settles the misses whose jobs have ended, makes at most one job for each project and
        target whose workers are idle. Raises RoleLost."""
        if time.monotonic() - self._looked_at < LOOK_SECS:
            return
        self._looked_at = time.monotonic()
        with self._database.reading() as session:
            ended, due = misses.at_work(session), misses.due(session)
        if ended:
            with self._database.transaction() as session:
                misses.settle(session)
        for project, target in due:
            with self._database.transaction() as session:
                # Two coordinators would make two jobs.
                coordination.assure(session, self._holder)
                job = misses.take(session, project, target)
            if job is not None:
                log.info("idle workers tune what was missed", job=job, project=project, target=target.key)
                self._wake.notify()
