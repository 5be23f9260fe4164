"""A case of a benchmark in a process of its own: no case meets what another one left in the process or on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any


def row_of(script: str, case: dict[str, Any], limit_secs: float | None = None) -> dict[str, Any]:
    """The row that the script makes of a case, or the reason why there is none, as `refused`.

    The script is started with the name of a file that holds the case, and prints the row as its last line.

    case: `scratch` in it is the folder for that file. limit_secs: after so many seconds the process is ended.
    """
    with tempfile.NamedTemporaryFile("w", dir=case["scratch"], suffix=".json") as file:
        json.dump(case, file)
        file.flush()
        command = [sys.executable, script, file.name]
        try:
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit_secs)
        except subprocess.TimeoutExpired:
            return {"refused": f"its process had not ended after {limit_secs:.0f} s"}
    if ended.returncode != 0:
        return {"refused": f"its process ended with {ended.returncode}"}
    row: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return row
