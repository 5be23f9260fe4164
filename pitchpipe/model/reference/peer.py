"""The best installed peer of a file: its framework as its users run it, in a process of its own, timed when it is asked.

`python -m pitchpipe.model.reference.peer FOLDER PARENT` is that process. It says who it is, or why there is none, then
answers every number on its standard input with the seconds of so many runs. Between two questions it is stopped: the
threads of a framework spin for a while after a run, and others have the cores then.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.model.reference.child import runner_of
from pitchpipe.model.reference.expected import CannotRun
from pitchpipe.processes.collector import collect_rarely
from pitchpipe.processes.cores import usable_cores
from pitchpipe.processes.lifeline import end_with_parent

_INPUTS = "peer_inputs.npz"


@runtime_checkable
class Timeable(Protocol):
    """A runner whose framework is a peer."""

    def peer(self, arrays: Sequence[Any], threads: int) -> tuple[str, Callable[[], object]]:
        """Name and version, and what runs the model on these arrays. Raises CannotRun."""


class Peer:
    """The process, ready to be asked. A context manager; leaving it ends the process.

    Raises CannotRun where the file has no peer here, or it fails.
    """

    def __init__(self, asked: Path, inputs: Sequence[Any]) -> None:
        """asked: the folder that FileSource.ask has made. inputs: NumPy's arrays, in the model's order."""
        save_arrays(asked / _INPUTS, {str(at): array for at, array in enumerate(inputs)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pitchpipe.model.reference.peer", str(asked), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            told = self._answer()
            if "cannot" in told:
                raise CannotRun(told["cannot"])
        except BaseException:
            self.close()
            raise
        self.name: str = told["name"]
        """Framework and version."""

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def secs(self, runs: int) -> list[float]:
        """Seconds of each of so many runs, in a row. Raises CannotRun when the process has ended."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{runs}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise CannotRun("its process has ended") from error
        found: list[float] = self._answer()["secs"]
        self._process.send_signal(signal.SIGSTOP)
        return found

    def close(self) -> None:
        self._process.kill()
        with suppress(OSError):  # What was left to be written.
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CannotRun(f"its process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def _call_of(folder: Path) -> tuple[str, Callable[[], object]]:
    asked = json.loads((folder / "asked.json").read_text())
    weights, examples = load_arrays(folder / "weights.npz"), load_arrays(folder / "examples.npz")
    runner = runner_of(asked, weights, list(examples.values()))
    if not isinstance(runner, Timeable):
        raise CannotRun(f"{runner.name} is no peer")
    name, call = runner.peer(list(load_arrays(folder / _INPUTS).values()), usable_cores())
    call()
    return name, call


def _main(folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Frameworks print.

    def tell(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")

    try:
        name, call = _call_of(folder)
    except CannotRun as error:
        tell(cannot=str(error))
        return
    except ImportError as error:
        tell(cannot=f"{error.name} is not installed")
        return
    except Exception as error:  # noqa: BLE001 - whatever a framework raises for a file that it does not take
        tell(cannot=f"its framework does not take the file: {' '.join(str(error).split())[:300]}")
        return
    tell(name=name)
    for line in sys.stdin:
        secs = []
        for _ in range(int(line)):
            started = time.perf_counter()
            call()
            secs.append(time.perf_counter() - started)
        tell(secs=secs)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    collect_rarely()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _main(Path(sys.argv[1]))
