"""A sketch that TVM refuses is left out, and a line of the log says which and why."""

from __future__ import annotations

import structlog

log = structlog.get_logger("pitchpipe.space")


def tell_refused(generator: str, error: Exception, *, choice: str) -> None:
    """Logs that a sketch of the generator did not come about. `choice` tells it from the generator's other sketches."""
    log.warning("sketch refused", generator=generator, error=f"{type(error).__name__}: {error}"[:300], choice=choice)
