"""Coverage: what share of a model's expected time runs on schedules of its own.

Expected seconds are those of confirming runs, times how often the workload occurs. What no schedule is served for was
timed by nobody: its seconds are unknown, and are said to be, with its share of the floating-point operations instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from pitchpipe.client import Client
from pitchpipe.deploy import identity, lookup
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.lockfile import Locked
from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import local_model
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.record import ScheduleAnswer, Tier
from pitchpipe.wire.target import Target


class Group(StrEnum):
    """How far a workload is covered."""

    EXACT = "exact"
    """Confirmed for this target, on a device of this class, with this toolchain."""
    NEAR = "near"
    """Confirmed elsewhere, or for another workload: it may be slower or faster here."""
    BASELINE = "default"
    """No schedule is served for it: it runs its default schedule where that was checked, else the baseline."""


class Covered(Wire):
    """One workload of a model."""

    workload: Digest
    operators: str
    weight: int = Field(ge=1, description="times it occurs in one run")
    tier: Tier
    group: Group
    reason: str
    secs: float | None = Field(description="expected seconds of all its occurrences; None is unknown")
    flops: float = Field(description="floating-point operations of all its occurrences")


class Share(Wire):
    """Of one group, in a whole model."""

    group: Group
    workloads: int
    unknown: int = Field(description="workloads whose seconds are unknown")
    secs: float = Field(description="sum of the known seconds")
    of_known_time: float | None = Field(description="None when no seconds are known at all")
    of_flops: float | None


class Coverage(Wire):
    """A model's workloads, the costliest first, and the shares of the groups."""

    workloads: tuple[Covered, ...]
    shares: tuple[Share, ...]
    known_secs: float
    complete: bool = Field(description="all seconds are known: `of_known_time` is then the share of the expected time")


def coverage(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    schedules: lookup.Schedules | None = None,
    client: Client | None = None,
    trust: bool = False,
) -> Coverage:
    """What a look-up (or the given schedules: of a pack, or fetched before) covers of a model.

    Raises errors of pitchpipe.errors.
    """
    cache = cache_dir()
    wanted = schedules.target if schedules is not None else lookup.resolve_target(target, cache)
    known = identity.identify(cache, local_model(model, example_inputs, trust=trust), wanted)
    if isinstance(schedules, Locked):
        raise InvalidInput("schedules of a lock file have no tiers: ask for the coverage of what is served")
    if schedules is not None:
        return covered(known, schedules.response.answers)
    with lookup.source_of(client) as source:
        found = lookup.look_up([known], wanted, source, here=target == "auto", cache=cache)
    return covered(known, found.response.answers)


def covered(known: identity.Identity, answers: Sequence[ScheduleAnswer]) -> Coverage:
    """The same of what is known already. A workload without an answer counts as one without a schedule."""
    by_workload = {answer.workload: answer for answer in answers}
    rows = [_row(known, workload, by_workload.get(workload)) for workload in known.workloads]
    rows.sort(key=lambda row: (-(row.secs or 0.0), -row.flops, row.workload))
    known_secs = sum(row.secs for row in rows if row.secs is not None)
    flops = sum(row.flops for row in rows)
    shares = []
    for group in Group:
        mine = [row for row in rows if row.group is group]
        secs = sum(row.secs for row in mine if row.secs is not None)
        shares.append(
            Share(
                group=group,
                workloads=len(mine),
                unknown=sum(row.secs is None for row in mine),
                secs=secs,
                of_known_time=secs / known_secs if known_secs else None,
                of_flops=sum(row.flops for row in mine) / flops if flops else None,
            )
        )
    complete = all(row.secs is not None for row in rows)
    return Coverage(workloads=tuple(rows), shares=tuple(shares), known_secs=known_secs, complete=complete)


def _row(known: identity.Identity, workload: str, answer: ScheduleAnswer | None) -> Covered:
    tier = answer.tier if answer is not None else Tier.NONE
    group = {Tier.EXACT: Group.EXACT, Tier.NONE: Group.BASELINE}.get(tier, Group.NEAR)
    weight, signature = known.weights[workload], known.signatures[workload]
    return Covered(
        workload=workload,
        operators=signature.operators,
        weight=weight,
        tier=tier,
        group=group,
        reason=answer.reason if answer is not None else "no answer",
        secs=weight * answer.best.secs if answer is not None and answer.best is not None else None,
        flops=weight * signature.flops,
    )
