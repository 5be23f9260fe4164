"""Explanations of look-ups without an exact answer: the asked key beside the nearest stored keys.

Nearest are the same workload on other targets, devices or toolchains; then workloads with the same anchor and about as many
FLOPs, which are found as neighbours in an index, however many workloads are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from pitchpipe import target_kind
from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.record import (
    Difference,
    Earlier,
    ExplainRequest,
    ExplainResponse,
    Explanation,
    NearKey,
    ScheduleAnswer,
    Tier,
)
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature
from service.store.lookups import Row, lookup, one_of, read
from service.store.values import device_models, targets
from service.store.workloads import size
from service.tables import BestRow, StoredWorkload

NEAREST = 3
"""Stored keys listed for each workload."""
NEIGHBOURS = 32
"""Workloads looked at on either side of one in the index, by size."""
MOST_EXPLAINED = 128
"""Workloads for which stored keys are looked for, since a model has some tens; further ones get only a reason."""
_OTHER = 1.0
"""Distance of another epilogue or element type. That of another shape is the sum of |log2| of the extents' ratios."""
_MISFIT = 2.0
"""Distance of a target whose schedules cannot be used."""


def explain(session: Session, project: str, request: ExplainRequest) -> ExplainResponse:
    """An explanation of every workload without an exact answer, in the asked order."""
    inexact = [answer for answer in lookup(session, project, request).answers if answer.tier is not Tier.EXACT]
    told: dict[str, Signature] = {signed.workload: signed for signed in request.signatures}
    signatures = {**told, **_signatures(session, project, [answer.workload for answer in inexact])}
    explained = (_explanation(session, project, request, answer, signatures) for answer in inexact[:MOST_EXPLAINED])
    rest = (_told(answer, signatures.get(answer.workload), ()) for answer in inexact[MOST_EXPLAINED:])
    return ExplainResponse(misses=(*explained, *rest))


def _explanation(
    session: Session, project: str, request: ExplainRequest, answer: ScheduleAnswer, signatures: Mapping[str, Signature]
) -> Explanation:
    mine = signatures.get(answer.workload)
    near = {} if mine is None else _neighbours(session, project, answer.workload, mine)
    _, rows = read(session, project, [answer.workload, *near], None)
    known = targets(session, {row.target_key for row in rows})
    found: dict[str, tuple[tuple[object, ...], Row]] = {}
    for row in rows:
        stored = known[row.target_key]
        fit = target_kind.fit(request.target, stored)
        apart = 0.0 if row.workload == answer.workload or mine is None else _distance(mine, near[row.workload])
        rank = (
            apart + (0.0 if fit.fits else _MISFIT),
            fit.distance,
            row.device_class != request.device_class,
            row.toolchain != request.toolchain,
            -row.confirmed_at,
            (row.workload, row.target_key, row.device_class),
        )
        found[row.workload] = min(found.get(row.workload, (rank, row)), (rank, row))
    nearest = [row for _, row in sorted(found.values())[:NEAREST]]
    models = device_models(session, {row.device_class for row in nearest})
    return _told(
        answer,
        mine,
        [
            _near_key(
                row,
                known[row.target_key],
                models.get(row.device_class),
                request,
                None if row.workload == answer.workload else mine,
                mine if row.workload == answer.workload else near.get(row.workload),
            )
            for row in nearest
        ],
    )


def _told(answer: ScheduleAnswer, mine: Signature | None, nearest: Sequence[NearKey]) -> Explanation:
    return Explanation(
        workload=answer.workload,
        operators=None if mine is None else mine.operators,
        tier=answer.tier,
        reason=answer.reason,
        nearest=tuple(nearest),
    )


def _near_key(
    row: Row, target: Target, model: str | None, request: ExplainRequest, mine: Signature | None, its: Signature | None
) -> NearKey:
    """How a stored key differs from the asked one. `mine` is None where the stored workload is the asked one itself."""
    shapes = [] if mine is None or its is None else list(_of_signatures(mine, its))
    if mine is not None and not shapes:
        # Strides, constants, the order of operators: what a signature does not tell.
        shapes = [Difference(subject="program", asked="another program of this signature", stored=row.workload[:16])]
    return NearKey(
        workload=row.workload,
        operators=None if its is None else its.operators,
        target=target,
        device_model=model,
        toolchain=row.toolchain,
        secs=row.secs,
        replayed_from=None if row.replayed_from is None else Earlier.model_validate(row.replayed_from),
        differences=(*shapes, *_of_targets(request.target, target), *_of_circumstances(row, model, request)),
    )


def _of_signatures(mine: Signature, its: Signature) -> Iterator[Difference]:
    if mine.extents != its.extents:
        loops = mine.anchor.partition(" ")[0]
        yield Difference(
            subject="shape", asked=_by(mine.extents), stored=_by(its.extents), detail=f"of the anchor's loops {loops}"
        )
    asked, stored = ([argument.dtype for argument in each.arguments] for each in (mine, its))
    if set(asked) != set(stored):
        yield Difference(subject="element type", asked=", ".join(asked), stored=", ".join(stored))
    if mine.operators != its.operators:
        yield Difference(subject="epilogue", asked=mine.operators, stored=its.operators)
    asked, stored = ([_by(argument.shape) for argument in each.arguments] for each in (mine, its))
    if mine.operators == its.operators and mine.extents == its.extents and asked != stored:
        yield Difference(subject="shape", asked=", ".join(asked), stored=", ".join(stored), detail="of the arguments")


def _of_targets(asking: Target, stored: Target) -> Iterator[Difference]:
    mine, its = asking.attributes(), stored.attributes()
    for name in sorted(mine.keys() | its.keys()):
        if mine.get(name) != its.get(name):
            asked, got = (f"{name} {each.get(name, 'not named')}" for each in (mine, its))
            yield Difference(subject="target", asked=asked, stored=got, detail=target_kind.fit(asking, stored).reason)


def _of_circumstances(row: Row, model: str | None, request: ExplainRequest) -> Iterator[Difference]:
    if row.device_class != request.device_class:
        asked = "not named" if request.device_class is None else f"device class {request.device_class[:16]}"
        stored = f"device class {row.device_class[:16]}"
        yield Difference(subject="device", asked=asked, stored=stored, detail=model or "")
    if row.toolchain != request.toolchain:
        yield Difference(subject="toolchain", asked=request.toolchain or "not named", stored=row.toolchain)


def _by(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents)) or "scalar"


def _distance(mine: Signature, its: Signature) -> float:
    """Distance of two workloads with the same anchor, which have equally many extents."""
    octaves = sum(abs(math.log2(a / b)) for a, b in zip(mine.extents, its.extents, strict=False) if a > 0 and b > 0)
    types = {argument.dtype for argument in mine.arguments} != {argument.dtype for argument in its.arguments}
    return octaves + _OTHER * (types + (mine.operators != its.operators))


def _signatures(session: Session, project: str, workloads: Sequence[str]) -> dict[str, Signature]:
    """Signatures of the workloads that the service knows."""
    rows = session.execute(
        select(StoredWorkload.digest, StoredWorkload.signature).where(
            StoredWorkload.project == project, one_of(session, StoredWorkload.digest, workloads)
        )
    )
    return {digest: Signature.model_validate(body) for digest, body in rows if body is not None}


def _neighbours(session: Session, project: str, workload: str, mine: Signature) -> dict[str, Signature]:
    """Signatures of the workloads of the same anchor that have a best and are nearest in size."""
    has_best = exists().where(
        BestRow.project == project,
        BestRow.workload == StoredWorkload.digest,
        BestRow.measure_version == MEASURE_VERSION,
    )
    found: dict[str, Signature] = {}
    for beyond, order in (
        (StoredWorkload.size >= size(mine), StoredWorkload.size.asc()),
        (StoredWorkload.size < size(mine), StoredWorkload.size.desc()),
    ):
        rows = session.execute(
            select(StoredWorkload.digest, StoredWorkload.signature)
            .where(
                StoredWorkload.project == project,
                StoredWorkload.anchor == mine.anchor,
                beyond,
                StoredWorkload.digest != workload,
                has_best,
            )
            .order_by(order)
            .limit(NEIGHBOURS)
        )
        found |= {digest: Signature.model_validate(body) for digest, body in rows}
    return found
