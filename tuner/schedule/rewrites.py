"""Rewrites of a workload that a trace may begin with, by name, and how a trace names one (tuner/schedule/trace.py).

A name carries a version: a rewrite that changes gets a new name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pitchpipe.errors import InvalidTrace

REWRITE = "pitchpipe.rewrite"
WINOGRAD: Mapping[str, int] = {"winograd-2.1": 2, "winograd-4.1": 4}
"""Name of a rewrite (algorithm, rows of an output tile, version) -> rows of an output tile. See
tuner/schedule/winograd.py."""
PANELS: Mapping[str, tuple[int, int, int, bool]] = {
    f"recurrence-{rows}x{units}x{lanes}{'p.2' if parallel else 's.1'}": (rows, units, lanes, parallel)
    for rows in (1, 2, 4, 8)
    for units in (4, 8, 16, 32, 64, 128)
    for lanes in (4, 8, 16)
    for parallel in (False, True)
    if units % lanes == 0
}
"""Name of a rewrite -> rows and units of a panel, units of a vector, and whether panels are divided among threads. See
tuner/schedule/recurrence.py."""
KERNELS: Mapping[str, tuple[int, int, int, bool]] = {
    f"recurrence-{'held' if held else 'steps'}-{rows}x{units}x{parts}.1": (rows, units, parts, held)
    for rows in (1, 2, 4, 8)
    for units in (8, 16, 32, 64, 128)
    for parts in (4, 8, 16, 32, 64)
    for held in (False, True)
    if 128 <= units * parts <= 1024
}
"""Name of a rewrite -> rows and units of a GPU's thread block, parts of a sum, and whether one kernel holds the loop over
steps. See tuner/schedule/recurrence_kernels.py."""
ATOMIC: Mapping[str, int] = {"atomic-1.1": 1, "atomic-4.1": 4}
"""Name of a rewrite of functions that combine updates into elements -> updates of a thread. See
tuner/schedule/combining.py."""
THREADS, PARALLEL = "threads.1", "parallel.1"
"""Rewrites of functions that no schedule applies to, for a GPU and for a CPU. See tuner/schedule/lines.py."""
NETWORK = "network.1"
"""A rewrite of functions that sort runs. See tuner/schedule/sorting.py."""
REWRITES = WINOGRAD.keys() | PANELS.keys() | KERNELS.keys() | ATOMIC.keys() | {THREADS, PARALLEL, NETWORK}


def rewrite_of(instructions: Sequence[Any]) -> str | None:
    """The name of the rewrite that a trace begins with, from the instructions of its JSON."""
    named = len(instructions) > 1 and instructions[1][0] == "Annotate" and instructions[1][2] == [REWRITE]
    return str(instructions[1][1][1]).strip('"') if named else None


def rewritten(mod: Any, name: str) -> Any:
    """The workload after the rewrite of that name; raises InvalidTrace where the rewrite does not apply."""
    if name in WINOGRAD:
        from tuner.schedule.winograd import winograd

        return winograd(mod, WINOGRAD[name])
    if name in PANELS:
        from tuner.schedule.recurrence import Panels, tiled

        rows, units, lanes, parallel = PANELS[name]
        return tiled(mod, Panels(rows=rows, units=units, lanes=lanes, parallel=parallel))
    if name in KERNELS:
        from tuner.schedule.recurrence_kernels import Kernels, in_kernels

        rows, units, parts, held = KERNELS[name]
        return in_kernels(mod, Kernels(rows=rows, units=units, parts=parts, held=held))
    if name in ATOMIC:
        from tuner.schedule import combining

        return combining.in_kernels(mod, ATOMIC[name])
    if name == NETWORK:
        from tuner.schedule import sorting

        return sorting.in_kernel(mod)
    if name in (THREADS, PARALLEL):
        from tuner.schedule import lines

        return lines.in_threads(mod) if name == THREADS else lines.in_parallel(mod)
    raise InvalidTrace(f"there is no rewrite {name[:64]!r}")
