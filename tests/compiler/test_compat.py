"""What importing TVM costs: every step is paid for in a child that somebody waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.parametrize("module", ["tuner.ingest.onnx_reader", "tuner.deploy.build", "workers.sandbox.sandbox"])
def test_a_part_that_compiles_loads_no_torch_whichever_is_imported_first(module: str) -> None:
    code = f"import {module}, sys; print(sorted(n for n in ('torch', 'scipy') if sys.modules.get(n)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
