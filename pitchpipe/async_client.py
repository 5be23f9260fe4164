"""The client for programs with an event loop: every method of `Client`, awaited.

    async with pitchpipe.AsyncClient(url, token) as client:
        job = await client.submit(request)
        async for event in client.events(job.id):
            ...

A call runs the client's own method in a thread: requests, answers, repetitions and errors are the same, and the loop goes
on. A call that is cancelled ends in its thread, at its timeout at the latest, and its answer is dropped.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pitchpipe.client import Client
from pitchpipe.connection import pauses
from pitchpipe.wire.job import JobView

if TYPE_CHECKING:
    import httpx2

_P = ParamSpec("_P")
_T = TypeVar("_T")
_END = object()


def _awaited(
    method: Callable[Concatenate[Client, _P], _T],
) -> Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]]:
    """A method of the client, to be awaited."""

    @functools.wraps(method)
    async def call(self: AsyncClient, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.run(functools.partial(method, self.client, *args, **kwargs))

    return call


def _iterated(
    method: Callable[Concatenate[Client, _P], Iterator[_T]],
) -> Callable[Concatenate[AsyncClient, _P], AsyncIterator[_T]]:
    """A method of the client that gives one thing after another."""

    @functools.wraps(method)
    async def items(self: AsyncClient, /, *args: _P.args, **kwargs: _P.kwargs) -> AsyncIterator[_T]:
        found: Any = method(self.client, *args, **kwargs)
        try:
            while (item := await self.run(functools.partial(next, found, _END))) is not _END:
                yield item
        finally:
            with suppress(ValueError):  # a cancelled call is still at the next one, and is closed after it
                found.close()

    return items


class AsyncClient:
    """One connection pool to one service, for one event loop; close it, or use it as an asynchronous context manager.

    url, token, timeout_secs, retry_secs: as for `Client`. concurrency: calls at once; further ones wait. An open stream of
    events counts as a call while it waits for the next.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_secs: float = 30.0,
        retry_secs: float = 30.0,
        concurrency: int = 32,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.client = Client(url, token, timeout_secs=timeout_secs, retry_secs=retry_secs, transport=transport)
        self.url, self.token = self.client.url, self.client.token
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="pitchpipe-client")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections, which ends calls that still run; the client cannot be used again."""
        self.client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, call: Callable[[], _T]) -> _T:
        """What a call that may block gives, for code of yours that takes a `Client`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def wait(
        self,
        job_id: str,
        timeout_secs: float | None = None,
        *,
        on_view: Callable[[JobView], object] = lambda _: None,
        poll_secs: float = 1.0,
    ) -> JobView:
        """The job once it has ended, however it did, or as it is when the timeout passes; `on_view` sees every look.

        No thread is held between two looks.
        """
        view = await self.job(job_id)
        on_view(view)
        for pause_secs in pauses(timeout_secs, poll_secs):
            if view.state.ended:
                break
            await asyncio.sleep(pause_secs)
            view = await self.job(job_id)
            on_view(view)
        return view

    upload_model = _awaited(Client.upload_model)
    tell_comparison = _awaited(Client.tell_comparison)
    models = _iterated(Client.models)
    model = _awaited(Client.model)

    submit = _awaited(Client.submit)
    jobs = _iterated(Client.jobs)
    job = _awaited(Client.job)
    cancel = _awaited(Client.cancel)
    pause = _awaited(Client.pause)
    resume = _awaited(Client.resume)
    extend = _awaited(Client.extend)
    events = _iterated(Client.events)
    job_schedules = _awaited(Client.job_schedules)
    fetch = _awaited(Client.fetch)

    acquire = _awaited(Client.acquire)
    heartbeat = _awaited(Client.heartbeat)
    report = _awaited(Client.report)
    workload = _awaited(Client.workload)

    records = _iterated(Client.records)
    record = _awaited(Client.record)
    lookup = _awaited(Client.lookup)
    earlier_lookup = _awaited(Client.earlier_lookup)
    explain = _awaited(Client.explain)
    pinned = _awaited(Client.pinned)
    pin_schedule = _awaited(Client.pin_schedule)
    contenders = _awaited(Client.contenders)
    put_in_context = _awaited(Client.put_in_context)
    savings = _awaited(Client.savings)
    outdated = _awaited(Client.outdated)
    upgrade = _awaited(Client.upgrade)

    report_misses = _awaited(Client.report_misses)
    misses = _awaited(Client.misses)
    idle_budget = _awaited(Client.idle_budget)
    set_idle_budget = _awaited(Client.set_idle_budget)

    cost_models = _iterated(Client.cost_models)
    cost_model = _awaited(Client.cost_model)
    promote_cost_model = _awaited(Client.promote_cost_model)
    roll_back_cost_model = _awaited(Client.roll_back_cost_model)

    register_worker = _awaited(Client.register_worker)
    workers = _awaited(Client.workers)
    worker = _awaited(Client.worker)
    set_worker_state = _awaited(Client.set_worker_state)

    create_token = _awaited(Client.create_token)
    tokens = _iterated(Client.tokens)
    revoke_token = _awaited(Client.revoke_token)
    session_link = _awaited(Client.session_link)

    health = _awaited(Client.health)
