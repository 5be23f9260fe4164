"""Look-ups: the best known schedules of workloads for a target. `fetch`, `load_safely` and torch.compile all go this way.

Who is asked: the client or the URL that was given, else the service at PITCHPIPE_URL, else the database that `pitchpipe
tune` fills on this machine, if there is one. What is asked: all workloads of the models at once, with the toolchain that
identified them, and with this machine's device class where this machine will run them. When an answer is due: the deadline
is of all requests and their repetitions together. What is raised: errors of pitchpipe.errors, whoever was asked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pitchpipe.client import Client
from pitchpipe.deploy import identity
from pitchpipe.deploy.building import BuildSpec
from pitchpipe.errors import PitchpipeError, Unreachable
from pitchpipe.model.local import LocalModel, detect_target
from pitchpipe.model.reference import Expected
from pitchpipe.places import own_database
from pitchpipe.processes.deadline import within
from pitchpipe.processes.plugins import step
from pitchpipe.wire.record import LookupRequest, LookupResponse, Placed
from pitchpipe.wire.target import Target

MAX_WORKLOADS = 4096
"""Of one request."""
PATIENCE_SECS = 30.0
"""Longest silence of a service, and longest that calls are repeated while it is away; less where the deadline is. Who waits
longer for a build gains nothing by waiting longer for a service."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Schedules:
    """Schedules fetched for a model and a target: what `load` applies."""

    target: Target
    response: LookupResponse
    stale: str | None = None
    """What kept the service from answering, where this is what it answered before."""

    def __repr__(self) -> str:
        found = f"{len(self.traces)} of {len(self.response.answers)} workloads have a schedule"
        return f"<{type(self).__name__}: {found}, for {self.target.key}>"

    @property
    def traces(self) -> dict[str, str]:
        """Workload digest -> trace, for every workload that has a best."""
        return {answer.workload: answer.best.trace for answer in self.response.answers if answer.best is not None}

    @property
    def compiler(self) -> tuple[str, ...] | None:
        """Versions of what made the artifact that came along, where nothing here could make one; else None."""
        return None

    def install(self, spec: BuildSpec, cache: Path) -> None:
        """Puts the artifact of the spec into the cache, if it came along; a look-up brings none."""

    def expected(self, model: LocalModel) -> Expected | None:  # noqa: ARG002 - of those that bring some
        """What the model's framework computes, as whoever ran it elsewhere found; a look-up brings nothing."""
        return None


class Source(Protocol):
    """Who answers look-ups: a service's Client, or LocalDatabase. Raises errors of pitchpipe.errors only."""

    def lookup(self, request: LookupRequest, *, cache: Path | None = None) -> LookupResponse:
        """One answer per workload. With a folder a service's answer is kept there."""

    def earlier_lookup(self, request: LookupRequest, cache: Path) -> LookupResponse | None:
        """What was answered before, from the folder; nobody is asked."""


class LocalDatabase:
    """The database that `pitchpipe tune` fills on this machine, read without a service. Thread-safe."""

    def __init__(self, url: str) -> None:
        self.url = url

    def lookup(self, request: LookupRequest, *, cache: Path | None = None) -> LookupResponse:  # noqa: ARG002 - a Source
        """As a service with this database would answer."""
        try:
            return LookupResponse.model_validate(step("lookup_database")(self.url, request))
        except PitchpipeError:
            raise
        except Exception as error:  # a database may be locked, damaged, no database at all, ...
            raise PitchpipeError(f"{self.url} cannot be read: {error}") from error

    def earlier_lookup(self, request: LookupRequest, cache: Path) -> None:
        """Nothing is kept: a database that can be read has it all."""


def local_database() -> LocalDatabase | None:
    """The one of this machine, if there is one."""
    url = own_database()
    is_absent = url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists()
    return None if is_absent else LocalDatabase(url)


def nobody_to_ask() -> bool:
    """Whether neither a service is named nor a database of this machine is there."""
    return not os.environ.get("PITCHPIPE_URL") and local_database() is None


def connect(url: str | None = None, *, deadline_secs: float | None = None, repeat: bool = True) -> Client:
    """A client of the service there, or at PITCHPIPE_URL, whose calls fit into the deadline. Raises InvalidInput without a
    URL."""
    secs = PATIENCE_SECS if deadline_secs is None else max(min(deadline_secs, PATIENCE_SECS), 0.01)
    return Client(url, timeout_secs=secs, retry_secs=secs if repeat else 0.0)


@contextlib.contextmanager
def service_of(
    client: Client | None, url: str | None = None, *, deadline_secs: float | None = None
) -> Iterator[Client]:
    """The client, or one of `connect` for as long as the block runs."""
    if client is not None:
        yield client
    else:
        with connect(url, deadline_secs=deadline_secs) as own:
            yield own


@contextlib.contextmanager
def source_of(
    client: Client | None, url: str | None = None, *, deadline_secs: float | None = None
) -> Iterator[Client | LocalDatabase]:
    """The same, or the local database where there is no service. Raises InvalidInput where there is neither."""
    named = client is not None or url or os.environ.get("PITCHPIPE_URL")
    if not named and (database := local_database()) is not None:
        yield database
    else:
        with service_of(client, url, deadline_secs=deadline_secs) as service:
            yield service


def look_up(
    known: Sequence[identity.Identity],
    target: Target,
    source: Source,
    *,
    here: bool,
    cache: Path,
    deadline_secs: float | None = None,
    or_earlier: bool = False,
    away: str | None = None,
) -> Schedules:
    """The schedules of models that are known on the target, identified with one toolchain.

    here: this machine will run them.
    or_earlier: where there is no answer, what the source answered to the same question before counts, if the cache has it.
    away: what is known to keep the source from answering: it is not asked.

    Raises errors of pitchpipe.errors, DeadlineExceeded for an answer that is late, Unreachable for a source that is away.
    """
    workloads = tuple(dict.fromkeys(workload for one in known for workload in one.workloads))
    device = device_class(target) if here else None
    contexts = _contexts(known)
    requests = [
        LookupRequest(
            target=target,
            workloads=workloads[at : at + MAX_WORKLOADS],
            device_class=device,
            toolchain=known[0].toolchain,
            contexts=tuple(
                Placed(workload=workload, context=contexts[workload])
                for workload in workloads[at : at + MAX_WORKLOADS]
                if workload in contexts
            ),
        )
        for at in range(0, len(workloads), MAX_WORKLOADS)
    ]
    stale = None
    try:
        if away is not None:
            raise Unreachable(away)
        responses = within(
            deadline_secs, lambda: [source.lookup(request, cache=cache) for request in requests], "the look-up"
        )
    except PitchpipeError as error:
        earlier = [source.earlier_lookup(request, cache) for request in requests] if or_earlier else []
        responses, stale = [found for found in earlier if found is not None], error.detail
        if len(responses) < len(requests):
            raise
    answers = tuple(answer for response in responses for answer in response.answers)
    if sorted(answer.workload for answer in answers) != sorted(workloads):
        raise PitchpipeError("the service answered for other workloads than it was asked for")
    return Schedules(target=target, response=LookupResponse(answers=answers), stale=stale)


def _contexts(known: Sequence[identity.Identity]) -> dict[str, str]:
    """Digests of the contexts that workloads have in all of the models that have them."""
    found: dict[str, set[str]] = {}
    for one in known:
        for workload, context in one.contexts.items():
            found.setdefault(workload, set()).add(context.digest)
    return {workload: next(iter(digests)) for workload, digests in found.items() if len(digests) == 1}


def device_class(target: Target) -> str:
    """Of this machine's device for such targets."""
    found: str = step("fingerprint")(target.kind).device_class
    return found


def resolve_target(target: Target | str, cache: Path) -> Target:
    """The target itself, parsed, or this machine's for "auto"."""
    if isinstance(target, Target):
        return target
    return identity.this_target(cache) if target == "auto" else detect_target(target)
