"""Spans of OpenTelemetry: one trace for a job, from the program that submits it over the service to the workers.

    with span("submit"): ...                                  of the current span, or the first of a trace
    with continued(grant.traceparent, "measure"): ...         of a span of another process, whose traceparent was sent

Nothing of OpenTelemetry is imported unless the environment names a collector (`configure`) or the program imports it
itself; then its tracer provider is used. Without one nothing is recorded. Between processes a span's context is a
traceparent, as https://www.w3.org/TR/trace-context/ has it: 00-<trace>-<span>-<flags>, in hexadecimal.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

HEADER = "traceparent"
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_COLLECTORS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NANOSECONDS = 1e9
Attribute = str | int | float | None
"""The value of a span's attribute; None leaves it out."""


def configure(service: str) -> None:
    """Sends this process's spans to the collector that the environment names, if it names one; call once, early.

    service: the resource attribute service.name, where the environment has none. The variables are those of OpenTelemetry
    (docs/observability.md). Without the extra `otel` that is said in the log and nothing is sent.
    """
    asked = next((name for name in _COLLECTORS if os.environ.get(name)), None)
    if asked is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or _tracer() is not None:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        told = "%s is set, but no spans are sent, for want of %s: install pitchpipe[otel]"
        logging.getLogger("pitchpipe").warning(told, asked, error.name)
        return
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {SERVICE_NAME: service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def enabled() -> bool:
    """Whether this process records spans."""
    return _tracer() is not None


def parsed(header: str | None) -> str | None:
    """A header's traceparent; None for one that is not valid, as the standard wants it ignored."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


def traceparent() -> str | None:
    """Of the current span; None outside of any."""
    if (ids := _current()) is None:
        return None
    return f"00-{ids[0]}-{ids[1]}-{ids[2]:02x}"


def add_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: a line that is written inside a span has its trace_id and span_id."""
    if (ids := _current()) is not None:
        event["trace_id"], event["span_id"], _ = ids
    return event


@contextmanager
def span(name: str, **attributes: Attribute) -> Iterator[None]:
    """A span of the current one, or the first of a trace. The current one inside the block."""
    if (tracer := _tracer()) is None:
        yield
        return
    with tracer.start_as_current_span(name, attributes=_told(attributes)):
        yield


@contextmanager
def continued(parent: str | None, name: str, began: float | None = None, **attributes: Attribute) -> Iterator[None]:
    """A span of the one whose traceparent `parent` is, and the current one inside the block; none without a parent.

    began: Unix seconds; now by default.
    """
    if parent is None or (tracer := _tracer()) is None:
        yield
        return
    start_ns = None if began is None else int(began * _NANOSECONDS)
    with tracer.start_as_current_span(
        name, context=_context(parent), attributes=_told(attributes), start_time=start_ns
    ):
        yield


def record(parent: str | None, name: str, began: float, ended: float, **attributes: Attribute) -> None:
    """As `continued`, of something that is over. began, ended: Unix seconds. An attribute `error` makes it a failure."""
    if parent is None or (tracer := _tracer()) is None:
        return
    from opentelemetry.trace import StatusCode

    start_ns, end_ns = (int(secs * _NANOSECONDS) for secs in (began, ended))
    made = tracer.start_span(name, context=_context(parent), attributes=_told(attributes), start_time=start_ns)
    if attributes.get("error") is not None:
        made.set_status(StatusCode.ERROR, str(attributes["error"]))
    made.end(end_ns)


def _tracer() -> Tracer | None:
    """None while nobody has set a provider of tracers, so that what nobody sees costs nothing."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    found: Tracer = trace.get_tracer("pitchpipe")
    return found


def _current() -> tuple[str, str, int] | None:
    """(trace, span, flags) of the current span."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not (context := trace.get_current_span().get_span_context()).is_valid:
        return None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags)


def _context(parent: str) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({HEADER: parent}, Context())


def _told(attributes: dict[str, Attribute]) -> dict[str, str | int | float]:
    return {f"pitchpipe.{name}": value for name, value in attributes.items() if value is not None}
