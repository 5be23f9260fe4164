"""Logging: one JSON object a line on stderr, or colours on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog

from pitchpipe import telemetry


def configure(level: str) -> None:
    """Sets up structlog and the standard library's logging for a process of the service; call once, early."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    exceptions: list[structlog.typing.Processor] = [structlog.processors.format_exc_info]
    if sys.stderr.isatty():
        # Plain: the pretty traceback prints local variables, and those hold tokens.
        plain = structlog.dev.plain_traceback
        renderer, exceptions = structlog.dev.ConsoleRenderer(exception_formatter=plain), []
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        telemetry.add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *exceptions,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries (uvicorn, alembic) log through the standard library; their lines get the same shape.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every look at the revision
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
