"""The OpenAPI document: the service does what it says, and it says what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pitchpipe.errors import PitchpipeError
from service.blobs import Blobs
from service.db import Database
from service.http import problems
from service.http.app import create_app
from service.settings import Settings
from service.wake import Wake

CASES = Path(__file__).with_name("openapi_cases.py")


@pytest.mark.long
def test_the_service_answers_as_its_document_says() -> None:
    options = ["-q", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(CASES)],
        cwd=CASES.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "skipped" not in ended.stdout


def test_every_operation_documents_its_problems() -> None:
    # Nothing connects to this database: only the document is asked for.
    options = Settings(database_url="sqlite:////tmp/pitchpipe-never-opened.db", blob_url="memory:///")
    database = Database(options.database_url)
    document = create_app(options, database, Blobs(options.blob_url), Wake()).openapi()
    database.close()
    assert document["components"]["schemas"]["Problem"]["properties"]["code"]
    for path, operations in document["paths"].items():
        if path in ("/healthz", "/readyz", "/metrics"):
            continue
        for method, operation in operations.items():
            assert operation["security"], (method, path)
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)
            assert {"401", "403", "422", "500", "503"} <= set(operation["responses"]), (method, path)


def test_every_status_of_the_error_tree_has_a_description() -> None:
    def tree(kind: type[PitchpipeError]) -> Iterator[type[PitchpipeError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from tree(child)

    # A deadline is the client's own, never an answer.
    assert {kind.status for kind in tree(PitchpipeError)} - {504} <= set(problems.DESCRIPTIONS)
