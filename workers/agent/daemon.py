"""The worker's shell: carries out the state machine's instructions and reports events to it.

One thread owns the machine (`Daemon.run`, the caller's thread); it only takes events from a queue. Blocking calls are made
in lanes, threads with an inbox ordered by due time:

    registry    register, acquire (long poll)
    renewals    renew leases; nothing else, so that no slow call delays a renewal
    reports     results, and the worker's own state
    measuring   the sandbox

The lanes are watched. If one dies the worker ends. If a lease is not renewed for its whole life, whether the call hangs, the
thread died or the service is unavailable, measuring it stops.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from pitchpipe import telemetry
from pitchpipe.errors import (
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    InvalidTransition,
    MeasurementFailed,
    NotFound,
    Overloaded,
    PitchpipeError,
    StaleLease,
    Unauthorized,
    Unreachable,
)
from pitchpipe.wire import lease as wire
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.task import Workload
from workers.agent import events, machine
from workers.agent.lane import Lane
from workers.agent.logs import log_event
from workers.agent.state import Phase, State
from workers.agent.workloads import Cancelled, WorkloadCache

_JITTER = random.Random()
TICK_SECS = 1.0
"""Period at which unsent results are sent and lanes and leases are checked."""
ACQUIRE_WAIT_SECS = 5.0
"""Duration of a long poll. A drain waits for its end, since a granted lease that is dropped would be measured by nobody."""
SAME_SIGNAL_SECS = 1.0
"""Two signals within this time count as one: timeout(1) and terminals send theirs to the process and to its group."""
STOP_SECS = 5.0
"""Longest wait at the end for a measurement to stop; the sandbox's children are killed in any case."""

log = structlog.get_logger("worker")


class Service(Protocol):
    """The part of pitchpipe.client.Client that a worker uses. Thread-safe; raises errors of pitchpipe.errors only."""

    def register_worker(self, registration: wire.WorkerRegistration) -> wire.WorkerView: ...
    def acquire(self, request: wire.LeaseRequest) -> wire.LeaseGrant | None: ...
    def heartbeat(self, lease: str, fence: int) -> wire.HeartbeatResponse: ...
    def report(self, lease: str, report: wire.Report) -> wire.ReportResponse: ...
    def workload(self, digest: str) -> wire.WorkloadView: ...
    def set_worker_state(self, worker_id: str, state: wire.WorkerState) -> wire.WorkerView: ...


class Measurer(Protocol):
    """The part of workers.sandbox.sandbox.Sandbox that a worker uses; `measure` is called from one thread."""

    @property
    def steadiness(self) -> wire.Steadiness | None:
        """How the newest beat compares with the usual one; None before the first. May be read from any thread."""

    @property
    def seconds(self) -> wire.WorkerSeconds:
        """Where this process's seconds went so far. May be read from any thread."""

    def roofline(self) -> Roofline | None:
        """Measures the device's roofline; None if that cannot be measured. Called before any `measure`."""

    def measure(
        self,
        workload: Workload,
        candidates: Sequence[Candidate],
        config: MeasureConfig,
        *,
        purpose: wire.Purpose,
        incumbent_secs: float | None,
        cancelled: Callable[[], bool],
    ) -> Iterator[Measurement]: ...


class Daemon:
    """One worker. `run` blocks until the worker has left and returns the exit code; it can be run once.

    parent: process id; the worker drains when that process is no longer its parent. This is checked every tick, and not by
    PR_SET_PDEATHSIG, which also fires when only the *thread* that started this process ends.
    on_registered: called in a lane with the service's view of the worker, each time that it registers.
    """

    def __init__(
        self,
        service: Service,
        sandbox: Measurer,
        registration: wire.WorkerRegistration,
        *,
        max_candidates: int = 32,
        parent: int | None = None,
        tick_secs: float = TICK_SECS,
        wait_secs: float = ACQUIRE_WAIT_SECS,
        on_registered: Callable[[wire.WorkerView], None] = lambda _: None,
    ) -> None:
        self.state = State()
        self._service, self._sandbox, self._registration = service, sandbox, registration
        self._device_known = False
        """Whether the service has the device's roofline, or this process has tried to measure it."""
        self._max_candidates, self._parent = max_candidates, parent
        self._on_registered = on_registered
        self._tick_secs, self._wait_secs = tick_secs, wait_secs
        self._events: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._workloads = WorkloadCache(service)
        self._lives: dict[str, tuple[float, float]] = {}
        """lease -> (its life in seconds, when it was last renewed by our monotonic clock)"""
        self._stop_measuring: dict[str, threading.Event] = {}
        self._draining = threading.Event()
        self._stopped_at: float | None = None
        self._exit: events.Exit | None = None
        lanes = {"registry": self._call, "renewals": self._call, "reports": self._call, "measuring": self._measure}
        self._lanes = {name: Lane(name, carry_out, self._died) for name, carry_out in lanes.items()}

    def run(self) -> int:
        """Blocks until the worker has left and returns the exit code."""
        for lane in self._lanes.values():
            lane.start()
        self._handle(events.Started())
        next_tick = time.monotonic() + self._tick_secs
        while self._exit is None:
            if (left_secs := next_tick - time.monotonic()) <= 0:
                next_tick = time.monotonic() + self._tick_secs
                self._look_around()
                continue
            with suppress(queue.Empty):
                self._handle(self._events.get(timeout=left_secs))
        for lane in self._lanes.values():
            lane.close()
        self._lanes["measuring"].join(STOP_SECS)
        log.info("worker ended", code=self._exit.code, reason=self._exit.reason)
        return self._exit.code

    def stop(self, *_signal: object) -> None:
        """Drains: results are reported, the other candidates handed back, and the worker leaves. The second call ends the
        worker at once. May be called from any thread and in signal handlers.
        """
        now = time.monotonic()
        if self._stopped_at is None or now - self._stopped_at > SAME_SIGNAL_SECS:
            self._stopped_at = now
            self._events.put(events.Signalled())

    def handle_signals(self) -> None:
        """Drains on SIGTERM and SIGINT; main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)

    # --- the machine's thread

    def _look_around(self) -> None:
        self._handle(events.Tick())
        now = time.monotonic()
        for lease, (life_secs, renewed_at) in list(self._lives.items()):
            if now - renewed_at > life_secs:
                log.warning("lease not renewed for its whole life", lease=lease, life_secs=life_secs)
                self._lives[lease] = (life_secs, now)
                self._handle(events.Expired(lease=lease))
        for name, lane in self._lanes.items():
            if self._exit is None and not lane.is_alive():
                self._handle(events.Broken(detail=f"the {name} thread ended"))
        if self._parent is not None and os.getppid() != self._parent:
            log.warning("parent ended", parent=self._parent)
            self._parent = None
            self.stop()

    def _handle(self, event: events.Event) -> None:
        if not isinstance(event, events.Stale) or self.state.find(event.lease) is not None:
            log_event(event)
        if isinstance(event, events.Granted):
            self._lives[event.grant.lease] = (event.grant.ttl_secs, time.monotonic())
        elif isinstance(event, events.Renewed) and event.lease in self._lives:
            self._lives[event.lease] = (event.ttl_secs, time.monotonic())
        try:
            after, instructions = machine.step(self.state, event)
        except InvalidTransition as error:
            # A bug. The leases held are not renewed any more, so that they are offered to other workers.
            log.error("invalid transition", detail=error.detail)
            after, instructions = machine.step(self.state, events.Broken(detail=error.detail))
        if after.phase is not self.state.phase:
            log.info("phase", phase=after.phase.value, worker=after.worker)
        self.state = after
        held = {one.grant.lease for one in after.held}
        for lease in self._lives.keys() - held:
            del self._lives[lease]
        if after.phase not in (Phase.REGISTERING, Phase.WORKING):
            self._draining.set()
        for instruction in instructions:
            self._instruct(instruction)

    def _instruct(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.StartMeasuring(grant=grant):
                self._stop_measuring[grant.lease] = threading.Event()
                self._lanes["measuring"].put(instruction)
            case events.StopMeasuring(lease=lease):
                if (stop := self._stop_measuring.get(lease)) is not None:  # gone: it has just ended by itself
                    stop.set()
            case events.Exit():
                self._exit = instruction
            case events.Register() | events.Acquire():
                self._lanes["registry"].put(instruction, _jittered(instruction))
            case events.Renew():
                self._lanes["renewals"].put(instruction, instruction.after_secs)
            case events.Report() | events.Declare():
                self._lanes["reports"].put(instruction, _jittered(instruction))

    def _died(self, name: str, error: BaseException) -> None:
        self._events.put(events.Broken(detail=f"the {name} thread failed: {error!r}"))

    # --- the lanes' threads

    def _call(self, call: events.Instruction) -> None:
        assert isinstance(call, events.Call)
        try:
            event = self._answer(call)
        except (Unreachable, Overloaded, DeadlineExceeded) as error:
            log.warning("call failed", call=type(call).__name__, attempt=call.attempt, detail=error.detail)
            event = events.Unreachable(call=call, retry_after_secs=error.retry_after_secs)
        except (Unauthorized, Forbidden) as error:
            event = events.Refused(code=error.exit_code, detail=error.detail)
        except PitchpipeError as error:
            event = _refusal(call, error)
        self._events.put(event)
        if isinstance(event, events.Granted):
            # Fetched while the lease may still wait for the device.
            self._workloads.warm(event.grant.workload)

    def _answer(self, call: events.Call) -> events.Event:
        """Makes a call and says what came of it."""
        match call:
            case events.Register():
                view = self._service.register_worker(self._registration)
                self._registration = self._registration.model_copy(update={"goes_on": True})
                self._device_known = self._device_known or view.roofline is not None
                self._on_registered(view)
                return events.Registered(worker=view.id)
            case events.Acquire(worker=worker):
                if self._draining.is_set():
                    return events.Nothing()
                request = wire.LeaseRequest(
                    worker=worker, max_candidates=self._max_candidates, wait_secs=self._wait_secs
                )
                grant = self._service.acquire(request)
                return events.Nothing() if grant is None else events.Granted(grant=grant)
            case events.Renew(lease=lease, fence=fence):
                if lease not in self._lives:  # let go since this was scheduled
                    return events.Stale(lease=lease)
                renewed = self._service.heartbeat(lease, fence)
                return events.Renewed(lease=lease, ttl_secs=renewed.ttl_secs, cancelled=renewed.cancelled)
            case events.Report(lease=lease, fence=fence, results=results, final=final):
                report = wire.Report(
                    fence=fence,
                    results=results,
                    final=final,
                    steadiness=self._sandbox.steadiness,
                    seconds=self._sandbox.seconds,
                )
                with telemetry.continued(self._traceparent(lease), "report", lease=lease, results=len(results)):
                    reply = self._service.report(lease, report)
                return events.Reported(lease=lease, final=final, lease_open=reply.lease_open, cancelled=reply.cancelled)
            case events.Declare(worker=worker, state=state):
                self._service.set_worker_state(worker, state)
                return events.Declared(state=state)

    def _traceparent(self, lease: str) -> str | None:
        held = self.state.find(lease)
        return None if held is None else held.grant.traceparent

    def _know_device(self) -> None:
        """Measures the device's roofline and sends it to the service, unless it has it.

        Done before the first lease is measured: by then processes that were started together with this one are up and take
        part in the quiet lock.
        """
        if self._device_known:
            return
        self._device_known = True
        roofline = self._sandbox.roofline()
        if roofline is None:
            return
        self._registration = self._registration.model_copy(update={"roofline": roofline})
        try:
            self._service.register_worker(self._registration)
        except PitchpipeError as error:
            log.warning("the roofline is told when this worker registers again", detail=error.detail)

    def _measure(self, instruction: events.Instruction) -> None:
        assert isinstance(instruction, events.StartMeasuring)
        grant = instruction.grant
        n, purpose = len(grant.candidates), grant.purpose.value
        with telemetry.continued(grant.traceparent, "measure", lease=grant.lease, purpose=purpose, candidates=n):
            self._measure_lease(grant)

    def _measure_lease(self, grant: wire.LeaseGrant) -> None:
        stop = self._stop_measuring[grant.lease]
        try:
            self._know_device()
            workload = self._workloads.get(grant.workload, stop)
            results = self._sandbox.measure(
                workload,
                grant.candidates,
                grant.config,
                purpose=grant.purpose,
                incumbent_secs=grant.incumbent_secs,
                cancelled=stop.is_set,
            )
            count = 0
            for result in results:
                count += 1
                self._events.put(events.Measured(lease=grant.lease, result=result))
            if count < len(grant.candidates) and not stop.is_set():
                raise MeasurementFailed(f"{count} results for {len(grant.candidates)} candidates")
        except Cancelled:
            self._events.put(events.Finished(lease=grant.lease))
        except Exception as error:
            log.exception("the sandbox failed", lease=grant.lease)
            self._events.put(events.Faulted(lease=grant.lease, detail=f"{type(error).__name__}: {error}"))
        else:
            self._events.put(events.Finished(lease=grant.lease))
        finally:
            del self._stop_measuring[grant.lease]


def _refusal(call: events.Call, error: PitchpipeError) -> events.Event:
    """The event for a call that the service answered with an error other than being unavailable."""
    fault_of_the_service = error.status >= 500
    match call:
        case events.Renew() if not fault_of_the_service:
            return events.Stale(lease=call.lease)
        case events.Report() if isinstance(error, (StaleLease, NotFound)):
            return events.Stale(lease=call.lease)
        case events.Report() if isinstance(error, (Conflict, InvalidInput)):
            return events.Rejected(lease=call.lease, detail=error.detail)
        case events.Acquire() | events.Declare() if isinstance(error, (NotFound, Conflict)):
            return events.Forgotten(call=call)
        case events.Register() if not fault_of_the_service:
            return events.Refused(code=error.exit_code, detail=error.detail)
    log.error("the service fails", call=type(call).__name__, detail=error.detail)
    return events.Unreachable(call=call, retry_after_secs=error.retry_after_secs)


def _jittered(call: events.Register | events.Acquire | events.Report | events.Declare) -> float:
    """The pause before a retry, changed at random by up to a quarter, so that a fleet does not retry all at once."""
    return call.after_secs * _JITTER.uniform(0.75, 1.25) if call.attempt > 1 else call.after_secs
