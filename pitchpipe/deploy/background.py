"""Building that goes on beside a program: one child at a time per model and machine, which outlives nothing.

The child is not waited for. It looks up (when the schedules are not given), builds, tries, and tells what it made. A lock
that it inherits keeps every other process from doing the same work; it is gone with the child, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pitchpipe.deploy.building import BuildSpec, failure, make
from pitchpipe.deploy.evidence import collect
from pitchpipe.errors import PitchpipeError
from pitchpipe.model.local import LocalModel
from pitchpipe.processes import launch
from pitchpipe.processes.lifeline import watch_parent
from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target

LOOKUP_SECS = 60.0
"""Of the child's own look-up: nobody waits for it."""
_HEADER = struct.Struct("<Q")


class Order(Wire):
    """What is to be made; the model's bytes travel beside it."""

    name: str
    format: ModelFormat
    target: Target | None
    """None: this machine's."""
    traces: dict[str, str] | None
    """None: to be looked up, or resolved where there is a lock file."""
    compiler: tuple[str, ...] | None = None
    """As BuildSpec has it."""
    lock: str | None = None
    url: str | None = None
    """None: of the environment."""
    token: str | None = None
    cache: str
    evidence: str | None = None
    """Folder in which `evidence.leave` left what the proof run compares with."""


class Outcome(Wire):
    """What became of an order."""

    folder: str | None = None
    """Of the artifact; None when there is an error."""
    target: Target | None = None
    response: LookupResponse | None = None
    """The answers, if the child looked them up."""
    error: str | None = None


class Background:
    """A running child. Ended with this process, at the latest."""

    def __init__(self, process: subprocess.Popen[bytes], answer: IO[bytes], scratch: str) -> None:
        self._process, self._answer, self._scratch = process, answer, scratch
        self._owner = os.getpid()
        self._outcome: Outcome | None = None
        _running.add(self)

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    def outcome(self) -> Outcome | None:
        """None while it works; never blocks."""
        if self._outcome is None and self._process.poll() is not None:
            self._outcome = self._read()
            self._forget()
        return self._outcome

    def stop(self) -> None:
        """Ends the child, if it still works, and whatever it started. A fork of its owner leaves it alone."""
        if os.getpid() != self._owner:
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        self._answer.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        _running.discard(self)

    def _read(self) -> Outcome:
        self._answer.seek(0)
        try:
            return Outcome.model_validate_json(self._answer.read())
        except ValueError:
            return Outcome(error=f"the process that built it ended with {self._process.returncode}")


_running: set[Background] = set()


def start(order: Order, data: bytes, evidence: Callable[[Path], None] | None = None) -> Background | None:
    """Starts a child on the order; None when one of this machine is at it already.

    `evidence` leaves in a folder what the proof run compares with; it is called only if a child is started.
    Raises OSError when the cache cannot be written or no process can be started.
    """
    asked = order.model_dump(mode="json", exclude={"name", "url", "token", "evidence"})
    folder = Path(order.cache) / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f"{json_digest([asked, sha256(data)])}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        scratch = tempfile.mkdtemp(prefix="pitchpipe-background-")
        if evidence is not None:
            left = Path(scratch) / "evidence"
            left.mkdir()
            evidence(left)
            order = order.model_copy(update={"evidence": str(left)})
        shared = launch.share()
        answer = tempfile.TemporaryFile()  # noqa: SIM115 - closed by Background
        with tempfile.TemporaryFile() as request:
            header = order.model_dump_json(by_alias=True).encode()
            request.write(_HEADER.pack(len(header)) + header + data)
            request.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "pitchpipe.deploy.background", str(os.getpid()), *map(str, shared)],
                env=os.environ | {"TMPDIR": scratch},
                stdin=request,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock, *shared),
                start_new_session=True,  # Ctrl-C is for the program; and a group of its own can be ended as one
            )
    finally:
        os.close(lock)
    return Background(process, answer, scratch)


@atexit.register
def _stop_all() -> None:
    for background in list(_running):
        background.stop()


def _fulfil(order: Order, data: bytes) -> Outcome:
    from pitchpipe.client import Client
    from pitchpipe.deploy import identity
    from pitchpipe.deploy.fetch import fetch

    cache = Path(order.cache)
    model = LocalModel(name=order.name, format=order.format, data=data, weights={})
    target = order.target or identity.this_target(cache)
    traces, response = order.traces, None
    if traces is None:
        client = Client(order.url, order.token) if order.url else None
        asked = order.target or "auto"
        found = fetch(model, target=asked, client=client, cache=cache, lock=order.lock, deadline_secs=LOOKUP_SECS)
        traces, response = found.traces, found.response
    spec = BuildSpec(model=model, target=target, traces=traces, compiler=order.compiler)
    if (failed := failure(spec.folder(cache))) is not None:
        raise PitchpipeError(failed.detail)
    left = Path(order.evidence) if order.evidence is not None else None
    evidence = (lambda: collect(left)) if left is not None else None
    return Outcome(folder=str(make(spec, cache, evidence=evidence)), target=target, response=response)


def _orphaned() -> None:
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _main(parent: int, *shared: int) -> None:
    watch_parent(parent, _orphaned)
    for descriptor in shared:
        launch.adopt(descriptor)
    os.nice(10)  # the program that waits for nothing has the cores first
    (size,) = _HEADER.unpack(sys.stdin.buffer.read(_HEADER.size))
    order = Order.model_validate(json.loads(sys.stdin.buffer.read(size)))
    try:
        outcome = _fulfil(order, sys.stdin.buffer.read())
    except PitchpipeError as error:
        outcome = Outcome(error=f"{error.title}: {error.detail}")
    print(outcome.model_dump_json(by_alias=True), flush=True)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
