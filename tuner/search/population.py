"""Families of candidates: a family is the candidates of one sketch, which differ only in decisions."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.ids import canonical_json
from tuner.schedule.trace import apply_trace, encode_trace, without_postproc

REMEMBERED = 512
"""Measured traces kept in memory, of 2 to 60 KiB each: the next search of a task gets nearly the same ones."""


def family_of(trace: str) -> str:
    """A digest of a trace's instructions before postprocessing."""
    return hashlib.sha256(canonical_json(json.loads(without_postproc(trace))[0])).hexdigest()


@lru_cache(maxsize=REMEMBERED)
def identified(trace: str) -> tuple[str, str]:
    """(key, family) of a measured trace; by its key the candidate is recognised when it is drawn again."""
    key = without_postproc(trace)
    return key, family_of(key)


@lru_cache(maxsize=64)
def families_of(space: Any) -> list[str]:
    """The families of the sketches of a design space, in their order."""
    return [family_of(encode_trace(schedule.trace.simplified(True))) for schedule in space.schedules]


@lru_cache(maxsize=REMEMBERED)
def parent_of(space: Any, key: str) -> Any:
    """The trace of a measured candidate, as a parent for mutations; None where it does not apply."""
    try:
        return apply_trace(space.mod, key).trace.simplified(True)
    except InvalidTrace:
        return None
