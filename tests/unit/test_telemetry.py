"""Spans are recorded and sent where the environment names a collector, and nothing is imported or changed elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"
WORK = """
from pitchpipe import telemetry
telemetry.configure("pitchpipe-test")
with telemetry.span("work", candidates=3, left_out=None):
    print(telemetry.traceparent(), telemetry.add_ids(None, "info", {}).keys())
    with telemetry.continued(None, "nothing"), telemetry.span("part"):
        telemetry.record(telemetry.traceparent(), "past", 1.0, 2.0, error="it failed")
print(telemetry.traceparent(), telemetry.enabled())
"""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The address of a collector, and the (path, body) of what it was sent."""
    sent: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=known | environment, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize("name", ["pitchpipe-test", "rack 4"])
def test_spans_go_to_the_collector_that_the_environment_names(
    collector: tuple[str, list[tuple[str, bytes]]], name: str
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, sent = collector
    told = run(WORK, **{COLLECTOR: url}, **({} if name == "pitchpipe-test" else {"OTEL_SERVICE_NAME": name})).stdout
    ((path, body),) = sent
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert {"service.name": name}.items() <= {
        each.key: each.value.string_value for each in resource.resource.attributes
    }.items()
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    work, part, past = spans.pop("work"), spans.pop("part"), spans.pop("past")
    assert not spans
    first, last = told.splitlines()
    told_ids = rf"00-{work.trace_id.hex()}-{work.span_id.hex()}-[0-9a-f]{{2}} dict_keys\(\['trace_id', 'span_id'\]\)"
    assert re.fullmatch(told_ids, first)
    assert last == "None True"
    assert [(each.key, each.value.int_value) for each in work.attributes] == [("pitchpipe.candidates", 3)]
    assert (part.parent_span_id, past.parent_span_id) == (work.span_id, part.span_id)
    assert (past.start_time_unix_nano, past.end_time_unix_nano, past.status.message) == (10**9, 2 * 10**9, "it failed")


@pytest.mark.parametrize("environment", [{}, {COLLECTOR: "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}])
def test_nothing_of_it_is_imported_unless_it_is_asked_for(environment: dict[str, str]) -> None:
    listed = f"{WORK}\nimport sys, pitchpipe.sdk\nprint([name for name in sys.modules if 'opentelemetry' in name])"
    assert run(listed, **environment).stdout.splitlines() == ["None dict_keys([])", "None False", "[]"]


def test_without_the_extra_that_is_said_and_all_else_goes_on() -> None:
    hidden = f"import sys\nsys.modules['opentelemetry.exporter'] = None\n{WORK}"
    done = run(hidden, **{COLLECTOR: "http://127.0.0.1:9"})
    assert done.stdout.splitlines() == ["None dict_keys([])", "None False"]
    assert re.search(rf"{COLLECTOR} is set, but no spans are sent.*pitchpipe\[otel\]", done.stderr)


@pytest.mark.parametrize("configure", ["service.logs:configure", "workers.cli:_configure_logs"])
def test_a_line_of_the_log_has_the_ids_of_the_span_that_it_is_written_in(
    configure: str, collector: tuple[str, list[tuple[str, bytes]]]
) -> None:
    module, function = configure.split(":")
    code = f"""
import structlog
from pitchpipe import telemetry
from {module} import {function}
{function}("info")
telemetry.configure("pitchpipe-test")
log = structlog.get_logger()
log.info("outside")
with telemetry.span("work"):
    log.info("inside")
    print(telemetry.traceparent())
"""
    done = run(code, **{COLLECTOR: collector[0]})
    outside, inside = (json.loads(line) for line in done.stderr.splitlines())
    assert "trace_id" not in outside
    assert done.stdout.startswith(f"00-{inside['trace_id']}-{inside['span_id']}-")
