"""Step: tunes a model inside its own graph on this machine's GPU. What `inside.py` decides, timed on the device.

The child that runs the step builds all candidates into one program (tuner/deploy/alternatives.py), holds the turn on the GPU
as a worker does, searches, and has three fresh processes say whether what it chose is faster than what it began with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pitchpipe.gpu.driver import driver
from pitchpipe.gpu.variants import Variants, in_fresh_processes
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from tuner.deploy.alternatives import compile_alternatives
from tuner.ingest import ingest
from tuner.measure.gpu_turn import turn_on
from tuner.measure.timing import CONFIRM_PROCESSES, CONFIRM_SAMPLES_EACH
from tuner.tuning.inside import Choice, descend, is_faster

SEARCHED = 0.25
"""Share of the seconds that the search has at least, however long building took."""
SAMPLES = 12
"""Of each variant in a comparison; their interval is x_(3)..x_(10)."""
CONFIRMING_SECS = 4.0
"""Of the fresh processes, mostly for the driver to start."""


def tune_in_graph(
    model: bytes,
    _arrays: Mapping[str, Any],
    *,
    model_format: str,
    target: str,
    traces: dict[str, str],
    alternatives: dict[str, list[str]],
    seconds: float,
) -> dict[str, Any]:
    """traces: of each workload what the model runs now; the default schedule of one that is missing. alternatives: others,
    by workload, the costliest first, each time the fastest alone first. seconds: of building, searching and confirming,
    about.

    Returns the `choice` (workload -> number of an alternative, from 1) with which the model is faster for certain, which is
    empty where none is, and how that was found. Raises as compiling and running the model does.
    """
    wanted, started = Target.parse(target), time.monotonic()
    ingested = ingest(model, ModelFormat(model_format))
    built = compile_alternatives(ingested, wanted, traces, alternatives)
    built_secs = time.monotonic() - started
    specs = (ingested.inputs, ingested.params)
    tasks = {
        workload: [number for number in range(1, len(others) + 1) if (workload, number) not in built.refused]
        for workload, others in alternatives.items()
    }
    with turn_on(driver().uuid(0)):  # Workers of this machine that share the first GPU wait meanwhile.
        variants = Variants(built.program, *specs)
        until = max(started + seconds - CONFIRMING_SECS, time.monotonic() + SEARCHED * seconds)

        def race(choices: Sequence[Choice]) -> list[list[float]]:
            return variants.secs([built.launches(choice) for choice in choices], SAMPLES)

        guess = {workload: numbers[0] for workload, numbers in tasks.items() if numbers and workload not in traces}
        found = descend(tasks, race, lambda: time.monotonic() >= until, guess)
        searched_secs = time.monotonic() - started - built_secs
        confirmed: dict[str, Any] = {"choice": {}, "before": None, "after": None}
        if found.choice:
            before, after = in_fresh_processes(
                built.program,
                *specs,
                [built.launches({}), built.launches(found.choice)],
                processes=CONFIRM_PROCESSES,
                rounds=CONFIRM_SAMPLES_EACH,
            )
            faster = is_faster(after, before, CONFIRM_PROCESSES)
            confirmed = {"choice": found.choice if faster else {}, "before": _told(before), "after": _told(after)}
    return {
        **confirmed,
        "rounds": [asdict(one) for one in found.rounds],
        "trials": found.trials,
        "refused": [[*which, reason] for which, reason in built.refused.items()],
        "build_secs": built_secs,
        "search_secs": searched_secs,
    }


def _told(secs: Sequence[float]) -> dict[str, Any]:
    return {"run_secs": list(secs), "processes": CONFIRM_PROCESSES}
