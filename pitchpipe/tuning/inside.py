"""Tuning inside the model, on the machine that has the device: the fastest schedules of the costliest tasks, tried in the
whole model (ADR 0073), and those of tasks that the job had no seconds left to confirm. The service says what may be tried,
and stores what won; a child of this process builds the model and times it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from pitchpipe.client import Client
from pitchpipe.deploy import identity
from pitchpipe.deploy.lookup import Schedules, look_up
from pitchpipe.errors import PitchpipeError
from pitchpipe.model.local import LocalModel
from pitchpipe.processes.child import run_step
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.context import MAX_TASKS, ChosenInContext, Contender, ContendersRequest, InContext, WholeRun
from pitchpipe.wire.job import Budget
from pitchpipe.wire.record import Best, Tier
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")

SHARE = 0.1
"""Of a budget in seconds."""
MOST_SECS = 60.0
"""Of a budget without seconds."""
MOST_TASKS = 10
"""The costliest of a model, which are nearly all of its time."""
MOST_EACH = 4
"""Schedules of each that are tried beside the one that is served."""
MOST_UNSERVED = 2
"""Of each task without one, which runs its default schedule."""
NEAR = 1.25
"""What takes longer alone than so many times the fastest is not tried."""
BUILD_SECS = 0.5
"""Of a core, for one schedule: Triton and its assembler take 0.2 to 0.4 s."""


class Inside(Wire):
    """What tuning inside a model brought. Seconds are of one run of the model as a CUDA graph, on drawn inputs."""

    tried: int = Field(description="schedules that took their turn in the model, beside those that were served")
    rounds: tuple[float, ...] = Field(description="share of the model's time that each visit of all tasks gained")
    before: WholeRun | None = Field(description="absent where no other schedule was faster in any comparison")
    after: WholeRun | None = Field(description="with the schedules that were fastest, whether or not for certain")
    changed: tuple[Digest, ...] = Field(
        description="workloads with another schedule from now on; none without certainty"
    )
    trials: int = Field(description="variants of the model that were timed")
    build_secs: float
    search_secs: float

    @property
    def gain(self) -> float:
        """Share of the model's time; 0 where nothing was certain."""
        if not self.changed or self.before is None or self.after is None:
            return 0.0
        return 1 - self.after.secs / self.before.secs

    def __str__(self) -> str:
        if not self.changed or self.before is None or self.after is None:
            return f"none of {self.tried} other schedules is faster in the model for certain"
        of = "1 task" if len(self.changed) == 1 else f"{len(self.changed)} tasks"
        times = f"{self.before.secs * 1e6:.1f} to {self.after.secs * 1e6:.1f} us"
        return f"{of} with other schedules in the model: {times}, {self.gain:.1%} less"


def outside(budget: Budget, target: Target) -> Budget:
    """What a job may spend of a budget, so that SHARE of the seconds is left for tuning inside the model."""
    if budget.seconds is None or not kind_of(target).tunes_inside:
        return budget
    return budget.model_copy(update={"seconds": (1 - SHARE) * budget.seconds})


def tune_inside(
    service: Client, model: LocalModel, target: Target, cache: Path, *, seconds: float | None = None
) -> tuple[Schedules, Inside | None]:
    """Tries a tuned model's fastest schedules inside it on this machine's device.

    Gives what is served for it from now on, and what came of it: None where there was nothing to try.

    seconds: of building, searching and confirming, about; default MOST_SECS. Raises errors of pitchpipe.errors.
    """
    known = identity.identify(cache, model, target)
    served = look_up([known], target, service, here=True, cache=cache)
    spend = MOST_SECS if seconds is None else seconds
    bests = {
        one.workload: one.best for one in served.response.answers if one.best is not None and one.tier is Tier.EXACT
    }
    unserved = [one.workload for one in served.response.answers if one.tier is Tier.NONE]
    tried = _tried(service, target, known, bests, unserved, int(spend / 2 * usable_cores() / BUILD_SECS))
    if not tried:
        return served, None
    told: Mapping[str, Any] = run_step(
        "tune_in_graph",
        model.data,
        model_format=model.format.value,
        target=target.key,
        traces=served.traces,
        alternatives={workload: [one.trace for one in some] for workload, some in tried.items()},
        seconds=spend,
    )
    found = Inside(
        tried=sum(map(len, tried.values())) - len(told["refused"]),
        rounds=tuple(one["gain"] for one in told["rounds"]),
        before=None if told["before"] is None else WholeRun.model_validate(told["before"]),
        after=None if told["after"] is None else WholeRun.model_validate(told["after"]),
        changed=tuple(told["choice"]),
        trials=told["trials"],
        build_secs=told["build_secs"],
        search_secs=told["search_secs"],
    )
    if not found.changed or found.before is None or found.after is None:
        return served, found
    some = next(iter(bests.values()))
    service.put_in_context(
        InContext(
            target=target,
            device_class=some.device_class,
            toolchain=some.toolchain,
            model=model.name[:256],
            before=found.before,
            after=found.after,
            chosen=tuple(
                ChosenInContext(
                    workload=workload, context=known.contexts[workload], record=tried[workload][number - 1].record
                )
                for workload, number in told["choice"].items()
            ),
        )
    )
    return look_up([known], target, service, here=True, cache=cache), found


def tune_inside_or_tell(
    service: Client,
    model: LocalModel,
    target: Target,
    cache: Path,
    budget: Budget,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Schedules | None, Inside | None]:
    """The same with its share of a budget. What keeps it from being done is logged, and the best alone are served then; None
    also where models are not tuned inside."""
    if not kind_of(target).tunes_inside:
        return None, None
    say(f"{model.name}: trying the fastest schedules inside the model")
    try:
        seconds = None if budget.seconds is None else SHARE * budget.seconds
        schedules, found = tune_inside(service, model, target, cache, seconds=seconds)
    except PitchpipeError as error:
        log.warning("%s was not tuned inside: %s", model.name, error.detail)
        return None, None
    say(f"{model.name}: {found or 'nothing to try inside the model'}")
    return schedules, found


def _tried(
    service: Client,
    target: Target,
    known: identity.Identity,
    bests: Mapping[str, Best],
    unserved: Sequence[str],
    most: int,
) -> dict[str, list[Contender]]:
    """By workload what is tried beside what runs now, at most so many schedules: first of workloads for which nothing is
    served, then of those for which `bests` are, each time the costliest first."""
    if not bests:
        return {}
    costly = sorted(bests, key=lambda workload: -known.weights[workload] * bests[workload].secs)[:MOST_TASKS]
    some = bests[costly[0]]
    asked = [*costly, *sorted(unserved, key=lambda workload: -known.weights[workload])][:MAX_TASKS]
    response = service.contenders(
        ContendersRequest(
            target=target,
            workloads=tuple(asked),
            device_class=some.device_class,
            toolchain=some.toolchain,
            each=MOST_EACH + 1,
        )
    )
    by_workload: dict[str, list[Contender]] = {}
    for one in response.contenders:
        by_workload.setdefault(one.workload, []).append(one)
    timed = [workload for workload in asked if workload not in bests and workload in by_workload]
    timed.sort(key=lambda workload: -known.weights[workload] * by_workload[workload][0].secs)
    found: dict[str, list[Contender]] = {}
    for workload in (*timed, *costly):
        best, contenders = bests.get(workload), by_workload.get(workload, [])
        near = NEAR * (contenders[0].secs if best is None else best.secs) if contenders else 0.0
        others = [one for one in contenders if one.secs <= near and (best is None or one.trace != best.trace)]
        others = others[: min(MOST_UNSERVED if best is None else MOST_EACH, most)]
        most -= len(others)
        if others:
            found[workload] = others
    return found
