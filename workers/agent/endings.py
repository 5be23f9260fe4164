"""How measuring, a lease and the worker itself come to their end: steps that several events of `machine.py` share."""

from __future__ import annotations

from dataclasses import replace

from pitchpipe.wire.lease import WorkerState
from workers.agent.events import Declare, Exit, Instruction, StopMeasuring
from workers.agent.state import Held, Phase, Stage, State

MAX_FAULTS = 3
"""Batches in a row that the sandbox itself may fail before the worker gives up: device or installation is broken."""

Step = tuple[State, tuple[Instruction, ...]]


def end_early(state: State, held: Held) -> Step:
    """Measure no more of a lease; what is done is reported and the rest handed back."""
    if held.stage is Stage.WAITING:
        return state.put(replace(held, stage=Stage.CLOSING)), ()
    if held.stage is Stage.MEASURING:
        return state.put(replace(held, stage=Stage.STOPPING)), (StopMeasuring(lease=held.grant.lease),)
    return state, ()


def disown(state: State, held: Held) -> Step:
    """The lease is not ours any more: say nothing about it, and let go of it when the device is free of it."""
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
    """No new lease; every lease in hand is ended early, and when all are let go the worker leaves."""
    assert state.worker is not None
    out: list[Instruction] = [Declare(worker=state.worker, state=WorkerState.DRAINING)]
    state = replace(state, phase=Phase.DRAINING)
    for held in state.held:
        state, stops = end_early(state, held)
        out.extend(stops)
    return state, tuple(out)


def left(state: State) -> Step:
    """The service knows that the worker is gone, or cannot be told."""
    return replace(state, phase=Phase.STOPPED), (Exit(code=state.exit_code, reason=state.exit_reason),)


def stop(state: State, code: int, reason: str) -> Step:
    """The end without ceremony: whatever is held is left to expire."""
    present = state.measuring
    stops = () if present is None else (StopMeasuring(lease=present.grant.lease),)
    return replace(state, phase=Phase.STOPPED, held=()), (*stops, Exit(code=code, reason=reason))
