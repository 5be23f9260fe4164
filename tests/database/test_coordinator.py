"""The coordinator's role: held by one, and free as soon as that one is known to be gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from service.blobs import Blobs
from service.coordinator import Coordinator
from service.db import Database
from service.settings import Settings
from service.store import coordination
from service.wake import Wake


def make(database: Database) -> Coordinator:
    return Coordinator(Settings(blob_url="memory:///"), database, Blobs("memory:///"), Wake(), ThreadPoolExecutor(1))


def free(database: Database) -> bool:
    with database.transaction() as session:
        return coordination.hold(session, "somebody", 0.0)


def test_a_coordinator_that_is_stopped_gives_its_role_back(database: Database) -> None:
    coordinator = make(database)
    coordinator.tick()
    assert not free(database)
    coordinator.start()
    coordinator.stop()
    assert free(database)


def test_a_coordinator_that_waits_gives_back_nothing_of_anothers(database: Database) -> None:
    active, waiting = make(database), make(database)
    active.tick()
    waiting.tick()
    waiting.start()
    waiting.stop()
    assert not free(database)
    active.stop()


def test_a_process_that_is_alone_waits_for_no_dead_one(database: Database) -> None:
    make(database).tick()
    assert not free(database)
    with database.transaction() as session:
        coordination.vacate(session)
    assert free(database)
