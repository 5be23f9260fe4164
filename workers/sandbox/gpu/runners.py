"""The processes with a context on the GPU: starting them, asking them, hearing them.

A search keeps one runner, also from batch to batch. A confirming run has fresh ones, which make their contexts beside each
other and beside the builders. Requests are answered one at a time, in this process's turn on the GPU
(tuner/measure/gpu_turn.py), so that at most one runner computes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import mmap
from typing import Protocol

from pitchpipe.wire.measure import MeasureConfig
from tuner.measure.gpu_turn import GpuTurn
from workers.sandbox.gpu.children import request
from workers.sandbox.messages import Broken, FromChild, Started
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery

START_SECS = 60.0
"""Time limit for a runner to make its context and copy the inputs, which takes half a second."""
MAX_STARTS = 2
"""Failed starts after which the device is at fault."""
_TURN_POLL_SECS = 2e-3


@dataclass(eq=False, kw_only=True)
class Runner:
    """A process with a context on the GPU."""

    child: Child
    uuid: str = ""
    """UUID of the GPU, once the runner has started."""
    served: int = 0
    """Number of candidates that it was given."""
    busy: bool = True
    """Whether it has not answered the last request yet."""
    said: deque[FromChild | Ended] = field(default_factory=deque)
    """Its reports, and at last its end, that nobody has waited for yet."""


class RunnerHost(Protocol):
    """The task process that forks the runners."""

    runner: Runner | None
    """The runner that is kept for further batches, if any."""

    @property
    def nursery(self) -> Nursery: ...

    @property
    def inbox(self) -> mmap:
        """Memory shared with the runners."""

    def runner_limits(self, config: MeasureConfig) -> Limits: ...

    def runner_body(self, config: MeasureConfig) -> Callable[[Line], None]: ...


class NoRunner(Exception):
    """No runner starts: the device is at fault."""


class Runners:
    """The runners of one batch. `wait(secs)` handles the events of all children for at most so long, and gives those of
    runners to `absorb`."""

    def __init__(self, host: RunnerHost, config: MeasureConfig, wait: Callable[[float | None], None]) -> None:
        self._host, self._config, self._wait = host, config, wait
        self._turn: GpuTurn | None = None
        self._waited_secs = 0.0
        self._alive: dict[Child, Runner] = {}
        if (kept := host.runner) is not None and not kept.child.ended:
            self._alive[kept.child] = kept

    def close(self) -> None:
        """Gives back the turn, and ends all runners but the kept one; that one too unless it is idle."""
        if self._turn is not None:
            self._turn.close()
        for runner in list(self._alive.values()):
            if runner is not self._host.runner or runner.busy:
                self.end(runner)

    def start(self) -> Runner:
        """A new process that makes its context; see `started`."""
        config = self._config
        child = self._host.nursery.spawn(
            self._host.runner_body(config), self._host.runner_limits(config), deadline_secs=START_SECS
        )
        runner = self._alive[child] = Runner(child=child)
        return runner

    def started(self, runner: Runner | None) -> Runner:
        """This runner, or a new one in its place, with its context. Raises NoRunner."""
        reason = ""
        for _ in range(MAX_STARTS):
            runner = runner or self.start()
            answer = self._heard(runner)
            if isinstance(answer, Started):
                runner.uuid = answer.uuid
                return runner
            reason = answer.reason if isinstance(answer, Broken) else str(answer)
            self.end(runner)
            runner = None
        raise NoRunner(f"a process that uses the GPU does not start: {reason}")

    def kept(self) -> Runner:
        """The runner that is kept, or a new one, which is kept from now on. Raises NoRunner."""
        if self._host.runner is None or self._host.runner.child.ended:
            self._host.runner = None
            self._host.runner = self.started(None)
        return self._host.runner

    def end(self, runner: Runner | None) -> None:
        """Ends a runner, with all that it holds on the GPU; nothing happens to one that has ended, and for None."""
        if runner is None:
            return
        if not runner.child.ended:
            self._host.nursery.end(runner.child)
        self._alive.pop(runner.child, None)
        if self._host.runner is runner:
            self._host.runner = None

    def give(self, program: bytes, incumbent_secs: float | None = None) -> None:
        """Puts a program where the next request to a runner finds it."""
        message = request(program, incumbent_secs)
        self._host.inbox[: len(message)] = message

    def ask(self, runner: Runner, byte: bytes, limit_secs: float, number: float = math.nan) -> FromChild | Ended:
        """Sends a request to a runner, once this process has its turn on the GPU, and waits for its answer or its end."""
        if self._turn is None:
            self._turn = GpuTurn(runner.uuid)
        asked = time.monotonic()
        while not self._turn.take():
            self._wait(_TURN_POLL_SECS)
        self._waited_secs += time.monotonic() - asked
        try:
            runner.child.deadline = time.monotonic() + limit_secs
            runner.busy = True
            runner.child.tell(byte, number)
            return self._heard(runner)
        finally:
            self._turn.give_back()

    def take_waited_secs(self) -> float:
        """Seconds for which `ask` waited for the turn since this was last called."""
        found, self._waited_secs = self._waited_secs, 0.0
        return found

    def absorb(self, child: Child, event: FromChild | Ended) -> bool:
        """Takes an event of a child; False for a child that is no runner of this batch."""
        if (runner := self._alive.get(child)) is None:
            return False
        runner.said.append(event)
        if isinstance(event, Ended):
            self.end(runner)
        else:
            child.deadline, child.received_bytes = None, 0  # A report's limit, for each answer anew.
        return True

    def _heard(self, runner: Runner) -> FromChild | Ended:
        """Waits for the runner's next report or its end; builders go on meanwhile."""
        while not runner.said:
            self._wait(None)
        runner.busy = False
        return runner.said.popleft()
