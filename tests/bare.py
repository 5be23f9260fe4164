"""A plugin of pytest, `-p tests.bare`: a machine with no compiler, no PyTorch and no PostgreSQL, as `make check` assumes it.

A test that imports one of them fails here, and belongs to tests/compiler or tests/database.
"""

from __future__ import annotations

import sys

import pytest

for name in ("tvm", "tvm_ffi", "torch"):
    sys.modules[name] = None  # type: ignore[assignment]  # so Python refuses to import it


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    if fixturedef.argname == "postgres_server":
        pytest.fail("a test of tests/unit needs no PostgreSQL; this one belongs to tests/database")
