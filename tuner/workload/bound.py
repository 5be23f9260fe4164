"""The lower bound of a task's time on a device: the least work of the task at the device's roofline.

T >= L                   L: least time of any program, such as of starting a kernel
T >= F / peak            F: FLOPs that every schedule has to do; peak: the device's FLOP/s on factors of their type
T >= (B - C(l)) / b(l)   B: bytes of all inputs and outputs, each moved once; b(l): bandwidth of memory level l;
                         C(l): capacity of all levels nearer than l together. At most C(l) of the B bytes can still be in
                         those levels from the run before; the others come through level l
"""

from __future__ import annotations

from collections.abc import Sequence

from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.task import Task


def bound_secs(task: Task, rooflines: Sequence[Roofline | None]) -> float | None:
    """The bound, in seconds, on the fastest of the devices that may run the task; None if no bound is known.

    rooflines: those of the devices, None for a device that was not measured. A device without a roofline, or with one that
    was measured with fewer threads than the task may use, might be the fastest one: then no bound is known.
    """
    threads = task.target.num_cores or 1
    known = [roofline for roofline in rooflines if roofline is not None and roofline.threads >= threads]
    if not known or len(known) < len(rooflines):
        return None
    return min(_bound_secs(task, roofline) for roofline in known) or None


def _bound_secs(task: Task, roofline: Roofline) -> float:
    moved = [max(0.0, task.bytes - level.inside_bytes) / level.bytes_per_sec for level in roofline.levels]
    peak = _peak(task, roofline)
    return max(roofline.launch_secs, *moved, 0.0 if peak is None else task.least_flops / peak)


def _peak(task: Task, roofline: Roofline) -> float | None:
    """FLOP/s of the fastest unit that may do the task's arithmetic; None where that is not known of the device."""
    told = {peak.type: peak.flops_per_sec for peak in roofline.peaks}
    if task.flops_type in ("float32", "float64"):
        return max(roofline.flops_per_sec, told.get(task.flops_type, 0.0))
    return told.get(task.flops_type)
