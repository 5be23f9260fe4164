"""Where a workload stands in a model, and the schedules that won there: tuning inside the model (ADR 0073)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import Field

from pitchpipe.wire._base import Digest, Seconds, Wire
from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.target import Target

MAX_TASKS = 64
"""Of one model that are tuned inside it, at most."""
MAX_EACH = 16
"""Candidates of each of them."""


class Neighbours(Wire):
    """What runs right before and right after a workload, at one of its places in a model."""

    before: Digest | None = Field(description="absent where it is the first of a run")
    after: Digest | None = Field(description="absent where it is the last")


class Context(Wire):
    """Where a workload stands in a model: the neighbours that it has, each once however often it has them.

    So models of one family have equal contexts, whatever their depth.
    """

    neighbours: tuple[Neighbours, ...] = Field(min_length=1, max_length=4096, description="sorted, none twice")

    @property
    def digest(self) -> str:
        """What a look-up names it by."""
        return json_digest(self.model_dump(mode="json"))


def contexts_of(run: Sequence[str]) -> dict[str, Context]:
    """The context of each workload of a model. run: the workloads in the order in which a run computes them."""
    around: dict[str, set[tuple[str, str]]] = {}
    for before, workload, after in zip(["", *run], run, [*run[1:], ""], strict=False):
        around.setdefault(workload, set()).add((before, after))
    return {
        workload: Context(
            neighbours=tuple(Neighbours(before=before or None, after=after or None) for before, after in sorted(found))
        )
        for workload, found in around.items()
    }


class ContendersRequest(Wire):
    """Of which workloads, and under which circumstances, the fastest schedules are wanted."""

    target: Target
    workloads: tuple[Digest, ...] = Field(min_length=1, max_length=MAX_TASKS)
    device_class: Digest
    toolchain: str = Field(max_length=256)
    each: int = Field(ge=1, le=MAX_EACH, description="of each workload, at most")


class Contender(Wire):
    """A schedule that may be the fastest inside a model."""

    workload: Digest
    record: str | None = Field(description="record id; none of a baseline that is served")
    trace: str
    secs: Seconds = Field(description="median seconds alone")


class ContendersResponse(Wire):
    """In the asked order of workloads; of each what is served alone first, if anything is, then the fastest first."""

    contenders: tuple[Contender, ...]


class WholeRun(Wire):
    """Runs of a whole model in several fresh processes: sample i is of process i modulo `processes`."""

    run_secs: tuple[Seconds, ...] = Field(min_length=1, max_length=1000, description="seconds of one run, per sample")
    processes: int = Field(ge=1, le=64)

    @property
    def secs(self) -> float:
        """The median sample."""
        return statistics.median(self.run_secs)


class ChosenInContext(Wire):
    """A schedule of one of the model's workloads."""

    workload: Digest
    context: Context
    record: str | None = Field(
        default=None, max_length=64, description="record id; none: what is served alone is served here too"
    )


class InContext(Wire):
    """Schedules with which a model was faster, and how that was found."""

    target: Target
    device_class: Digest
    toolchain: str = Field(max_length=256)
    model: str = Field(max_length=256, description="its name; a label")
    before: WholeRun = Field(description="with what was served when the model was tuned inside")
    after: WholeRun = Field(description="with the chosen schedules, timed in turns with the former")
    chosen: tuple[ChosenInContext, ...] = Field(min_length=1, max_length=MAX_TASKS, description="each workload once")
