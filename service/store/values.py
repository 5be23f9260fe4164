"""Values that rows hold: targets, devices and toolchains, stored once and referenced by digest; results, stored in place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.measure import Measurement
from pitchpipe.wire.record import Best, Earlier
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from service.db import instant
from service.tables import Base, Record, StoredDevice, StoredTarget, StoredToolchain

_MEASUREMENT: TypeAdapter[Measurement] = TypeAdapter(Measurement)
Value = TypeVar("Value", bound=Wire)


class Circumstances(NamedTuple):
    """Device class, toolchain and driver: what decides, beside workload and target, whether a schedule compiles and how
    fast it is."""

    device_class: str
    toolchain: str
    """`Toolchain.key`."""
    driver: str | None
    """None where it is not known; it then counts as equal to any."""

    def same(self, other: Circumstances) -> bool:
        """Whether both are equal, as far as is known."""
        drivers = {driver for driver in (self.driver, other.driver) if driver is not None}
        return self[:2] == other[:2] and len(drivers) < 2

    def differences(self, other: Circumstances) -> list[str]:
        """Names of the parts in which they are known to differ."""
        named = zip(("device class", "toolchain", "driver"), self, other, strict=True)
        return [name for name, mine, its in named if mine != its and None not in (mine, its)]


Kept = TypeVar("Kept")
Stored = StoredTarget | StoredDevice | StoredToolchain
_MAX_REMEMBERED = 4096
"""Entries of each cache below: more than a fleet has targets or device models. A full cache is cleared."""
_TARGETS: dict[str, Target] = {}
_MODELS: dict[str, str] = {}
Insert = postgresql.Insert | sqlite.Insert


def insert(session: Session, table: type[Base]) -> Insert:
    """INSERT of the session's database, which knows ON CONFLICT."""
    return postgresql.insert(table) if session.get_bind().dialect.name == "postgresql" else sqlite.insert(table)


@lru_cache(maxsize=_MAX_REMEMBERED)
def target_digest(target: Target) -> str:
    """SHA-256 of the target's key: what rows and indexes hold."""
    return sha256(target.key.encode())


def put_target(session: Session, target: Target) -> str:
    """Stores the value if it is new; returns its key."""
    return _put(session, StoredTarget, target_digest(target), target, target.attributes(), kind=target.kind)


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


def get_circumstances(session: Session, device_key: str, toolchain_key: str) -> Circumstances:
    """The circumstances that a stored device and a stored toolchain make."""
    device = get_device(session, device_key)
    return Circumstances(device.device_class, get_toolchain(session, toolchain_key).key, device.driver)


def targets(session: Session | Connection, keys: Collection[str]) -> dict[str, Target]:
    """The values of several keys. A key never changes its value: what this process read once is not read again."""
    return _remembered(_TARGETS, keys, lambda missing: _read_targets(session, missing))


def device_models(session: Session | Connection, classes: Collection[str]) -> dict[str, str]:
    """Device class -> hardware model, for classes that a worker had. A class is a digest over the model, so it has one."""
    return _remembered(_MODELS, classes, lambda missing: _read_models(session, missing))


def _read_targets(session: Session | Connection, keys: list[str]) -> dict[str, Target]:
    rows = session.execute(select(StoredTarget.key, StoredTarget.body).where(StoredTarget.key.in_(keys)))
    return {key: Target.model_validate(body) for key, body in rows}


def _read_models(session: Session | Connection, classes: list[str]) -> dict[str, str]:
    query = select(StoredDevice.device_class, StoredDevice.body).where(StoredDevice.device_class.in_(classes))
    return {found: str(body["model"]) for found, body in session.execute(query)}


def _remembered(
    known: dict[str, Kept], keys: Collection[str], read: Callable[[list[str]], dict[str, Kept]]
) -> dict[str, Kept]:
    """The values of the keys, from the cache `known` or, once, from `read`."""
    found = {key: known[key] for key in keys if key in known}
    if missing := sorted(set(keys) - found.keys()):
        new = read(missing)
        if len(known) + len(new) > _MAX_REMEMBERED:
            known.clear()
        known.update(new)
        found |= new
    return found


def measurement(row: Record) -> Measurement:
    """The result that a record's row holds."""
    return _MEASUREMENT.validate_python(row.result)


def _known(session: Session) -> dict[tuple[type[Stored], str], Wire]:
    """Values that this transaction has read: a list of a thousand records may name one target."""
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


def best_of(row: Any, trace: str) -> Best:
    """The Best of a row of the table `best`, or of the same columns, with its trace, which may have been read separately."""
    return Best(
        record=row.record,
        trace=trace,
        secs=row.secs,
        secs_low=row.secs_low,
        secs_high=row.secs_high,
        baseline_secs=row.baseline_secs,
        device_class=row.device_class,
        driver=row.driver,
        toolchain=row.toolchain,
        confirmed_at=instant(row.confirmed_at),
        origin=row.origin,
        source=row.source,
        replayed_from=None if row.replayed_from is None else Earlier.model_validate(row.replayed_from),
    )
