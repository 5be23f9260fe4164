"""The cost models of a (project, target kind): the version that serves, and the next one, trained in the executor while
tuning goes on and judged before it serves.

A version that was trained is compared with the one that serves on the held-out tasks of its samples. Where these do not
decide (succession.py), it stays in the shadow: what is measured from then on is scored by both, and decides.

Advisory: without a cost model, because it is lost, damaged or fails to train, the search ranks at random and no answer
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from pitchpipe.errors import IntegrityError, NotFound
from pitchpipe.wire.cost_model import CostModelOrigin, TaskMarks, TrainingData
from service.blobs import Blobs
from service.coordination.succession import Verdict, judge
from service.db import Database
from service.store import cost_models, samples
from service.store.cost_models import NewVersion, Stored
from service.store.samples import MeasuredSample
from service.wake import Wake
from tuner.execution.steps import score, train
from tuner.search.packaged import packaged
from tuner.search.requests import Rival, Sample, TrainedModel

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = structlog.get_logger()

REFIT_GROWTH = 0.2
"""Growth of the number of samples, since the last training, after which a cost model is trained again."""
REFIT_MIN_SAMPLES = 64
TRAINING_SAMPLES = 20_000
"""Newest samples of a target kind that a cost model is trained on, of all jobs of the project."""
SCORE_EVERY = 32
"""New measurements after which a version in the shadow is scored again: four groups of marks.GROUP candidates, or more."""
SHADOW_SAMPLES = 2_000
"""Newest samples that a version in the shadow is scored on."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """A training that is under way."""

    future: Future[TrainedModel | None]
    seen: int
    """Number of the newest record that there was."""
    data: TrainingData | None
    rival: Stored | None
    """The version that it is compared with; None where none could be read."""


@dataclass(frozen=True, kw_only=True)
class _Scoring:
    """Marks of the version in the shadow that are being computed."""

    future: Future[tuple[TaskMarks, ...]]
    version: int
    rival: Stored


class ProjectPredictor:
    """Implements tuner.tuning.loop.Predictor for all jobs of a project on one target kind; called by the coordinator's
    thread."""

    def __init__(
        self, project: str, target_kind: str, database: Database, blobs: Blobs, wake: Wake, executor: Executor
    ) -> None:
        self.project, self.target_kind = project, target_kind
        self.database, self.blobs, self.wake, self.executor = database, blobs, wake, executor
        self._data: bytes | None = None
        self._serving: Stored | None = None
        """The version that serves; `_readable` says whether `_data` are its bytes."""
        self._readable = False
        self._samples = 0
        self._unseen = 0
        self._unscored = 0
        self._failures = 0
        self._training: _Training | None = None
        self._scoring: _Scoring | None = None
        self._packaged: bytes | None = None
        self._unpack()
        self._refresh()

    def latest(self) -> bytes | None:
        """The cost model that serves, serialised; None without one."""
        self.step()
        self._refresh()
        return self._data

    @property
    def busy(self) -> bool:
        """Whether a training or a scoring is under way."""
        return self._training is not None or self._scoring is not None

    def step(self) -> None:
        """Decides on a cost model that was scored, and stores one that finished training."""
        # In this order: a new version takes the place of the one that was scored.
        if self._scoring is not None and self._scoring.future.done():
            scoring, self._scoring = self._scoring, None
            self._decide(scoring)
        if self._training is not None and self._training.future.done():
            training, self._training = self._training, None
            self._adopt(training)

    def observe(self, measured: int) -> None:
        """Counts new measurements, and starts a training or a scoring when there are enough."""
        self._unseen += measured
        self._unscored += measured
        if self._scoring is None and self._unscored >= SCORE_EVERY:
            self._unscored = 0
            self._score()
        if self._training is None and self._unseen >= self._due:
            self._train()

    @property
    def _due(self) -> float:
        """New samples after which the next training starts; twice as many after every failure."""
        return float(max(REFIT_MIN_SAMPLES, REFIT_GROWTH * self._samples) * 2**self._failures)

    def _refresh(self) -> None:
        """Takes up the version that serves by now: a user may have promoted another. In place of one that cannot be read
        the search gets what came with the package, or none, until the next that is trained serves."""
        try:
            with self.database.reading() as session:
                serving = cost_models.serving(session, self.project, self.target_kind)
            if serving is None or (serving == self._serving and self._readable):
                return
            news, self._serving, self._readable = serving != self._serving, serving, False
            try:
                self._data, self._readable = self.blobs.get(serving.digest), True
            except (IntegrityError, NotFound) as error:
                self._data = self._packaged
                if news:
                    log.warning("cost model lost", version=serving.version, error=str(error))
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost models cannot be read, searching with the last one", error=str(error))

    def _unpack(self) -> None:
        """Adds the cost model that comes with the package, unless it was added before; it serves where none does."""
        try:
            self._packaged = packaged(self.target_kind)
            if self._packaged is None:
                return
            digest = self.blobs.put(self._packaged)
            with self.database.transaction() as session:
                of = (session, self.project, self.target_kind)
                if cost_models.is_known(*of, digest):
                    return
                new = NewVersion(
                    digest=digest,
                    judge=digest,
                    origin=CostModelOrigin.PACKAGED,
                    reason="it came with the package",
                    seen=samples.last(*of),
                )
                version = cost_models.add(*of, new)
                if cost_models.serving(*of) is None:
                    cost_models.serve(*of, version, "it came with the package, and none served")
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            self._data = self._packaged
            log.warning("packaged cost model not read or not stored", error=str(error))

    def _train(self) -> None:
        try:
            self._refresh()
            rival = None
            if self._serving is not None and self._data is not None and self._readable:
                rival = Rival(data=self._data, judge=self._judge(self._serving))
            with self.database.reading() as session:
                used = samples.newest(session, self.project, self.target_kind, TRAINING_SAMPLES)
            future = self.executor.submit(train, _of_steps(used), len(used), rival)
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model not trained", error=str(error))
            return
        self._training = _Training(
            future=future,
            seen=max((sample.seq for sample in used), default=0),
            data=_data_of(used),
            rival=None if rival is None else self._serving,
        )
        self._unseen = 0
        future.add_done_callback(lambda _: self.wake.notify())

    def _judge(self, of: Stored) -> bytes | None:
        try:
            return None if of.judge is None else self.blobs.get(of.judge)
        except (IntegrityError, NotFound):
            return None

    def _adopt(self, training: _Training) -> None:
        try:
            trained = training.future.result()
            if trained is None:
                return
            self._samples, self._failures = trained.samples, 0
            if self._data is None:
                self._data = trained.data  # even if it cannot be stored
            digest = self.blobs.put(trained.data)
            judge_digest = None if trained.judge is None else self.blobs.put(trained.judge)
            with self.database.transaction() as session:
                of = (session, self.project, self.target_kind)
                serving = cost_models.serving(*of)
                # A user may have promoted another meanwhile: the marks are beside the one that served.
                as_before = serving is not None and serving == training.rival
                new = NewVersion(
                    digest=digest,
                    samples=trained.samples,
                    metrics=_metrics(trained),
                    parent=None if training.rival is None else training.rival.version,
                    judge=judge_digest,
                    seen=training.seen,
                    data=training.data,
                    held_out=trained.marks,
                )
                version = cost_models.add(*of, new)
                if serving is None:
                    cost_models.serve(*of, version, "none served")
                elif (training.rival is None and not self._readable) or (as_before and trained.rival_refused):
                    cost_models.serve(*of, version, f"version {serving.version} cannot be read")
                else:
                    self._settle(session, version, serving, trained.marks if as_before else ())
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model not trained or not stored", error=str(error))
            # The next training would have nearly the same samples, so one that hangs or dies is not repeated at once.
            self._failures += 1

    def _settle(self, session: Session, version: int, serving: Stored, marks: Sequence[TaskMarks]) -> None:
        """What becomes of the version in the shadow, by its marks beside the one that serves."""
        of = (session, self.project, self.target_kind)
        judgement = judge(marks)
        told = judgement.told(serving.version)
        if judgement.verdict is Verdict.NOT_WORSE:
            cost_models.serve(*of, version, told)
        elif judgement.verdict is Verdict.WORSE:
            cost_models.refuse(*of, version, told)
        else:
            cost_models.explain(*of, version, told)

    def _score(self) -> None:
        """Has what was measured since the version in the shadow was trained scored by it and by the one that serves."""
        try:
            with self.database.reading() as session:
                of = (session, self.project, self.target_kind)
                serving, shadow = cost_models.serving(*of), cost_models.in_shadow(*of)
                if serving is None or shadow is None:
                    return
                # What neither was trained on: the one that serves may be the newer, if a user promoted it.
                after = max(serving.seen, shadow.seen)
                used = samples.newest(*of, SHADOW_SAMPLES, after=after)
            models = self.blobs.get(shadow.digest), self.blobs.get(serving.digest)
            future = self.executor.submit(score, _of_steps(reversed(used)), *models)
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model in the shadow not scored", error=str(error))
            return
        self._scoring = _Scoring(future=future, version=shadow.version, rival=serving)
        future.add_done_callback(lambda _: self.wake.notify())

    def _decide(self, scoring: _Scoring) -> None:
        try:
            tasks = scoring.future.result()
            with self.database.transaction() as session:
                of = (session, self.project, self.target_kind)
                cost_models.mark(*of, scoring.version, tasks)
                shadow = cost_models.in_shadow(*of)
                if shadow is None or shadow.version != scoring.version or cost_models.serving(*of) != scoring.rival:
                    return
                held_out = cost_models.held_out_beside(*of, shadow.version, scoring.rival.version)
                self._settle(session, shadow.version, scoring.rival, (*held_out, *tasks))
        except Exception as error:  # noqa: BLE001 - advisory: see the module's docstring
            log.warning("cost model in the shadow not decided on", error=str(error))


def _of_steps(used: Iterable[MeasuredSample]) -> list[Sample]:
    return [Sample(workload=sample.workload, features=sample.features, secs=sample.secs) for sample in used]


def _metrics(trained: TrainedModel) -> dict[str, float]:
    rival = cost_models.summary(trained.marks).rival_pairwise
    return trained.metrics if rival is None else trained.metrics | {"rival_pairwise": rival}


def _data_of(used: list[MeasuredSample]) -> TrainingData | None:
    if not used:
        return None
    times = [datetime.fromtimestamp(sample.created_at, UTC) for sample in used]
    tasks = len({sample.workload for sample in used})
    return TrainingData(samples=len(used), tasks=tasks, since=min(times), until=max(times))
