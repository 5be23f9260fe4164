"""The isolation benchmark's own machinery, on a few kinds: a server, a worker, and what they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KINDS = ["segfault", "fork_bomb", "forged_report"]


@pytest.mark.long
def test_the_worker_survives_hostile_candidates_and_nothing_is_left_of_them() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "isolation.py"
    run = subprocess.run(
        [sys.executable, str(script), "--quick", "--json", *KINDS], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert [row["kind"] for row in result["rows"]] == KINDS
    assert result["summary"]["survived"] == result["summary"]["cases"] == 2 * len(KINDS), json.dumps(result["rows"])
    leaked = {key: value for key, value in result["summary"].items() if key.startswith("leaked")}
    assert len(leaked) == 3
    assert not any(leaked.values())
