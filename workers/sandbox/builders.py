"""The builders of one batch: forks that compile candidates, as many at a time as there are slots of shared memory.

A builder compiles one candidate (Applied, then Compiled, or Fault) and leaves the program in its slot, as data for the
processes that run it. It is confined and runs no code of the candidate.

Stragglers. The device compiler takes ten times as long as usual for a kernel whose accumulators do not fit the registers,
and such a kernel is slow. When a search waits for nothing but builders, and each has taken longer than both STRAGGLER_SECS
and STRAGGLER_FACTOR times the batch's median, they are ended as build_timeout, even before the time limit. (On an H200, two
of 64 random schedules of a 1024^3 product compiled for longer than 2 s; the slower one ran 190 times as long as the best.)
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Protocol

from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig
from workers.sandbox.messages import Applied, Compiled, Fault, FromChild, PhaseName
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery

STRAGGLER_SECS = 2.0
STRAGGLER_FACTOR = 6.0
KEPT_PROGRAMS = 8
"""More than a confirming run times, since what a search finds the fastest may fail in it."""
_AHEAD = 32
"""Programs that wait for the runner, at most: more would only take memory."""


@dataclass(eq=False, kw_only=True)
class Parts:
    """What went on inside a phase, as its message has it (workers/sandbox/messages.py)."""

    wait_secs: float = 0.0
    """The host adds waits for the quiet."""
    check_secs: float = 0.0


def straggler_limit(built_secs: Sequence[float]) -> tuple[float, float]:
    """(median seconds of a batch's builds, seconds after which one that alone is waited for is given up)."""
    median_secs = statistics.median(built_secs)
    return median_secs, max(STRAGGLER_SECS, STRAGGLER_FACTOR * median_secs)


class BuildHost(Protocol):
    """The task process that forks the builders."""

    @property
    def nursery(self) -> Nursery: ...

    @property
    def slots(self) -> Sequence[mmap]:
        """Buffers shared with children, one for each builder at work."""

    def builder_body(self, candidate: Candidate, slot: mmap) -> Callable[[Line], None]:
        """The function that a builder runs: it writes the candidate's program into `slot`."""

    def builder_limits(self, config: MeasureConfig) -> Limits: ...

    def before_building(self, candidate: Candidate) -> None:
        """Called in a builder before it is confined: it starts what a builder may not start any more afterwards."""

    def phase(self, name: PhaseName) -> AbstractContextManager[Parts]:
        """Tells the worker from when to when a part of the batch was under way, and what its caller notes in the Parts;
        nothing of one that raised. Phases do not nest."""


@dataclass(eq=False, kw_only=True)
class BuiltCandidate:
    """A candidate with its compiled program, which waits for the runner."""

    candidate: Candidate
    program: bytes
    build_secs: float
    secs: float = math.inf
    """Median seconds of a call in a search, once it has them."""
    repeats: int = 0
    """Times that it was timed again because a beat was too slow."""
    judged: bool = False
    """Whether it was wrong in a confirming run after others, and is checked before them now."""


def fastest_with(known: Mapping[str, BuiltCandidate], built: BuiltCandidate) -> dict[str, BuiltCandidate]:
    """The KEPT_PROGRAMS fastest of a workload's candidates that were timed and one more, by digest: what a confirming run
    need not compile again."""
    every = {**known, built.candidate.digest: built}
    return dict(sorted(every.items(), key=lambda item: item[1].secs)[:KEPT_PROGRAMS])


@dataclass(eq=False, kw_only=True)
class _Build:
    """A builder with its candidate and its slot. Its stage follows from its reports, these do not."""

    child: Child
    candidate: Candidate
    slot: mmap
    applied: bool = False
    compiled: Compiled | None = None
    over: bool = False
    """Whether its failure was reported."""


class Builders:
    """The candidates that wait to be built, are being built, and wait to be timed. `fail` is called for each that does not
    build."""

    def __init__(
        self,
        host: BuildHost,
        candidates: Sequence[Candidate],
        config: MeasureConfig,
        fail: Callable[[Candidate, FailureKind, str], None],
    ) -> None:
        self._host, self._config, self._fail = host, config, fail
        self._waiting = deque(candidates)
        self._building: dict[Child, _Build] = {}
        self._slots = list(host.slots)
        self._secs: list[float] = []
        self.ready: deque[BuiltCandidate] = deque()

    @property
    def pending(self) -> bool:
        """Whether candidates are still to be built."""
        return bool(self._waiting or self._building)

    @property
    def at_work(self) -> bool:
        """Whether a builder is running now."""
        return bool(self._building)

    def spawn(self) -> None:
        """Starts as many builders as there are free slots."""
        while self._waiting and self._slots and len(self.ready) < _AHEAD:
            candidate, slot = self._waiting.popleft(), self._slots.pop()
            body = self._host.builder_body(candidate, slot)
            limits = self._host.builder_limits(self._config)
            secs, first = self._config.build_timeout_secs, partial(self._host.before_building, candidate)
            child = self._host.nursery.spawn(body, limits, deadline_secs=secs, first=first)
            self._building[child] = _Build(child=child, candidate=candidate, slot=slot)

    def absorb(self, child: Child, event: FromChild | Ended) -> None:
        """Takes an event of a child; ignores one that is no builder."""
        build = self._building.get(child)
        if build is None:
            return
        match event:
            case Ended():
                self._ended(build, event)
            case _ if build.over:
                pass
            case Applied() if not build.applied:
                build.applied = True
            case Compiled() if build.applied and build.compiled is None and event.size_bytes <= len(build.slot):
                build.compiled = event
            case Fault() if build.compiled is None:
                self._over_with(build, event.kind, event.detail)
            case _:
                child.kill()
                kind = FailureKind.BUILD_ERROR if build.applied else FailureKind.INVALID_SCHEDULE
                self._over_with(build, kind, f"the builder reported out of turn: {event.message}")

    def _ended(self, build: _Build, ended: Ended) -> None:
        del self._building[build.child]
        self._slots.append(build.slot)
        if build.over:
            return
        if build.compiled is None or ended.misreport:
            self._over_with(build, _failure(build, ended), f"the builder {ended}")
            return
        secs = build.compiled.build_secs
        program = bytes(build.slot[: build.compiled.size_bytes])
        self.ready.append(BuiltCandidate(candidate=build.candidate, program=program, build_secs=secs))
        self._secs.append(secs)

    def _over_with(self, build: _Build, kind: FailureKind, detail: str) -> None:
        build.over = True
        self._fail(build.candidate, kind, detail)

    def give_up_stragglers(self) -> None:
        """Ends the stragglers: see the module's docstring."""
        if self._waiting or self.ready or not self._secs:
            return
        median_secs, limit_secs = straggler_limit(self._secs)
        now = time.monotonic()
        if any(now - child.started < limit_secs for child in self._building):
            return
        stragglers = [build for build in self._building.values() if not build.over]
        self.end()
        for build in stragglers:
            self._fail(
                build.candidate,
                FailureKind.BUILD_TIMEOUT,
                f"given up after {now - build.child.started:.1f} s: the median build of its batch took {median_secs:.2f} s",
            )

    def end(self) -> None:
        """Ends the running builders, without results."""
        self._host.nursery.end_all(self._building)
        self._slots += [build.slot for build in self._building.values()]
        self._building.clear()

    def left(self) -> list[Candidate]:
        """The candidates without a result."""
        building = [build.candidate for build in self._building.values() if not build.over]
        return [*self._waiting, *building, *(built.candidate for built in self.ready)]


def _failure(build: _Build, ended: Ended) -> FailureKind:
    if ended.timed_out:
        return FailureKind.BUILD_TIMEOUT
    return FailureKind.BUILD_ERROR if build.applied else FailureKind.INVALID_SCHEDULE
