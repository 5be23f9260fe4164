"""Where the time of a model goes: each kernel inside the running model beside its time as a task, and what is between.

A task was timed alone, with its arguments in the caches or not as far as the worker could foresee (ADRs 0027 and 0047). In
the model a kernel meets what its neighbours left behind, so the two differ; what they differ by is shown, kernel by kernel.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from pitchpipe.arrays import numpy_dtype
from pitchpipe.deploy import identity
from pitchpipe.deploy.artifact import CompiledModel, cache_dir
from pitchpipe.deploy.lookup import Schedules, Source, look_up, nobody_to_ask, resolve_target, source_of
from pitchpipe.model.comparison import drawn
from pitchpipe.model.local import local_model
from pitchpipe.sdk import load
from pitchpipe.target_kind import Step
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.record import LookupResponse, Tier
from pitchpipe.wire.target import Target

RUNS = 20
_PART = re.compile(r"(_prepacked)?(_kernel(_\d+)?)?$")
"""What kernels have behind the name of their tensor function: where a schedule laid a weight out anew, and on a GPU."""


class KernelTime(Wire):
    """All calls of the tensor functions that compute one workload. Times are seconds of one run of the model."""

    name: str = Field(description="of the first of its tensor functions")
    workload: Digest | None = Field(description="None for a kernel that is no task, such as a copy of a result")
    calls: int = Field(description="in one run; on a GPU, launches")
    secs: float = Field(description="inside the running model")
    task_secs: float | None = Field(description="served seconds of the task, times how often it occurs; None: unknown")
    tier: Tier


class BetweenTime(Wire):
    """Calls of one function of the runtime: it allocates, checks, or moves."""

    name: str
    calls: int
    secs: float


class Profile(Wire):
    """Of a model on this machine. Times are medians over runs, in seconds of one run."""

    model: str
    target: Target
    runs: int
    secs: float = Field(description="of a run that nobody watches")
    kernels: tuple[KernelTime, ...] = Field(description="the costliest first")
    between: tuple[BetweenTime, ...] = Field(description="the costliest first")
    steps: tuple[tuple[str, float], ...] = Field(description="name and seconds of every step, in order")

    @property
    def kernel_secs(self) -> float:
        """Of all kernels."""
        return sum(kernel.secs for kernel in self.kernels)

    @property
    def task_secs(self) -> float | None:
        """Of all tasks, each timed alone; None where one of them is unknown."""
        known = [kernel.task_secs for kernel in self.kernels if kernel.workload is not None]
        return None if None in known else sum(secs for secs in known if secs is not None)

    @property
    def dispatch_secs(self) -> float:
        """Seconds of a run that are in no step. Negative where watching the steps costs more: the whole run is timed
        without it."""
        return self.secs - sum(secs for _, secs in self.steps)

    def chrome_trace(self) -> str:
        """The steps one behind another as a JSON trace, in microseconds, which Perfetto and chrome://tracing show."""
        events, at = [], 0.0
        kernels = {kernel.name for kernel in self.kernels}
        for name, secs in self.steps:
            row = "kernels" if _function(name) in kernels else "runtime"
            events.append({"name": name, "cat": row, "ph": "X", "ts": at, "dur": secs * 1e6, "pid": 1, "tid": 1})
            at += secs * 1e6
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def profile(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    schedules: Schedules | None = None,
    source: Source | None = None,
    trust: bool = False,
    precision: str = "ieee",
    runs: int = RUNS,
    cache: Path | None = None,
) -> Profile:
    """Builds the model as `load` does, with the schedules that a look-up finds, and runs it on drawn inputs.

    On a CPU every call of the virtual machine is timed; on a GPU a kernel's time is what a run is shorter by without it.
    source: who is asked for schedules; default: as for `fetch`, and where there is nobody to ask, the default build is
    profiled. Raises errors of pitchpipe.errors, as `fetch` and `load`.
    """
    import numpy as np

    folder = cache or cache_dir()
    found = local_model(model, example_inputs, trust=trust, precision=precision)
    wanted = schedules.target if schedules is not None else resolve_target(target, folder)
    known = identity.identify(folder, found, wanted)
    if schedules is None and source is None and nobody_to_ask():
        schedules = Schedules(target=wanted, response=LookupResponse(answers=()))
    elif schedules is None:
        here = target == "auto"
        with contextlib.nullcontext(source) if source is not None else source_of(None) as asked:
            schedules = look_up([known], wanted, asked, here=here, cache=folder)
    compiled = load(found, schedules, cache=folder)
    rng = np.random.default_rng(0)
    arrays = [drawn(spec.shape, numpy_dtype(spec.dtype), rng) for spec in compiled.inputs]
    return profile_of(found.name, compiled, arrays, known, schedules, runs)


def profile_of(
    name: str, compiled: CompiledModel, arrays: Sequence[Any], known: identity.Identity, schedules: Schedules, runs: int
) -> Profile:
    """Of a compiled model on these arrays. known: what its tensor functions compute."""
    steps = compiled.steps(*arrays, repeats=runs)
    return Profile(
        model=name,
        target=schedules.target,
        runs=runs,
        secs=statistics.median(compiled.run_secs(*arrays, repeats=runs)),
        kernels=_kernels([step for step in steps if step.kernel], known, schedules),
        between=_between([step for step in steps if not step.kernel]),
        steps=tuple((step.name, step.secs) for step in steps),
    )


def _kernels(steps: Sequence[Step], known: identity.Identity, schedules: Schedules) -> tuple[KernelTime, ...]:
    answers = {answer.workload: answer for answer in schedules.response.answers}
    groups: dict[str, list[Step]] = {}
    for step in steps:
        function = _function(step.name)
        groups.setdefault(known.functions.get(function, function), []).append(step)
    rows = []
    for key, group in groups.items():
        answer, weight = answers.get(key), known.weights.get(key)
        best = answer.best if answer is not None else None
        rows.append(
            KernelTime(
                name=_function(group[0].name),
                workload=key if weight is not None else None,
                calls=len(group),
                secs=sum(step.secs for step in group),
                task_secs=weight * best.secs if weight is not None and best is not None else None,
                tier=answer.tier if answer is not None else Tier.NONE,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.secs))


def _between(steps: Sequence[Step]) -> tuple[BetweenTime, ...]:
    groups: dict[str, list[float]] = {}
    for step in steps:
        groups.setdefault(step.name, []).append(step.secs)
    rows = [BetweenTime(name=name, calls=len(secs), secs=sum(secs)) for name, secs in groups.items()]
    return tuple(sorted(rows, key=lambda row: -row.secs))


def _function(kernel: str) -> str:
    """The tensor function that a kernel is part of."""
    return _PART.sub("", kernel)
