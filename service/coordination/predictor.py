"""The newest cost model of a (project, target kind), trained again in the executor while tuning goes on.

Advisory: without a cost model, because it is lost, damaged or fails to train, the search ranks at random and no answer
changes.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

import structlog

from service.blobs import Blobs
from service.db import Database
from service.store import batches, cost_models
from service.wake import Wake
from tuner.execution.steps import train
from tuner.search.requests import Sample, TrainedModel

log = structlog.get_logger()

REFIT_GROWTH = 0.2
"""Growth of the number of samples, since the last training, after which a cost model is trained again."""
REFIT_MIN_SAMPLES = 64
TRAINING_SAMPLES = 20_000
"""Newest samples of a target kind that a cost model is trained on, of all jobs of the project."""


class ProjectPredictor:
    """Implements tuner.tuning.loop.Predictor for all jobs of a project on one target kind; called by the coordinator's
    thread."""

    def __init__(
        self, project: str, target_kind: str, database: Database, blobs: Blobs, wake: Wake, executor: Executor
    ) -> None:
        self.project, self.target_kind = project, target_kind
        self.database, self.blobs, self.wake, self.executor = database, blobs, wake, executor
        self._data = self._stored()
        self._samples = 0
        self._unseen = 0
        self._failures = 0
        self._training: Future[TrainedModel | None] | None = None

    def latest(self) -> bytes | None:
        """The newest cost model that finished training, serialised; None without one."""
        self.step()
        return self._data

    @property
    def training(self) -> bool:
        """Whether a training is under way."""
        return self._training is not None

    def step(self) -> None:
        """Stores a cost model that finished training."""
        if self._training is not None and self._training.done():
            training, self._training = self._training, None
            self._adopt(training)

    def observe(self, measured: int) -> None:
        """Counts new measurements and starts a training when there are enough."""
        self._unseen += measured
        if self._training is not None or self._unseen < self._due:
            return
        try:
            with self.database.reading() as session:
                rows = batches.samples(session, self.project, self.target_kind, TRAINING_SAMPLES)
            samples = [Sample(workload=workload, features=features, secs=secs) for workload, features, secs in rows]
            self._training = self.executor.submit(train, samples, len(samples))
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model not trained", error=str(error))
            return
        self._unseen = 0
        self._training.add_done_callback(lambda _: self.wake.notify())

    @property
    def _due(self) -> float:
        """New samples after which the next training starts; twice as many after every failure."""
        return float(max(REFIT_MIN_SAMPLES, REFIT_GROWTH * self._samples) * 2**self._failures)

    def _stored(self) -> bytes | None:
        try:
            with self.database.reading() as session:
                found = cost_models.latest(session, self.project, self.target_kind)
            return None if found is None else self.blobs.get(found[1])
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model lost, searching without one", error=str(error))
            return None

    def _adopt(self, training: Future[TrainedModel | None]) -> None:
        try:
            trained = training.result()
            if trained is None:
                return
            self._data, self._samples, self._failures = trained.data, trained.samples, 0
            digest = self.blobs.put(trained.data)
            with self.database.transaction() as session:
                cost_models.add(session, self.project, self.target_kind, digest, trained.metrics, trained.samples)
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model not trained or not stored", error=str(error))
            # The next training would have nearly the same samples, so one that hangs or dies is not repeated at once.
            self._failures += 1
