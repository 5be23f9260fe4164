"""Logging of sketches that TVM refuses and that a design space therefore leaves out."""

from __future__ import annotations

import structlog

log = structlog.get_logger("pitchpipe.space")


def tell_refused(generator: str, error: Exception, *, choice: str) -> None:
    """Logs that TVM refused a sketch of the generator; `choice` distinguishes it from the generator's other sketches."""
    log.warning("sketch refused", generator=generator, error=f"{type(error).__name__}: {error}"[:300], choice=choice)
