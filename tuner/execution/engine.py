"""Where steps run: warm local children, or a Dask cluster whose workers have such children.

Both are a `concurrent.futures.Executor`. Either way a step runs in a child with limits of time, processor and memory
(pitchpipe/wire/limits.py), and one that hangs or dies costs its own future and nothing else.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from pitchpipe.errors import InvalidInput, Unreachable
from pitchpipe.wire.limits import OTHER_STEPS, STEP_LIMITS, StepLimits
from tuner.execution.pool import NOBODY, LocalEngine

__all__ = ["DaskEngine", "LocalEngine", "create_engine", "on_behalf"]

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_SECS = 10
"""Longest wait for a Dask scheduler to answer."""

_hosting = threading.Lock()
_hosted: LocalEngine | None = None
"""In a process of a Dask worker: where its steps run."""


class DaskEngine(Executor):
    """Steps on a Dask cluster whose workers have this package and its extra `compiler`.

    Each process of the cluster keeps warm children and runs one step at a time in them, whatever number of threads its
    worker has. Whose step is next is up to Dask. A scheduler that went away costs the steps it had; the next submit looks
    for it again. Raises Unreachable when no scheduler answers.
    """

    def __init__(self, address: str, limits: Mapping[str, StepLimits] = STEP_LIMITS) -> None:
        self._address, self._limits = address, limits
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
        limits = self._limits.get(fn.__name__, OTHER_STEPS)
        with self._lock:
            if self._client.status not in ("running", "connecting"):
                self._connect()
            future: Future[T] = self._executor.submit(_hosted_step, limits, fn, args, kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leaves the cluster; steps are waited for only if `wait`, else cancelled."""
        with self._lock:
            if self._client.status == "running":
                self._executor.shutdown(wait=wait and not cancel_futures)
            self._client.close()


def create_engine(
    url: str | None, *, workers: int = 1, limits: Mapping[str, StepLimits] = STEP_LIMITS
) -> LocalEngine | DaskEngine:
    """The executor for `url`: None or `local` for `workers` processes here, `dask://host:port` for a cluster.

    Raises InvalidInput for anything else and Unreachable when no scheduler answers.
    """
    if url in (None, "", "local"):
        return LocalEngine(workers, limits)
    address = _dask_address(str(url))
    if importlib.util.find_spec("distributed") is None:
        raise InvalidInput(f"engine {url!r} needs distributed: install pitchpipe[dask]")
    return DaskEngine(address, limits)


def on_behalf(executor: Executor, project: str, job: str = "") -> Executor:
    """The executor for steps of a project's job, where it shares its processes out among them; else itself."""
    return executor.on_behalf((project, job)) if isinstance(executor, LocalEngine) else executor


def _dask_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or not url.startswith("dask://"):
        raise InvalidInput(f"engine {url!r} is neither local nor dask://host:port")
    return f"tcp://{url.removeprefix('dask://').rstrip('/')}"


def _hosted_step(limits: StepLimits, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Runs in a thread of a Dask worker."""
    global _hosted
    with _hosting:
        if _hosted is None:
            _hosted = LocalEngine(1)
    return _hosted.submit_for(NOBODY, limits, fn, args, kwargs).result()
