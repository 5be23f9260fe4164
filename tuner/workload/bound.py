"""The least time a task can take on a device: the roofline of the device over the least work of the task.

T >= F / peak            F: FLOPs that no schedule does without
T >= (B - C(l)) / b(l)   B: bytes read or written once; C(l): what all levels of the memory nearer than l hold
                         together; b(l): bandwidth of level l. Of B at most C(l) can be there from the run before
"""

from __future__ import annotations

from collections.abc import Sequence

from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.task import Task


def bound_secs(task: Task, rooflines: Sequence[Roofline | None]) -> float | None:
    """On the fastest of the devices that may run the task; None if nothing is known that bounds it.

    One device without a roofline makes the whole unknown, and so does a roofline that was measured with fewer threads
    than the task may use.
    """
    threads = task.target.num_cores or 1
    known = [roofline for roofline in rooflines if roofline is not None and roofline.threads >= threads]
    if not known or len(known) < len(rooflines):
        return None
    return min(_bound_secs(task, roofline) for roofline in known) or None


def _bound_secs(task: Task, roofline: Roofline) -> float:
    moved = [max(0.0, task.bytes - level.inside_bytes) / level.bytes_per_sec for level in roofline.levels]
    return max(task.least_flops / roofline.flops_per_sec, *moved, 0.0)
