"""Where schedules come from: a service, else the local database, else nowhere. Never a search in the compile path.

Look-ups are those of pitchpipe/deploy/lookup.py. Two things are the backend's own, since here nobody calls for a look-up and
can be told that it failed: torch.compile asks for every graph of a program, whose calls wait for the deadline in all. So
whatever is wrong with a source is one warning; and a service is probed before graphs are prepared for it, and once it failed
it is left alone for SILENCE_SECS, in which its last answers, which the cache keeps, are used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pitchpipe.client import Client
from pitchpipe.deploy import lookup, misses, usage
from pitchpipe.deploy.artifact import Runs, cache_dir
from pitchpipe.deploy.identity import Identity
from pitchpipe.embedded import DEFAULT_SECONDS, Embedded
from pitchpipe.errors import JobFailed, PitchpipeError
from pitchpipe.model.local import LocalModel
from pitchpipe.places import own_database
from pitchpipe.processes.deadline import within
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.warning import warn_once
from pitchpipe.wire.job import Budget, JobRequest, JobState
from pitchpipe.wire.record import ScheduleAnswer
from pitchpipe.wire.target import Target

SILENCE_SECS = 60.0
"""How long a service that failed is not asked again."""

_silent_until: dict[str, float] = {}
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is looked up: the partitions of a graph, at least one, for one target."""

    target: Target
    models: Sequence[LocalModel]
    identities: Sequence[Identity]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found, and who gave it."""

    source: str
    schedules: lookup.Schedules | None = None

    @cached_property
    def answers(self) -> Mapping[str, ScheduleAnswer]:
        """By workload."""
        given = self.schedules.response.answers if self.schedules is not None else ()
        return {answer.workload: answer for answer in given}


def has_source(options: Options) -> bool:
    """Whether there is anything to ask."""
    return options.url is not None or options.tune or lookup.local_database() is not None


def probe(options: Options) -> None:
    """Asks the service whether it is there, before anything is prepared for it: what is away costs the deadline only."""
    if options.url is None or options.tune or is_silent(options.url):
        return
    url = options.url
    try:
        within(options.deadline_secs, lambda: _healthy(url, options), "the service's probe")
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
        _failed(url, error)


def is_silent(url: str | None) -> bool:
    """Whether the service failed a moment ago."""
    with _lock:
        return url is not None and time.monotonic() < _silent_until.get(url, 0.0)


def forget_failures() -> None:
    """Services that failed are asked again at once."""
    with _lock:
        _silent_until.clear()


def find(wanted: Wanted, options: Options) -> Found:
    """The answers there are; what is missed is reported to the service. Raises nothing: what fails is a warning."""
    if options.tune:
        try:
            _tune(wanted, options)
        except PitchpipeError as error:
            warn_once("tune", f"tuning did not end well, going on with what there is: {error}")
    if options.url is None and lookup.local_database() is None:
        return Found(source="no service and no local database")
    name, away = options.url or "the local database", is_silent(options.url)
    try:
        with lookup.source_of(None, options.url, deadline_secs=options.deadline_secs) as source:
            found = lookup.look_up(
                wanted.identities,
                wanted.target,
                source,
                here=options.target is None,
                cache=cache_dir(),
                deadline_secs=options.deadline_secs,
                or_earlier=True,
                away="it failed a moment ago" if away else None,
            )
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
        if not away:
            _failed(name, error)
        return Found(source=f"{name} failed")
    if found.stale is not None:
        if not away:
            _failed(name, PitchpipeError(found.stale))
        return Found(source=f"earlier answers of {name}", schedules=found)
    if options.url is not None:
        missed = [
            (model, misses.missed(found, known)) for model, known in zip(wanted.models, wanted.identities, strict=True)
        ]
        misses.report_beside(lambda: lookup.service_of(None, options.url), wanted.target, missed)
    return Found(source=name, schedules=found)


def follow(runs: Runs, found: Found, known: Identity, options: Options) -> None:
    """Reports from now on how often a partition that was looked up runs, if a service answered."""
    if options.url is not None and found.schedules is not None:
        usage.follow(runs, found.schedules, known, lambda: lookup.service_of(None, options.url))


def _failed(source: str, error: Exception) -> None:
    with _lock:
        _silent_until[source] = time.monotonic() + SILENCE_SECS
    warn_once(source, f"{source} gives no schedules: {error}")


def _healthy(url: str, options: Options) -> None:
    """Not repeated: a service that refuses a connection costs nothing then."""
    with lookup.connect(url, deadline_secs=options.deadline_secs, repeat=False) as client:
        client.health()


def _tune(wanted: Wanted, options: Options) -> None:
    """Submits a job for each partition and waits for them all: on the service, or on this machine without one."""
    if options.url is not None:
        with lookup.connect(options.url) as client:
            _run_jobs(client, wanted, options)
    else:
        with Embedded(own_database(), wanted.target) as client:
            _run_jobs(client, wanted, options)
            client.close()


def _run_jobs(client: Client, wanted: Wanted, options: Options) -> None:
    budget = Budget(trials=options.trials, seconds=None if options.trials else DEFAULT_SECONDS)
    jobs = []
    for model in wanted.models:
        uploaded = client.upload_model(model.data, name=model.name, format=model.format)
        jobs.append(client.submit(JobRequest(model=uploaded.id, targets=(wanted.target,), budget=budget)))
    for job in jobs:
        view = client.wait(job.id)
        if view.state is not JobState.DONE:
            raise JobFailed(f"job {view.id}: {view.state.value}: {view.error}")
