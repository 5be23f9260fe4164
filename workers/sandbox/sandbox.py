"""Measures candidates of one target in disposable processes, so that no candidate can harm the worker or another one.

    worker daemon, Sandbox      (may have threads; imports no TVM)
      └─ zygote                 imported TVM once; workers/sandbox/zygote.py
           └─ task process      one per workload, the last used ones are kept; workers/sandbox/cpu/process.py
                └─ candidates   one child each, which may crash, hang or exhaust its memory

All of them end when the process that holds the Sandbox ends, in whatever way.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from pitchpipe.processes.cores import usable_cores
from pitchpipe.processes.launch import launch
from pitchpipe.processes.process import Process
from pitchpipe.wire.lease import Purpose, Steadiness, WorkerSeconds
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, MeasureConfig, Measurement
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.measure.drift import Drift, drifted
from workers.sandbox.channel import Channel, Closed
from workers.sandbox.messages import (
    FROM_TASK,
    FROM_ZYGOTE,
    Batch,
    Beat,
    Cancel,
    End,
    Fatal,
    Fork,
    Forked,
    FromTask,
    FromZygote,
    Holds,
    Kill,
    Measured,
    MeasureRoofline,
    Open,
    Phase,
    Repeated,
    RooflineMeasured,
    decode,
    encode,
)
from workers.sandbox.phases import Spent, record

_START_SECS = 180.0
"""Time limit for the zygote to import and warm up, which takes one to two seconds on an idle core."""
_SILENCE_SECS = 90.0
"""Time without a message after which a task process counts as broken. It sends one every second, except while it reads a
workload."""
_STOP_SECS = 15.0
_ROOFLINE_SECS = 60.0
"""Time limit of the roofline; most of it is for waiting until nothing else on the host computes or is timed."""
_POLL_SECS = 0.2
_KEPT_TASKS = 48
_KEPT_SHARE = 0.125
"""Share of the host's memory for the inputs and reference outputs of the task processes that are kept."""
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "PITCHPIPE_QUIET_LOCK", "VIRTUAL_ENV", "PYTHONPATH")
_PASSED_PREFIXES = ("TVM_", "CUDA_", "NVIDIA_", "LC_")


class _Broken(Exception):
    """The zygote or a task process died or does not answer, which is not the candidates' fault."""


@dataclass(kw_only=True)
class _Task:
    pid: int
    channel: Channel[FromTask]
    holds_bytes: int = 0


class Sandbox:
    """Isolation for the measurements of one target. A context manager; one `measure` at a time.

    The constructor starts the zygote and does not wait for it.
    """

    def __init__(self, target: Target, *, parallel_builds: int | None = None, confined: bool = True) -> None:
        """parallel_builds: by default the usable cores. confined: False leaves out the system-call filter."""
        self.target = target
        self._parallel_builds = parallel_builds or usable_cores()
        self._confined = confined
        self._measuring = threading.Lock()
        self._tasks: OrderedDict[tuple[str, int], _Task] = OrderedDict()
        self._drift = Drift()
        self._repeated = 0
        self._spent = Spent()
        self._process: Process | None = None
        self._zygote: socket.socket | None = None
        self._start()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def steadiness(self) -> Steadiness | None:
        """How the newest beat compares with the usual one; None before the first."""
        usual, newest = self._drift.usual_secs, self._drift.newest_secs
        if usual is None or newest is None:
            return None
        ratio = newest / usual
        return Steadiness(
            reference_secs=newest,
            usual_secs=usual,
            ratio=ratio,
            noisy=drifted(ratio),
            beats=self._drift.beats,
            repeated=self._repeated,
        )

    @property
    def seconds(self) -> WorkerSeconds:
        """Where this sandbox's seconds went so far. May be read from any thread."""
        return self._spent.seconds

    def roofline(self) -> Roofline | None:
        """Measures the device's roofline in about a second; None if that fails or its kind has none.

        Raises RuntimeError while something is measured.
        """
        if not self._measuring.acquire(blocking=False):
            raise RuntimeError("this sandbox is measuring already")
        try:
            task = self._fork()
            try:
                task.channel.send(MeasureRoofline(target=self.target))
                answer = task.channel.receive(_ROOFLINE_SECS)
                return answer.roofline if isinstance(answer, RooflineMeasured) else None
            except Closed:
                return None
            finally:
                self._end(task)
        except _Broken:
            return None  # The first `measure` starts the processes again, or fails with the reason.
        finally:
            self._measuring.release()

    def close(self) -> None:
        """Ends the zygote and all its descendants; idempotent."""
        for task in self._tasks.values():
            task.channel.close()
        self._tasks.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        if self._process is not None:
            self._process.wait(_STOP_SECS)
            self._process.close()
            self._process = None

    def measure(
        self,
        workload: Workload,
        candidates: Sequence[Candidate],
        config: MeasureConfig,
        *,
        purpose: Purpose = Purpose.SEARCH,
        incumbent_secs: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Measurement]:
        """Yields one result per candidate, in the order in which they finish; stops early once `cancelled` returns true.

        `cancelled` is polled several times a second; closing the iterator cancels too. When the zygote or the task process
        breaks, the candidates without a result are measured once more with new processes; then they fail as device_error,
        which is retryable. Raises RuntimeError if another measure is running.
        """
        if not self._measuring.acquire(blocking=False):
            raise RuntimeError("this sandbox is measuring already")
        try:
            left = {candidate.digest: candidate for candidate in candidates}
            reason = ""
            for attempt in range(2):
                if not left:
                    return
                batch = Batch(
                    candidates=tuple(left.values()),
                    config=config,
                    purpose=purpose,
                    incumbent_secs=incumbent_secs,
                    usual_secs=self._drift.usual_secs,
                    noisy=self.steadiness is not None and self.steadiness.noisy,
                )
                try:
                    task = self._task(workload, config)
                    for result in self._results(task, batch, cancelled):
                        if left.pop(result.candidate, None) is not None:
                            yield result
                    if cancelled() or not left:
                        return
                    raise _Broken("the batch ended without all its results")
                except _Broken as broken:
                    reason = str(broken)
                    self._forget((workload.digest, config.seed))
                    if attempt == 0 and not self._alive():
                        self._restart()
            for digest in left:
                yield Failed(
                    candidate=digest, kind=FailureKind.DEVICE_ERROR, detail=f"measured twice in vain: {reason}"
                )
        finally:
            self._measuring.release()

    # -- one batch

    def _results(self, task: _Task, batch: Batch, cancelled: Callable[[], bool]) -> Iterator[Measurement]:
        """Yields the batch's results until its end; cancels it when `cancelled` or when the iterator is closed."""
        over = False
        try:
            task.channel.send(batch)
            heard = time.monotonic()
            while True:
                message = task.channel.receive(_POLL_SECS)
                if message is None and time.monotonic() - heard > _SILENCE_SECS:
                    raise _Broken("the task process does not answer")
                if message is not None:
                    heard = time.monotonic()
                match message:
                    case End():
                        over = True
                        return
                    case Beat(secs=secs):
                        self._drift.observe(secs)
                    case Repeated():
                        self._repeated += 1
                    case Phase():
                        self._spent.take(message)
                        record(message)
                    case Holds(held_bytes=held_bytes):
                        task.holds_bytes = held_bytes
                    case Measured(result=result):
                        yield result
                if cancelled():
                    return
        except Closed as error:
            over = True
            raise _Broken(f"the task process failed: {error}") from error
        finally:
            if not over:
                self._cancel(task)

    def _cancel(self, task: _Task) -> None:
        deadline = time.monotonic() + _STOP_SECS
        with suppress(Closed):
            task.channel.send(Cancel())
            while time.monotonic() < deadline:
                if isinstance(task.channel.receive(_POLL_SECS), End):
                    return
        for key in [key for key, kept in self._tasks.items() if kept is task]:
            self._forget(key)

    # -- task processes

    def _task(self, workload: Workload, config: MeasureConfig) -> _Task:
        """The workload's task process, the kept one or a new one. Raises _Broken."""
        key = (workload.digest, config.seed)
        if key in self._tasks:
            self._tasks.move_to_end(key)
            return self._tasks[key]
        room = psutil.virtual_memory().total * _KEPT_SHARE
        while len(self._tasks) >= _KEPT_TASKS or sum(task.holds_bytes for task in self._tasks.values()) > room:
            self._forget(next(iter(self._tasks)))
        task = self._tasks[key] = self._fork()
        opened = Open(
            ir=workload.ir,
            target=self.target,
            config=config,
            parallel_builds=self._parallel_builds,
            confined=self._confined,
        )
        try:
            task.channel.send(opened)
        except Closed as error:
            raise _Broken(f"the task process failed: {error}") from error
        return task

    def _forget(self, key: tuple[str, int]) -> None:
        task = self._tasks.pop(key, None)
        if task is None:
            return
        self._end(task)

    def _fork(self) -> _Task:
        """A new task process. Raises _Broken."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                return _Task(pid=self._ask_fork(theirs), channel=Channel(ours, FROM_TASK))
        except _Broken:
            ours.close()
            raise

    def _end(self, task: _Task) -> None:
        task.channel.close()
        if self._zygote is not None:
            with suppress(OSError):
                self._zygote.sendall(encode(Kill(pid=task.pid)) + b"\n")

    # -- the zygote

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = launch(
                "workers.sandbox.zygote:main",
                self.target.key,
                descriptors=[theirs.fileno()],
                environment=self._environment(),
            )
        self._zygote = ours
        self._ready = False

    def _environment(self) -> dict[str, str]:
        """The zygote's environment: few variables, so that candidates cannot read the daemon's secrets."""
        kept = {
            name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_PREFIXES)
        }
        cores = self.target.num_cores or usable_cores()
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return kept | one | {"TVM_NUM_THREADS": str(cores), "PYTHONDONTWRITEBYTECODE": "1"}

    def _alive(self) -> bool:
        return self._process is not None and not self._process.wait(0)

    def _end_zygote(self) -> None:
        """Kills the zygote: one that did not answer may be stopped, or answer later and be taken for the answer to the next
        request. The next `measure` starts a new one."""
        if self._process is not None:
            self._process.kill()

    def _restart(self) -> None:
        self.close()
        self._start()

    def _answer(self, timeout_secs: float) -> FromZygote:
        """The zygote's next message. Raises _Broken."""
        if self._zygote is None:
            raise _Broken("the sandbox is closed")
        self._zygote.settimeout(timeout_secs)
        try:
            answer = decode(self._zygote.recv(4096), FROM_ZYGOTE)
        except (OSError, ValueError) as error:
            self._end_zygote()
            raise _Broken(f"the zygote does not answer: {error}") from error
        if isinstance(answer, Fatal):
            raise _Broken(f"the zygote did not start: {answer.reason}")
        return answer

    def _ask_fork(self, theirs: socket.socket) -> int:
        if not self._ready:
            self._answer(_START_SECS)
            self._ready = True
        assert self._zygote is not None
        try:
            socket.send_fds(self._zygote, [encode(Fork()) + b"\n"], [theirs.fileno()])
        except OSError as error:
            self._end_zygote()
            raise _Broken(f"the zygote is gone: {error}") from error
        answer = self._answer(_STOP_SECS)
        if not isinstance(answer, Forked):
            raise _Broken(f"the zygote does not fork: {answer}")
        return answer.pid
