"""A database file answers look-ups without a service, for the project that an embedded service tunes for."""

from __future__ import annotations

import pytest

from pitchpipe.errors import NotFound
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.record import LookupRequest
from service import local
from service.db import Database
from service.store import records, tokens
from tests.scene import DEVICE, TARGET, TOOLCHAIN, WORKLOAD, Scene, best, candidates, record

OTHER = sha256(b"other")


def test_what_was_confirmed_is_found_and_what_was_not_is_missing(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    scene = Scene(database)
    request = LookupRequest(
        target=TARGET,
        workloads=(WORKLOAD.digest, OTHER),
        device_class=DEVICE.device_class,
        toolchain=TOOLCHAIN.key,
    )
    with pytest.raises(NotFound):
        local.lookup(sqlite_url, request)
    measured = record(candidates(0, 1)[0])
    with database.transaction() as session:
        project = tokens.bootstrap(session, local.PROJECT)
        records.add(session, project, [measured])
        records.set_best(session, project, WORKLOAD.digest, TARGET, best(measured))
    found, missing = local.lookup(sqlite_url, request)["answers"]
    assert (found["tier"], found["best"]["trace"]) == ("exact", measured.trace)
    assert missing["tier"] == "none"
    assert scene.project != project
    database.close()
