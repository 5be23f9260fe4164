"""Look-ups: the best known schedules of workloads for a target, asked of a service."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pitchpipe.client import Client
from pitchpipe.deploy import identity
from pitchpipe.deploy.building import Recipe
from pitchpipe.errors import PitchpipeError
from pitchpipe.model.local import LocalModel, detect_target
from pitchpipe.model.reference import Expected
from pitchpipe.processes.deadline import within
from pitchpipe.processes.plugins import step
from pitchpipe.wire.record import LookupRequest, LookupResponse
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")

MAX_WORKLOADS = 4096
"""Of one look-up."""


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Schedules fetched for a model and a target: what `load` applies."""

    target: Target
    response: LookupResponse
    stale: str | None = None
    """What kept the service from answering, where this is what it answered before."""

    @property
    def traces(self) -> dict[str, str]:
        """Workload digest -> trace, for every workload that has a best."""
        return {answer.workload: answer.best.trace for answer in self.response.answers if answer.best is not None}

    def install(self, recipe: Recipe, cache: Path) -> None:
        """Puts the artifact of the recipe into the cache, if it came along; a look-up brings none."""

    def expected(self, model: LocalModel) -> Expected | None:  # noqa: ARG002 - of those that bring some
        """What the model's framework computes, as whoever ran it elsewhere found; a look-up brings nothing."""
        return None


@contextlib.contextmanager
def service_of(client: Client | None) -> Iterator[Client]:
    """The client, or one of the environment for as long as the block runs."""
    if client is not None:
        yield client
    else:
        with Client() as own:
            yield own


def look_up(
    known: identity.Identity,
    target: Target,
    service: Client,
    *,
    here: bool,
    cache: Path,
    deadline_secs: float | None = None,
    or_earlier: bool = False,
) -> Schedules:
    """The schedules of a model that is known on the target; `here` says that this machine will run it.

    Raises errors of pitchpipe.errors, DeadlineExceeded for an answer that is late; with `or_earlier` only where the cache
    does not hold what the service answered before.
    """
    device = device_class(target) if here else None
    requests = [
        LookupRequest(
            target=target,
            workloads=known.workloads[at : at + MAX_WORKLOADS],
            device_class=device,
            toolchain=known.toolchain,
        )
        for at in range(0, len(known.workloads), MAX_WORKLOADS)
    ]
    stale = None
    try:
        responses = within(
            deadline_secs, lambda: [service.lookup(request, cache=cache) for request in requests], "look-up"
        )
    except PitchpipeError as error:
        earlier = [service.earlier_lookup(request, cache) for request in requests] if or_earlier else []
        responses, stale = [found for found in earlier if found is not None], error.detail
        if len(responses) < len(requests):
            raise
    answers = tuple(answer for response in responses for answer in response.answers)
    if sorted(answer.workload for answer in answers) != sorted(known.workloads):
        raise PitchpipeError("the service answered for other workloads than it was asked for")
    return Schedules(target=target, response=LookupResponse(answers=answers), stale=stale)


def device_class(target: Target) -> str:
    """Of this machine's device for such targets."""
    found: str = step("fingerprint")(target.kind).device_class
    return found


def resolve_target(target: Target | str, cache: Path) -> Target:
    """The target itself, parsed, or this machine's for "auto"."""
    if isinstance(target, Target):
        return target
    return identity.this_target(cache) if target == "auto" else detect_target(target)
