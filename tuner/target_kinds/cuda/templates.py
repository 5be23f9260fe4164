"""Which templates a workload on a GPU may have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import structlog

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.templates.contraction import find_contraction
from tuner.templates.source import write_contraction
from tuner.templates.space import Ranked, capability, contraction_space
from tuner.templates.text import parse
from tuner.tvm_compat import load_ir

log = structlog.get_logger("pitchpipe.templates")

KEPT = 64
"""Spaces kept per process, of some thousands of points each."""
LEAST_CAPABILITY = 80
"""Of devices: asynchronous copies, bfloat16 and TF32."""


@lru_cache(maxsize=KEPT)
def templates(workload: Workload, target: Target) -> Sequence[Ranked]:
    """The points of all templates, the best by their estimate first; none where none applies. Triton is not needed."""
    if capability(target) < LEAST_CAPABILITY:
        return ()
    try:
        found = find_contraction(load_ir(workload.ir))
        ranked = contraction_space(found, target)
        if ranked:
            write_contraction(found, parse(ranked[0].text).arguments)  # Whether all of it can be printed.
        return tuple(ranked)
    except InvalidTrace as error:
        log.info("no template", workload=workload.digest[:12], reason=error.detail)
        return ()
