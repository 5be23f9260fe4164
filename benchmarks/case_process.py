"""A case of a benchmark in a process of its own: no case meets what another one left in the process or on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any

READY = "ready"
"""What the process of a case says once it is set up, before it waits for a line and then times."""


def wait_for_turn() -> None:
    """In the process of a case of `rows_of`: says that it is set up, and waits until no other case computes."""
    print(READY, flush=True)
    sys.stdin.readline()


def rows_of(script: str, cases: Sequence[dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
    """The row of each case, as `row_of` gives it. All are set up side by side, then each is timed while the others wait."""
    with ExitStack() as stack:
        children = []
        for case in cases:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", dir=case["scratch"], suffix=".json"))
            json.dump(case, file)
            file.flush()
            command = [sys.executable, script, file.name]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            children.append(stack.enter_context(child))
            stack.callback(child.kill)  # for an interrupted run; nothing happens to one that has ended
        for child in children:
            assert child.stdout is not None
            while (line := child.stdout.readline()) and line.strip() != READY:
                pass
        for child in children:
            said, _ = child.communicate("\n")
            yield _row(child.returncode, said)


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
    return _row(ended.returncode, ended.stdout)


def _row(status: int, said: str) -> dict[str, Any]:
    if status != 0:
        return {"refused": f"its process ended with {status}"}
    row: dict[str, Any] = json.loads(said.splitlines()[-1])
    return row
