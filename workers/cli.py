"""The worker's command."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pitchpipe.wire.target import Target

CALL_TIMEOUT_SECS = 10.0
"""Time without data on a connection after which a call has failed: a third of a lease's usual life."""


def add_commands(app: typer.Typer) -> None:
    """Adds `worker` to the Typer app of `pitchpipe`."""
    app.command("worker")(work)


def work(
    url: Annotated[str, typer.Option(envvar="PITCHPIPE_URL", help="of the service")],
    token: Annotated[str, typer.Option(envvar="PITCHPIPE_TOKEN", help="with scope worker", show_default=False)] = "",
    name: Annotated[
        str | None, typer.Option(help="unique in the project, the same after a restart; default: host and device")
    ] = None,
    target: Annotated[
        str, typer.Option(help="auto, a device (cpu, cuda, cuda:1), or JSON with TVM's attribute names")
    ] = "auto",
    max_candidates: Annotated[int, typer.Option(min=1, max=256, help="most candidates of one lease")] = 32,
    parallel_builds: Annotated[
        int | None, typer.Option(min=1, max=256, help="compilations at a time; default: one per core")
    ] = None,
    parent: Annotated[
        int | None, typer.Option(help="drain when the process of this number, which started this one, is gone")
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="write what the service knows of this worker here")] = None,
    log_level: Annotated[
        str, typer.Option(envvar="PITCHPIPE_LOG_LEVEL", help="debug, info, warning or error")
    ] = "info",
    fork_server: Annotated[int | None, typer.Option(min=0, hidden=True)] = None,
) -> None:
    """Lease candidates, build, check and time them on this machine's device, and report, until told to stop.

    The first SIGTERM or SIGINT drains: what is measured is reported, the rest handed back. The second ends at once.
    """
    from pitchpipe import telemetry
    from pitchpipe.client import Client
    from pitchpipe.processes.launch import adopt
    from pitchpipe.processes.plugins import MissingExtra
    from pitchpipe.target_kind import hold_device
    from pitchpipe.wire.lease import WorkerRegistration
    from pitchpipe.wire.target import Target

    try:
        from workers.agent.daemon import Daemon
        from workers.device import detect_target, fingerprint, toolchain
        from workers.sandbox.sandbox import Sandbox
    except ImportError as error:
        raise MissingExtra(f"a worker needs {error.name}: install pitchpipe[compiler]") from error

    _configure_logs(log_level)
    telemetry.configure("pitchpipe-worker")
    if fork_server is not None:
        adopt(fork_server)
    found = Target.parse(target) if target.lstrip().startswith("{") else detect_target(hold_device(target))
    registration = WorkerRegistration(
        name=name or _default_name(found, target),
        device=fingerprint(found.kind),
        target=found,
        toolchain=toolchain(found),
    )
    # The client does not retry: the state machine does, which knows the lease of a call and whether it is still held.
    with (
        Client(url, token or None, timeout_secs=CALL_TIMEOUT_SECS, retry_secs=0) as client,
        Sandbox(found, parallel_builds=parallel_builds) as sandbox,
    ):
        daemon = Daemon(
            client,
            sandbox,
            registration,
            max_candidates=max_candidates,
            parent=parent,
            on_registered=lambda view: _write(ready_file, view.model_dump_json()),
        )
        daemon.handle_signals()
        code = daemon.run()
    raise typer.Exit(code)


def _write(path: Path | None, text: str) -> None:
    """Writes the file atomically, so that a process which waits for it never reads half of it."""
    if path is not None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)


def _default_name(target: Target, asked: str) -> str:
    """A name for each device of a host, the same after a restart, so that the service recognises the worker."""
    _, _, ordinal = asked.partition(":")
    device = f"{target.kind}:{ordinal}" if ordinal.isdigit() else target.kind
    return re.sub(r"[^A-Za-z0-9_.:-]", "-", f"{socket.gethostname()}:{device}")[:128]


def _configure_logs(level: str) -> None:
    import logging

    import structlog

    from pitchpipe import telemetry
    from pitchpipe.errors import InvalidInput

    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidInput(f"{level!r} is no log level: debug, info, warning or error")
    on_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            telemetry.add_ids,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if on_terminal else [structlog.processors.format_exc_info]),
            # Plain tracebacks: the pretty ones print local variables, and those hold tokens.
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if on_terminal
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
