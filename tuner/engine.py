"""Where steps run: a pool of warm local processes, or a Dask cluster.

Both are a `concurrent.futures.Executor`. A local pool whose child dies (a compiler can crash) is replaced at the next
submit; the futures it held fail with BrokenExecutor, which costs their batches and nothing else.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any, ParamSpec, TypeVar

from pitchpipe.errors import InvalidInput, Unreachable
from tuner.measure.quiet import computing

P = ParamSpec("P")
T = TypeVar("T")

STEPS_PER_CHILD = 200
"""A child is replaced after this many steps, so that a slow leak in native code stays small."""


class LocalEngine(Executor):
    """A process pool that survives its children. Steps wait while a measurement on this host is being timed."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_enter_child,
            initargs=(os.getpid(),),
            max_tasks_per_child=STEPS_PER_CHILD,
        )

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules the step; thread-safe. `fn` and its arguments must be picklable."""
        with self._lock:
            try:
                return self._pool.submit(_quietly, fn, args, kwargs)
            except BrokenExecutor:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = self._start()
                return self._pool.submit(_quietly, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the children; running steps are finished only if `wait`."""
        with self._lock:
            children = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)
            if not wait:
                for child in children:
                    child.terminate()


def create_engine(url: str | None, *, workers: int = 1) -> Executor:
    """The executor for `url`: None or `local` for a process pool, `dask://host:port` for a cluster.

    Raises InvalidInput for another scheme and Unreachable when no scheduler answers.
    """
    if url in (None, "", "local"):
        return LocalEngine(workers)
    scheme, _, address = url.partition("://")
    if scheme != "dask" or not address:
        raise InvalidInput(f"engine {url!r} is neither local nor dask://host:port")
    from distributed import Client

    try:
        client = Client(f"tcp://{address}", timeout="10s", set_as_default=False)
    except OSError as error:
        raise Unreachable(f"no Dask scheduler answers at {address}: {error}") from error
    executor: Executor = client.get_executor(pure=False, retries=1)
    return executor


def _enter_child(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole foreground group; the parent decides.
    if hasattr(os, "register_at_fork") and os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)


def _quietly(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    with computing():
        return fn(*args, **kwargs)
