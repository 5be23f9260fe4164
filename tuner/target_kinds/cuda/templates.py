"""Which templates a workload on a GPU may have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import structlog

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.templates.contraction import find_contraction
from tuner.templates.kernels import source_of
from tuner.templates.points import capability
from tuner.templates.row_space import row_space
from tuner.templates.rows import find_rows
from tuner.templates.space import Ranked, contraction_space
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
    mod, reasons = load_ir(workload.ir), []
    for space in (_of_contraction, _of_rows):
        try:
            ranked = space(mod, target)
            if ranked:
                source_of(mod, parse(ranked[0].text))  # Whether all of it can be printed.
                return tuple(ranked)
        except InvalidTrace as error:
            reasons.append(error.detail)
    log.info("no template", workload=workload.digest[:12], reasons=reasons)
    return ()


def _of_contraction(mod: Any, target: Target) -> list[Ranked]:
    return contraction_space(find_contraction(mod), target)


def _of_rows(mod: Any, target: Target) -> list[Ranked]:
    return row_space(find_rows(mod), target)
