"""Where steps run: a pool of warm local processes, or a Dask cluster.

Both are a `concurrent.futures.Executor`. A local pool whose child dies (a compiler can crash) is replaced at the next
submit; the futures it held fail with BrokenExecutor, which costs their batches and nothing else.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from pitchpipe.errors import InvalidInput, Unreachable
from tuner.measure.quiet import computing

P = ParamSpec("P")
T = TypeVar("T")

STEPS_PER_CHILD = 200
"""Children are replaced after this many steps each, so that a slow leak in native code stays small."""
CONNECT_SECS = 10
"""Longest wait for a Dask scheduler to answer."""
PARENT_POLL_SECS = 0.5

_one_step = threading.Lock()
"""Held by the thread of this process that runs a step: TVM builds tensor expressions in global state."""


class LocalEngine(Executor):
    """A process pool that survives its children. Steps wait while a measurement on this host is being timed."""

    def __init__(self, workers: int) -> None:
        self._workers = self.processes = workers
        self._lock = threading.Lock()
        self._retired: list[BaseProcess] = []
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        # Not max_tasks_per_child: in Python 3.11 and 3.12 a pool whose child reaches it with more steps queued hangs
        # (CPython issue 115634).
        self._steps_left = STEPS_PER_CHILD * self._workers
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_enter_child,
            initargs=(os.getpid(),),
        )

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules the step; thread-safe. `fn` and its arguments must be picklable."""
        with self._lock:
            if self._steps_left == 0:
                self._replace()
            self._steps_left -= 1
            try:
                return self._pool.submit(_quietly, fn, args, kwargs)
            except BrokenExecutor:
                self._replace()
                return self._pool.submit(_quietly, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the children; running steps are finished only if `wait`."""
        with self._lock:
            children = [*self._retired, *self._children()]
            self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)
            for child in children:
                if wait:
                    child.join()
                else:
                    child.terminate()

    def _children(self) -> list[BaseProcess]:
        return list((self._pool._processes or {}).values())

    def _replace(self) -> None:
        """A fresh pool; the children of the old one end when what they were given is done."""
        self._retired = [child for child in [*self._retired, *self._children()] if child.exitcode is None]
        self._pool.shutdown(wait=False)
        self._pool = self._start()


class DaskEngine(Executor):
    """Steps on a Dask cluster whose workers have this package and its extra `compiler`.

    Each process of the cluster runs one step at a time, whatever number of threads its worker has. A scheduler that went
    away costs the steps it had; the next submit looks for it again. Raises Unreachable when no scheduler answers.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connect()

    def _connect(self) -> None:
        from distributed import Client

        try:
            self._client: Any = Client(self._address, timeout=f"{CONNECT_SECS}s", set_as_default=False)
        except OSError as error:
            raise Unreachable(f"no Dask scheduler answers at {self._address}: {error}") from error
        self._executor = self._client.get_executor(pure=False)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules the step; thread-safe. A step whose worker dies is tried elsewhere by Dask's own rules."""
        with self._lock:
            if self._client.status not in ("running", "connecting"):
                self._connect()
            future: Future[T] = self._executor.submit(_alone, fn, args, kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leaves the cluster; steps are waited for only if `wait`, else cancelled."""
        with self._lock:
            if self._client.status == "running":
                self._executor.shutdown(wait=wait and not cancel_futures)
            self._client.close()


def create_engine(url: str | None, *, workers: int = 1) -> Executor:
    """The executor for `url`: None or `local` for a process pool, `dask://host:port` for a cluster.

    Raises InvalidInput for anything else and Unreachable when no scheduler answers.
    """
    if url in (None, "", "local"):
        return LocalEngine(workers)
    address = _dask_address(str(url))
    if importlib.util.find_spec("distributed") is None:
        raise InvalidInput(f"engine {url!r} needs distributed: install pitchpipe[dask]")
    return DaskEngine(address)


def _dask_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or not url.startswith("dask://"):
        raise InvalidInput(f"engine {url!r} is neither local nor dask://host:port")
    return f"tcp://{url.removeprefix('dask://').rstrip('/')}"


def _enter_child(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole foreground group; the parent decides.
    threading.Thread(target=_end_with_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Polls: PR_SET_PDEATHSIG would also fire when the *thread* of the parent that started this process ends."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECS)
    os._exit(0)


def _quietly(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    with computing():
        return fn(*args, **kwargs)


def _alone(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    with _one_step:
        return _quietly(fn, args, kwargs)
