"""The schedules of functions that no schedule of TVM's applies to (tuner/schedule/lines.py, tuner/schedule/sorting.py)."""

from __future__ import annotations

from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.rewrites import REWRITE, rewritten
from tuner.tvm_compat import Schedule


def whole_rewrite(mod: Any, rewrite: str) -> Any | None:
    """The schedule of such a workload, all of which is in the rewrite of that name; None where it does not apply."""
    try:
        schedule = Schedule(rewritten(mod, rewrite), seed=1, debug_mask=0, error_render_level="none")
    except InvalidTrace:
        return None
    schedule.annotate(schedule.get_sblock("root"), REWRITE, rewrite)
    return schedule
