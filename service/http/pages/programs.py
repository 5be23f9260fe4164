"""Two schedules of a task beside each other: scheduled TIR, lowered module or machine code, and what differs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from pitchpipe.errors import NotFound
from pitchpipe.wire.job import TaskView
from pitchpipe.wire.measure import Failed, Measurement, Timed
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView
from service.http.programs import Program, Programs, has_compiler
from service.store import job_tasks, jobs, listings, records, trials

router = APIRouter(prefix="/jobs/{job_id}/tasks/{position}/programs", include_in_schema=False)

BASELINE = "baseline"
MOST_LINES = 3000
"""Of a program that is shown and compared; unrolled machine code can have a hundred times as many."""
_FASTEST = 20
_CONTEXT_LINES = 5
_FORMS = {"tir": "Scheduled TIR", "lowered": "Lowered module", "code": "Assembly, PTX"}
"""What can be asked for; `code` is the last form that the target's kind has."""
_COLUMNS = (
    Column(name="id", title="Record", link="/records/{id}"),
    Column(name="secs", title="Median", shown="seconds"),
    Column(name="failure", title="Failure", shown="words"),
    Column(name="created_at", title="Measured (UTC)", shown="when"),
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of two schedules, as it is shown."""

    which: str
    """A record's id, or BASELINE."""
    title: str
    result: Measurement | None
    """None of a baseline, which is measured in confirming runs and has no record."""
    form: str
    """The name of the form that is shown, as the compiler knows it."""
    lines: tuple[str, ...]
    total: int
    """Lines that there are."""
    failed: str | None

    @property
    def timed(self) -> Timed | None:
        return self.result if isinstance(self.result, Timed) else None

    @property
    def fault(self) -> Failed | None:
        return self.result if isinstance(self.result, Failed) else None


@router.get("")
def programs_page(
    view: UserView,
    job_id: str,
    position: int,
    left: Annotated[str, Query(max_length=64)] = BASELINE,
    right: Annotated[str, Query(max_length=64)] = "",
    form: Annotated[str, Query(max_length=16)] = "tir",
) -> Response:
    """The task's baseline and what is served for it, unless the address names others of its candidates."""
    form = form if form in _FORMS else "tir"
    with view.reading() as session:
        task = jobs.task(session, view.project, job_id, position)
        of = (session, view.project, task.workload, task.target)
        best = records.best(*of)
        fastest = trials.fastest(*of, _FASTEST)
        served = best.record if best is not None else None
        right = right or served or (fastest[0][0] if fastest else BASELINE)
        given = job_tasks.baseline(session, view.project, job_id, position)
        chosen = [_program(session, view.project, task, which, given) for which in (left, right)]
    able = has_compiler()
    titles = {BASELINE: "Baseline"} | ({served: "Served"} if served else {})
    sides = [
        _side(view.context.programs, program, result, which, titles.get(which, "Candidate"), form)
        for (program, result), which in zip(chosen, (left, right), strict=True)
        if able
    ]
    rows = list(_difference(sides[0].lines, sides[1].lines)) if able else []
    table = Spec(
        id="trials",
        title="Choose candidates",
        listing=listings.trials(view.project, task.workload, task.target),
        columns=_COLUMNS,
        choices={},
        empty="Nothing was measured yet.",
        rows=20,
    )
    return view.page(
        "programs.html",
        table,
        job_id=job_id,
        position=position,
        task=task,
        sides=sides,
        rows=rows,
        able=able,
        left=left,
        right=right,
        form=form,
        forms=_FORMS,
        choices=_choices(titles, fastest, (left, right)),
    )


def _program(
    session: Any, project: str, task: TaskView, which: str, baseline: tuple[str, str]
) -> tuple[Program, Measurement | None]:
    """What one side shows. Raises NotFound for what is no candidate of the task."""
    ir, trace = baseline
    result = None
    if which != BASELINE:
        record = records.view(session, project, which).record
        if (record.workload, record.target.key) != (task.workload, task.target.key):
            raise NotFound(f"{which} is no candidate of this task")
        trace, result = record.trace, record.result
    return Program(workload=task.workload, ir=ir, trace=trace, target=task.target.key), result


def _side(programs: Programs, program: Program, result: Measurement | None, which: str, title: str, form: str) -> Side:
    found = programs.texts(program, compiled=form != "tir")
    name = list(found.forms)[-1] if form == "code" and found.forms else form
    lines = found.forms.get(name, "").splitlines()
    failed = found.failed or (None if lines else f"there is no {form} form for this kind of target")
    return Side(
        which=which,
        title=title,
        result=result,
        form=name,
        lines=tuple(lines[:MOST_LINES]),
        total=len(lines),
        failed=failed,
    )


def _difference(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(kind, line) of a unified difference: `removed`, `added`, `place` or `same`."""
    kinds = {"-": "removed", "+": "added", "@": "place"}
    for at, line in enumerate(difflib.unified_diff(left, right, n=_CONTEXT_LINES, lineterm="")):
        if at >= 2:  # after the two lines that name files
            kind = kinds.get(line[0], "same")
            yield kind, line if kind == "place" else line[1:]


def _choices(
    titles: dict[str, str], fastest: Sequence[tuple[str, float]], chosen: Sequence[str]
) -> list[tuple[str, str, float | None]]:
    """(record or BASELINE, title, median seconds) of what can be chosen without the table."""
    secs: dict[str, float] = dict(fastest)
    names = dict.fromkeys([*titles, *secs, *chosen])
    return [(name, titles.get(name, name), secs.get(name)) for name in names]
