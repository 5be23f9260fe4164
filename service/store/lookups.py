"""Look-ups: which stored schedule an asking device is given, how well it fits, and why.

One query reads every best of the asked workloads, whatever its target, with the project's generation.
`pitchpipe.target_kind` judges the targets. Of what fits, the nearest is served:

    exact            same target, device class and toolchain
    same_arch        same target
    compatible_isa   another target whose instructions and limits the asking one has
    transferred      of either, re-fitted from another workload

and within a tier the nearest target, the asked device class, the asked toolchain, the newest. The order is total, so the
same rows always give the same answer. Where the look-up names contexts, what won there takes the place of the best alone
(`contexts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    String,
    any_,
    bindparam,
    case,
    literal,
    null,
    select,
)
from sqlalchemy.orm import Session

from pitchpipe import target_kind
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.record import LookupRequest, LookupResponse, Origin, Provenance, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target
from service.store import contexts
from service.store.values import best_of, device_models, target_digest, targets
from service.tables import BestRow, Project

Reading = Session | Connection
_Key = tuple[str, str, str, float]
_GENERATION = select(Project.generation).where(Project.id == bindparam("project"))
_TIERS = {tier: rank for rank, tier in enumerate(Tier)}


class Row(NamedTuple):
    """A best without its trace, which only the chosen ones need."""

    workload: str
    target_key: str
    device_class: str
    toolchain: str
    driver: str | None
    record: str | None
    secs: float
    secs_low: float
    secs_high: float
    baseline_secs: float | None
    confirmed_at: float
    origin: Origin
    source: str | None
    replayed_from: dict[str, Any] | None
    worker: str | None
    trace: str | None
    """Read for the asked target only; of the others, where one is chosen."""


class _Choice(NamedTuple):
    row: Row
    tier: Tier
    reason: str
    target: Target


def generation(session: Reading, project: str) -> int:
    """Grows whenever what the project serves changes."""
    return session.execute(_GENERATION, {"project": project}).scalar_one()


def entity_tag(project: str, request: LookupRequest, generation: int) -> str:
    """HTTP's ETag of the answer to a request: equal tags have equal answers. It includes the release, since another release
    may answer differently."""
    asked = f"{_release()}\n{project}\n{request.model_dump_json(by_alias=True)}"
    return f'"{generation:x}-{sha256(asked.encode())[:32]}"'


def lookup(session: Reading, project: str, request: LookupRequest) -> LookupResponse:
    """One answer per asked workload, in the asked order."""
    return answer(session, project, request)[1]


def answer(session: Reading, project: str, request: LookupRequest) -> tuple[int, LookupResponse]:
    """(generation, answers as of that generation).

    Reads again where a best was replaced between the two statements, so that no answer combines two bests.
    """
    while (found := _answer_once(session, project, request)) is None:
        pass
    return found


def _answer_once(session: Reading, project: str, request: LookupRequest) -> tuple[int, LookupResponse] | None:
    found, rows = read(session, project, request.workloads, request.target)
    known = targets(session, {row.target_key for row in rows})
    by_workload: dict[str, list[Row]] = {}
    for row in rows:
        by_workload.setdefault(row.workload, []).append(row)
    fits = {key: target_kind.fit(request.target, target) for key, target in known.items()}
    own = target_digest(request.target)
    choices = {workload: _choose(these, known, fits, own, request) for workload, these in by_workload.items()}
    chosen = [choice for choice in choices.values() if isinstance(choice, _Choice)]
    untraced = [choice.row for choice in chosen if choice.row.trace is None]
    traces = _traces(session, project, untraced)
    if any(_key(row) not in traces for row in untraced):
        return None
    classes = {choice.row.device_class for choice in chosen}
    classes |= {choice.row.replayed_from["device_class"] for choice in chosen if choice.row.replayed_from}
    models = device_models(session, classes)
    answers = []
    for workload in request.workloads:
        choice = choices.get(workload, "no confirmed schedule of this workload")
        if isinstance(choice, str):
            answers.append(ScheduleAnswer(workload=workload, tier=Tier.NONE, reason=choice))
        else:
            answers.append(_answer(choice, own, request, traces, models))
    if request.contexts:
        answers = contexts.applied(session, project, request, answers)
    return found, LookupResponse(answers=tuple(answers))


def read(session: Reading, project: str, workloads: Sequence[str], target: Target | None) -> tuple[int, list[Row]]:
    """The project's generation, and all bests of the workloads; those for `target` with their traces. One statement."""
    asked = {
        "project": project,
        "version": MEASURE_VERSION,
        "target": None if target is None else target_digest(target),
        "workloads": sorted(set(workloads)),
    }
    rows = _by_driver(session, asked) if isinstance(session, Connection) else None
    if rows is None:
        rows = session.execute(_reading(_dialect(session)), asked).all()
    found = [Row._make(row[1:]) for row in rows if row[1] is not None]
    return rows[0][0], [row._replace(origin=Origin(row.origin)) for row in found]


def _by_driver(connection: Connection, asked: Mapping[str, Any]) -> Sequence[Any] | None:
    """The rows, read through PostgreSQL's driver directly: SQLAlchemy's overhead takes longer than the statement.

    None with another database, and after an error, so that the statement is repeated by SQLAlchemy, which translates the
    error.
    """
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        return None
    try:
        return driver.execute(_text(connection.dialect), asked).fetchall()
    except psycopg.Error:
        return None


@cache
def _text(dialect: Dialect) -> str:
    return str(_reading(dialect.name).compile(dialect=dialect))


@cache
def _reading(dialect: str) -> Select[*tuple[Any, ...]]:
    """The statement of `read`, made once: making it takes longer than running it."""
    columns = [getattr(BestRow, name) for name in Row._fields[:-1]]
    trace = case((BestRow.target_key == bindparam("target", type_=String), BestRow.trace), else_=null())
    of_these = (
        (BestRow.project == Project.id)
        & (BestRow.measure_version == bindparam("version"))
        & _among(dialect, BestRow.workload, "workloads")
    )
    return (
        select(Project.generation, *columns, trace)
        .outerjoin(BestRow, of_these)
        .where(Project.id == bindparam("project"))
    )


def one_of(session: Reading, column: Any, values: Iterable[str]) -> ColumnElement[bool]:
    """`column IN values`; on PostgreSQL as one array, so that the statement is the same however many there are."""
    wanted = sorted(set(values))
    if _dialect(session) == "postgresql":
        return column == any_(literal(wanted, ARRAY(String)))  # type: ignore[no-any-return]
    return column.in_(wanted)  # type: ignore[no-any-return]


def _among(dialect: str, column: Any, name: str) -> ColumnElement[bool]:
    """The same for a statement that is made once, with a parameter of that name."""
    if dialect == "postgresql":
        return column == any_(bindparam(name, type_=ARRAY(String)))  # type: ignore[no-any-return]
    return column.in_(bindparam(name, expanding=True))  # type: ignore[no-any-return]


def _dialect(session: Reading) -> str:
    return (session.get_bind() if isinstance(session, Session) else session).dialect.name


def _choose(
    rows: Sequence[Row],
    known: Mapping[str, Target],
    fits: Mapping[str, target_kind.Fit],
    own: str,
    request: LookupRequest,
) -> _Choice | str:
    """The nearest row that fits, or why none does. `known` and `fits` are by target key; `own` is the asking one's."""
    fitting: list[tuple[tuple[Any, ...], _Choice]] = []
    misfits: list[tuple[str, str]] = []
    for row in rows:
        stored, found = known[row.target_key], fits[row.target_key]
        if not found.fits:
            misfits.append((target_kind.describe(stored), found.reason))
            continue
        same = row.target_key == own
        elsewhere = _differences(row, request)
        if row.origin is Origin.TRANSFERRED:
            tier = Tier.TRANSFERRED
            reason = f"re-fitted from workload {(row.source or '')[:16]}, built, checked and timed"
            reason += " for the same target" if same else f" for {target_kind.describe(stored)}: {found.reason}"
        elif same:
            tier = Tier.SAME_ARCH if elsewhere else Tier.EXACT
            reason = "same target" if elsewhere else "same target, device class and toolchain"
        else:
            tier, reason = Tier.COMPATIBLE_ISA, f"confirmed for {target_kind.describe(stored)}: {found.reason}"
        reason = "; ".join([reason, *elsewhere])
        nearness = (
            _TIERS[tier],
            found.distance,
            row.device_class != request.device_class,
            row.toolchain != request.toolchain,
            -row.confirmed_at,
            row.device_class,
            row.target_key,
        )
        fitting.append((nearness, _Choice(row, tier, reason, stored)))
    if fitting:
        return min(fitting, key=lambda entry: entry[0])[1]
    (stored_for, why), *others = sorted(set(misfits))
    besides = f" (and for {len(others)} more that do not fit)" if others else ""
    return f"no confirmed schedule of this workload that fits: it is confirmed for {stored_for}{besides}, but {why}"


def _differences(row: Row, request: LookupRequest) -> list[str]:
    """How the circumstances of the confirming run differ from those that were asked for, in words."""
    return [
        f"{name} was not named" if asked is None else f"confirmed with another {name}"
        for name, asked, got in (
            ("device class", request.device_class, row.device_class),
            ("toolchain", request.toolchain, row.toolchain),
        )
        if asked != got
    ]


def _key(row: Row) -> _Key:
    return row.workload, row.target_key, row.device_class, row.confirmed_at


def _traces(session: Reading, project: str, rows: Sequence[Row]) -> dict[_Key, str]:
    """Traces by the key of a row, at least of these rows; one that was replaced since it was read is missing."""
    if not rows:
        return {}
    key = (BestRow.workload, BestRow.target_key, BestRow.device_class, BestRow.confirmed_at)
    found = session.execute(
        select(*key, BestRow.trace).where(
            BestRow.project == project,
            BestRow.measure_version == MEASURE_VERSION,
            one_of(session, BestRow.workload, [row.workload for row in rows]),
            one_of(session, BestRow.target_key, [row.target_key for row in rows]),
        )
    )
    return {(workload, target, device, at): trace for workload, target, device, at, trace in found}


def _answer(
    choice: _Choice,
    own: str,
    request: LookupRequest,
    traces: Mapping[_Key, str],
    models: Mapping[str, str],
) -> ScheduleAnswer:
    row = choice.row
    trace = row.trace if row.trace is not None else traces[_key(row)]
    model = models.get(row.device_class)
    here = row.target_key == own and not _differences(row, request)
    where = "" if row.replayed_from is None else f"; replayed from {_first_found(row.replayed_from, row, models)}"
    where += "" if here else f"; the seconds are of {model or 'another device'}, not of the asking device"
    return ScheduleAnswer(
        workload=row.workload,
        tier=choice.tier,
        reason=choice.reason + where,
        best=best_of(row, trace),
        provenance=Provenance(target=choice.target, device_model=model, worker=row.worker),
        measured_here=here,
    )


def _first_found(earlier: Mapping[str, Any], row: Row, models: Mapping[str, str]) -> str:
    """How the circumstances under which a schedule was first found differ from those of its replay, in words."""
    told = []
    if earlier["device_class"] != row.device_class:
        told.append(models.get(earlier["device_class"], "another device"))
    told += [earlier[name] for name in ("toolchain", "driver") if earlier[name] not in (getattr(row, name), None)]
    return ", ".join(told) or "earlier records"


@cache
def _release() -> str:
    return version("pitchpipe")
