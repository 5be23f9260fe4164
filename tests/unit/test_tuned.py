"""A tuned model when something goes wrong, and a job that is interrupted, with fakes for what compiles and what serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pitchpipe.deploy import signing
from pitchpipe.deploy.safe import FallbackWarning
from pitchpipe.errors import InvalidInput, InvalidTransition, JobFailed
from pitchpipe.tuning.job import CONFIRM_SECS, watched_or_ended_early
from pitchpipe.tuning.tuned import TunedModel, Variant
from pitchpipe.wire.job import JobEvent, JobRequest, JobState, JobView
from tests.unit.test_report import job, task


class Build:
    """Fails as it is told to."""

    def __init__(self, error: Exception | None = None, *, is_current: bool = True) -> None:
        self.error, self.is_current, self.calls = error, is_current, 0

    def __call__(self, given: Any, /) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return "built", given


def tuned(build: Build | None, before: Callable[..., Any] | None = None) -> TunedModel:
    subject = SimpleNamespace(before=before, taken_apart=lambda call: call[0] if not call[1] else None)
    variant: Any = Variant(subject=subject, schedules=None, report=None, build=build)  # type: ignore[arg-type]
    return TunedModel([variant], Path())


def before(*arguments: Any, **keywords: Any) -> Any:
    return "before", arguments, keywords


def test_what_ran_before_runs_what_no_build_fits() -> None:
    assert tuned(Build(), before)(1) == ("built", (1,))
    assert tuned(Build(), before)(1, key=2) == ("before", (1,), {"key": 2})
    assert tuned(None, before)(1) == ("before", (1,), {})
    assert tuned(Build(is_current=False), before)(1) == ("before", (1,), {})
    assert tuned(Build(InvalidInput("another shape")), before)(1) == ("before", (1,), {})


def test_a_run_that_fails_is_told_once_and_not_tried_again() -> None:
    build = Build(RuntimeError("lost"))
    fast = tuned(build, before)
    with pytest.warns(FallbackWarning, match="lost"):
        assert fast(1) == ("before", (1,), {})
    assert fast(1) == ("before", (1,), {})
    assert build.calls == 1


def test_a_file_has_nothing_to_fall_back_on() -> None:
    with pytest.raises(InvalidInput, match="another shape"):
        tuned(Build(InvalidInput("another shape")))(1)
    with pytest.raises(RuntimeError):
        tuned(Build(RuntimeError("lost")))(1)
    with pytest.raises(InvalidInput, match="no fallback"):
        tuned(Build())(1, key=2)


def test_ones_own_key_is_made_once_and_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PITCHPIPE_TRUSTED_KEYS", raising=False)
    path = signing.own_key()
    assert path.stat().st_mode & 0o777 == 0o600
    made = path.read_bytes()
    assert signing.own_key().read_bytes() == made
    assert list(signing.trusted_keys(None)) == [signing.key_id(signing.private_key(path).public_key())]


class Service:
    """Jobs that are interrupted as soon as somebody watches the first."""

    def __init__(self, first: JobView, *, ended: bool = False) -> None:
        self.first, self.ended, self.submitted = first, ended, list[JobRequest]()
        self.last = job(task(1, 0.5, trials=0), task(2, 0.25, trials=0))

    def events(self, job_id: str) -> Iterator[JobEvent]:
        if job_id == self.first.id and not self.ended:
            raise KeyboardInterrupt
        return iter(())

    def job(self, job_id: str) -> JobView:
        return self.first if job_id == self.first.id else self.last

    def cancel(self, job_id: str) -> JobView:
        if self.ended:
            raise InvalidTransition
        return self.first.model_copy(update={"state": JobState.CANCELLED})

    def submit(self, request: JobRequest) -> JobView:
        self.submitted.append(request)
        return self.last


def test_an_interrupted_job_ends_with_what_confirming_runs_say_of_its_trials() -> None:
    service: Any = Service(job(task(1, None, trials=12), task(2, None, trials=28)))
    found = watched_or_ended_early(service, service.first, lambda _: None)
    assert found.interrupted
    assert [(one.trials, one.tuned_secs) for one in found.view.tasks] == [(12, 0.5), (28, 0.25)]
    assert found.view.progress.trials == 40
    (request,) = service.submitted
    assert (request.model, request.budget.trials, request.budget.seconds) == (service.first.model, 0, CONFIRM_SECS)


def test_an_interrupt_before_the_first_trial_ends_the_call() -> None:
    nothing = job().model_copy(update={"progress": job().progress.model_copy(update={"trials": 0})})
    service: Any = Service(nothing)
    with pytest.raises(KeyboardInterrupt):
        watched_or_ended_early(service, nothing, lambda _: None)
    assert service.submitted == []


def test_a_job_that_somebody_else_cancelled_has_failed() -> None:
    service: Any = Service(job().model_copy(update={"state": JobState.CANCELLED}), ended=True)
    with pytest.raises(JobFailed):
        watched_or_ended_early(service, service.first, lambda _: None)
