"""A warm process that runs one step at a time, within the step's limits, and dies alone.

Parent side: `StepChild` launches a child (pitchpipe/processes/launch.py), hands it a step, waits for the answer, and kills
the whole process group when the step has had its time. The child's clock stands still while it waits for a timing on this
host (tuner/measure/quiet.py), which it says. An end is noticed through the process itself, so that a descendant that
holds the connection open hides nothing, and the group is killed before the child is reaped, so that none outlives it.

Child side: `main` imports what it lacks of the compiler, then shuts itself in (tuner/syscalls.py) and sets the limits of
every step anew.
Requests are pickled by us. Answers come from where models of strangers were worked on: errors are JSON, and results are
pickles of the types in `pitchpipe.wire` and `tuner.search.requests` and nothing else.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import pickle
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pitchpipe.errors import PitchpipeError, StepDied, StepFailed, StepTimeout, from_problem
from pitchpipe.processes.launch import launch
from pitchpipe.processes.lifeline import ending
from pitchpipe.processes.limits import limited
from pitchpipe.wire.limits import StepLimits
from tuner.measure import quiet
from tuner.syscalls import deny_system_calls

START_SECS = 180.0
"""For a child to import what it needs; two to five seconds on an idle core."""
QUIET_SECS = 3600.0
"""Longest time that one step may spend in waiting for timings."""
STALLED_SECS = 60
"""A child that neither takes nor sends a byte for this long, in the middle of a message, is lost."""
END_SECS = 5.0
"""What an idle child gets to end by itself."""
ANSWER_BYTES = 1 << 30
SLOW_SECS = 30.0
"""A step that computes for longer is told of as slow (`StepChild.run`)."""

_READY, _BEGUN, _WAITS, _GOES_ON, _RESULT, _ERROR = b"r", b"b", b"w", b"g", b"+", b"-"
_TYPES_OF = ("pitchpipe.wire.", "tuner.search.requests")


class NotBegun(Exception):
    """The child died before it had the step: another one can run it."""


class StepChild:
    """One child, for one thread: the one that made it, with whose end the kernel ends the child."""

    def __init__(self, *, confined: bool, modules: Sequence[str] = ()) -> None:
        """`modules` are imported before the walls close; raises NotBegun when the child does not come up."""
        self.steps = 0
        """How many it has run."""
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STALLED_SECS, 0))
        with theirs:
            # Standard output belongs to the command that this service is part of.
            self._process = launch(
                f"{__name__}:main",
                *(confined, list(modules)),
                descriptors=[theirs.fileno()],
                stdout=2,
                launches=not confined,
            )
        self._line = Connection(ours.detach())
        if self._message(START_SECS) != _READY:
            how = self.kill()
            raise NotBegun(f"its child did not come up: {how}")

    def run(self, name: str, request: bytes, limits: StepLimits, on_slow: Callable[[], None]) -> Any:
        """What the step returns or raises; `on_slow` is called once when it has computed for SLOW_SECS.

        Raises the PitchpipeError that the step raised, StepFailed for any other; StepTimeout or StepDied when the child is
        at its end, and NotBegun.
        """
        self.steps += 1
        try:
            self._line.send_bytes(request)
        except OSError as error:
            raise NotBegun(self.kill()) from error
        if self._message(STALLED_SECS) != _BEGUN:
            raise NotBegun(self.kill())
        left, until_slow, waited, waits = limits.wall_secs, SLOW_SECS, 0.0, False
        while True:
            began = time.monotonic()
            message = self._message(QUIET_SECS - waited if waits else min(left, until_slow))
            passed = time.monotonic() - began
            if waits:
                waited += passed
            else:
                left, until_slow = left - passed, until_slow - passed
            if message is None:
                if left <= 0 or waited >= QUIET_SECS:
                    self.kill()
                    doing = "waited for timings for" if left > 0 else "took longer than"
                    limit = QUIET_SECS if left > 0 else limits.wall_secs
                    raise StepTimeout(f"the step {name} {doing} {limit:g} s and was killed")
                if until_slow <= 0:
                    until_slow = math.inf
                    on_slow()
            elif message in (_WAITS, _GOES_ON):
                waits = message == _WAITS
            elif message[:1] == _RESULT:
                return _unpickled(message[1:], name)
            elif message[:1] == _ERROR:
                raise _error(message[1:], name)
            else:
                raise self._died(name, limits)

    def kill(self) -> str:
        """Ends the child and its process group now, from any thread; how it ended."""
        self._process.kill()
        return ending(self._process.returncode)

    def end(self) -> None:
        """Ends an idle child in order, and closes what belongs to it. Idempotent."""
        self._line.close()
        self._process.wait(END_SECS)
        self._process.close()

    def _message(self, secs: float) -> bytes | None:
        """The next message; None when there was none in time, and an empty one when the child is gone or broken."""
        # Where its end cannot be polled, a descendant that outlives it is noticed when the step's time is up.
        ends: list[Connection | int] = [self._line]
        if (end := self._process.fileno()) >= 0:
            ends.append(end)
        ready = wait(ends, max(secs, 0.0))
        if not ready:
            return None
        try:
            return self._line.recv_bytes(ANSWER_BYTES) if self._line.poll() else b""
        except (EOFError, OSError):
            return b""

    def _died(self, name: str, limits: StepLimits) -> PitchpipeError:
        how = self.kill()
        if self._process.returncode == -signal.SIGXCPU:
            return StepTimeout(f"the step {name} took more than {limits.cpu_secs} s of processor time and was killed")
        return StepDied(f"the step {name} died: its child {how}")


class _Results(pickle.Unpickler):
    """Makes values of ours and of Python's own plain types, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_TYPES_OF):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that a step may answer with")


def _unpickled(data: bytes, name: str) -> Any:
    try:
        return _Results(io.BytesIO(data)).load()
    except Exception as error:  # whatever a damaged pickle makes of itself
        raise StepDied(f"the step {name} gave an answer that cannot be read: {error}") from error


def _error(data: bytes, name: str) -> PitchpipeError:
    try:
        code, status, detail, retry = json.loads(data)
        return from_problem(int(status), str(code), str(detail), None if retry is None else float(retry))
    except (ValueError, TypeError):
        return StepDied(f"the step {name} gave an error that cannot be read")


def request(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], limits: StepLimits) -> bytes:
    """A step as `StepChild.run` takes it; the function is one of a module's."""
    return pickle.dumps((limits, function, args, kwargs), pickle.HIGHEST_PROTOCOL)


def main(descriptor: int, confined: bool, modules: Sequence[str]) -> None:
    """The child: answers one request after another until the parent closes the connection."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # Where memory runs out, this process goes first.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for module in modules:
        importlib.import_module(module)
    line = Connection(descriptor)
    quiet.lock_path()  # Python looks for the folder of temporary files once, by writing there.
    quiet.tell_waits(lambda waits: line.send_bytes(_WAITS if waits else _GOES_ON))
    if confined:
        deny_system_calls()
    line.send_bytes(_READY)
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        line.send_bytes(_BEGUN)
        line.send_bytes(_answer(data))


def _answer(data: bytes) -> bytes:
    name = "?"
    try:
        limits, function, args, kwargs = pickle.loads(data)  # noqa: S301 - of our parent's making
        name = function.__name__
        with limited(limits), quiet.computing():
            result = function(*args, **kwargs)
        return _RESULT + pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except PitchpipeError as error:
        found: PitchpipeError = error
    except MemoryError:
        found = StepDied(f"the step {name} needed more than {limits.memory_bytes} bytes of memory")
    except BaseException as error:  # noqa: BLE001 - a step may raise anything, and the parent needs a cause
        reason = (str(error).strip().splitlines() or [""])[-1]
        found = StepFailed(f"the step {name} raised {type(error).__name__}: {reason[:1000]}")
    problem = [found.code, found.status, found.detail, found.retry_after_secs]
    return _ERROR + json.dumps(problem).encode()
