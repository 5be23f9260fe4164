"""The database: engine, transactions, clock, schema revision. SQLite for one machine, PostgreSQL for a fleet.

Durability: what a transaction wrote is on disk when `transaction()` returns (SQLite: WAL with synchronous=FULL;
PostgreSQL: synchronous_commit=on). Time: `now(session)` is an SQL expression in Unix seconds, evaluated by the
database; nothing else decides what has expired.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Float, create_engine, event, literal, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from pitchpipe.errors import InvalidInput, Overloaded

T = TypeVar("T")
BUSY_TIMEOUT_SECS = 30.0
"""How long a SQLite transaction waits for another process's, and any transaction for this process's writer."""
POOL_TIMEOUT_SECS = 10.0
"""How long a request waits for a PostgreSQL connection before it is shed."""
LOCK_TIMEOUT_SECS = 15
"""PostgreSQL gives up on a row lock after this long: longer than our transactions, shorter than a client's patience."""
_OFFSET = "clock_offset_secs"
_READ_ONLY = "pitchpipe_read_only"


class Database:
    """One per process. Thread-safe; the sessions it gives are not: each belongs to one `with` block.

    `clock_offset_secs` is added to the database's clock wherever it is read; only tests move it.
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self._url = _parse(url)
        self.clock_offset_secs = 0.0
        self.engine: Engine
        self._glances: Engine | None = None
        if self.is_sqlite:
            Path(str(self._url.database)).absolute().parent.mkdir(parents=True, exist_ok=True)
            self.engine = _sqlite_engine(self._url)
        else:
            self.engine = _postgresql_engine(self._url, pool_size)
            self._glances = _postgresql_engine(self._url, pool_size, glances=True)
        # SQLite lets one connection write. Threads of this process wait for each other here, where waiting is fair and
        # has no limit but ours, not in SQLite's busy loop.
        self._writer = threading.Lock() if self.is_sqlite else None

    @property
    def is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def url(self) -> str:
        """The address without its password, for logs."""
        return self._url.render_as_string(hide_password=True)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Commits when the block ends, durably; rolls back when it raises. Do not nest.

        Raises Overloaded when the database cannot be reached or does not get to it in time; nothing is stored then.
        """
        if self._writer is not None and not self._writer.acquire(timeout=BUSY_TIMEOUT_SECS):
            raise Overloaded("the database is busy with another write", retry_after_secs=1.0)
        try:
            with self._session(self.engine) as session:
                yield session
        finally:
            if self._writer is not None:
                self._writer.release()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Like `transaction()`, for a block that only reads: it waits for no writer. Writing in it is an error."""
        with self._session(self.engine.execution_options(**{_READ_ONLY: True})) as session:
            yield session

    def glance(self, read: Callable[[Session | Connection], T]) -> T:
        """What `read` returns. It only reads, its statements need not see the same moment, and it may be called twice.

        On PostgreSQL each statement is one message there and one back; a transaction around it, and asking first whether
        the connection is alive, would be four more. Raises Overloaded like `transaction()`.
        """
        if self._glances is None:
            with self.reading() as session:
                return read(session)
        try:
            try:
                return self._glanced(self._glances, read)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            # The server closed what lay in the pool, which is empty now.
            return self._glanced(self._glances, read)
        except PoolTimeout as error:
            raise Overloaded("no database connection is free", retry_after_secs=1.0) from error
        except OperationalError as error:
            raise _away(error) from error

    @staticmethod
    def _glanced(engine: Engine, read: Callable[[Session | Connection], T]) -> T:
        with engine.connect() as connection:
            return read(connection)

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False, autoflush=False) as session, session.begin():
                session.info[_OFFSET] = self.clock_offset_secs
                yield session
        except PoolTimeout as error:
            raise Overloaded("no database connection is free", retry_after_secs=1.0) from error
        except OperationalError as error:
            raise _away(error) from error

    def migrate(self) -> None:
        """Brings the schema to this code's revision. Safe to call from several processes at once.

        Raises SchemaMismatch when the database is newer than the code.
        """
        from migrations import schema

        with self.migrating() as connection:
            schema.upgrade(connection)

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """A connection in a transaction of its own that no other migration can run beside."""
        if self._writer is not None:
            self._writer.acquire()
        try:
            with self.engine.begin() as connection:
                if not self.is_sqlite:
                    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7453010)")
                yield connection
        except OperationalError as error:
            raise _away(error) from error
        finally:
            if self._writer is not None:
                self._writer.release()

    def check(self) -> None:
        """Returns if the database answers and its schema is this code's.

        Raises Overloaded or SchemaMismatch, which say what to do.
        """
        from migrations import schema

        try:
            with self.engine.execution_options(**{_READ_ONLY: True}).connect() as connection:
                schema.check(connection)
        except PoolTimeout as error:
            raise Overloaded("no database connection is free", retry_after_secs=1.0) from error
        except OperationalError as error:
            raise _away(error) from error

    def close(self) -> None:
        """Gives all connections back."""
        self.engine.dispose()
        if self._glances is not None:
            self._glances.dispose()


class _Now(FunctionElement[float]):
    """The database's clock: not the start of the transaction, but this moment."""

    type = Float()
    inherit_cache = True


@compiles(_Now, "sqlite")
def _now_sqlite(_element: _Now, _compiler: SQLCompiler, **_: object) -> str:
    # unixepoch('subsec') needs SQLite 3.42; this is exact to the millisecond on every version.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(_Now, "postgresql")
def _now_postgresql(_element: _Now, _compiler: SQLCompiler, **_: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def now(session: Session) -> ColumnElement[float]:
    """The database's clock as an SQL expression, Unix seconds."""
    offset = session.info.get(_OFFSET, 0.0)
    return _Now() + literal(offset, Float) if offset else _Now()


def clock(session: Session) -> float:
    """The database's clock, read now. For timestamps; what expires is compared in SQL with `now`."""
    return float(session.execute(select(now(session))).scalar_one())


def instant(secs: float) -> datetime:
    """A stored time as the aware UTC datetime of the wire types."""
    return datetime.fromtimestamp(secs, UTC)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInput("the database URL cannot be read; use sqlite:///PATH or postgresql://...") from error
    backend = parsed.get_backend_name()
    if backend == "postgresql" or parsed.drivername == "postgres":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise InvalidInput(f"{backend} is not a supported database; use sqlite:///PATH or postgresql://...")
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise InvalidInput("SQLite needs a file: sqlite:///PATH")
    return parsed.set(drivername="sqlite+pysqlite")


def _away(error: OperationalError) -> Exception:
    """Overloaded when the database is away, busy or full; the error itself when the statement is at fault."""
    # SQLite calls a misspelt table an operational error too; its primary result codes tell the two apart.
    if isinstance(error.orig, sqlite3.OperationalError):
        away = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}
        if error.orig.sqlite_errorcode & 0xFF not in away | {sqlite3.SQLITE_FULL}:
            return error
    said = str(error.orig).strip().splitlines()[:1] or ["it gave no reason"]
    return Overloaded(f"the database did not answer: {said[0][:300]}", retry_after_secs=1.0)


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=56,
        pool_timeout=POOL_TIMEOUT_SECS,
        # A connection serves one block at a time, but a pool hands it from thread to thread.
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: object, _record: ConnectionPoolEntry) -> None:
        assert isinstance(connection, sqlite3.Connection)
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECS * 1000)}")
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reading = bool(connection.get_execution_options().get(_READ_ONLY))
        connection.exec_driver_sql(f"PRAGMA query_only = {int(reading)}")
        if reading:
            connection.exec_driver_sql("BEGIN")
        else:
            # IMMEDIATE takes the write lock before the first read, so that no read-then-write has to be retried.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turns the file to WAL, which lasts; on a new file SQLite does not wait for others that do the same, so we do."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _postgresql_engine(url: URL, pool_size: int, *, glances: bool = False) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=POOL_TIMEOUT_SECS,
        pool_pre_ping=not glances,
        isolation_level="AUTOCOMMIT" if glances else "READ COMMITTED",
        connect_args={"application_name": "pitchpipe", "connect_timeout": 10},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: object, _record: ConnectionPoolEntry) -> None:
        import psycopg

        assert isinstance(connection, psycopg.Connection)
        before, connection.autocommit = connection.autocommit, True
        connection.execute("SET synchronous_commit = on")
        connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_SECS}s'")
        connection.execute("SET idle_in_transaction_session_timeout = '60s'")
        if glances:
            connection.execute("SET default_transaction_read_only = on")
        connection.autocommit = before

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get(_READ_ONLY):
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    return engine


def describe(url: str) -> str:
    """One line for `pitchpipe doctor`: which database, and that its schema is this version's. Raises what is wrong."""
    database = Database(url)
    try:
        database.check()
        return f"{database.url}, schema up to date"
    finally:
        database.close()
