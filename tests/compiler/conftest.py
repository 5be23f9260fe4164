"""What tests of values have in common."""

from __future__ import annotations

import pytest


@pytest.fixture
def unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """See tests/compiler/programs.py."""
    from tests.compiler.programs import leave_unoptimised

    leave_unoptimised(monkeypatch)
