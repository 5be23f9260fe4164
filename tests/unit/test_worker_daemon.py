"""The worker's shell against a service and a sandbox in memory: real threads, no process, no socket, no TVM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from pitchpipe.errors import (
    NotFound,
    PitchpipeError,
    StaleLease,
    Unauthorized,
    Unreachable,
)
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.lease import (
    HeartbeatResponse,
    LeaseGrant,
    LeaseRequest,
    Purpose,
    Report,
    ReportResponse,
    Steadiness,
    WorkerRegistration,
    WorkerSeconds,
    WorkerState,
    WorkerView,
    WorkloadView,
)
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, MeasureConfig, Measurement
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Workload
from workers.agent.daemon import Daemon
from workers.agent.lane import Lane

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
REGISTRATION = WorkerRegistration(
    name="w",
    device=DeviceFingerprint(kind="cpu", model="m", cores=2, memory_bytes=1),
    target=TARGET,
    toolchain=Toolchain(tvm="0", tvm_ffi="0", codegen="0"),
)


class FakeService:
    """Grants leases of `size` candidates until it has granted `leases` of them; counts everything."""

    def __init__(self, leases: int = 2, size: int = 5, ttl_secs: float = 30.0) -> None:
        self.to_grant, self.size, self.ttl_secs = leases, size, ttl_secs
        self.lock = threading.Lock()
        self.reports: list[tuple[str, Report]] = []
        self.states: list[WorkerState] = []
        self.fetched: list[str] = []
        self.beats: list[str] = []
        self.on: dict[str, Callable[[], None]] = {}
        self.cancelled = False
        self.finals = 0
        self.registered: list[WorkerRegistration] = []
        self.roofline: Roofline | None = None

    def _hook(self, name: str) -> None:
        if name in self.on:
            self.on[name]()

    def register_worker(self, registration: WorkerRegistration) -> WorkerView:
        self._hook("register")
        self.registered.append(registration)
        self.roofline = registration.roofline or self.roofline
        view: dict[str, Any] = {"id": "wrk", "state": "active", "last_seen_at": datetime.now(UTC), "trials": 0}
        return WorkerView(**view, **registration.model_dump(exclude={"goes_on"}) | {"roofline": self.roofline})

    def acquire(self, request: LeaseRequest) -> LeaseGrant | None:
        self._hook("acquire")
        with self.lock:
            if self.to_grant == 0:
                return None
            self.to_grant -= 1
            fence = self.to_grant + 1
        name = f"lease{fence}"
        return LeaseGrant(
            lease=name,
            fence=fence,
            ttl_secs=self.ttl_secs,
            purpose=Purpose.SEARCH,
            workload=sha256(b"w"),
            target=TARGET,
            config=MeasureConfig(),
            candidates=tuple(
                Candidate(digest=sha256(f"{name}{i}".encode()), trace="[[],[]]") for i in range(self.size)
            ),
        )

    def heartbeat(self, lease: str, fence: int) -> HeartbeatResponse:
        self._hook("heartbeat")
        self.beats.append(lease)
        return HeartbeatResponse(ttl_secs=self.ttl_secs, cancelled=self.cancelled)

    def report(self, lease: str, report: Report) -> ReportResponse:
        self._hook("report")
        with self.lock:
            self.reports.append((lease, report))
            self.finals += report.final
        return ReportResponse(accepted=len(report.results), duplicates=0, lease_open=not report.final)

    def workload(self, digest: str) -> WorkloadView:
        self._hook("workload")
        self.fetched.append(digest)
        return WorkloadView(digest=digest, ir="{}")

    def set_worker_state(self, worker_id: str, state: WorkerState) -> WorkerView:
        self._hook("state")
        self.states.append(state)
        return self.register_worker(REGISTRATION)

    @property
    def results(self) -> list[Measurement]:
        return [result for _, report in self.reports for result in report.results]


class FakeSandbox:
    """Fails every candidate at once, after calling `before` with its number."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        self.before = before
        self.count = 0
        self.stopped = threading.Event()
        self.steadiness: Steadiness | None = None
        self.seconds = WorkerSeconds(total_secs=1.0)
        self.device: Roofline | None = None
        self.looks = 0

    def roofline(self) -> Roofline | None:
        assert self.count == 0, "the device is measured before anything else"
        self.looks += 1
        return self.device

    def measure(
        self,
        workload: Workload,
        candidates: Sequence[Candidate],
        config: MeasureConfig,
        *,
        purpose: Purpose,
        incumbent_secs: float | None,
        cancelled: Callable[[], bool],
    ) -> Iterator[Measurement]:
        for candidate in candidates:
            self.before(self.count)
            if cancelled():
                self.stopped.set()
                return
            self.count += 1
            yield self.result(candidate)

    def result(self, candidate: Candidate) -> Measurement:
        return Failed(candidate=candidate.digest, kind=FailureKind.BUILD_ERROR)


def start(service: FakeService, sandbox: FakeSandbox, **options: Any) -> tuple[Daemon, Callable[[], int]]:
    """Runs the daemon in a thread; the function waits for its exit code."""
    daemon = Daemon(service, sandbox, REGISTRATION, **{"tick_secs": 0.02, "wait_secs": 0.0, **options})
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(daemon.run()), daemon=True)
    thread.start()

    def wait() -> int:
        thread.join(30)
        assert codes, "the daemon did not end"
        return codes[0]

    return daemon, wait


def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to pass")


def test_all_leases_are_measured_and_reported_and_a_stop_leaves_properly() -> None:
    service, sandbox = FakeService(leases=4, size=20), FakeSandbox()
    daemon, wait = start(service, sandbox)
    until(lambda: service.finals == 4)
    daemon.stop()
    assert wait() == 0
    assert len(service.results) == len({result.candidate for result in service.results}) == 80
    assert service.states == [WorkerState.DRAINING, WorkerState.GONE]
    assert service.fetched == [sha256(b"w")]


def test_every_report_tells_how_steady_the_device_is_and_where_the_seconds_went_when_it_is_sent() -> None:
    def told(beats: int) -> Steadiness:
        return Steadiness(reference_secs=2.0, usual_secs=1.0, ratio=2.0, noisy=True, beats=beats, repeated=0)

    def beat(number: int) -> None:
        sandbox.steadiness = told(number)
        sandbox.seconds = WorkerSeconds(total_secs=9.0, time_secs=number)

    service, sandbox = FakeService(leases=1, size=20), FakeSandbox(beat)
    daemon, wait = start(service, sandbox)
    until(lambda: service.finals)
    daemon.stop()
    assert wait() == 0
    assert all(report.steadiness is not None for _, report in service.reports)
    assert service.reports[-1][1].steadiness == told(19)
    assert service.reports[-1][1].seconds == WorkerSeconds(total_secs=9.0, time_secs=19)


@pytest.mark.parametrize("measurable", [True, False])
def test_a_device_that_the_service_does_not_know_is_measured_once_and_told(measurable: bool) -> None:
    service, sandbox = FakeService(leases=2), FakeSandbox()
    sandbox.device = Roofline(threads=2, flops_per_sec=1e9) if measurable else None
    daemon, wait = start(service, sandbox)
    until(lambda: service.finals == 2)
    daemon.stop()
    assert wait() == 0
    assert sandbox.looks == 1
    told = [registration.roofline for registration in service.registered if registration.roofline is not None]
    assert not service.registered[0].goes_on
    assert all(registration.goes_on for registration in service.registered if registration.roofline is not None)
    assert told == [sandbox.device] * measurable


def test_a_device_that_the_service_knows_is_not_measured_again() -> None:
    service, sandbox = FakeService(leases=1), FakeSandbox()
    service.roofline = Roofline(threads=2, flops_per_sec=1e9)
    daemon, wait = start(service, sandbox)
    until(lambda: service.finals)
    daemon.stop()
    assert wait() == 0
    assert sandbox.looks == 0


def test_a_stop_amid_a_batch_reports_what_is_done_and_hands_back_the_rest() -> None:
    third = threading.Event()
    go_on = threading.Event()

    def before(number: int) -> None:
        if number == 3:
            third.set()
            assert go_on.wait(30)

    service, sandbox = FakeService(leases=1, size=20), FakeSandbox(before)
    daemon, wait = start(service, sandbox)
    assert third.wait(30)
    daemon.stop()
    until(lambda: service.states)
    go_on.set()
    assert wait() == 0
    assert len(service.results) == 3
    assert service.reports[-1][1].final


def test_a_lost_lease_stops_measuring_and_nothing_more_is_said_of_it() -> None:
    service, sandbox = FakeService(leases=1, size=1000, ttl_secs=0.06), FakeSandbox()
    sandbox.before = lambda _: sandbox.stopped.wait(0.02)

    def stale() -> None:
        raise StaleLease("fence 1 is old")

    service.on["heartbeat"] = stale
    daemon, wait = start(service, sandbox)
    assert sandbox.stopped.wait(30)
    count = len(service.reports)
    daemon.stop()
    assert wait() == 0
    assert len(service.reports) == count
    assert not any(report.final for _, report in service.reports)


@pytest.mark.parametrize("hang", [False, True])
def test_heartbeats_that_fail_or_hang_stop_measuring_and_the_results_are_still_reported(hang: bool) -> None:
    service, sandbox = FakeService(leases=1, size=100_000, ttl_secs=0.3), FakeSandbox()
    sandbox.before = lambda _: sandbox.stopped.wait(0.01)
    release = threading.Event()

    def fail() -> None:
        if hang:
            release.wait(30)
        raise Unreachable("no route")

    service.on["heartbeat"] = fail
    daemon, wait = start(service, sandbox)
    assert sandbox.stopped.wait(30)
    until(lambda: service.finals)
    release.set()
    daemon.stop()
    assert wait() == 0
    assert len(service.results) == sandbox.count


def test_a_cancelled_job_is_measured_no_further() -> None:
    service, sandbox = FakeService(leases=1, size=100_000, ttl_secs=0.3), FakeSandbox()
    sandbox.before = lambda _: sandbox.stopped.wait(0.01)
    service.cancelled = True
    daemon, wait = start(service, sandbox)
    assert sandbox.stopped.wait(30)
    daemon.stop()
    assert wait() == 0
    assert len(service.results) == sandbox.count
    assert service.finals == 1


def test_a_report_that_fails_is_sent_again_until_it_arrives() -> None:
    service, sandbox = FakeService(leases=1, size=3), FakeSandbox()
    attempts: list[int] = []

    def fail_twice() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise Unreachable("restarting")

    service.on["report"] = fail_twice
    daemon, wait = start(service, sandbox)
    until(lambda: service.finals)
    daemon.stop()
    assert wait() == 0
    assert len(service.results) == 3


def test_a_workload_that_is_missing_is_a_fault_reported_as_device_error() -> None:
    service, sandbox = FakeService(leases=3, size=2), FakeSandbox()

    def missing() -> None:
        raise NotFound("no such workload")

    service.on["workload"] = missing
    _, wait = start(service, sandbox)
    assert wait() == 1
    assert {(type(r), getattr(r, "kind", None)) for r in service.results} == {(Failed, FailureKind.DEVICE_ERROR)}


def test_a_sandbox_that_leaves_candidates_out_is_a_fault() -> None:
    class Lazy(FakeSandbox):
        def measure(self, workload: Workload, candidates: Sequence[Candidate], *a: Any, **k: Any) -> Iterator[Any]:
            return super().measure(workload, candidates[:1], *a, **k)

    service = FakeService(leases=1, size=3)
    daemon, wait = start(service, Lazy())
    until(lambda: service.finals)
    daemon.stop()
    assert wait() == 0
    kinds = [result.kind for result in service.results if isinstance(result, Failed)]
    assert kinds == [FailureKind.BUILD_ERROR, FailureKind.DEVICE_ERROR, FailureKind.DEVICE_ERROR]


@pytest.mark.parametrize("call", ["register", "acquire"])
def test_a_refused_token_ends_with_4(call: str) -> None:
    service = FakeService()

    def refuse() -> None:
        raise Unauthorized("no such token")

    service.on[call] = refuse
    _, wait = start(service, FakeSandbox())
    assert wait() == 4


def test_a_heartbeat_thread_that_dies_ends_the_worker() -> None:
    service, sandbox = FakeService(leases=1, size=100_000, ttl_secs=0.05), FakeSandbox()
    sandbox.before = lambda _: sandbox.stopped.wait(0.01)

    def die() -> None:
        raise SystemExit

    service.on["heartbeat"] = die
    _, wait = start(service, sandbox)
    assert wait() == 1
    assert sandbox.stopped.is_set()


def test_a_service_that_fails_inside_is_asked_again() -> None:
    service, sandbox = FakeService(leases=1, size=2), FakeSandbox()
    failures = [PitchpipeError("500"), PitchpipeError("500")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    service.on["acquire"] = fail
    daemon, wait = start(service, sandbox)
    until(lambda: service.finals)
    daemon.stop()
    assert wait() == 0


def test_one_signal_that_arrives_twice_is_one_signal() -> None:
    service, sandbox = FakeService(leases=0), FakeSandbox()
    daemon, wait = start(service, sandbox)
    until(lambda: daemon.state.worker)
    daemon.stop()
    daemon.stop()
    assert wait() == 0


def test_an_orphan_drains() -> None:
    service, sandbox = FakeService(leases=0), FakeSandbox()
    _, wait = start(service, sandbox, parent=2**22 + 1)
    assert wait() == 0
    assert service.states[-1] is WorkerState.GONE


def test_a_lane_keeps_to_the_times_and_not_to_the_order_of_arrival() -> None:
    done: list[Any] = []
    ended = threading.Event()

    def carry_out(instruction: Any) -> None:
        done.append(instruction)
        if len(done) == 3:
            ended.set()

    lane = Lane("test", carry_out, lambda name, error: None)
    lane.put("late", 0.05)  # type: ignore[arg-type]
    lane.put("now")  # type: ignore[arg-type]
    lane.put("soon", 0.02)  # type: ignore[arg-type]
    lane.start()
    assert ended.wait(30)
    lane.close()
    lane.join(30)
    assert done == ["now", "soon", "late"]
