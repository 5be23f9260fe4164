"""A worker in folders of its own, what there is of it between two batches, and so what a batch left behind.

Used by benchmarks/isolation.py and a test. `Service` is the real thing; `Alone` needs fewer libraries.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.hostile import Asleep, until_one_sleeps
from workers.sandbox.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[1]
SETTLE_SECS = 5.0
"""What is being ended has this long to be gone."""
Disturbance = Callable[["Site"], bool]
"""Done to the worker's processes while a batch is measured, in a thread; whether there was a moment for it."""


@dataclass(kw_only=True)
class State:
    """What there is of a worker between two batches. Leaks are what a later one has more."""

    strays: set[tuple[int, str]]
    files: set[str]
    descriptors: int
    resident_bytes: dict[str, int]
    device_bytes: int


class NotDisturbed(Exception):
    """A batch ended before there was a moment to disturb it: no other candidate of its lease was waiting."""


class Site(ABC):
    """A worker with folders of its own. A context manager; leaving it ends everything."""

    target: Target
    folders: dict[str, Path]
    worker: psutil.Process

    def __init__(self) -> None:
        self._there = {process.pid for process in psutil.Process().children()}
        """Children of this process before the site's: a fork server of its own."""
        self._batches = 0
        self._over = threading.Event()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_folders(self, folder: Path) -> dict[str, str]:
        """Working, home and temporary folder; the environment that names them."""
        self.folders = {name: folder / name for name in ("work", "home", "tmp")}
        for path in self.folders.values():
            path.mkdir()
        return {"HOME": str(self.folders["home"]), "TMPDIR": str(self.folders["tmp"])}

    def measure(
        self,
        workload: Workload,
        candidates: list[Candidate],
        limits: MeasureConfig,
        disturb: Disturbance | None = None,
    ) -> dict[str, Measurement]:
        """One batch; results by candidate, none when the worker ended. Raises NotDisturbed."""
        # The same candidate is a trial once per version of the way of measuring: each batch has a version of its own.
        self._batches += 1
        config = limits.model_copy(update={"version": self._batches})
        self._over.clear()
        done: list[bool] = []
        thread = threading.Thread(target=lambda: done.append(disturb is None or disturb(self)))
        thread.start()
        results = self._measure(workload, candidates, config)
        self._over.set()
        thread.join()
        if self.alive() and not all(done):
            raise NotDisturbed
        return results if all(done) else {}

    @abstractmethod
    def _measure(
        self,
        workload: Workload,
        candidates: list[Candidate],
        config: MeasureConfig,
    ) -> dict[str, Measurement]: ...

    @abstractmethod
    def alive(self) -> bool:
        """Whether the worker is the process that it was."""

    @abstractmethod
    def started(self) -> set[int]:
        """Children of this process that are meant to be."""

    @abstractmethod
    def close(self) -> None: ...

    def fork_server(self) -> psutil.Process:
        (found,) = self.worker.children()
        return found

    def zygote(self) -> psutil.Process:
        (found,) = self.fork_server().children()
        return found

    def asleep(self) -> Asleep | None:
        """A candidate in its turn that sleeps; None when the batch ended and that was not seen."""
        return until_one_sleeps(self.zygote, self._over.is_set)

    # -- what is left

    def state(self) -> State:
        """Of this moment."""
        server, zygote = self.fork_server(), self.zygote()
        tasks = zygote.children()
        meant = (self.worker, server, zygote, *tasks)
        known = {process.pid for process in meant}
        if self.target.kind == "cuda":  # Each may keep the one process that holds the GPU.
            known |= {children[0].pid for task in tasks if len(children := task.children()) == 1}
        below = {process.pid for process in self.worker.children(recursive=True)}
        strays = (below | self._orphans() | self._with_its_environment()) - known
        zombies = {pid for pid in known if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE}
        return State(
            strays={(pid, _name(pid)) for pid in strays | zombies},
            files=self._files(),
            descriptors=sum(process.num_fds() for process in meant),
            resident_bytes={"worker": self.worker.memory_info().rss, "zygote": zygote.memory_info().rss},
            device_bytes=_device_bytes() if self.target.kind == "cuda" else 0,
        )

    def settled(self, like: State | None) -> State:
        """The state once nothing is left that was not in `like`, or after SETTLE_SECS."""
        deadline = time.monotonic() + SETTLE_SECS
        while True:
            late = time.monotonic() > deadline
            try:
                state = self.state()
            except (psutil.NoSuchProcess, ValueError):  # A process went while it was looked at, or there is no zygote.
                if late:
                    raise
            else:
                same = like is None or (state.files <= like.files and state.descriptors <= like.descriptors)
                if late or (same and not state.strays):
                    return state
            time.sleep(0.02)

    def _orphans(self) -> set[int]:
        """What this process, the reaper of all below it, has inherited and what has not ended; the rest is reaped."""
        adopted = {process.pid for process in psutil.Process().children()} - self.started() - self._there
        return {pid for pid in adopted if os.waitpid(pid, os.WNOHANG)[0] == 0}

    def _with_its_environment(self) -> set[int]:
        """Processes anywhere on the host that inherited the worker's environment, or are forks of its fork server, whose
        command line they share; the server's are not among them."""
        mark = f"TMPDIR={self.folders['tmp']}".encode()
        command = Path(f"/proc/{self.fork_server().pid}/cmdline").read_bytes()
        found = set()
        for pid in psutil.pids():
            with suppress(OSError):
                inherited = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if inherited or Path(f"/proc/{pid}/cmdline").read_bytes() == command:
                    found.add(pid)
        return found

    def _files(self) -> set[str]:
        """In the worker's folders, and what its user has in the host's shared memory that no process elsewhere maps."""
        found = {str(path) for folder in self.folders.values() for path in folder.rglob("*")}
        shared = set()
        for path in Path("/dev/shm").glob("*"):
            with suppress(OSError):
                shared |= {str(path)} if path.stat().st_uid == os.geteuid() else set()
        found |= shared - (self._mapped_elsewhere() if shared else set())
        for name in ("shm", "msg", "sem"):
            with suppress(OSError):
                head, *rows = (line.split() for line in Path(f"/proc/sysvipc/{name}").read_text().splitlines())
                found |= {f"{name} {row[1]}" for row in rows if int(row[head.index("uid")]) == os.geteuid()}
        return found

    def _mapped_elsewhere(self) -> set[str]:
        """Files that processes without the worker's environment have mapped: shared memory is the whole host's."""
        found = set()
        for pid in set(psutil.pids()) - self._with_its_environment():
            with suppress(OSError):
                found |= {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        return found


class Service(Site):
    """A worker process that leases its batches from a server process over HTTP."""

    def __init__(self, folder: Path, target: Target) -> None:
        from tests.fleet import Fleet, until

        super().__init__()
        self.target = target
        own = self._make_folders(folder)
        self._fleet, self._until = Fleet(folder), until
        # This checkout's code, from an empty working folder.
        arguments = ("--name", "isolation", "--target", target.key)
        self._process = self._fleet.spawn("worker", *arguments, cwd=self.folders["work"], PYTHONPATH=str(ROOT), **own)
        self.worker = psutil.Process(self._process.pid)
        until(lambda: self._fleet.state("isolation"))

    def _measure(
        self,
        workload: Workload,
        candidates: list[Candidate],
        config: MeasureConfig,
    ) -> dict[str, Measurement]:
        job = self._fleet.submit(workload, self.target, candidates, config)
        self._until(lambda: self._fleet.counts(job).terminal == len(candidates) or not self.alive())
        results = self._fleet.results(job) if self.alive() else {}
        self._fleet.cancel(job)
        return results

    def alive(self) -> bool:
        return self._process.poll() is None

    def started(self) -> set[int]:
        return {process.pid for process in self._fleet.processes}

    def close(self) -> None:
        self._fleet.close()


class Alone(Site):
    """A sandbox in this process, which is the worker then: for a GPU machine that lacks the service's libraries."""

    def __init__(self, folder: Path, target: Target) -> None:
        super().__init__()
        self.target = target
        os.environ.update(self._make_folders(folder) | {"PITCHPIPE_QUIET_LOCK": str(folder / "quiet.lock")})
        os.chdir(self.folders["work"])
        self._sandbox = Sandbox(target)
        self.worker = psutil.Process()

    def fork_server(self) -> psutil.Process:
        found = self.zygote().parent()
        if found is None:
            raise ValueError("the zygote is gone")
        return found

    def zygote(self) -> psutil.Process:
        assert self._sandbox._process is not None
        return psutil.Process(self._sandbox._process.pid)

    def started(self) -> set[int]:
        return {self.fork_server().pid}

    def _measure(
        self,
        workload: Workload,
        candidates: list[Candidate],
        config: MeasureConfig,
    ) -> dict[str, Measurement]:
        return {result.candidate: result for result in self._sandbox.measure(workload, candidates, config)}

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        self._sandbox.close()


def _name(pid: int) -> str:
    with suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} {psutil.Process(pid).status()}"
    return "gone"


def _device_bytes() -> int:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 20
