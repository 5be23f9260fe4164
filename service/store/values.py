"""Values inside rows: targets, devices, toolchains, stored once and pointed to by digest; results, stored in place."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.measure import Measurement
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from service.tables import Base, Record, StoredDevice, StoredTarget, StoredToolchain

_MEASUREMENT: TypeAdapter[Measurement] = TypeAdapter(Measurement)
Insert = postgresql.Insert | sqlite.Insert


def insert(session: Session, table: type[Base]) -> Insert:
    """INSERT of the session's database, which knows ON CONFLICT."""
    return postgresql.insert(table) if session.get_bind().dialect.name == "postgresql" else sqlite.insert(table)


def target_key(target: Target) -> str:
    """SHA-256 of the target's key: what rows and indexes hold."""
    return sha256(target.key.encode())


def put_target(session: Session, target: Target) -> str:
    """Stores the value if it is new; returns its key."""
    key = target_key(target)
    _put(session, StoredTarget, key, kind=target.kind, body=target.attributes())
    return key


def put_device(session: Session, device: DeviceFingerprint) -> str:
    """Stores the value if it is new; returns its key."""
    body = device.model_dump(mode="json")
    key = json_digest(body)
    _put(session, StoredDevice, key, device_class=device.device_class, body=body)
    return key


def put_toolchain(session: Session, toolchain: Toolchain) -> str:
    """Stores the value if it is new; returns its key."""
    body = toolchain.model_dump(mode="json")
    key = json_digest(body)
    _put(session, StoredToolchain, key, label=toolchain.key, body=body)
    return key


def get_target(session: Session, key: str) -> Target:
    """The value of a key that a row holds."""
    return Target.model_validate(_get(session, StoredTarget, key).body)


def get_device(session: Session, key: str) -> DeviceFingerprint:
    """The value of a key that a row holds."""
    return DeviceFingerprint.model_validate(_get(session, StoredDevice, key).body)


def get_toolchain(session: Session, key: str) -> Toolchain:
    """The value of a key that a row holds."""
    return Toolchain.model_validate(_get(session, StoredToolchain, key).body)


def measurement(row: Record) -> Measurement:
    """The result that a record's row holds."""
    return _MEASUREMENT.validate_python(row.result)


def _put(
    session: Session, table: type[StoredTarget | StoredDevice | StoredToolchain], key: str, **columns: Any
) -> None:
    # Look first: the value is nearly always there, and an INSERT that conflicts still writes to PostgreSQL's log.
    if session.get(table, key) is None:
        session.execute(insert(session, table).values(key=key, **columns).on_conflict_do_nothing())


def _get(session: Session, table: type[Any], key: str) -> Any:
    # The identity map makes every further row of the same value free.
    return session.get_one(table, key)
