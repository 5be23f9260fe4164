"""What tuning brought: of a model in this process, of a job of a service, or of two jobs side by side.

Notation: of task i let w_i be its weight, t_i its tuned and u_i its baseline seconds. Its share is w_i t_i / sum_j w_j t_j,
its gain u_i / t_i, and its share of the bound is the least possible time over t_i.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from pydantic import Field

from pitchpipe.tuning import rendering
from pitchpipe.tuning.inside import Inside
from pitchpipe.tuning.plots import Line, bars, lines
from pitchpipe.tuning.rendering import Page, Table
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.job import EventKind, JobEvent, JobState, JobView
from pitchpipe.wire.target import Target

HIGHEST_MARK = 3.0
"""Over the slowest point of a history: a mark above that would leave a flat line of it. The table has its figure."""
PLOTTED_TASKS = 20


class TaskReport(Wire):
    """A task of a report. Times are seconds of one run of its workload."""

    workload: Digest
    name: str
    weight: int
    trials: int
    baseline_secs: float | None
    tuned_secs: float | None
    share: float | None = Field(description="weight times tuned seconds, of expected_secs")
    gain: float | None = Field(description="baseline over tuned seconds")
    bound_share: float | None = Field(description="least possible over tuned seconds; 1 cannot be improved")


class Figures(Wire):
    """Of the whole model, timed in turns in the process that runs it, and in whose place it runs. Seconds of one run."""

    default_secs: float = Field(description="with default schedules, which need no trial")
    tuned_secs: float | None = Field(description="absent where the tuned build could not be used")
    peer: str = Field(description="what the model is compared with, or why there is nothing")
    peer_secs: float | None = None

    @property
    def speedup(self) -> float | None:
        """Of the tuned build over the default one."""
        return None if self.tuned_secs is None else self.default_secs / self.tuned_secs

    @property
    def peer_speedup(self) -> float | None:
        """Of the tuned build over the peer."""
        return None if self.tuned_secs is None or self.peer_secs is None else self.peer_secs / self.tuned_secs


class Point(Wire):
    """Of a model's expected time while it was tuned."""

    secs: float = Field(description="since the job began")
    best_secs: float = Field(description="sum over tasks of weight times best median, those not measured yet estimated")


class Report(Wire):
    """Print it for a text; a notebook shows it as HTML."""

    version: int = 1
    job: str
    model: str
    target: Target
    state: str
    error: str | None = None
    tasks: tuple[TaskReport, ...] = Field(description="the costliest first")
    expected_secs: float | None = Field(
        description="sum over tasks of weight times tuned seconds, or of what the job knows of tasks without"
    )
    unconfirmed_tasks: int = Field(default=0, description="tasks without tuned seconds, in the end of a job")
    figures: Figures | None = Field(default=None, description="absent in the report of a job that ran elsewhere")
    runs: str | None = Field(default=None, description="what runs the model here: the tuned build or its peer, and why")
    trials: int
    failed_trials: int
    seconds: float | None = Field(description="from the job's start to its end, or to now")
    interrupted: bool = False
    comparison: Comparison | None = None
    inside: Inside | None = Field(default=None, description="what tuning inside the model brought, where that was done")
    history: tuple[Point, ...] = ()
    baseline_secs: float | None = Field(default=None, description="sum over tasks of weight times baseline")
    bound_secs: float | None = Field(default=None, description="the same of the bounds: no schedules are faster")
    forecast_secs: float | None = Field(
        default=None, description="of a job under way: best_secs as it is expected when the budget is spent"
    )

    def __str__(self) -> str:
        return rendering.text(self.page())

    def _repr_html_(self) -> str:
        return rendering.html_fragment(self.page())

    def to_json(self) -> str:
        """One object; times are in seconds."""
        return json.dumps(self.model_dump(mode="json"))

    def markdown(self) -> str:
        """Headings and tables, without the plots."""
        return rendering.markdown(self.page())

    def html(self) -> str:
        """A whole document in one file: nothing is loaded from anywhere."""
        return rendering.html_document(self.page())

    def page(self) -> Page:
        """What all of these show."""
        return Page(
            title=f"{self.model}: {self.state}" + (" (interrupted)" if self.interrupted else ""),
            notes=tuple(note for note in (self.runs, self.error, self._unconfirmed()) if note),
            tables=(Table(title="Whole model", rows=tuple(self._facts())), self._task_table()),
            plots=self._plots(),
        )

    def _unconfirmed(self) -> str:
        """What to do where the budget was too small."""
        return unconfirmed(self.unconfirmed_tasks, len(self.tasks)) if self.state == JobState.DONE else ""

    def _facts(self) -> Iterable[tuple[str, str]]:
        figures = self.figures
        if figures is not None:
            yield "default schedules", duration(figures.default_secs)
            yield "tuned", _beside(figures.tuned_secs, figures.speedup, "the default")
            if figures.peer_secs is None:
                yield "peer", f"none: {figures.peer}"
            else:
                times = "" if figures.peer_speedup is None else f"; tuned is {figures.peer_speedup:.2f}x as fast"
                yield figures.peer, duration(figures.peer_secs) + times
        yield "tasks, summed", duration(self.expected_secs)
        yield "their baselines", duration(self.baseline_secs)
        yield "their bounds", duration(self.bound_secs)
        if self.forecast_secs is not None:
            yield "forecast at the budget's end", duration(self.forecast_secs)
        if self.inside is not None:
            yield "inside the model", str(self.inside)
        yield "trials", f"{self.trials} ({self.failed_trials} failed)"
        if self.seconds is not None:
            yield "seconds of tuning", f"{self.seconds:.0f}"
        if self.comparison is not None:
            yield "comparison", str(self.comparison)
        yield "target", self.target.key
        yield "job", self.job

    def _task_table(self) -> Table:
        rows = tuple(
            (
                task.name,
                str(task.weight),
                percent(task.share),
                duration(task.tuned_secs),
                times(task.gain),
                str(task.trials),
                percent(task.bound_share),
            )
            for task in self.tasks
        )
        headings = ("task", "weight", "share", "tuned", "gain on baseline", "trials", "of bound")
        return Table(title="Tasks", headings=headings, rows=rows)

    def _plots(self) -> tuple[str, ...]:
        found = []
        if len(self.history) > 1:
            known: list[tuple[str, float | None]] = [("bound", self.bound_secs), ("forecast", self.forecast_secs)]
            if self.figures is None:
                known.append(("baseline", self.baseline_secs))
            else:
                known += [("default", self.figures.default_secs), (self.figures.peer, self.figures.peer_secs)]
            highest = HIGHEST_MARK * max(point.best_secs for point in self.history)
            marks = [(name, secs * 1e3) for name, secs in known if secs is not None and secs <= highest]
            best = Line(name="best so far", points=tuple((point.secs, point.best_secs * 1e3) for point in self.history))
            found.append(lines("Expected time of the model", "seconds of tuning", "ms", [best], marks))
        timed = [task for task in self.tasks if task.share is not None][:PLOTTED_TASKS]
        if timed:
            found.append(bars("Share of the model's time", [(task.name, task.share or 0.0) for task in timed]))
        return tuple(found)


def report_of(
    view: JobView,
    events: Iterable[JobEvent] = (),
    *,
    figures: Figures | None = None,
    runs: str | None = None,
    inside: Inside | None = None,
    interrupted: bool = False,
) -> Report:
    """The report of a job; of one with several targets the first target's."""
    target = view.targets[0]
    tasks = [task for task in view.tasks if task.target == target]
    known = [task.weight * task.tuned_secs for task in tasks if task.tuned_secs is not None]
    total = sum(known) if len(known) == len(tasks) and tasks else view.progress.best_secs
    rows = [
        TaskReport(
            workload=task.workload,
            name=task.name,
            weight=task.weight,
            trials=task.trials,
            baseline_secs=task.untuned_secs,
            tuned_secs=task.tuned_secs,
            share=None if task.tuned_secs is None or not total else task.weight * task.tuned_secs / total,
            gain=None if task.tuned_secs is None or task.untuned_secs is None else task.untuned_secs / task.tuned_secs,
            bound_share=task.bound_share,
        )
        for task in tasks
    ]
    end = view.finished_at
    won = () if inside is None else inside.changed
    return Report(
        job=view.id,
        model=view.model_name,
        target=target,
        state=view.state.value,
        error=view.error,
        tasks=tuple(sorted(rows, key=lambda row: -(row.share or 0.0))),
        expected_secs=total,
        unconfirmed_tasks=sum(task.tuned_secs is None and task.workload not in won for task in tasks),
        figures=figures,
        runs=runs,
        inside=inside,
        trials=view.progress.trials,
        failed_trials=view.progress.failed_trials,
        seconds=None if end is None or view.started_at is None else (end - view.started_at).total_seconds(),
        interrupted=interrupted,
        comparison=view.comparison,
        history=tuple(_points(events, view.started_at)),
        baseline_secs=_sum((task.weight, task.untuned_secs) for task in tasks),
        bound_secs=_sum((task.weight, task.bound_secs) for task in tasks),
        forecast_secs=None if view.state.ended else view.progress.forecast_secs,
    )


def unconfirmed(tasks: int, of: int) -> str:
    """What to do about so many tasks without a confirmed time; nothing where there are none."""
    if not tasks:
        return ""
    told = f"{tasks} of {of} tasks have no confirmed time and run default schedules"
    return f"{told}: another run goes on from what was measured"


def _sum(tasks: Iterable[tuple[int, float | None]]) -> float | None:
    """Of one run of the model; None unless it is known of every task."""
    total, some = 0.0, False
    for weight, secs in tasks:
        if secs is None:
            return None
        total, some = total + weight * secs, True
    return total if some else None


def compare(one: Report, other: Report) -> Page:
    """Two jobs side by side: the whole models, and every task that either has, by its workload."""
    mine, theirs = ({task.workload: task for task in report.tasks} for report in (one, other))
    rows = []
    for workload in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(workload), theirs.get(workload)
        named = a or b
        assert named is not None
        secs = tuple(None if task is None else task.tuned_secs for task in (a, b))
        ratio = secs[0] / secs[1] if secs[0] and secs[1] else None
        trials = tuple("-" if task is None else str(task.trials) for task in (a, b))
        rows.append((named.name, duration(secs[0]), duration(secs[1]), times(ratio), *trials))
    whole = (one.expected_secs, other.expected_secs)
    ratio = whole[0] / whole[1] if whole[0] and whole[1] else None
    facts = (
        ("model", one.model, other.model, ""),
        ("state", one.state, other.state, ""),
        ("target", one.target.key, other.target.key, "the same" if one.target == other.target else "another"),
        ("tasks, summed", duration(whole[0]), duration(whole[1]), times(ratio)),
        ("trials", str(one.trials), str(other.trials), ""),
    )
    drawn = [
        Line(name=report.job, points=tuple((point.secs, point.best_secs * 1e3) for point in report.history))
        for report in (one, other)
        if len(report.history) > 1
    ]
    plots = (lines("Expected time of the model", "seconds of tuning", "ms", drawn, []),) if drawn else ()
    return Page(
        title=f"{one.job} and {other.job}",
        notes=(),
        tables=(
            Table(title="Whole model", headings=("", one.job, other.job, "first / second"), rows=facts),
            Table(
                title="Tasks",
                headings=("task", one.job, other.job, "first / second", "trials", "trials"),
                rows=tuple(rows),
            ),
        ),
        plots=plots,
    )


def duration(secs: float | None) -> str:
    """With a unit that fits it; a dash for an unknown time."""
    if secs is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if secs * factor >= 1:
            return f"{secs * factor:.3f} {unit}"
    return f"{secs * 1e6:.3g} µs"


def percent(share: float | None) -> str:
    """A dash for an unknown share."""
    return "-" if share is None else f"{share:.1%}"


def times(ratio: float | None) -> str:
    """A dash for an unknown ratio."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def _beside(secs: float | None, speedup: float | None, of: str) -> str:
    return duration(secs) + ("" if speedup is None else f", {speedup:.2f}x as fast as {of}")


def _points(events: Iterable[JobEvent], began: datetime | None) -> Iterable[Point]:
    for event in events:
        best = event.data.get("best_secs")
        if event.kind is EventKind.PROGRESS and isinstance(best, float) and began is not None:
            yield Point(secs=max((event.at - began).total_seconds(), 0.0), best_secs=best)
