"""The worker's state machine: single steps, then random histories against a simulated service and device."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pitchpipe.errors import InvalidTransition
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.lease import LeaseGrant, Purpose, WorkerState
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, MeasureConfig
from pitchpipe.wire.target import Target
from workers.agent.endings import MAX_FAULTS
from workers.agent.events import (
    Acquire,
    Broken,
    Declare,
    Declared,
    Event,
    Exit,
    Expired,
    Faulted,
    Finished,
    Forgotten,
    Granted,
    Instruction,
    Measured,
    Nothing,
    Refused,
    Register,
    Registered,
    Rejected,
    Renew,
    Renewed,
    Report,
    Reported,
    Signalled,
    Stale,
    Started,
    StartMeasuring,
    StopMeasuring,
    Tick,
    Unreachable,
)
from workers.agent.machine import LAST_PHASE, MAX_START_ATTEMPTS, backoff_secs, step
from workers.agent.state import REPORT_AT, Phase, Stage, State

WORKLOAD = sha256(b"workload")
TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})


def grant(name: str, size: int, fence: int = 1) -> LeaseGrant:
    candidates = tuple(Candidate(digest=sha256(f"{name}/{i}".encode()), trace="[[],[]]") for i in range(size))
    return LeaseGrant(
        lease=name,
        fence=fence,
        ttl_secs=30,
        purpose=Purpose.SEARCH,
        workload=WORKLOAD,
        target=TARGET,
        config=MeasureConfig(),
        candidates=candidates,
    )


def result(candidate: Candidate) -> Failed:
    return Failed(candidate=candidate.digest, kind=FailureKind.BUILD_ERROR)


def run(*events: Event, state: State | None = None) -> tuple[State, list[Instruction]]:
    """The state after some events, and the instructions of the last one."""
    now, out = state or State(), ()
    for event in events:
        now, out = step(now, event)
    return now, list(out)


def working(*events: Event) -> tuple[State, list[Instruction]]:
    return run(Started(), Registered(worker="w"), *events)


def measured(lease: LeaseGrant, first: int, last: int) -> list[Event]:
    return [Measured(lease=lease.lease, result=result(c)) for c in lease.candidates[first:last]]


def kinds(instructions: list[Instruction]) -> list[type]:
    return [type(instruction) for instruction in instructions]


def test_a_started_worker_registers_and_a_registered_one_asks_for_work() -> None:
    state, out = run(Started())
    assert out == [Register()]
    state, out = run(Registered(worker="w"), state=state)
    assert out == [Acquire(worker="w")]
    assert state.phase is Phase.WORKING


def test_a_grant_is_measured_and_kept_alive() -> None:
    a = grant("a", 8)
    state, out = working(Granted(grant=a))
    assert out == [Renew(lease="a", fence=1, after_secs=10), StartMeasuring(grant=a)]
    assert state.measuring is not None


def test_results_go_out_in_reports_of_a_few_or_at_a_tick_one_report_at_a_time() -> None:
    a = grant("a", 32)
    state, out = working(Granted(grant=a), *measured(a, 0, REPORT_AT))
    assert [len(i.results) for i in out if isinstance(i, Report)] == [REPORT_AT]
    state, out = run(*measured(a, REPORT_AT, 2 * REPORT_AT), Tick(), state=state)
    assert out == []
    state, out = run(Reported(lease="a", final=False, lease_open=True), state=state)
    assert [len(i.results) for i in out if isinstance(i, Report)] == [REPORT_AT]
    state, out = run(Reported(lease="a", final=False, lease_open=True), *measured(a, 16, 17), Tick(), state=state)
    assert [len(i.results) for i in out if isinstance(i, Report)] == [1]


def test_the_end_of_a_batch_is_reported_as_final_after_the_report_on_its_way() -> None:
    a = grant("a", 10)
    state, out = working(Granted(grant=a), *measured(a, 0, 10), Finished(lease="a"))
    assert Report not in kinds(out)
    state, out = run(Reported(lease="a", final=False, lease_open=True), state=state)
    assert [(len(i.results), i.final) for i in out if isinstance(i, Report)] == [(2, True)]
    state, _ = run(Reported(lease="a", final=True, lease_open=False), state=state)
    assert state.held == ()


def test_the_next_lease_is_acquired_near_the_end_of_the_present_one_and_waits_for_the_device() -> None:
    a, b = grant("a", 32), grant("b", 32, fence=2)
    state, out = working(Granted(grant=a), *measured(a, 0, 32 - LAST_PHASE))
    assert Acquire(worker="w") in out
    state, out = run(Granted(grant=b), state=state)
    assert kinds(out) == [Renew]
    state, out = run(*measured(a, 32 - LAST_PHASE, 32), Finished(lease="a"), state=state)
    assert StartMeasuring(grant=b) in out


def test_nothing_is_acquired_beside_a_long_lease_before_its_first_results() -> None:
    _, out = working(Granted(grant=grant("a", LAST_PHASE)))
    assert Acquire not in kinds(out)


def test_nothing_is_acquired_beside_a_confirming_run_which_others_may_do_meanwhile() -> None:
    a = grant("a", 3).model_copy(update={"purpose": Purpose.CONFIRM})
    state, out = working(Granted(grant=a))
    assert Acquire not in kinds(out)
    _, out = run(*measured(a, 0, 3), Finished(lease="a"), state=state)
    assert Acquire in kinds(out)


def test_nothing_is_acquired_beside_a_lease_of_one_candidate() -> None:
    _, out = working(Granted(grant=grant("a", 1)))
    assert Acquire not in kinds(out)


def test_a_lease_of_one_candidate_that_arrives_early_is_handed_back() -> None:
    a, b = grant("a", 2), grant("b", 1, fence=2)
    state, out = working(Granted(grant=a), Granted(grant=b))
    assert Report(lease="b", fence=2, results=(), final=True) in out
    state, out = run(Reported(lease="b", final=True, lease_open=False), state=state)
    assert Acquire not in kinds(out)
    assert [held.grant.lease for held in state.held] == ["a"]


def test_a_cancelled_job_stops_measuring_and_reports_what_is_done() -> None:
    a = grant("a", 16)
    state, out = working(Granted(grant=a), *measured(a, 0, 3), Renewed(lease="a", ttl_secs=30, cancelled=True))
    assert StopMeasuring(lease="a") in out
    _, out = run(Finished(lease="a"), state=state)
    assert [(len(i.results), i.final) for i in out if isinstance(i, Report)] == [(3, True)]


def test_withdrawn_candidates_are_handed_back_at_the_next_report() -> None:
    a = grant("a", 16)
    state, _ = working(Granted(grant=a), *measured(a, 0, 3), Tick())
    state, out = run(Reported(lease="a", final=False, lease_open=True, cancelled=True), state=state)
    assert StopMeasuring(lease="a") in out
    _, out = run(*measured(a, 3, 4), Finished(lease="a"), state=state)
    assert [(len(i.results), i.final) for i in out if isinstance(i, Report)] == [(1, True)]


def test_a_stale_lease_is_stopped_and_never_mentioned_again() -> None:
    a = grant("a", 16)
    state, out = working(Granted(grant=a), *measured(a, 0, 3), Stale(lease="a"))
    assert StopMeasuring(lease="a") in out
    state, out = run(Tick(), *measured(a, 3, 4), Finished(lease="a"), state=state)
    assert Report not in kinds(out)
    assert state.held == ()


def test_a_silent_service_stops_measuring_but_the_results_are_still_offered() -> None:
    a = grant("a", 16)
    state, out = working(Granted(grant=a), *measured(a, 0, 3), Expired(lease="a"))
    assert StopMeasuring(lease="a") in out
    state, out = run(Finished(lease="a"), state=state)
    report = next(i for i in out if isinstance(i, Report))
    state, out = run(Unreachable(call=report), state=state)
    assert out == [Report(**{**vars(report), "attempt": 2, "after_secs": backoff_secs(1)})]


def test_a_signal_drains_what_is_measured_is_reported_the_rest_handed_back_then_the_worker_leaves() -> None:
    a, b = grant("a", 16), grant("b", 16, fence=2)
    state, out = working(Granted(grant=a), *measured(a, 0, 13), Granted(grant=b), Signalled())
    assert Declare(worker="w", state=WorkerState.DRAINING) in out
    assert StopMeasuring(lease="a") in out
    assert Report(lease="b", fence=2, results=(), final=True) in out
    state, out = run(
        Reported(lease="b", final=True, lease_open=False),
        Reported(lease="a", final=False, lease_open=True),
        Finished(lease="a"),
        state=state,
    )
    assert [(len(i.results), i.final) for i in out if isinstance(i, Report)] == [(5, True)]
    state, out = run(Reported(lease="a", final=True, lease_open=False), state=state)
    assert out == [Declare(worker="w", state=WorkerState.GONE)]
    state, out = run(Declared(state=WorkerState.GONE), state=state)
    assert out == [Exit(code=0, reason="drained")]


def test_a_grant_that_arrives_while_draining_is_handed_back() -> None:
    state, out = working(Signalled())
    assert out == [Declare(worker="w", state=WorkerState.DRAINING)]
    state, out = run(Granted(grant=grant("a", 4)), state=state)
    assert Report(lease="a", fence=1, results=(), final=True) in out


def test_a_second_signal_ends_at_once() -> None:
    state, out = working(Granted(grant=grant("a", 4)), Signalled(), Signalled())
    assert out == [StopMeasuring(lease="a"), Exit(code=130, reason="told twice to stop")]
    assert step(state, Tick()) == (state, ())


def test_a_service_that_cannot_be_reached_at_the_start_ends_the_worker_with_5() -> None:
    state, out = run(Started())
    for _ in range(MAX_START_ATTEMPTS - 1):
        state, out = run(Unreachable(call=out[0]), state=state)
        assert kinds(out) == [Register]
    _, out = run(Unreachable(call=out[0]), state=state)
    assert [i.code for i in out if isinstance(i, Exit)] == [5]


def test_a_service_lost_later_is_asked_again_for_ever_with_growing_pauses() -> None:
    state, out = working()
    pauses = []
    for _ in range(40):
        state, out = run(Unreachable(call=out[0]), state=state)
        pauses.append(out[0].after_secs)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 15


def test_a_pause_that_the_service_asks_for_is_kept() -> None:
    _, out = working(Unreachable(call=Acquire(worker="w"), retry_after_secs=42))
    assert out == [Acquire(worker="w", after_secs=42, attempt=2)]


def test_a_worker_that_the_service_forgot_registers_again() -> None:
    state, out = working(Forgotten(call=Acquire(worker="w")))
    assert out == [Register()]
    _, out = run(Registered(worker="w2"), state=state)
    assert out == [Acquire(worker="w2")]


def test_a_refused_token_ends_the_worker_with_the_errors_code() -> None:
    _, out = working(Granted(grant=grant("a", 4)), Refused(code=4, detail="no"))
    assert out == [StopMeasuring(lease="a"), Exit(code=4, reason="no")]


def test_a_dead_side_task_ends_the_worker() -> None:
    _, out = working(Granted(grant=grant("a", 4)), Broken(detail="heartbeat"))
    assert out == [StopMeasuring(lease="a"), Exit(code=1, reason="heartbeat")]


def test_a_broken_sandbox_is_reported_as_a_device_error_and_after_a_few_batches_ends_the_worker() -> None:
    state, out = working()
    for turn in range(MAX_FAULTS):
        a = grant(f"a{turn}", 3)
        state, out = run(
            Granted(grant=a), *measured(a, 0, 0), Faulted(lease=a.lease, detail="no compiler"), state=state
        )
        report = next(i for i in out if isinstance(i, Report))
        assert {r.kind for r in report.results} == {FailureKind.DEVICE_ERROR}
        state, out = run(Reported(lease=a.lease, final=True, lease_open=False), state=state)
        state = State(**{**vars(state), "acquiring": True}) if state.phase is Phase.WORKING else state
    state, out = run(Nothing(), state=state) if state.acquiring else (state, out)
    assert out == [Declare(worker="w", state=WorkerState.GONE)]
    _, out = run(Declared(state=WorkerState.GONE), state=state)
    assert [i.code for i in out if isinstance(i, Exit)] == [1]


def test_a_rejected_report_lets_the_lease_go() -> None:
    a = grant("a", 4)
    state, out = working(Granted(grant=a), *measured(a, 0, 1), Tick(), Rejected(lease="a", detail="no such candidate"))
    assert StopMeasuring(lease="a") in out
    state, out = run(Finished(lease="a"), state=state)
    assert Report not in kinds(out)


@pytest.mark.parametrize(
    "event",
    [
        Registered(worker="w"),
        Finished(lease="x"),
        Measured(lease="x", result=result(grant("x", 1).candidates[0])),
        Measured(lease="a", result=result(grant("a", 4).candidates[0])),
        Measured(lease="a", result=result(grant("other", 1).candidates[0])),
        Granted(grant=grant("a", 4)),
        Started(),
    ],
)
def test_an_event_that_cannot_happen_tells_the_history(event: Event) -> None:
    a = grant("a", 4)
    state, _ = working(Granted(grant=a), *measured(a, 0, 1))
    with pytest.raises(InvalidTransition, match=r"Registered -> working; Granted\(a\) -> working, a measuring"):
        step(state, event)


def one_in(n: int) -> st.SearchStrategy[bool]:
    """True about once in `n` draws; Hypothesis prefers the ends of a range, so the hit is away from them."""
    return st.integers(0, 10 * n - 1).map(lambda value: 3 * n <= value < 3 * n + 10)


class Worker(RuleBasedStateMachine):
    """A machine beside a service and a device that do anything the contract allows, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.calls: deque[Register | Acquire | Renew | Report | Declare] = deque()
        self.granted: dict[str, LeaseGrant] = {}
        self.dead: set[str] = set()
        """Leases that the service takes for expired, or that were refused for their content."""
        self.closed: set[str] = set()
        self.results: dict[str, dict[str, int]] = {}
        self.device: tuple[LeaseGrant, list[Candidate]] | None = None
        self.stopping = False
        self.exits: list[Exit] = []
        self.started = 0

    def feed(self, event: Event) -> None:
        stopped = self.state.phase is Phase.STOPPED
        self.state, instructions = step(self.state, event)
        assert not (stopped and instructions)
        for number, instruction in enumerate(instructions):
            match instruction:
                case StartMeasuring(grant=lease):
                    assert self.device is None, "two leases on one device"
                    self.device, self.stopping = (lease, list(lease.candidates)), False
                    self.started += 1
                case StopMeasuring(lease=lease):
                    assert self.device is not None
                    assert self.device[0].lease == lease
                    self.stopping = True
                case Exit():
                    assert number == len(instructions) - 1, "nothing comes after exit"
                    self.exits.append(instruction)
                case call:
                    self.calls.append(call)

    @initialize()
    def start(self) -> None:
        self.feed(Started())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Some of the calls under way, in any order, are answered."""
        for _ in range(data.draw(st.integers(1, 4))):
            if self.calls:
                self.answer_one(data)

    def answer_one(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.calls) - 1))
        call = self.calls[index]
        del self.calls[index]
        if data.draw(one_in(10)):
            self.feed(Unreachable(call=call))
            return
        match call:
            case Register():
                self.feed(Registered(worker="w"))
            case Acquire():
                if data.draw(one_in(8)):
                    self.feed(data.draw(st.sampled_from([Nothing(), Forgotten(call=call)])))
                else:
                    self.feed(Granted(grant=self.issue(data.draw(st.sampled_from([1, 2, 5, 12])))))
            case Renew(lease=lease):
                if lease in self.dead or lease in self.closed:
                    self.feed(Stale(lease=lease))
                else:
                    self.feed(Renewed(lease=lease, ttl_secs=30, cancelled=data.draw(one_in(12))))
            case Report(lease=lease):
                if lease in self.dead:
                    self.feed(Stale(lease=lease))
                elif data.draw(one_in(20)):
                    self.dead.add(lease)
                    self.feed(Rejected(lease=lease, detail="no"))
                else:
                    self.store(call)
            case Declare(state=state):
                self.feed(Declared(state=state))

    def issue(self, size: int) -> LeaseGrant:
        lease = grant(f"l{len(self.granted)}", size, fence=len(self.granted) + 1)
        self.granted[lease.lease] = lease
        self.results[lease.lease] = {}
        return lease

    def store(self, report: Report) -> None:
        assert report.lease not in self.closed, "a closed lease is spoken of"
        for one in report.results:
            seen = self.results[report.lease]
            assert one.candidate not in seen, "a result is sent twice without need"
            seen[one.candidate] = 1
        if report.final:
            self.closed.add(report.lease)
        self.feed(Reported(lease=report.lease, final=report.final, lease_open=not report.final))

    @precondition(lambda self: self.device is not None)
    @rule(fault=one_in(15), results=st.integers(1, 12))
    def measure(self, fault: bool, results: int) -> None:
        """The device ends some more candidates, or all of them, or breaks."""
        assert self.device is not None
        if fault:
            lease, self.device = self.device[0], None
            self.feed(Faulted(lease=lease.lease, detail="broken"))
            return
        for _ in range(results):
            if self.device is not None:
                self.measure_one()

    def measure_one(self) -> None:
        assert self.device is not None
        lease, left = self.device
        if self.stopping or not left:
            self.device = None
            self.feed(Finished(lease=lease.lease))
        else:
            self.feed(Measured(lease=lease.lease, result=result(left.pop(0))))

    @precondition(lambda self: set(self.granted) - self.dead - self.closed)
    @rule(data=st.data(), happens=one_in(6))
    def lose_a_lease(self, data: st.DataObject, happens: bool) -> None:
        if happens:
            self.dead.add(data.draw(st.sampled_from(sorted(set(self.granted) - self.dead - self.closed))))

    @precondition(lambda self: self.state.held)
    @rule(data=st.data(), happens=one_in(6))
    def fall_silent(self, data: st.DataObject, happens: bool) -> None:
        if happens:
            self.feed(Expired(lease=data.draw(st.sampled_from([held.grant.lease for held in self.state.held]))))

    @rule()
    def tick(self) -> None:
        self.feed(Tick())

    @precondition(lambda self: self.state.worker is not None and self.state.phase in (Phase.WORKING, Phase.REGISTERING))
    @rule(happens=one_in(20))
    def signal(self, happens: bool) -> None:
        if happens:
            self.feed(Signalled())

    @invariant()
    def at_most_one_lease_is_on_the_device(self) -> None:
        busy = [held for held in self.state.held if held.stage in (Stage.MEASURING, Stage.STOPPING)]
        assert len(busy) <= 1
        if self.state.phase is not Phase.STOPPED:
            assert bool(busy) == (self.device is not None)

    @invariant()
    def at_most_one_lease_waits(self) -> None:
        assert sum(held.stage is Stage.WAITING for held in self.state.held) <= 1

    @invariant()
    def every_held_lease_is_renewed_until_it_is_let_go(self) -> None:
        beating = {call.lease for call in self.calls if isinstance(call, Renew)}
        assert {held.grant.lease for held in self.state.held if not held.disowned} <= beating

    @invariant()
    def a_worker_without_work_is_asking_for_it(self) -> None:
        if self.state.phase is Phase.WORKING and not self.state.held:
            assert any(isinstance(call, Acquire) for call in self.calls)

    def teardown(self) -> None:
        """From wherever the history ended, a signal and a service that answers bring the worker to its end."""
        if self.state.worker is not None and self.state.phase in (Phase.WORKING, Phase.REGISTERING):
            self.feed(Signalled())
        for _ in range(10_000):
            if self.state.phase is Phase.STOPPED or (not self.calls and self.device is None):
                break
            if self.device is not None:
                self.measure_one()
            elif self.calls:
                match self.calls.popleft():
                    case Register():
                        self.feed(Registered(worker="w"))
                        if self.state.phase is Phase.WORKING:
                            self.feed(Signalled())
                    case Acquire():
                        self.feed(Nothing())
                    case Renew(lease=lease):
                        over = lease in self.dead or lease in self.closed
                        self.feed(Stale(lease=lease) if over else Renewed(lease=lease, ttl_secs=30, cancelled=False))
                    case Report() as report:
                        self.feed(Stale(lease=report.lease)) if report.lease in self.dead else self.store(report)
                    case Declare(state=state):
                        self.feed(Declared(state=state))
        if self.state.phase is Phase.REGISTERING and not self.calls:
            return
        assert self.state.phase is Phase.STOPPED, "the worker never ended"
        assert len(self.exits) == 1
        for lease in set(self.granted) - self.dead:
            assert lease in self.closed, f"{lease} was neither reported nor handed back"


TestWorker = Worker.TestCase
TestWorker.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
