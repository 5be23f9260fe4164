"""The builders of one batch on a GPU: forks that turn candidates into programs, as many at a time as there is memory for.

Stragglers. The device compiler takes ten times as long as usual for a kernel whose accumulators do not fit the registers,
and such a kernel is slow. In a search, builders that are all a batch still waits for are given up once they have taken
longer than both STRAGGLER_SECS and STRAGGLER_FACTOR times the batch's median: build_timeout, whatever the limit. (On an
H200, of 64 random schedules of a 1024^3 product two built for longer than 2 s; the slower one ran 190 times as long as
the best.)
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Protocol

from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig
from tuner.measure.candidate import Bench
from tuner.measure.gpu_code import DeviceCompiler
from workers.sandbox.gpu.children import builder_body
from workers.sandbox.nursery import Child, Ended, Limits, Nursery
from workers.sandbox.report import kind_of

STRAGGLER_SECS = 2.0
STRAGGLER_FACTOR = 6.0
_AHEAD = 32
"""Programs that wait for the runner at most: builders that are further ahead would only hold memory."""


class BuildHost(Protocol):
    """The task process that forks them."""

    @property
    def nursery(self) -> Nursery: ...

    @property
    def slots(self) -> Sequence[mmap]:
        """Memory shared with children: one for each builder at work."""

    @property
    def compiler(self) -> DeviceCompiler: ...

    def builder_limits(self, config: MeasureConfig) -> Limits: ...


@dataclass(eq=False, kw_only=True)
class Built:
    """A candidate with its program."""

    candidate: Candidate
    program: bytes
    build_secs: float
    repeats: int = 0
    judged: bool = False
    """It was wrong in a confirming run after others, and is checked before them now."""


class Builders:
    """What waits to be built, is being built, and waits to be timed. `fail` is told of those that do not build."""

    def __init__(
        self,
        host: BuildHost,
        bench: Bench,
        candidates: Sequence[Candidate],
        config: MeasureConfig,
        fail: Callable[[Candidate, FailureKind, str], None],
    ) -> None:
        self._host, self._bench, self._config, self._fail = host, bench, config, fail
        self._waiting = deque(candidates)
        self._building: set[Child] = set()
        self._slots = list(host.slots)
        self._secs: list[float] = []
        self.ready: deque[Built] = deque()

    @property
    def pending(self) -> bool:
        """Whether more will become ready, or fail."""
        return bool(self._waiting or self._building)

    @property
    def at_work(self) -> bool:
        """Whether any computes now."""
        return bool(self._building)

    def spawn(self) -> None:
        """Starts as many as there is room for."""
        while self._waiting and self._slots and len(self.ready) < _AHEAD:
            candidate, slot = self._waiting.popleft(), self._slots.pop()
            body = builder_body(self._bench, candidate, self._host.compiler, slot)
            limits = self._host.builder_limits(self._config)
            child = self._host.nursery.spawn(body, limits, deadline_secs=self._config.build_timeout_secs)
            child.note = {"candidate": candidate, "slot": slot, "stage": "applying"}
            self._building.add(child)

    def absorb(self, child: Child, event: dict[str, Any] | Ended) -> None:
        """An event of a child, which may be another's."""
        if child not in self._building:
            return
        note = child.note
        if isinstance(event, Ended):
            self._building.discard(child)
            self._slots.append(note["slot"])
            if "size" in note:
                program = bytes(note["slot"][: note["size"]])
                self.ready.append(Built(candidate=note["candidate"], program=program, build_secs=note["build_secs"]))
                self._secs.append(note["build_secs"])
            elif "failed" not in note:
                self._fail(note["candidate"], _failure(note["stage"], event), f"the builder {event}")
        elif "failed" in event:
            note |= event
            self._fail(note["candidate"], kind_of(event), str(event.get("detail", "")))
        elif event.get("stage") == "built":
            size, build_secs = event.get("size"), event.get("build_secs")
            if type(size) is int and 0 < size <= len(note["slot"]) and isinstance(build_secs, float):
                note |= event
        else:
            note["stage"] = str(event.get("stage"))

    def give_up_stragglers(self) -> None:
        """Ends the builders that are all there is to wait for, where each has taken far longer than the others did."""
        if self._waiting or self.ready or not self._secs:
            return
        median_secs = statistics.median(self._secs)
        limit_secs = max(STRAGGLER_SECS, STRAGGLER_FACTOR * median_secs)
        now = time.monotonic()
        if any(now - child.started < limit_secs for child in self._building):
            return
        stragglers = [child for child in self._building if "failed" not in child.note]
        self.end()
        for child in stragglers:
            self._fail(
                child.note["candidate"],
                FailureKind.BUILD_TIMEOUT,
                f"given up after {now - child.started:.1f} s: the median build of its batch took {median_secs:.2f} s",
            )

    def end(self) -> None:
        """Ends those at work, without results."""
        self._host.nursery.end_all(self._building)
        self._slots += [child.note["slot"] for child in self._building]
        self._building.clear()

    def left(self) -> list[Candidate]:
        """Those without a result so far."""
        building = [child.note["candidate"] for child in self._building if "failed" not in child.note]
        return [*self._waiting, *building, *(built.candidate for built in self.ready)]


def _failure(stage: str, ended: Ended) -> FailureKind:
    if ended.timed_out:
        return FailureKind.BUILD_TIMEOUT
    return FailureKind.INVALID_SCHEDULE if stage == "applying" else FailureKind.BUILD_ERROR
