"""The progress line of a job on stderr: a live line on a terminal, plain lines at most every few seconds in a pipe."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pitchpipe.wire.job import JobView

PLAIN_EVERY_SECS = 5.0


class Progress:
    """Context manager; `show` is called with every new view of the job."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=True) if sys.stderr.isatty() else None
        self._last_secs = -PLAIN_EVERY_SECS
        self._last_state = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, job: JobView) -> None:
        """Shows a view of the job."""
        line = describe(job)
        if self._live is not None:
            self._live.update(Text(line))
            return
        now = time.monotonic()
        if now - self._last_secs >= PLAIN_EVERY_SECS or state_of(job) != self._last_state:
            self._last_secs, self._last_state = now, state_of(job)
            print(line, file=sys.stderr, flush=True)


def state_of(job: JobView) -> str:
    """The job's state in words."""
    return f"{job.state.value}, paused" if job.paused else job.state.value


def describe(job: JobView) -> str:
    """One line: state, trials, best so far and what is expected, each with its interval, time left."""
    progress = job.progress
    limit = "" if job.budget.trials is None else f"/{job.budget.trials}"
    parts = [f"{state_of(job)}: {progress.trials}{limit} trials"]
    if progress.failed_trials:
        parts.append(f"{progress.failed_trials} failed")
    if progress.reused_tasks:
        parts.append(f"{progress.reused_tasks} tasks reused")
    if progress.best_secs is not None:
        guessed = f" (tasks estimated: {progress.estimated_tasks})" if progress.estimated_tasks else ""
        parts.append(f"best {progress.best_secs * 1e3:.2f} ms{guessed}")
    if progress.gain is not None:
        parts.append(f"{progress.gain:.0%} saved")
    if progress.forecast_secs is not None and not job.state.ended:
        ends = [progress.forecast_low_secs or 0.0, progress.forecast_high_secs or math.inf]
        expected = " to ".join(f"{secs * 1e3:.2f}" for secs in ends)
        parts.append(f"expected {progress.forecast_secs * 1e3:.2f} ms ({expected})")
    if progress.minute_gain is not None and not job.state.ended:
        parts.append(f"another minute {progress.minute_gain:.1%}")
    if progress.eta_secs is not None and not job.state.ended:
        eta = f"{progress.eta_secs:.0f} s left"
        if progress.eta_low_secs is not None and progress.eta_high_secs is not None:
            eta += f" ({progress.eta_low_secs:.0f} to {progress.eta_high_secs:.0f})"
        parts.append(eta)
    return ", ".join(parts)
