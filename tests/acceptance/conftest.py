"""One embedded service for all tests that only add to it or read from it: a server and a worker process on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import building
from pitchpipe.embedded import Embedded
from pitchpipe.processes.plugins import step
from pitchpipe.wire.target import Target
from tests.builds import keeping


@pytest.fixture(scope="session", autouse=True)
def builds_are_kept() -> Iterator[None]:
    """A cold cache is empty for the product, and costs a test no compilation that another test has had done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "run_step", keeping(building.run_step, {}))
        yield


@pytest.fixture(scope="session")
def this_target() -> Target:
    """Of the machine the tests run on."""
    found: Target = step("detect_target")("auto")
    return found


@pytest.fixture(scope="session")
def embedded_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of the database of `embedded`."""
    return f"sqlite:///{tmp_path_factory.mktemp('embedded') / 'p.db'}"


@pytest.fixture(scope="session")
def embedded(embedded_database: str, this_target: Target) -> Iterator[Client]:
    """A client of a running service. What others submitted may be there: a test looks for its own.

    Files whose tests use it stand in SHARING (tests/conftest.py), so that one process runs them all.
    """
    with Embedded(embedded_database, this_target) as client:
        yield client
        client.close()
