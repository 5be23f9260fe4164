"""Values inside rows: targets, devices, toolchains, stored once and pointed to by digest; results, stored in place."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.measure import Measurement
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from service.tables import Base, Record, StoredDevice, StoredTarget, StoredToolchain

_MEASUREMENT: TypeAdapter[Measurement] = TypeAdapter(Measurement)
Value = TypeVar("Value", bound=Wire)
Stored = StoredTarget | StoredDevice | StoredToolchain
Insert = postgresql.Insert | sqlite.Insert


def insert(session: Session, table: type[Base]) -> Insert:
    """INSERT of the session's database, which knows ON CONFLICT."""
    return postgresql.insert(table) if session.get_bind().dialect.name == "postgresql" else sqlite.insert(table)


def target_key(target: Target) -> str:
    """SHA-256 of the target's key: what rows and indexes hold."""
    return sha256(target.key.encode())


def put_target(session: Session, target: Target) -> str:
    """Stores the value if it is new; returns its key."""
    return _put(session, StoredTarget, target_key(target), target, target.attributes(), kind=target.kind)


def put_device(session: Session, device: DeviceFingerprint) -> str:
    """Stores the value if it is new; returns its key."""
    body = device.model_dump(mode="json")
    return _put(session, StoredDevice, json_digest(body), device, body, device_class=device.device_class)


def put_toolchain(session: Session, toolchain: Toolchain) -> str:
    """Stores the value if it is new; returns its key."""
    body = toolchain.model_dump(mode="json")
    return _put(session, StoredToolchain, json_digest(body), toolchain, body, label=toolchain.key)


def get_target(session: Session, key: str) -> Target:
    """The value of a key that a row holds."""
    return _get(session, StoredTarget, Target, key)


def get_device(session: Session, key: str) -> DeviceFingerprint:
    """The value of a key that a row holds."""
    return _get(session, StoredDevice, DeviceFingerprint, key)


def get_toolchain(session: Session, key: str) -> Toolchain:
    """The value of a key that a row holds."""
    return _get(session, StoredToolchain, Toolchain, key)


def measurement(row: Record) -> Measurement:
    """The result that a record's row holds."""
    return _MEASUREMENT.validate_python(row.result)


def _known(session: Session) -> dict[tuple[type[Stored], str], Wire]:
    """Values this transaction has met: a list of a thousand records names one target."""
    found: dict[tuple[type[Stored], str], Wire] = session.info.setdefault("values", {})
    return found


def _put(session: Session, table: type[Stored], key: str, value: Wire, body: Any, **columns: str) -> str:
    known = _known(session)
    if (table, key) not in known:
        # Look first: the value is nearly always there, and an INSERT that conflicts still writes to PostgreSQL's log.
        if session.scalar(select(table.key).where(table.key == key)) is None:
            session.execute(insert(session, table).values(key=key, body=body, **columns).on_conflict_do_nothing())
        known[table, key] = value
    return key


def _get(session: Session, table: type[Stored], kind: type[Value], key: str) -> Value:
    value = _known(session).get((table, key))
    if value is None:
        row = session.execute(select(table.body).where(table.key == key)).scalar_one()
        value = kind.model_validate(row)
        _known(session)[table, key] = value
    assert isinstance(value, kind)
    return value
