"""An embedded service for the tests of a module: a server and a worker process on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pitchpipe.client import Client
from pitchpipe.embedded import Embedded
from pitchpipe.processes.plugins import step
from pitchpipe.wire.target import Target


@pytest.fixture(scope="module")
def this_target() -> Target:
    """Of the machine the tests run on."""
    found: Target = step("detect_target")("auto")
    return found


@pytest.fixture(scope="module")
def embedded_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of the database of `embedded`."""
    return f"sqlite:///{tmp_path_factory.mktemp('embedded') / 'p.db'}"


@pytest.fixture(scope="module")
def embedded(embedded_database: str, this_target: Target) -> Iterator[Client]:
    """A client of a running service."""
    with Embedded(embedded_database, this_target) as client:
        yield client
        client.close()
