"""Steps that end a measurement, a lease or the worker, and that several events of `machine.py` share."""

from __future__ import annotations

from dataclasses import replace

from pitchpipe.wire.lease import WorkerState
from workers.agent.events import Declare, Exit, Instruction, StopMeasuring
from workers.agent.state import Held, Phase, Stage, State

MAX_FAULTS = 3
"""Batches in a row that may fail by no fault of a candidate before the worker drains: its device or installation is
broken."""

Step = tuple[State, tuple[Instruction, ...]]


def end_early(state: State, held: Held) -> Step:
    """Stops measuring a lease; results so far are reported and the other candidates handed back."""
    if held.stage is Stage.WAITING:
        return state.put(replace(held, stage=Stage.CLOSING)), ()
    if held.stage is Stage.MEASURING:
        return state.put(replace(held, stage=Stage.STOPPING)), (StopMeasuring(lease=held.grant.lease),)
    return state, ()


def disown(state: State, held: Held) -> Step:
    """Drops a lease that is no longer this worker's, as soon as its measuring has ended, without reporting anything."""
    if not held.busy:
        return state.drop(held.grant.lease), ()
    state, stops = end_early(state, held)
    present = state.find(held.grant.lease)
    assert present is not None
    return state.put(replace(present, disowned=True, unsent=(), report=None)), stops


def give_up_if_broken(state: State, detail: str) -> Step:
    """Drains once MAX_FAULTS batches in a row have failed by no fault of a candidate."""
    if state.faults < MAX_FAULTS or state.phase is not Phase.WORKING:
        return state, ()
    return drain(replace(state, exit_code=1, exit_reason=f"{MAX_FAULTS} batches in a row failed: {detail}"))


def drain(state: State) -> Step:
    """Acquires no more leases and ends the held ones early; the worker leaves when none is held."""
    assert state.worker is not None
    out: list[Instruction] = [Declare(worker=state.worker, state=WorkerState.DRAINING)]
    state = replace(state, phase=Phase.DRAINING)
    for held in state.held:
        state, stops = end_early(state, held)
        out.extend(stops)
    return state, tuple(out)


def left(state: State) -> Step:
    """Stops the worker, after the service was told that it is gone, or could not be told."""
    return replace(state, phase=Phase.STOPPED), (Exit(code=state.exit_code, reason=state.exit_reason),)


def stop(state: State, code: int, reason: str) -> Step:
    """Stops the worker at once; the leases that it holds expire."""
    present = state.measuring
    stops = () if present is None else (StopMeasuring(lease=present.grant.lease),)
    return replace(state, phase=Phase.STOPPED, held=()), (*stops, Exit(code=code, reason=reason))
