"""What forks that measure or check schedules use and nothing imports before: each would import it for itself, in 0.3 s."""

from __future__ import annotations

import importlib

_MODULES = (
    "numpy.random",
    "tuner.measure.reference_program",
    *(f"tuner.schedule.{name}" for name in ("lines", "recurrence", "recurrence_kernels", "reducers", "winograd")),
    *(f"tuner.space.{name}" for name in ("default", "recurrence", "rowwise", "tiles", "winograd")),
)


def import_ahead() -> None:
    """Imports it now, for a process that will be forked. Starts no thread."""
    for name in _MODULES:
        importlib.import_module(name)
