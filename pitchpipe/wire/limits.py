"""What one step may cost, wherever it runs: the one table of limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """Past any of them the child that runs the step ends, and the step fails with StepTimeout or StepDied."""

    wall_secs: float
    """Without what the step waits for a timing on the same host."""
    cpu_secs: int
    """Of all its threads together."""
    memory_bytes: int | None = 8 * _GIB
    """Private memory that it may take beside what its child held before; None is all that the host has."""
    confined: bool = True
    """Whether it starts no program, opens no socket and writes no file (`deny_system_calls`)."""


STEP_LIMITS: Mapping[str, StepLimits] = {
    # Steps of the service: in the children of tuner/execution/engine.py. Seconds on an idle core in brackets, worst seen.
    # It parses nothing by itself: it feeds a disposable child with limits of its own (tuner/ingest), so it starts one.
    "check_model": StepLimits(wall_secs=60.0, cpu_secs=60, memory_bytes=4 * _GIB, confined=False),
    "split_ingested": StepLimits(wall_secs=600.0, cpu_secs=900),  # (10 for 6,000 nodes, growing with the square)
    "propose": StepLimits(wall_secs=300.0, cpu_secs=900),  # (10, on up to four threads)
    "train": StepLimits(wall_secs=300.0, cpu_secs=1800),  # (10 for 20,000 samples, on every core)
    "score": StepLimits(wall_secs=60.0, cpu_secs=120),  # (1 for 2,000 samples)
    # Steps of a client: in the children of pitchpipe/processes/child.py. A user's own models on the user's own machine,
    # where the parser is confined, and the compiler needs a linker and a GPU's driver.
    "identify": StepLimits(wall_secs=900.0, cpu_secs=1800, memory_bytes=None, confined=False),
    "build": StepLimits(wall_secs=3600.0, cpu_secs=4 * 3600, memory_bytes=None, confined=False),
    "evaluate": StepLimits(wall_secs=3600.0, cpu_secs=16 * 3600, memory_bytes=None, confined=False),
    # One candidate of a record is compiled and not run; its worker gave it 20 s. nvcc is a program.
    "list_code": StepLimits(wall_secs=120.0, cpu_secs=240, confined=False),
    "describe_toolchain": StepLimits(wall_secs=300.0, cpu_secs=300, memory_bytes=4 * _GIB, confined=False),
}
"""By the name of the step."""
OTHER_STEPS = StepLimits(wall_secs=600.0, cpu_secs=1200)
"""For a step of the service that the table does not name."""
OTHER_CLIENT_STEPS = StepLimits(wall_secs=3600.0, cpu_secs=16 * 3600, memory_bytes=None, confined=False)
"""For a step of a client that it does not name."""
