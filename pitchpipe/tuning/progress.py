"""How far a job is: a bar in a terminal and in a notebook, elsewhere plain lines on stderr, at most one in ten seconds."""

from __future__ import annotations

import html
import importlib
import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from pitchpipe.wire.job import JobView
from pitchpipe.wire.task import TaskKind

PLAIN_EVERY_SECS = 10.0


class Display(Protocol):
    """Where progress is seen."""

    def start(self) -> None:
        """Before the first `show`."""

    def show(self, line: str, done: float | None, *, last: bool) -> None:
        """done: share of the budget that is spent; None where that is not known."""

    def stop(self) -> None:
        """After the last one."""


class Progress:
    """Context manager; `show` is called with every new view of a job."""

    def __init__(self, display: Display | None = None) -> None:
        """display: by default what fits the place that this process writes to."""
        self._display = display or _fitting()
        self.default_secs: float | None = None
        """Of the model with default schedules, once somebody has timed it."""

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def show(self, job: JobView) -> None:
        """Shows a view of the job."""
        self._display.show(describe(job, self.default_secs), _done(job), last=job.state.ended)

    def say(self, line: str) -> None:
        """Shows what goes on before and after the job."""
        self._display.show(line, None, last=True)


class Silent:
    """Shows nothing."""

    def start(self) -> None:
        """Nothing to do."""

    def show(self, line: str, done: float | None, *, last: bool) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""


class Lines:
    """Plain lines on stderr; the last of a job is always there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next_secs, self._line = clock, float("-inf"), ""

    def start(self) -> None:
        """Nothing to do."""

    def show(self, line: str, done: float | None, *, last: bool) -> None:  # noqa: ARG002 - a Display
        """Prints the line, unless one was printed a moment ago."""
        if line != self._line and (last or self._clock() >= self._next_secs):
            self._line = line
            if not last:
                self._next_secs = self._clock() + PLAIN_EVERY_SECS
            print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Nothing to do."""


class Bar:
    """A bar and a line of text in a terminal, both gone in the end."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        self._progress = RichProgress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=None)

    def start(self) -> None:
        """Draws it."""
        self._progress.start()

    def show(self, line: str, done: float | None, *, last: bool) -> None:  # noqa: ARG002 - a Display
        """Draws it anew."""
        total = None if done is None else 1.0
        self._progress.update(self._task, description=line, total=total, completed=done or 0.0)

    def stop(self) -> None:
        """Takes it away."""
        self._progress.stop()


class NotebookBar:
    """The same in a cell's output, by IPython's own displays: rich's needs ipywidgets there, this nothing."""

    def __init__(self) -> None:
        self._shown = importlib.import_module("IPython.display")
        self._handle: Any = None

    def start(self) -> None:
        """Makes room for it."""
        self._handle = self._shown.display(self._shown.HTML(""), display_id=True)

    def show(self, line: str, done: float | None, *, last: bool) -> None:  # noqa: ARG002 - a Display
        """Replaces what is shown."""
        value = "" if done is None else f' value="{done:.3f}"'
        self._handle.update(self._shown.HTML(f"<progress{value}></progress> {html.escape(line)}"))

    def stop(self) -> None:
        """Leaves the cell empty."""
        self._handle.update(self._shown.HTML(""))


def _fitting() -> Display:
    console = Console(stderr=True)
    if console.is_jupyter:
        return NotebookBar()
    return Bar(console) if sys.stderr.isatty() else Lines()


def state_of(job: JobView) -> str:
    """The job's state in words."""
    return f"{job.state.value}, paused" if job.paused else job.state.value


def describe(job: JobView, default_secs: float | None = None) -> str:
    """One line: state, trials, best so far against the default schedules, what is expected, tasks, time left."""
    progress = job.progress
    limit = f"/{job.budget.trials}" if job.budget.trials else ""
    parts = [f"{state_of(job)}: {progress.trials}{limit} trials"]
    if progress.failed_trials:
        parts.append(f"{progress.failed_trials} failed")
    if progress.reused_tasks:
        parts.append(f"{progress.reused_tasks} tasks reused")
    against = "" if default_secs is None else f" against {_short(default_secs)} by default"
    all_estimated = job.tasks and progress.estimated_tasks == len(job.tasks)
    if (confirmed := _confirmed_secs(job)) is not None:
        parts.append(f"confirmed {_short(confirmed)}{against}")
    elif progress.best_secs is not None and not all_estimated:
        guessed = f" (tasks estimated: {progress.estimated_tasks})" if progress.estimated_tasks else ""
        parts.append(f"best {_short(progress.best_secs)}{against}{guessed}")
    if progress.gain is not None:
        parts.append(f"{progress.gain:.0%} saved")
    if progress.forecast_secs is not None and not job.state.ended:
        ends = [progress.forecast_low_secs or 0.0, progress.forecast_high_secs or math.inf]
        parts.append(f"expected {_short(progress.forecast_secs)} ({' to '.join(map(_short, ends))})")
    if progress.minute_gain is not None and not job.state.ended:
        parts.append(f"another minute {progress.minute_gain:.1%}")
    tuned = [task for task in job.tasks if task.kind is TaskKind.TUNED]
    if tuned and not job.state.ended:
        under_way = sum(bool(task.trials) and task.tuned_secs is None for task in tuned)
        parts.append(f"{under_way} of {len(tuned)} tasks under way")
    if progress.eta_secs is not None and not job.state.ended:
        eta = f"{progress.eta_secs:.0f} s left"
        if progress.eta_low_secs is not None and progress.eta_high_secs is not None:
            eta += f" ({progress.eta_low_secs:.0f} to {progress.eta_high_secs:.0f})"
        parts.append(eta)
    return ", ".join(parts)


def _confirmed_secs(job: JobView) -> float | None:
    """Of a job that has ended: what its tasks take by their confirming runs, if all of them had one. The best of many
    trials is faster than its schedule is."""
    known = [task.weight * task.tuned_secs for task in job.tasks if task.tuned_secs is not None]
    return sum(known) if job.state.ended and known and len(known) == len(job.tasks) else None


def _short(secs: float) -> str:
    return f"{secs * 1e3:.2f} ms" if secs >= 1e-3 else f"{secs * 1e6:.1f} µs"


def _done(job: JobView) -> float | None:
    """By the time left, else by trials."""
    if job.state.ended:
        return 1.0
    left, seconds = job.progress.eta_secs, job.budget.seconds
    if seconds is not None and left is not None:
        return min(max(1.0 - left / seconds, 0.0), 1.0)
    return job.progress.trials / job.budget.trials if job.budget.trials else None
