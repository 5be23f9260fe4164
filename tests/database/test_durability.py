"""An acknowledged write survives: the settings that promise it, and processes killed amid writing."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import service
from pitchpipe.errors import InvalidInput, Overloaded
from service import db
from service.db import Database
from service.store import records, tokens
from tests.postgres import PostgresServer
from tests.scene import TARGET, WORKLOAD

ROOT = Path(service.__file__).parents[1]

_WRITER = """
import sys
from service.db import Database
from service.store import records
from tests.scene import candidates, record
database = Database(sys.argv[1])
for n in range(100_000):
    made = record(candidates(n, n + 1)[0])
    with database.transaction() as session:
        records.add(session, sys.argv[2], [made])
    print(made.id, flush=True)
"""


def test_sqlite_is_set_to_lose_nothing(sqlite_database: Database) -> None:
    for block in (sqlite_database.transaction, sqlite_database.reading):
        with block() as session:
            settings = {
                name: session.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_postgresql_is_set_to_lose_nothing_whatever_the_servers_default(postgres_url: str) -> None:
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    engine.dispose()
    database = Database(postgres_url)
    for _ in range(2):  # also on a connection that was used and rolled back
        with database.transaction() as session:
            assert session.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
            assert session.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
            session.rollback()
    database.close()


def test_what_a_killed_process_acknowledged_is_there(database: Database, database_url: str) -> None:
    with database.transaction() as session:
        project = tokens.bootstrap(session, "killed")
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, database_url, project], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().strip() for _ in range(40)]
    writer.kill()
    acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    writer.stdout.close()
    writer.wait()
    with database.reading() as session:
        found = {record.id for record in records.for_task(session, project, WORKLOAD.digest, TARGET)}
    assert len(acknowledged) >= 40
    assert set(acknowledged) <= found
    # The write under way when it was killed is there as a whole or not at all.
    assert len(found) <= len(acknowledged) + 1


def test_a_server_that_is_killed_comes_back_with_what_it_acknowledged(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    database = Database(postgres_url)
    with database.transaction() as session:
        project = tokens.bootstrap(session, "restarted")
    postgres_server.stop()
    postgres_server.start()
    with database.reading() as session:
        assert session.execute(text("SELECT id FROM projects WHERE name = 'restarted'")).scalar_one() == project
    database.close()


def test_a_block_that_raises_leaves_nothing(database: Database) -> None:
    def block() -> None:
        with database.transaction() as session:
            tokens.bootstrap(session, "half")
            raise InvalidInput

    with pytest.raises(InvalidInput):
        block()
    with database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM projects")).scalar_one() == 0


def test_reading_waits_for_no_writer_and_sees_what_was_committed(database: Database) -> None:
    with database.transaction() as session:
        tokens.bootstrap(session, "first")
        with database.reading() as beside:
            assert beside.execute(text("SELECT count(*) FROM projects")).scalar_one() == 0
    with database.reading() as after:
        assert after.execute(text("SELECT count(*) FROM projects")).scalar_one() == 1


def test_writing_in_a_reading_block_is_an_error_and_not_an_overload(database: Database) -> None:
    with (
        pytest.raises(Exception, match=re.compile("read-?only", re.IGNORECASE)) as caught,
        database.reading() as session,
    ):
        tokens.bootstrap(session, "sneaky")
    assert not isinstance(caught.value, Overloaded)
    with database.transaction() as session:  # the same connection can write again
        tokens.bootstrap(session, "honest")


def test_another_process_writing_to_sqlite_is_waited_for(sqlite_database: Database, sqlite_url: str) -> None:
    other = Database(sqlite_url)
    started = threading.Event()

    def write() -> None:
        started.set()
        with sqlite_database.transaction() as session:
            tokens.bootstrap(session, "second")

    with other.transaction() as session:
        tokens.bootstrap(session, "first")
        thread = threading.Thread(target=write)
        thread.start()
        started.wait()
    thread.join()
    with other.reading() as session:
        assert session.execute(text("SELECT count(*) FROM projects")).scalar_one() == 2
    other.close()


def test_a_writer_that_holds_on_too_long_makes_others_shed(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_SECS", 0.05)
    caught: list[Overloaded] = []

    def write() -> None:
        try:
            with sqlite_database.transaction() as session:
                tokens.bootstrap(session, "second")
        except Overloaded as error:
            caught.append(error)

    with sqlite_database.transaction() as session:
        tokens.bootstrap(session, "first")
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert caught[0].retry_after_secs is not None


def test_the_password_is_not_in_the_url_for_logs(tmp_path: Path) -> None:
    assert Database("postgresql://me:secret@db.example/x").url == "postgresql+psycopg://me:***@db.example/x"
    assert Database(f"sqlite:///{tmp_path / 'x.db'}").url.endswith("x.db")


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_a_url_that_is_no_database_of_ours_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Database(url)


def test_the_databases_clock_is_the_time_and_moves(database: Database) -> None:
    with database.reading() as session:
        first = db.clock(session)
        second = db.clock(session)
    assert first <= second
    assert db.instant(first).year >= 2024
    database.clock_offset_secs = 1000.0
    with database.reading() as session:
        assert db.clock(session) >= first + 1000.0
