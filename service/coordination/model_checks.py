"""Checks of uploaded models: the executor reads each once, and the verdict is stored in the model's row.

Imports no compiler. A model without a verdict is a row in the database, so when a coordinator dies the next one checks the
same models.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass

import structlog

from pitchpipe.errors import IntegrityError, InvalidInput, InvalidModel, NotFound, PitchpipeError, StepTimeout
from service.blobs import Blobs
from service.db import Database
from service.store import models
from service.wake import Wake
from tuner.execution.engine import on_behalf
from tuner.execution.steps import check_model

log = structlog.get_logger()

IN_FLIGHT = 4
"""Models given to the executor at once: enough to keep it busy, few because their bytes are held in memory."""
MAX_CRASHES = 3
"""Checks that may end without a verdict (a child died) before the model is refused."""


@dataclass(frozen=True, kw_only=True)
class _Check:
    model: models.UncheckedModel
    future: Future[bytes]


class ModelChecks:
    """Gives unchecked models to the executor and stores its verdicts. One thread calls it."""

    def __init__(self, database: Database, blobs: Blobs, wake: Wake, executor: Executor) -> None:
        self._database, self._blobs, self._wake, self._executor = database, blobs, wake, executor
        self._checks: dict[str, _Check] = {}
        self._crashes: dict[str, int] = {}

    def step(self) -> None:
        """Stores the verdicts that have arrived and submits unchecked models. Never waits for a check."""
        done = [check for check in self._checks.values() if check.future.done()]
        for check in done:
            del self._checks[check.model.id]
            self._store_verdict(check)
        with self._database.reading() as session:
            waiting = models.unchecked(session, IN_FLIGHT)
        for model in waiting:
            if model.id not in self._checks and len(self._checks) < IN_FLIGHT:
                self._start(model)
        if done:
            self._wake.notify()

    def forget(self) -> None:
        """Cancels all checks, because another process coordinates now and repeats them."""
        for check in self._checks.values():
            check.future.cancel()
        self._checks.clear()
        self._crashes.clear()

    def _start(self, model: models.UncheckedModel) -> None:
        try:
            data = self._blobs.get(model.digest)
        except (IntegrityError, NotFound) as error:
            self._refuse(model, InvalidModel(f"the model's bytes are lost: {error.detail}"))
            return
        future = on_behalf(self._executor, model.project).submit(check_model, data, model.format.value)
        future.add_done_callback(lambda _: self._wake.notify())
        self._checks[model.id] = _Check(model=model, future=future)

    def _store_verdict(self, check: _Check) -> None:
        model = check.model
        try:
            ingested = check.future.result()
        except InvalidInput as error:
            self._refuse(model, error)
        except StepTimeout as error:
            self._refuse(model, InvalidModel(f"reading the model took too long: {error.detail}"))
        except Exception as error:  # noqa: BLE001 - a child that died; whatever it was costs this attempt only
            crashes = self._crashes[model.id] = self._crashes.get(model.id, 0) + 1
            log.warning("a model's check crashed", model=model.id, crashes=crashes, error=repr(error)[:300])
            if crashes >= MAX_CRASHES:
                self._refuse(model, InvalidModel(f"reading the model crashed {crashes} times: {_cause(error)}"))
        else:
            self._crashes.pop(model.id, None)
            # The blob is stored first, so that no row refers to a blob that does not exist.
            blob = self._blobs.put(ingested)
            with self._database.transaction() as session:
                models.accept(session, model.id, blob)

    def _refuse(self, model: models.UncheckedModel, error: PitchpipeError) -> None:
        log.info("model refused", model=model.id, code=error.code, error=error.detail)
        self._crashes.pop(model.id, None)
        with self._database.transaction() as session:
            models.refuse(session, model.id, error)
        self._wake.notify()


def _cause(error: Exception) -> str:
    return error.detail if isinstance(error, PitchpipeError) else type(error).__name__
