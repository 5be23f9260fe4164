"""Schedules of functions that combine updates into elements, such as scatters, on a GPU (tuner/schedule/combining.py)."""

from __future__ import annotations

from typing import Any

from tuner.schedule.combining import find_combining, updates_of_a_thread
from tuner.schedule.rewrites import ATOMIC, REWRITE, rewritten
from tuner.tvm_compat import Schedule


def atomic_kernels(mod: Any) -> list[Any]:
    """The schedule of such a workload; none where it is another. All of it is in the rewrite that its trace names."""
    found = find_combining(mod["main"])
    if found is None:
        return []
    name = next(name for name, count in ATOMIC.items() if count == updates_of_a_thread(found))
    schedule = Schedule(rewritten(mod, name), seed=1, debug_mask=0, error_render_level="none")
    schedule.annotate(schedule.get_sblock("root"), REWRITE, name)
    return [schedule]
