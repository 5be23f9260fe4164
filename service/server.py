"""The API process: a socket, uvicorn, and the coordinator beside it when embedded."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import structlog
import uvicorn

from pitchpipe.errors import InvalidInput
from pitchpipe.processes.collector import USUAL
from pitchpipe.processes.lifeline import watch_parent
from pitchpipe.wire.job import Scope, TokenRequest
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.store import coordination, leases, sessions, tokens
from service.wake import Wake

if TYPE_CHECKING:
    from service.coordination.coordinator import Coordinator

log = structlog.get_logger("pitchpipe.server")
BACKLOG = 2048
"""Connections that wait to be accepted; shedding happens after that, with an answer."""
READERS = 2
"""Uploaded models read at once: one that takes all the time it may have does not keep the next one waiting."""


class Server(uvicorn.Server):
    """uvicorn that tells the app's waiting requests to end when it stops, and says when it listens."""

    def __init__(self, config: uvicorn.Config, wake: Wake, on_listening: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._wake = wake
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # An open event stream or long poll would hold the process until the graceful timeout cuts it off.
        self._wake.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # `stopping_on_signals` does it for the whole process: uvicorn would raise the signal again after its own part
        # and so end the process before the coordinator and the database are closed.
        yield


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises InvalidInput when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Accepted connections inherit it. asyncio would set it itself, but not on sockets made like this one, and then
        # every answer in two packets waits 40 ms for the client's delayed acknowledgement.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def build(settings: Settings, database: Database, blobs: Blobs, wake: Wake, **hooks: Callable[[], None]) -> Server:
    """A server over parts that the caller owns; run it with `serve(sockets=[...])` or `run(sockets=[...])`."""
    config = uvicorn.Config(
        create_app(settings, database, blobs, wake),
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=settings.graceful_shutdown_secs,
    )
    return Server(config, wake, **hooks)


def run(
    settings: Settings,
    *,
    with_coordinator: bool = False,
    embedded: bool = False,
    parent: int | None = None,
    port_file: Path | None = None,
    socket_fd: int | None = None,
    on_link: Callable[[str], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, or until process `parent` is not, or no longer, the one that started this one.

    on_link: called with a link that signs one browser in to the dashboard, as admin of `default`, while this runs.
    """
    with contextlib.ExitStack() as stack:
        database = Database(settings.database_url)
        stack.callback(database.close)
        if database.is_sqlite or embedded:
            # Nobody else can be surprised by a migration: one process owns a SQLite file, one command an embedded
            # server. A fleet's PostgreSQL is migrated when its operator says so: `pitchpipe db upgrade`.
            database.migrate()
        blobs = Blobs(settings.blob_url)
        wake = Wake()
        _bootstrap(settings, database)
        if database.is_sqlite:
            # This is the only server: while it was down no heartbeat could arrive, which was no worker's fault.
            with database.transaction() as session:
                leases.forgive(session, settings.lease_ttl_secs)
                coordination.vacate(session)
        made = listen(settings.host, settings.port) if socket_fd is None else socket.socket(fileno=socket_fd)
        bound = stack.enter_context(made)
        port = bound.getsockname()[1]
        coordinator = coordinate(settings, database, blobs, wake) if with_coordinator else None
        code = None if on_link is None else stack.enter_context(_visitor(database))

        def on_listening() -> None:
            gc.freeze()  # What is here stays: a full collection over it would hold every look-up up.
            gc.set_threshold(*USUAL)  # Many small collections instead of a large one.
            log.info("listening", host=settings.host, port=port, database=database.url, coordinator=with_coordinator)
            if port_file is not None:
                _write(port_file, f"{port}\n")
            if on_link is not None:
                on_link(f"http://{settings.host}:{port}/sign-in/{code}")

        server = build(settings, database, blobs, wake, on_listening=on_listening)
        if coordinator is not None:
            stack.callback(coordinator.stop)
            coordinator.start()
        with stopping_on_signals(server):
            if parent is not None:
                watch_parent(parent, partial(_orphaned, server))
            server.run(sockets=[bound])
    log.info("stopped")


def coordinate(settings: Settings, database: Database, blobs: Blobs, wake: Wake) -> Coordinator:
    """A coordinator that has not started. Imported here: an API process without one needs no tuner."""
    from service.coordination.coordinator import Coordinator
    from tuner.execution.engine import create_engine

    limits = settings.step_limits()
    engine = create_engine(settings.engine, workers=settings.engine_workers, limits=limits)
    # Processes of their own here, so that whoever uploads a model does not wait behind the searches of jobs. They start
    # with the first uploads and are small: the parsing is done in disposable children.
    reader = create_engine("local", workers=READERS, limits=limits) if settings.engine == "local" else None
    return Coordinator(settings, database, blobs, wake, engine, reader)


@contextlib.contextmanager
def stopping_on_signals(server: Server) -> Iterator[None]:
    """SIGTERM and SIGINT end the server gracefully; a second SIGINT does not wait. Main thread only."""

    def stop(number: int, frame: FrameType | None) -> None:
        server.handle_exit(number, frame)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bootstrap(settings: Settings, database: Database) -> None:
    if settings.bootstrap_token is None:
        return
    request = TokenRequest(project="default", scope=Scope.ADMIN, label="bootstrap")
    with database.transaction() as session:
        tokens.adopt(session, request, settings.bootstrap_token.get_secret_value())


@contextlib.contextmanager
def _visitor(database: Database) -> Iterator[str]:
    """The code of a link to the dashboard. Its token, whose text nobody learns, is revoked in the end."""
    with database.transaction() as session:
        token = tokens.create(session, TokenRequest(project="default", scope=Scope.ADMIN, label="dashboard")).id
        code = sessions.link(session, token)
    try:
        yield code
    finally:
        with database.transaction() as session:
            tokens.revoke(session, token)


def _write(path: Path, text: str) -> None:
    """Atomically, so that whoever waits for the file never reads half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def _orphaned(server: Server) -> None:
    """A server whose command was killed has nobody left to serve."""
    log.warning("the parent process is gone, stopping")
    server.should_exit = True
