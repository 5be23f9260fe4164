"""The worker's state machine: pure, `step(state, event) -> (state, instructions)`.

No clock, no thread, no socket: the shell in `daemon.py` carries instructions out and turns what happens into events
(`events.py`); what is remembered between events is in `state.py`. The worker as a whole:

    registering ──Registered──► working ──Signalled, Faulted x3──► draining ──nothing held──► leaving
         │           ▲             │                                                             │ Declared
         │           └──Forgotten──┘                                                             ▼
         └──Signalled; Unreachable too often; from any: Refused, Broken, a second Signalled──► stopped

and each lease it holds (at most one is *measuring* or *stopping*, so that timings have the device to themselves):

    Granted ──► waiting ──the one before has ended──► measuring ──Finished, Faulted──► closing ──► let go
                   │                                      │                               ▲           ▲
                   │         Renewed or Reported(cancelled), Signalled, Expired, Stale    │           │
                   │                                      ▼                               │           │
                   │                                  stopping ──Finished, not disowned───┤           │
                   │                                      └──Finished, disowned───────────┼───────────┤
                   └──Renewed(cancelled), Signalled───────────────────────────────────────┘           │
                                                       not measuring: Stale, Rejected ────────────────┘

A worker is idle while it is `working` and measures no lease. While the last few candidates of a lease are measured the next
lease is acquired (one ahead), so that the device does not wait for the network. The candidate of a lease that has only one
may have killed a worker before. So no lease is acquired beside such a one, and such a one that arrives while another is
measured is handed back: a death can then be attributed to it or to the others with certainty.

Answers about a lease that was let go in the meantime are ignored; an event that cannot happen in a state raises
InvalidTransition with the events that led there.
"""

from __future__ import annotations

from dataclasses import replace

from pitchpipe.errors import InvalidTransition
from pitchpipe.wire.lease import Purpose, WorkerState
from pitchpipe.wire.measure import Failed, FailureKind
from workers.agent.endings import Step, disown, drain, end_early, give_up_if_broken, left, stop
from workers.agent.events import (
    Acquire,
    Broken,
    Declare,
    Declared,
    Event,
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
    Tick,
    Unreachable,
)
from workers.agent.state import Held, Phase, Stage, State

LAST_PHASE = 16
"""The next lease is acquired once at most so many candidates of the present one have no result. The sandbox reports the
results of a phase together, so these are the last phase, about a second of work."""
LAST_FEW = 4
"""The same while the present lease has no result at all, as a short one has until its end. It is small, so that one worker
does not hold candidates that others could measure."""
MAX_START_ATTEMPTS = 7
"""Registrations tried before the worker says the service is unreachable: about 30 seconds."""
MAX_DRAIN_ATTEMPTS = 6
"""Attempts at a last report while draining, before the lease is left to expire: about 15 seconds."""
IDLE_PAUSE_SECS = 0.05
"""Pause between two long polls without work, for a service that answers at once."""


_HISTORY = 24


def step(state: State, event: Event) -> Step:
    """The state after an event, and the instructions that follow. Raises InvalidTransition for an event that cannot happen
    in this state."""
    if state.phase is Phase.STOPPED:
        return state, ()
    after, instructions = _handle(state, event)
    if after.phase is not Phase.STOPPED:
        after, more = _apply_standing_rules(after)
        instructions += more
    line = f"{_name(event)} -> {after.phase}" + "".join(f", {h.grant.lease} {h.stage}" for h in after.held)
    history = state.history if isinstance(event, Tick) else (*state.history, line)[-_HISTORY:]
    return replace(after, history=history), instructions


def _handle(state: State, event: Event) -> Step:
    match event:
        case Started():
            return _started(state, event)
        case Registered():
            return _registered(state, event)
        case Granted():
            return _granted(state, event)
        case Nothing():
            return _nothing(state, event)
        case Measured():
            return _measured(state, event)
        case Finished():
            return _finished(state, event)
        case Faulted():
            return _faulted(state, event)
        case Renewed():
            return _renewed(state, event)
        case Reported():
            return _reported(state, event)
        case Declared():
            return _declared(state, event)
        case Expired():
            return _expired(state, event)
        case Stale():
            return _stale(state, event)
        case Rejected():
            return _rejected(state, event)
        case Unreachable():
            return _unreachable(state, event)
        case Forgotten():
            return _forgotten(state, event)
        case Refused():
            return _refused(state, event)
        case Tick():
            return _tick(state)
        case Signalled():
            return _signalled(state)
        case Broken():
            return _broken(state, event)


def backoff_secs(attempt: int, most: float = 15.0) -> float:
    """Pause after the given failed attempt (1, 2, ...); the shell adds jitter."""
    return min(0.25 * 2.0 ** min(attempt, 16), most)


def _name(event: Event) -> str:
    lease = getattr(event, "lease", None) or (event.grant.lease if isinstance(event, Granted) else None)
    return type(event).__name__ + (f"({lease})" if lease else "")


def _invalid(state: State, event: Event, why: str) -> InvalidTransition:
    past = "; ".join(state.history) or "nothing"
    return InvalidTransition(f"{_name(event)} while {state.phase}: {why}. Before it: {past}")


def _apply_standing_rules(state: State) -> Step:
    """The rules that are applied after every event: due reports are sent, a waiting lease is measured, the next lease is
    acquired, and a drained worker leaves."""
    out: list[Instruction] = []
    for held in state.held:
        sent = held.sent()
        if sent is not held and sent.report is not None:
            out.append(sent.report)
            state = state.put(sent)
    if state.phase is Phase.WORKING:
        waiting = next((held for held in state.held if held.stage is Stage.WAITING), None)
        if waiting is not None and state.measuring is None:
            state = state.put(replace(waiting, stage=Stage.MEASURING))
            out.append(StartMeasuring(grant=waiting.grant))
        state, more = _acquire_if_wanted(state)
        out.extend(more)
    pending = state.held or state.acquiring or state.registering
    if state.phase is Phase.DRAINING and not pending and (worker := state.worker) is not None:
        state = replace(state, phase=Phase.LEAVING)
        out.append(Declare(worker=worker, state=WorkerState.GONE))
    return state, tuple(out)


def _acquire_if_wanted(state: State) -> Step:
    worker = state.worker
    if state.acquiring or worker is None or any(held.stage is Stage.WAITING for held in state.held):
        return state, ()
    present = state.measuring
    if present is not None:
        lease = present.grant.lease
        alone = len(present.grant.candidates) == 1
        # Its results come all together, at its end, and by then another worker may have confirmed the next task.
        confirming = present.grant.purpose is Purpose.CONFIRM
        ahead = LAST_PHASE if present.measured else LAST_FEW
        early = (confirming or present.remaining > ahead) and present.stage is Stage.MEASURING
        if alone or early or state.acquired_beside == lease:
            return state, ()
        state = replace(state, acquired_beside=lease)
    return replace(state, acquiring=True), (Acquire(worker=worker),)


def _started(state: State, event: Started) -> Step:
    if state.history:
        raise _invalid(state, event, "the worker runs already")
    return replace(state, registering=True), (Register(),)


def _registered(state: State, event: Registered) -> Step:
    if not state.registering:
        raise _invalid(state, event, "no registration was asked for")
    phase = Phase.WORKING if state.phase is Phase.REGISTERING else state.phase
    return replace(state, phase=phase, worker=event.worker, registering=False), ()


def _granted(state: State, event: Granted) -> Step:
    grant = event.grant
    if not state.acquiring:
        raise _invalid(state, event, "no lease was asked for")
    if state.find(grant.lease) is not None:
        raise _invalid(state, event, "the lease is held already")
    alone_too_early = len(grant.candidates) == 1 and state.measuring is not None
    hand_back = state.phase is not Phase.WORKING or alone_too_early
    held = Held(grant=grant, stage=Stage.CLOSING if hand_back else Stage.WAITING)
    state = replace(state, acquiring=False, held=(*state.held, held))
    return state, (Renew(lease=grant.lease, fence=grant.fence, after_secs=grant.ttl_secs / 3),)


def _nothing(state: State, event: Nothing) -> Step:
    if not state.acquiring:
        raise _invalid(state, event, "no lease was asked for")
    if state.phase is not Phase.WORKING or state.worker is None:
        return replace(state, acquiring=False), ()
    return state, (Acquire(worker=state.worker, after_secs=IDLE_PAUSE_SECS),)


def _busy(state: State, event: Measured | Finished | Faulted) -> Held:
    held = state.find(event.lease)
    if held is None or not held.busy:
        raise _invalid(state, event, "that lease is not being measured")
    return held


def _measured(state: State, event: Measured) -> Step:
    held = _busy(state, event)
    digest = event.result.candidate
    if digest not in {candidate.digest for candidate in held.grant.candidates}:
        raise _invalid(state, event, f"the lease has no candidate {digest}")
    if digest in held.measured:
        raise _invalid(state, event, f"the candidate {digest} was measured already")
    unsent = held.unsent if held.disowned else (*held.unsent, event.result)
    state = state.put(replace(held, measured=held.measured | {digest}, unsent=unsent))
    return replace(state, faults=0), ()


def _finished(state: State, event: Finished) -> Step:
    held = _busy(state, event)
    if held.disowned:
        return state.drop(event.lease), ()
    return state.put(replace(held, stage=Stage.CLOSING)), ()


def _faulted(state: State, event: Faulted) -> Step:
    held = _busy(state, event)
    state = replace(state, faults=state.faults + 1)
    if held.disowned:
        state = state.drop(event.lease)
    else:
        # A lease that was told to stop is handed back. Otherwise its candidates fail as device_error, which is counted, so
        # that they are not retried for ever.
        blamed = held.grant.candidates if held.stage is Stage.MEASURING else ()
        failures = tuple(
            Failed(candidate=candidate.digest, kind=FailureKind.DEVICE_ERROR, detail=event.detail[:4096])
            for candidate in blamed
            if candidate.digest not in held.measured
        )
        measured = held.measured | {failure.candidate for failure in failures}
        state = state.put(replace(held, stage=Stage.CLOSING, unsent=(*held.unsent, *failures), measured=measured))
    return give_up_if_broken(state, event.detail)


def _renewed(state: State, event: Renewed) -> Step:
    held = state.find(event.lease)
    if held is None or held.disowned:
        return state, ()
    again = Renew(lease=event.lease, fence=held.grant.fence, after_secs=event.ttl_secs / 3)
    if not event.cancelled:
        return state, (again,)
    state, stops = end_early(state, held)
    return state, (*stops, again)


def _reported(state: State, event: Reported) -> Step:
    held = state.find(event.lease)
    if held is None or held.report is None:
        return state, ()
    if event.final:
        return state.drop(event.lease), ()
    held = replace(held, report=None)
    state = state.put(held)
    if not event.lease_open:
        return disown(state, held)
    return end_early(state, held) if event.cancelled else (state, ())


def _declared(state: State, event: Declared) -> Step:
    return left(state) if event.state is WorkerState.GONE else (state, ())


def _expired(state: State, event: Expired) -> Step:
    """Stops measuring, since another worker may have the candidates by now; results so far are still reported, and the
    service decides whether they count."""
    held = state.find(event.lease)
    return (state, ()) if held is None else end_early(state, held)


def _stale(state: State, event: Stale) -> Step:
    held = state.find(event.lease)
    return (state, ()) if held is None else disown(state, held)


def _rejected(state: State, event: Rejected) -> Step:
    held = state.find(event.lease)
    if held is None:
        return state, ()
    state, stops = disown(state, held)
    state, more = give_up_if_broken(replace(state, faults=state.faults + 1), event.detail)
    return state, (*stops, *(instruction for instruction in more if instruction not in stops))


def _unreachable(state: State, event: Unreachable) -> Step:
    call = event.call
    pause = max(backoff_secs(call.attempt), event.retry_after_secs or 0.0)
    again = replace(call, after_secs=pause, attempt=call.attempt + 1)
    draining = state.phase in (Phase.DRAINING, Phase.LEAVING)
    match call:
        case Register():
            if state.phase is Phase.REGISTERING and state.worker is None and call.attempt >= MAX_START_ATTEMPTS:
                return stop(state, 5, "the service cannot be reached")
            return (replace(state, registering=False), ()) if draining else (state, (again,))
        case Acquire():
            return (replace(state, acquiring=False), ()) if draining else (state, (again,))
        case Renew():
            held = state.find(call.lease)
            if held is None or held.disowned:
                return state, ()
            return state, (replace(again, after_secs=min(pause, held.grant.ttl_secs / 6)),)
        case Report():
            held = state.find(call.lease)
            if held is None or held.report is None:
                return state, ()
            if draining and call.attempt >= MAX_DRAIN_ATTEMPTS:
                return disown(state, held)
            return state, (again,)
        case Declare():
            # Not needed for correctness: the service also notices a worker that is silent.
            return left(state) if call.state is WorkerState.GONE else (state, ())


def _forgotten(state: State, event: Forgotten) -> Step:
    if isinstance(event.call, Declare):
        return left(state) if event.call.state is WorkerState.GONE else (state, ())
    state = replace(state, acquiring=False)
    if state.phase is not Phase.WORKING:
        return state, ()
    return replace(state, phase=Phase.REGISTERING, registering=True), (Register(),)


def _refused(state: State, event: Refused) -> Step:
    return stop(state, event.code, event.detail)


def _broken(state: State, event: Broken) -> Step:
    return stop(state, 1, event.detail)


def _tick(state: State) -> Step:
    out: list[Instruction] = []
    for held in state.held:
        sent = held.sent(everything=True)
        if sent is not held and sent.report is not None:
            out.append(sent.report)
            state = state.put(sent)
    return state, tuple(out)


def _signalled(state: State) -> Step:
    if state.phase in (Phase.DRAINING, Phase.LEAVING):
        return stop(state, 130, "told twice to stop")
    if state.worker is None:
        return stop(state, 0, "told to stop before it had registered")
    return drain(state)
