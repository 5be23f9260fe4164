"""Schedules that won inside models: which may be tried there, what is claimed, and what a look-up is given.

A schedule of a context stands beside the best alone, never in its place, and is an answer only as long as

    the look-up names the context, and its answer is a best of the row's target, device class and toolchain
    that best is what was served when the model was tuned inside (`instead`), and nobody pinned it

So what is found for the workload later is served until a model is tuned inside with it. A task that a job's seconds did not
suffice to confirm has no best: then it won over the baseline, and is the answer of a look-up that else has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import InvalidInput
from pitchpipe.wire.context import (
    ChosenInContext,
    Contender,
    ContendersRequest,
    ContendersResponse,
    InContext,
)
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import BASELINE_TRACE, MEASURE_VERSION, Timed
from pitchpipe.wire.record import Best, LookupRequest, Provenance, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target
from service.db import instant, now
from service.store.records import bests, measured_under, next_generation
from service.store.values import Circumstances, device_models, get_circumstances, insert, put_target, target_digest
from service.tables import BestRow, InContextRow, Record

_READ = 16
"""Records read for each contender: most of a task's fastest are other measurements of the same candidates."""
NOTHING = ""
"""`instead` of a schedule once another won in its context; a lock file may still pin it."""
_OF_BEST = ("project", "target_key", "workload", "measure_version", "device_class")
"""The columns of a row that name the best which it stands beside."""


def contenders(session: Session, project: str, request: ContendersRequest) -> ContendersResponse:
    """Of each workload what is served alone under the circumstances, if anything, then the fastest that were timed under
    them, of those that `put` takes."""
    here = [Circumstances(request.device_class, request.toolchain, None)]
    known = _served(session, project, request.target, request.workloads, here[0])
    found = []
    for workload in request.workloads:
        rows = session.execute(
            select(Record.id, Record.trace, Record.candidate, Record.secs)
            .where(
                Record.project == project,
                Record.workload == workload,
                Record.target_key == target_digest(request.target),
                Record.measure_version == MEASURE_VERSION,
                Record.secs.is_not(None),
                measured_under(session, here),
            )
            .order_by(Record.secs, Record.seq)
            .limit(_READ * request.each)
        ).all()
        some: dict[str, tuple[str | None, str, float]] = {}
        most = None
        if (best := known.get(workload)) is not None:
            some[candidate_digest(workload, best.trace)] = (best.record, best.trace, best.secs)
            most = best.baseline_secs
        for row in rows:
            if most is None or row.secs <= most:
                some.setdefault(row.candidate, (row.id, row.trace, row.secs))
        found += [
            Contender(workload=workload, record=record, trace=trace, secs=secs)
            for record, trace, secs in list(some.values())[: request.each]
        ]
    return ContendersResponse(contenders=tuple(found))


def put(session: Session, project: str, report: InContext) -> None:
    """Serves what won inside a model, in its contexts. Idempotent.

    Raises InvalidInput where the runs do not show that the model was faster, and for a record that may not be served: one of
    another workload, target, device class or toolchain, one without a time, or one that is slower alone than the baseline.
    """
    from tuner.tuning.inside import is_faster  # An API process loads it when it is first told of a gain.

    before, after = report.before, report.after
    if before.processes != after.processes or not is_faster(after.run_secs, before.run_secs, after.processes):
        raise InvalidInput("the runs do not show that the model was faster with these schedules")
    asked = [one.workload for one in report.chosen]
    if len(set(asked)) < len(asked):
        raise InvalidInput("a workload was named twice")
    here = Circumstances(report.device_class, report.toolchain, None)
    served = _served(session, project, report.target, asked, here)
    next_generation(session, project)
    target_key = put_target(session, report.target)
    for one in report.chosen:
        best = served.get(one.workload)
        key = {
            "project": project,
            "target_key": target_key,
            "workload": one.workload,
            "measure_version": MEASURE_VERSION,
            "device_class": report.device_class,
            "context": one.context.digest,
        }
        session.execute(update(InContextRow).filter_by(**key).values(instead=NOTHING))
        instead = candidate_digest(one.workload, BASELINE_TRACE if best is None else best.trace)
        if one.record is None or _servable(session, project, report, one, best) == instead:
            continue
        values = {
            "toolchain": report.toolchain,
            "instead": instead,
            "neighbours": one.context.model_dump(mode="json"),
            "model": report.model,
            "before_secs": before.secs,
            "after_secs": after.secs,
            "confirmed_at": now(session),
        }
        statement = insert(session, InContextRow).values(**key, record=one.record, **values)
        keys = list(InContextRow.__table__.primary_key)
        session.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))


def _served(
    session: Session, project: str, target: Target, workloads: Sequence[str], here: Circumstances
) -> dict[str, Best]:
    """What is served alone under exactly these circumstances."""
    found = bests(session, project, workloads, target, here.device_class, here.toolchain)
    return {
        workload: best
        for workload, best in found.items()
        if (best.device_class, best.toolchain) == (here.device_class, here.toolchain)
    }


def _servable(session: Session, project: str, report: InContext, one: ChosenInContext, best: Best | None) -> str:
    """The digest of the record's candidate. Raises InvalidInput for a record that may not be served."""
    row = session.execute(select(Record).where(Record.project == project, Record.id == one.record)).scalar_one_or_none()
    key = (one.workload, target_digest(report.target), MEASURE_VERSION)
    if row is None or (row.workload, row.target_key, row.measure_version) != key:
        raise InvalidInput(f"{one.record} is not a record of this workload and target")
    if row.secs is None:
        raise InvalidInput(f"{one.record} failed: {row.failure}; only a verified time is served")
    measured = get_circumstances(session, row.device_key, row.toolchain_key)
    if (measured.device_class, measured.toolchain) != (report.device_class, report.toolchain):
        raise InvalidInput(f"{one.record} was measured on another device class or with another toolchain")
    if best is not None and best.baseline_secs is not None and row.secs > best.baseline_secs:
        raise InvalidInput(f"{one.record} is slower than the baseline")
    return str(row.candidate)


def applied(
    session: Session | Connection, project: str, request: LookupRequest, answers: Sequence[ScheduleAnswer]
) -> list[ScheduleAnswer]:
    """The answers of a look-up, with what won in their contexts beside them, or where they have none."""
    of, contexts = InContextRow, {one.workload: one.context for one in request.contexts}
    rows = session.execute(
        select(
            of.workload, of.context, of.device_class, of.toolchain, of.instead, of.model, of.before_secs, of.after_secs,
            of.confirmed_at, of.record, Record.trace, Record.result, Record.worker, BestRow.driver,
        )
        .join(Record, (Record.project == of.project) & (Record.id == of.record))
        .outerjoin(BestRow, and_(*(getattr(BestRow, name) == getattr(of, name) for name in _OF_BEST)))
        .where(
            of.project == project,
            of.target_key == target_digest(request.target),
            of.measure_version == MEASURE_VERSION,
            of.workload.in_(sorted(contexts)),
            of.context.in_(sorted(set(contexts.values()))),
            of.instead != NOTHING,
            BestRow.pinned_at.is_(None),
        )
    ).all()  # fmt: skip
    found = {(row.workload, row.device_class): row for row in rows if contexts[row.workload] == row.context}
    models = device_models(session, {row.device_class for row in rows})
    return [_in_context(answer, request, found, models) for answer in answers]


def _in_context(
    answer: ScheduleAnswer,
    request: LookupRequest,
    rows: Mapping[tuple[str, str | None], Any],
    models: Mapping[str, str],
) -> ScheduleAnswer:
    """The answer with the schedule of a row, by workload and device class, if it was tried beside the answer's best, or
    beside the baseline where there is none."""
    best = answer.best
    asked = request if best is None else best
    row = rows.get((answer.workload, asked.device_class))
    alone = candidate_digest(answer.workload, BASELINE_TRACE if best is None else best.trace)
    if row is None or (row.toolchain, row.instead) != (asked.toolchain, alone):
        return answer
    from tuner.measure.timing import later_interval

    timed = Timed.model_validate(row.result)
    low, high = later_interval(timed.secs_low or timed.secs, timed.secs_high or timed.secs)
    chosen = Best(
        record=row.record,
        trace=row.trace,
        secs=timed.secs,
        secs_low=low,
        secs_high=high,
        baseline_secs=None if best is None else best.baseline_secs,
        device_class=row.device_class,
        driver=row.driver,
        toolchain=row.toolchain,
        confirmed_at=instant(row.confirmed_at),
    )
    told = f"won among these neighbours, in {row.model}"
    told += f", which took {row.after_secs * 1e6:.4g} us in place of {row.before_secs * 1e6:.4g}"
    if best is None or answer.provenance is None:
        return ScheduleAnswer(
            workload=answer.workload,
            tier=Tier.EXACT,
            reason=f"same target, device class and toolchain; not confirmed alone, it {told}",
            best=chosen,
            provenance=Provenance(target=request.target, device_model=models.get(row.device_class), worker=row.worker),
            measured_here=True,
            context=row.context,
        )
    return answer.model_copy(
        update={
            "best": chosen,
            "context": row.context,
            "reason": f"{answer.reason}; over the best alone it {told}",
            "provenance": answer.provenance.model_copy(update={"worker": row.worker}),
        }
    )
