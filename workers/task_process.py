"""The process of one workload: holds its inputs and reference outputs, and forks a child for every candidate.

Forked by the zygote (workers/zygote.py), so TVM is imported already. Single-threaded, and foreign code never runs
in it, only in its children (it does parse the workload's IR). Speaks with the worker over a channel:

    worker -> here    {"open": {...}}           once: workload, target, seed, limits
                      {"measure": {...}}        a batch
                      {"cancel": true}          the batch's remaining candidates are not wanted
    here -> worker    {"holds": n}              bytes this process keeps, once they are known
                      {"result": {...}}         a Measurement; one per candidate unless cancelled
                      {"end": true}             the batch is over
                      {"alive": true}           at least every second

A batch goes in phases, because timing is exclusive on the host (tuner/measure/quiet.py): some children build in
parallel while others may compute, then those that built are checked and timed one after another while nothing else
of ours runs.
"""

from __future__ import annotations

import mmap
import os
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, MeasureConfig, Timed
from pitchpipe.wire.target import Target
from tuner.measure import quiet
from tuner.measure.candidate import Bench, load_average
from tuner.measure.check import SETS
from tuner.measure.timing import abba, confirmed
from workers.candidate_child import GO, SAMPLE, candidate_body, last_line
from workers.channel import Channel, Closed
from workers.nursery import Child, Ended, Limits, Line, Nursery

_ALIVE_SECS = 1.0
_COMPILER_FILE_BYTES = 1 << 28
"""NVRTC and nvcc leave intermediate files while they work."""
_FEWEST_PER_PHASE = 8
"""Candidates built before they are timed: enough that the last build's idle cores do not weigh."""


class Open(BaseModel):
    """The first message of a task process."""

    model_config = ConfigDict(frozen=True)

    ir: str
    target: Target
    config: MeasureConfig
    """Of the first batch: seed and the limits of the reference run."""
    parallel_builds: int
    confined: bool


class Batch(BaseModel):
    """A batch to measure."""

    model_config = ConfigDict(frozen=True)

    candidates: tuple[Candidate, ...]
    config: MeasureConfig
    purpose: Purpose
    incumbent_secs: float | None


class Cancelled(Exception):
    """The worker wants no more results of this batch."""


class Unusable(Exception):
    """No candidate of the workload can be measured, and why."""

    def __init__(self, *, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


def serve(channel: Channel) -> None:
    """Runs until the other end closes."""
    first = channel.receive(None)
    if first is None or "open" not in first:
        return
    with TaskProcess(channel, Open.model_validate(first["open"])) as task:
        while True:
            message = channel.receive(None)
            if message is not None and "measure" in message:
                task.measure(Batch.model_validate(message["measure"]))


class TaskProcess:
    """A context manager; leaving it ends every child."""

    def __init__(self, channel: Channel, opened: Open) -> None:
        self._channel, self._opened = channel, opened
        self._nursery = Nursery()
        self._bench: Bench | None = None
        self._unusable: Unusable | None = None
        self._told = 0.0

    def __enter__(self) -> TaskProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()

    def measure(self, batch: Batch) -> None:
        """Sends one result per candidate, unless cancelled, then the end."""
        try:
            bench = self._prepared()
            if batch.purpose is Purpose.CONFIRM:
                self._confirm(bench, batch)
            else:
                self._search(bench, batch)
        except (Cancelled, quiet.Abandoned):
            pass
        except Unusable as unusable:
            for candidate in batch.candidates:
                self._fail(candidate, unusable.kind, unusable.detail)
        finally:
            self._nursery.close()
        self._channel.send({"end": True})

    # -- the workload

    def _prepared(self) -> Bench:
        if self._unusable is not None:
            raise self._unusable
        if self._bench is None:
            try:
                self._bench = self._open()
            except Unusable as unusable:
                self._unusable = unusable
                raise
        return self._bench

    def _open(self) -> Bench:
        opened = self._opened
        try:
            bench = Bench(opened.ir, opened.target, opened.config.seed)
        except Exception as error:
            raise Unusable(
                kind=FailureKind.BUILD_ERROR, detail=f"the workload cannot be read: {last_line(error)}"
            ) from error
        size = max(1, bench.output_bytes())
        buffers = {name: mmap.mmap(-1, size) for name in SETS}
        with quiet.computing(self._abandoned):
            for name in SETS:
                bench.fill(name)
            silent = self._references(bench, buffers, SETS)
            for name in silent:
                bench.fill(name, positive=True)
            silent = self._references(bench, buffers, silent)
        if len(silent) == len(SETS):
            raise Unusable(kind=FailureKind.RUN_ERROR, detail="the untransformed build gives no finite output")
        for name in SETS:
            if name not in silent:
                bench.set_reference(name, memoryview(buffers[name]))
        self._channel.send({"holds": bench.held_bytes()})
        return bench

    def _references(self, bench: Bench, buffers: dict[str, mmap.mmap], names: Sequence[str]) -> list[str]:
        """Runs the untransformed build on these sets, in children; returns the sets that compare nothing."""
        config = self._opened.config
        waiting, running, silent = deque(names), dict[Child, str](), []
        while waiting or running:
            while waiting and len(running) < self._opened.parallel_builds:
                name = waiting.popleft()

                def body(line: Line, name: str = name) -> None:
                    line.send(finite=bench.run_reference(name, memoryview(buffers[name])))

                child = self._nursery.spawn(
                    body, self._limits(config), deadline_secs=config.build_timeout_secs + config.run_timeout_secs
                )
                running[child] = name
            for child, event in self._events():
                if isinstance(event, Ended):
                    name = running.pop(child)
                    if "finite" not in child.note:
                        kind = FailureKind.RUN_TIMEOUT if event.timed_out else FailureKind.RUN_ERROR
                        raise Unusable(kind=kind, detail=f"the untransformed build {event}")
                    if not child.note["finite"]:
                        silent.append(name)
                else:
                    child.note.update(event)
        return silent

    # -- candidates

    def _search(self, bench: Bench, batch: Batch) -> None:
        waiting = deque(batch.candidates)
        size = max(_FEWEST_PER_PHASE, 4 * self._opened.parallel_builds)
        while waiting:
            phase = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            built = self._build(bench, batch, phase)
            if built:
                with quiet.timing(self._abandoned):
                    for child in built:
                        self._time(child, batch)
            self._nursery.close()  # Only now: their ends would disturb a timing.

    def _build(self, bench: Bench, batch: Batch, candidates: Sequence[Candidate]) -> list[Child]:
        """Builds in parallel; returns the children that wait to be timed, in the candidates' order."""
        waiting, building, built = deque(candidates), set[Child](), list[Child]()
        with quiet.computing(self._abandoned):
            while waiting or building:
                while waiting and len(building) < self._opened.parallel_builds:
                    candidate = waiting.popleft()
                    child = self._nursery.spawn(
                        candidate_body(bench, candidate, batch.config, batch.purpose, batch.incumbent_secs),
                        self._limits(batch.config),
                        deadline_secs=batch.config.build_timeout_secs,
                    )
                    child.note = {"candidate": candidate, "stage": "applying"}
                    building.add(child)
                for child, event in self._events():
                    if isinstance(event, Ended):
                        building.discard(child)
                        self._ended(child, event)
                    elif "failed" in event:
                        building.discard(child)
                        self._failed(child, event)
                    else:
                        child.note.update(event)
                        if child.note["stage"] == "built":
                            building.discard(child)
                            child.deadline = None
                            built.append(child)
        order = {candidate.digest: index for index, candidate in enumerate(candidates)}
        return sorted(built, key=lambda child: order[child.note["candidate"].digest])

    def _time(self, child: Child, batch: Batch) -> None:
        """Check and timing of one child that was built; the caller holds the quiet."""
        event = self._ask(child, GO, batch.config.run_timeout_secs)
        if event is not None:
            self._timed(child, event)

    def _confirm(self, bench: Bench, batch: Batch) -> None:
        """All are built, then each gives a sample in turn, forward and backward, until all intervals are narrow."""
        active = self._build(bench, batch, batch.candidates)
        samples: dict[Child, list[float]] = {child: [] for child in active}
        with quiet.timing(self._abandoned):
            ready = []
            for child in active:
                if (event := self._ask(child, GO, batch.config.run_timeout_secs)) is not None:
                    child.note |= event
                    ready.append(child)
            done: set[Child] = set()
            for order in abba(len(ready)):
                if len(done) == len(ready):
                    break
                for child in (ready[i] for i in order):
                    if child in done:
                        continue
                    event = self._ask(child, SAMPLE, batch.config.run_timeout_secs)
                    if event is None:
                        done.add(child)
                        samples[child].clear()
                        continue
                    samples[child].append(float(event["secs"]))
                    if confirmed(samples[child], int(child.note["calls"]), batch.config):
                        done.add(child)
        for child in ready:
            if samples[child]:
                self._timed(child, {"run_secs": samples[child], "check": child.note["check"]})

    def _ask(self, child: Child, byte: bytes, timeout_secs: float) -> dict[str, Any] | None:
        """Tells a waiting child to go on and waits for its answer; None after its failure has been reported."""
        child.note["stage"] = "running"
        child.deadline = time.monotonic() + timeout_secs
        child.tell(byte)
        while True:
            for other, event in self._events():
                if isinstance(event, Ended):
                    self._ended(other, event)
                    if other is child:
                        return None
                elif other is child:
                    child.deadline = None
                    child.freeze()
                    if "failed" in event:
                        self._failed(child, event)
                        return None
                    return event

    # -- results

    def _timed(self, child: Child, event: dict[str, Any]) -> None:
        candidate: Candidate = child.note["candidate"]
        child.note["reported"] = True
        try:
            result = Timed(
                candidate=candidate.digest,
                run_secs=tuple(event["run_secs"]),
                check=event["check"],
                build_secs=child.note["build_secs"],
                load=load_average(),
            )
        except (ValueError, KeyError, TypeError) as error:
            self._fail(candidate, FailureKind.RUN_ERROR, f"the child's report makes no sense: {last_line(error)}")
            return
        self._channel.send({"result": result.model_dump(mode="json")})

    def _failed(self, child: Child, event: dict[str, Any]) -> None:
        child.note["reported"] = True
        child.deadline = None
        try:
            kind = FailureKind(event["failed"])
        except ValueError:
            kind = FailureKind.RUN_ERROR
        self._fail(child.note["candidate"], kind, str(event.get("detail", "")))

    def _ended(self, child: Child, ended: Ended) -> None:
        """A child that ended without having reported a result."""
        if child.note.get("reported"):
            return
        stage = child.note["stage"]
        if stage == "running":
            kind = FailureKind.RUN_TIMEOUT if ended.timed_out else FailureKind.RUN_ERROR
        elif ended.timed_out:
            kind = FailureKind.BUILD_TIMEOUT
        else:
            kind = FailureKind.INVALID_SCHEDULE if stage == "applying" else FailureKind.BUILD_ERROR
        self._fail(child.note["candidate"], kind, f"while {stage}, the child {ended}")

    def _fail(self, candidate: Candidate, kind: FailureKind, detail: str) -> None:
        result = Failed(candidate=candidate.digest, kind=kind, detail=detail[:4000])
        self._channel.send({"result": result.model_dump(mode="json")})

    # -- the loop

    def _events(self) -> list[tuple[Child, dict[str, Any] | Ended]]:
        if self._abandoned():
            raise Cancelled
        return self._nursery.events(_ALIVE_SECS / 2, self._channel.fileno())

    def _abandoned(self) -> bool:
        """Whether the batch was cancelled; tells the worker that this process lives. Raises Closed."""
        now = time.monotonic()
        if now - self._told >= _ALIVE_SECS:
            self._told = now
            self._channel.send({"alive": True})
        message = self._channel.receive(0.0)
        return message is not None and "cancel" in message

    def _limits(self, config: MeasureConfig) -> Limits:
        cores = self._opened.target.num_cores or 1
        return Limits(
            memory_bytes=config.memory_limit_bytes,
            reserves=self._opened.target.kind == "cuda",
            cpu_secs=config.build_timeout_secs + (config.run_timeout_secs + 1) * cores * 2,
            confined=self._opened.confined,
            **({"file_bytes": _COMPILER_FILE_BYTES} if self._opened.target.kind == "cuda" else {}),
        )


def run_forked(channel: Channel) -> None:
    """In a fresh fork of the zygote: serves, and never returns."""
    code = 1
    try:
        serve(channel)
    except Closed:
        code = 0
    except BaseException:  # noqa: BLE001 - nothing above to tell; the worker's log shares this stream
        traceback.print_exc()
    finally:
        os._exit(code)
