"""A torch.export archive goes through `tune` only with trust, and then comes out correct."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.long
def test_a_trusted_archive_is_converted_here_and_tuned(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8)).eval()
    torch.export.save(torch.export.export(module, (torch.randn(32, 64),)), tmp_path / "mlp.pt2")
    command = [sys.executable, "-m", "pitchpipe.cli.main", "tune", str(tmp_path / "mlp.pt2")]
    options = ["--database", f"sqlite:///{tmp_path / 'p.db'}", "--trials", "4", "--json"]
    refused = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--trust" in refused.stderr
    accepted = subprocess.run([*command, *options, "--trust"], capture_output=True, text=True, check=False)
    assert accepted.returncode == 0, accepted.stderr
    result = json.loads(accepted.stdout)
    assert result["trials"] == 4
    assert result["max_abs_error"] < 1e-3
