"""The service's commands: server, coordinator, tokens, db. Light at import; each command imports what it runs."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitchpipe import telemetry
from pitchpipe.wire.job import Scope, TokenCreated, TokenRequest, TokenView

if TYPE_CHECKING:
    from service.db import Database
    from service.settings import Settings

DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="sqlite:///PATH or postgresql://...; default: PITCHPIPE_DATABASE_URL")
]
BlobOption = Annotated[
    str | None, typer.Option("--blob-url", help="file:///PATH or s3://...; default: PITCHPIPE_BLOB_URL")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON on stdout")]


def add_commands(app: typer.Typer) -> None:
    """Adds the service's commands to the Typer app of `pitchpipe`; ImportError without the extra `server`."""
    for library in ("fastapi", "sqlalchemy", "uvicorn"):
        if importlib.util.find_spec(library) is None:
            raise ImportError(f"the service needs {library}: install pitchpipe[server]", name=library)
    app.command("server")(serve)
    app.command("coordinator")(coordinate)
    app.command("dashboard")(dashboard)
    tokens = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens, in the database itself.")
    tokens.command("create")(create_token)
    tokens.command("list")(list_tokens)
    tokens.command("revoke")(revoke_token)
    app.add_typer(tokens, name="tokens")
    db = typer.Typer(no_args_is_help=True, help="Create, upgrade and check the database.")
    db.command("upgrade")(upgrade_database)
    db.command("check")(check_database)
    app.add_typer(db, name="db")


def _settings(**given: object) -> Settings:
    from pydantic import ValidationError

    from pitchpipe.errors import InvalidInput
    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"setting {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one")] = None,
    database: DatabaseOption = None,
    blob_url: BlobOption = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="with the coordinator, on a database that is migrated first")
    ] = False,
    parent: Annotated[
        int | None, typer.Option(help="end when the process of this number, which started this one, is gone")
    ] = None,
    with_coordinator: Annotated[bool, typer.Option("--with-coordinator", help="run the coordinator in here")] = False,
    socket_fd: Annotated[
        int | None, typer.Option(min=0, help="a listening socket that this process inherited, instead of host and port")
    ] = None,
    port_file: Annotated[Path | None, typer.Option(help="write the port here once it listens")] = None,
    fork_server: Annotated[int | None, typer.Option(min=0, hidden=True)] = None,
) -> None:
    """Run the HTTP service. SQLite: one process only, so with --with-coordinator; PostgreSQL: as many as you like."""
    from pitchpipe.processes.launch import adopt
    from service import logs, server

    if fork_server is not None:
        adopt(fork_server)
    settings = _settings(host=host, port=port, database_url=database, blob_url=blob_url)
    logs.configure(settings.log_level)
    telemetry.configure("pitchpipe-server")
    server.run(
        settings,
        with_coordinator=embedded or with_coordinator,
        embedded=embedded,
        parent=parent,
        port_file=port_file,
        socket_fd=socket_fd,
    )


def dashboard(
    database: Annotated[
        str | None, typer.Argument(help="sqlite:///PATH, or a file's path; default: what `pitchpipe tune` uses")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 0,
) -> None:
    """Shows in a browser what this machine has tuned: prints a link that signs in once, and serves until Ctrl-C."""
    import filelock

    from pitchpipe.errors import InvalidInput
    from pitchpipe.places import own_database
    from service import logs, server

    url = database or own_database()
    path = Path(url.removeprefix("sqlite:///")).absolute()
    if "://" in url and not url.startswith("sqlite:///"):
        raise InvalidInput("this shows a file of this machine; the dashboard of a service is under / of its server")
    if not path.is_file():
        raise InvalidInput(f"there is no database {path}: `pitchpipe tune` makes one")
    settings = _settings(
        host="127.0.0.1",
        port=port,
        database_url=f"sqlite:///{path}",
        blob_url=path.with_suffix(".blobs").as_uri(),
        log_level="warning",
    )
    logs.configure(settings.log_level)
    try:
        with filelock.FileLock(f"{path}.lock", timeout=0):
            server.run(settings, embedded=True, on_link=lambda link: print(link, flush=True))
    except filelock.Timeout as error:
        raise InvalidInput(f"{path} is in use by another pitchpipe command") from error


def coordinate(
    database: DatabaseOption = None,
    blob_url: BlobOption = None,
    engine: Annotated[str | None, typer.Option(help="local or dask://host:port")] = None,
) -> None:
    """Run the coordinator as a process of its own, beside servers on the same PostgreSQL."""
    from pitchpipe.errors import InvalidInput
    from service import logs
    from service.blobs import Blobs
    from service.server import coordinate as build
    from service.wake import Wake

    settings = _settings(database_url=database, blob_url=blob_url, engine=engine)
    logs.configure(settings.log_level)
    telemetry.configure("pitchpipe-coordinator")
    stopping = threading.Event()
    with _open(settings.database_url) as opened:
        if opened.is_sqlite:
            raise InvalidInput("SQLite has one writing process: run `pitchpipe server --with-coordinator`")
        opened.check()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        coordinator = build(settings, opened, Blobs(settings.blob_url), Wake())
        coordinator.start()
        try:
            stopping.wait()
        finally:
            coordinator.stop()


@contextmanager
def _open(url: str) -> Iterator[Database]:
    from service.db import Database

    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def create_token(
    project: Annotated[
        str | None, typer.Option(help="made if it is new; an operator has none", show_default="default")
    ] = None,
    scope: Annotated[
        Scope, typer.Option(help="user, worker or admin of the project, or operator of all projects' tokens")
    ] = Scope.USER,
    label: Annotated[str, typer.Option(help="a note for people")] = "",
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token. Its text goes to stdout, once; the database keeps only its digest."""
    from pydantic import ValidationError

    from pitchpipe.errors import InvalidInput
    from service.store import tokens

    if project is None and scope is not Scope.OPERATOR:
        project = "default"
    try:
        request = TokenRequest(project=project, scope=scope, label=label)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    with _open(_settings(database_url=database).database_url) as opened:
        opened.check()
        with opened.transaction() as session:
            created = tokens.create(session, request)
    _print_created(created, as_json)


def _print_created(created: TokenCreated, as_json: bool) -> None:
    if as_json:
        print(created.model_dump_json())
        return
    whose = "all projects' tokens" if created.project is None else f"project {created.project}"
    print(f"{created.id}: scope {created.scope.value} of {whose}", file=sys.stderr)
    print(created.token)


def list_tokens(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all tokens, newest first, without their text."""
    from service.store import tokens

    found: list[TokenView] = []
    with _open(_settings(database_url=database).database_url) as opened:
        opened.check()
        cursor = None
        while True:
            with opened.reading() as session:
                page, cursor = tokens.list_(session, cursor, 200)
            found += page
            if cursor is None:
                break
    if as_json:
        print(json.dumps([view.model_dump(mode="json") for view in found]))
        return
    for view in found:
        state = "revoked" if view.revoked_at else "valid"
        print(f"{view.id}  {view.project or '-':<20}  {view.scope.value:<8}  {state:<7}  {view.label}")


def revoke_token(
    token_id: Annotated[str, typer.Argument(help="tok_...")],
    database: DatabaseOption = None,
) -> None:
    """Revoke a token; servers obey within a few seconds."""
    from service.store import tokens

    with _open(_settings(database_url=database).database_url) as opened:
        opened.check()
        with opened.transaction() as session:
            tokens.revoke(session, token_id)
    print(f"{token_id} is revoked", file=sys.stderr)


def upgrade_database(database: DatabaseOption = None) -> None:
    """Create the schema, or bring it to this version. Safe beside running servers and other upgrades."""
    with _open(_settings(database_url=database).database_url) as opened:
        opened.migrate()
        print(f"{opened.url} is up to date", file=sys.stderr)


def check_database(database: DatabaseOption = None) -> None:
    """Exit 0 if the database answers and has this version's schema."""
    with _open(_settings(database_url=database).database_url) as opened:
        opened.check()
        print(f"{opened.url} is ready", file=sys.stderr)
