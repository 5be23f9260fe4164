"""The whole service on this machine for as long as a command runs: a server process and a worker process.

They are the same programs that a fleet runs, on loopback, with a token made for the occasion. All die with this process,
however it dies; the database stays, so the next command goes on from what was measured.

A GPU gets several workers, which time on it in turns: what one does on the host's cores, from the outputs to compare with
to builds, goes on while another times. Searches run in several processes where there are cores for them.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import filelock

from pitchpipe.client import Client
from pitchpipe.errors import InvalidInput, Unreachable
from pitchpipe.processes import launch
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.lease import WorkerView
from pitchpipe.wire.target import Target

START_SECS = 60.0
"""Longest wait for the server to listen and for the worker to register."""
STOP_SECS = 10.0
"""What a process gets to drain after SIGTERM before it is killed."""
WATCH_SECS = 0.5
BACKLOG = 64
"""Connections that wait for the server to start: the worker's and ours."""
RETRY_SECS = 5.0
"""What runs on this machine answers within it, or is gone."""
WORKER_NAME = "local"
CORES_PER_SEARCH = 4
"""A search has as many threads (tuner/search/evolution.py)."""
CORES_PER_WORKER = 4
"""For each of the workers that share a device. A batch of a task's first candidates keeps as many busy with builds ..."""
MOST_WORKERS = 4
"""... and with four batches in flight something is nearly always ready to be timed. Each worker's processes take memory."""
DEFAULT_SECONDS = 150.0
"""Budget of a `tune` that names none: enough to become several times as fast as the baseline build on two cores."""


class Embedded:
    """Context manager: `with Embedded(database, target) as client`; without a target the worker finds its own. The client is
    closed in the end. With `measures=False` there is no worker: what is there is read and nothing is tuned.

    Raises InvalidInput when another command holds the same SQLite file or a setting is not valid, and Unreachable, with the
    process's last words, when the server or the worker does not come up, or ends while the block runs.
    """

    def __init__(
        self, database: str, target: Target | None, *, log_level: str = "warning", measures: bool = True
    ) -> None:
        self.database, self.log_level, self._measures = database, log_level, measures
        self._asked = target
        self._client: Client | None = None
        self._worker: WorkerView | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="pitchpipe-")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="embedded-watch", daemon=True)
        self._lost: str | None = None
        self._lock: filelock.FileLock | None = None

    def __enter__(self) -> Client:
        try:
            self._client = self._start()
            self._watcher.start()
            return self._client
        except BaseException:
            self._stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = None if self._lost is None else f"{self._lost}: {self._last_words(self._lost)}"
        if self._client is not None:
            self._client.close()
        self._stop()
        if lost is not None and isinstance(error, Unreachable):
            raise Unreachable(f"the embedded {lost}") from error

    @property
    def worker(self) -> WorkerView:
        """The worker as it registered, once the block runs."""
        assert self._worker is not None, "the embedded service has not started"
        return self._worker

    def _start(self) -> Client:
        scratch = Path(self._scratch.name)
        token = secrets.token_urlsafe(32)
        environment = {
            **os.environ,
            "PITCHPIPE_BOOTSTRAP_TOKEN": token,
            "PITCHPIPE_TOKEN": token,
            "PITCHPIPE_DATABASE_URL": self.database,
            "PITCHPIPE_QUIET_LOCK": str(scratch / "quiet.lock"),
            "PITCHPIPE_LOG_LEVEL": self.log_level,
        }
        environment.setdefault("PITCHPIPE_ENGINE_WORKERS", str(max(1, usable_cores() // CORES_PER_SEARCH)))
        if self.database.startswith("sqlite:///"):
            path = Path(self.database.removeprefix("sqlite:///")).absolute()
            path.parent.mkdir(parents=True, exist_ok=True)
            environment.setdefault("PITCHPIPE_BLOB_URL", f"file://{path.with_suffix('.blobs')}")
            self._lock = filelock.FileLock(f"{path}.lock")
            try:
                self._lock.acquire(timeout=0)
            except filelock.Timeout as error:
                raise InvalidInput(f"{path} is in use by another pitchpipe command") from error
        listening = scratch / "port"
        # All that need the compiler, here and there, are forks of one process, which begins to import it now.
        shared = launch.share()
        common = ["--parent", str(os.getpid()), *(f"--fork-server={descriptor}" for descriptor in shared)]
        # The socket is made here, so that the worker starts beside the server: its first call waits in the backlog.
        with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as bound:
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # see service/server.py
            url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            serve = ["--embedded", *common, "--socket-fd", str(bound.fileno()), "--port-file", str(listening)]
            server = self._spawn("server", serve, environment, [*shared, bound.fileno()])
        deadline = time.monotonic() + START_SECS
        if self._measures:
            self._start_workers(url, common, environment, shared, (server, deadline))
        while not listening.exists():
            self._check(server, "server", deadline)
            time.sleep(0.02)
        return Client(url, token, retry_secs=RETRY_SECS)

    def _start_workers(
        self,
        url: str,
        common: Sequence[str],
        environment: dict[str, str],
        shared: Sequence[int],
        server: tuple[subprocess.Popen[bytes], float],
    ) -> None:
        """The first one, and when it has registered as many more as share a device with it. server: its process, and the
        time on the monotonic clock until which both may take."""
        target, registered = "auto" if self._asked is None else self._asked.key, Path(self._scratch.name) / "worker"
        work = ["--url", url, "--max-candidates", "32", *common]
        named = ["--name", WORKER_NAME, "--target", target, "--ready-file", str(registered)]
        worker = self._spawn("worker", [*work, *named], environment, shared)
        while not registered.exists():
            self._check(server[0], "server", server[1])
            self._check(worker, "worker", server[1])
            time.sleep(0.02)
        self._worker = WorkerView.model_validate_json(registered.read_bytes())
        for number in range(2, sharing_workers(self._worker.target, cores := usable_cores()) + 1):
            name = f"{WORKER_NAME}-{number}"
            named = ["--name", name, "--target", self._worker.target.key]
            self._spawn(f"worker {number}", [*work, *named, "--parallel-builds", str(cores // 2)], environment, shared)

    def _spawn(
        self, name: str, arguments: list[str], environment: dict[str, str], inherited: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        with open(Path(self._scratch.name) / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pitchpipe.cli.main", name.split()[0], *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C is ours to handle: the processes get SIGTERM and drain
            )
        self._processes[name] = process
        return process

    def _check(self, process: subprocess.Popen[bytes], name: str, deadline: float) -> None:
        if process.poll() is None and time.monotonic() < deadline:
            return
        words = self._last_words(name)
        if process.poll() == InvalidInput.exit_code:
            raise InvalidInput(words.rpartition(f"{InvalidInput.title}: ")[2])
        raise Unreachable(f"the embedded {name} did not come up: {words}")

    def _last_words(self, name: str) -> str:
        log = (Path(self._scratch.name) / f"{name}.log").read_text(errors="replace").strip()
        return log[-2000:] or "it said nothing"

    def _watch(self) -> None:
        """Ends all processes once one has ended by itself: without its worker a job would wait for ever."""
        while not self._stopping.wait(WATCH_SECS):
            for name, process in self._processes.items():
                if process.poll() is not None:
                    self._lost = name
                    for other in self._processes.values():
                        other.terminate()
                    return

    def _stop(self) -> None:
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(timeout=STOP_SECS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if self._lock is not None:
            self._lock.release()
        self._scratch.cleanup()


def sharing_workers(target: Target, cores: int) -> int:
    """How many workers measure on one device of the target, on a host with so many cores."""
    return max(1, min(MOST_WORKERS, cores // CORES_PER_WORKER)) if kind_of(target).times_in_turns else 1
