"""Processes that compute only in their turn.

Between its turns a contestant is stopped (SIGSTOP, its whole group): thread pools go on spinning for a while after their
work, and would take a core from whoever is timed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rounds import orders

BLOCK = {"warm_secs": 0.05, "secs": 0.4, "least": 3}
"""Of a turn: runs that are not counted, since the others have had the caches; then seconds, and runs at least."""
SLOW_SECS = 1.0
SLOW_BLOCK = {"warm_secs": 0.0, "secs": 0.0, "least": 1}
"""The turn of a contestant whose run lasts longer than SLOW_SECS."""


class Contestant:
    """A process that answers lines of JSON with lines of JSON; see peers/contestant.py. A context manager.

    Its set-up begins in the constructor; `ready` waits for it, then stops the process. Raises ContestantFailed when the
    process ends, with its last words.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        python: str | Path = sys.executable,
    ) -> None:
        self.name, self._log = name, log
        with log.open("wb") as words:
            self._process = subprocess.Popen(
                [str(python), *command],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
            )
        self._block = dict(BLOCK)

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]

    def ready(self) -> dict[str, Any]:
        """What the process tells of itself once it is set up."""
        found: dict[str, Any] = self._answer()
        (secs,) = self._ask(SLOW_BLOCK)
        if secs > SLOW_SECS:
            self._block = dict(SLOW_BLOCK)
        self._stop()
        return found

    def block(self) -> list[float]:
        """Seconds of each run of its turn."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            return self._ask(self._block)
        finally:
            self._stop()

    def _stop(self) -> None:
        """Returns once nothing of it runs: the signal alone is only a request."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _ask(self, question: Mapping[str, float]) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        found: list[float] = self._answer()
        return found

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContestantFailed(f"{self.name} ended:\n{self._log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)


class ContestantFailed(Exception):
    """A contestant's process ended."""


def take_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, list[list[float]]]:
    """Name -> the seconds of each run, by round."""
    blocks: dict[str, list[list[float]]] = {contestant.name: [] for contestant in contestants}
    for order in orders(len(contestants), rounds):
        for place in order:
            blocks[contestants[place].name].append(contestants[place].block())
    return blocks
