"""Where schedules come from: a service, else the local database, else nowhere. Never a search in the compile path.

Whatever is wrong with a source costs at most the deadline, once: a service that did not answer is left alone for a while,
and its last answers, which the cache keeps, are used meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pitchpipe.client import Client
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.identity import Identity
from pitchpipe.embedded import DEFAULT_SECONDS, Embedded
from pitchpipe.errors import JobFailed, PitchpipeError
from pitchpipe.model.local import LocalModel
from pitchpipe.places import own_database
from pitchpipe.processes.deadline import within
from pitchpipe.processes.plugins import step
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.warning import warn_once
from pitchpipe.wire.job import Budget, JobRequest, JobState
from pitchpipe.wire.record import LookupRequest, LookupResponse, ScheduleAnswer
from pitchpipe.wire.target import Target

SILENCE_SECS = 60.0
"""How long a service that failed is not asked again."""
MAX_WORKLOADS = 4096
"""Of one look-up."""

_silent_until: dict[str, float] = {}
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is looked up: the partitions of a graph, for one target."""

    target: Target
    models: Sequence[LocalModel]
    identities: Sequence[Identity]

    @property
    def workloads(self) -> list[str]:
        return sorted({workload for identity in self.identities for workload in identity.workloads})

    @property
    def toolchain(self) -> str:
        return self.identities[0].toolchain


@dataclass(frozen=True, kw_only=True)
class Found:
    """Answers by workload, and who gave them."""

    source: str
    answers: dict[str, ScheduleAnswer] = field(default_factory=dict)


def has_source(options: Options) -> bool:
    """Whether there is anything to ask."""
    return options.url is not None or options.tune or local_database() is not None


def local_database() -> str | None:
    """The URL of the database that `pitchpipe tune` fills, if there is one."""
    url = own_database()
    is_absent = url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists()
    return None if is_absent else url


def probe(options: Options) -> None:
    """Asks the service whether it is there, before anything is prepared for it: what is away costs the deadline only."""
    if options.url is None or options.tune or is_silent(options.url):
        return
    url = options.url
    try:
        within(options.deadline_secs, lambda: _healthy(url, options), "the service's probe")
    except Exception as error:  # noqa: BLE001 - whatever a service, or what stands in its place, makes of a call
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
    """The answers there are; raises nothing but what a usage error is."""
    if options.tune:
        try:
            _tune(wanted, options)
        except PitchpipeError as error:
            warn_once("tune", f"tuning did not end well, going on with what there is: {error}")
    requests = _requests(wanted, options)
    if options.url is not None:
        return _of_service(options.url, requests, options)
    if (database := local_database()) is None:
        return Found(source="no service and no local database")
    try:
        lookup = step("lookup_database")
        answered = [within(options.deadline_secs, _asking(lookup, database, one), "the look-up") for one in requests]
    except Exception as error:  # noqa: BLE001 - a database may be locked, of another version, damaged, ...
        warn_once(database, f"the local database gives no schedules: {error}")
        return Found(source="the local database failed")
    return _found("the local database", answered)


def _requests(wanted: Wanted, options: Options) -> list[LookupRequest]:
    here = step("fingerprint")(wanted.target.kind).device_class if options.target is None else None
    return [
        LookupRequest(
            target=wanted.target,
            workloads=tuple(wanted.workloads[start : start + MAX_WORKLOADS]),
            device_class=here,
            toolchain=wanted.toolchain,
        )
        for start in range(0, len(wanted.workloads), MAX_WORKLOADS)
    ]


def _asking(lookup: Any, database: str, request: LookupRequest) -> Any:
    return lambda: LookupResponse.model_validate(lookup(database, request))


def _of_service(url: str, requests: Sequence[LookupRequest], options: Options) -> Found:
    if not is_silent(url):
        try:
            answers = within(options.deadline_secs, lambda: _ask(url, requests, options), "the look-up")
        except Exception as error:  # noqa: BLE001 - whatever a service, or what stands in its place, makes of a call
            _failed(url, error)
        else:
            return _found(url, answers)
    with Client(url) as client:
        earlier = [client.earlier_lookup(request, cache_dir()) for request in requests]
    kept = [answer for answer in earlier if answer is not None]
    return _found(f"earlier answers of {url}", kept) if kept else Found(source=f"{url} failed")


def _failed(url: str, error: Exception) -> None:
    with _lock:
        _silent_until[url] = time.monotonic() + SILENCE_SECS
    warn_once(url, f"{url} gives no schedules: {error}")


def _healthy(url: str, options: Options) -> None:
    with Client(url, timeout_secs=max(options.deadline_secs, 0.01), retry_secs=0.0) as client:
        client.health()


def _ask(url: str, requests: Sequence[LookupRequest], options: Options) -> list[LookupResponse]:
    with Client(url, timeout_secs=max(options.deadline_secs, 0.01), retry_secs=0.0) as client:
        return [client.lookup(request, cache=cache_dir()) for request in requests]


def _found(source: str, responses: Sequence[LookupResponse]) -> Found:
    return Found(
        source=source, answers={answer.workload: answer for response in responses for answer in response.answers}
    )


def _tune(wanted: Wanted, options: Options) -> None:
    """Submits a job for each partition and waits for them all: on the service, or on this machine without one."""
    if options.url is not None:
        with Client(options.url) as client:
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
