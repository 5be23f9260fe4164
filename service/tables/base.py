"""What every table shares: column types, names of keys and indexes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnClause,
    Dialect,
    Enum,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    TypeDecorator,
    literal_column,
    text,
)
from sqlalchemy.orm import DeclarativeBase

from pitchpipe.wire.cost_model import CostModelOrigin, CostModelState
from pitchpipe.wire.job import EventKind, JobOrigin, JobState, ModelFormat, Replay, Scope
from pitchpipe.wire.lease import Purpose, WorkerState
from pitchpipe.wire.miss import MissStage
from pitchpipe.wire.record import Origin
from service.states import CandidateState, LeaseState, ModelState

Json = dict[str, Any]
"""A wire type's `model_dump(mode="json")`."""


class Line(TypeDecorator[str]):
    """Text that any input survives: PostgreSQL refuses NUL, so it becomes U+FFFD on both databases."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return value if value is None else value.replace("\x00", "\ufffd")


def _enum(kind: type[Any]) -> Enum:
    return Enum(kind, native_enum=False, length=16, values_callable=lambda e: [member.value for member in e])


Serial = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only when the column is an INTEGER."""


def partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of the few rows that matter: as small as the work at hand, however long the history."""
    return Index(name, *columns, unique=unique, postgresql_where=text(where), sqlite_where=text(where))


def spelled(state: StrEnum) -> ColumnClause[str]:
    """The state written into the statement. A bound one would hide from a prepared statement which index fits."""
    return literal_column(f"'{state.value}'")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        str: Line(),
        float: Float(53),
        bytes: LargeBinary(),
        # none_as_null: an absent document is SQL's NULL, not JSON's.
        Json: JSON(none_as_null=True),
        Scope: _enum(Scope),
        ModelFormat: _enum(ModelFormat),
        ModelState: _enum(ModelState),
        JobState: _enum(JobState),
        JobOrigin: _enum(JobOrigin),
        Replay: _enum(Replay),
        MissStage: _enum(MissStage),
        EventKind: _enum(EventKind),
        Purpose: _enum(Purpose),
        Origin: _enum(Origin),
        CostModelOrigin: _enum(CostModelOrigin),
        CostModelState: _enum(CostModelState),
        WorkerState: _enum(WorkerState),
        CandidateState: _enum(CandidateState),
        LeaseState: _enum(LeaseState),
    }
