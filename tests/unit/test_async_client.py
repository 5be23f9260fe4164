"""The asynchronous client: the same methods as the client's, and an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import httpx2
import pytest

from pitchpipe.async_client import AsyncClient
from pitchpipe.client import Client
from pitchpipe.errors import NotFound
from tests.unit.test_client import MODEL, job


def client(answer: Any) -> AsyncClient:
    return AsyncClient("http://service", "t", retry_secs=0.0, transport=httpx2.MockTransport(answer))


def test_every_method_has_its_twin_with_the_same_parameters() -> None:
    ours, theirs = (
        {
            name: list(inspect.signature(method).parameters)[1:]
            for name, method in inspect.getmembers(kind)
            if callable(method) and not name.startswith("_")
        }
        for kind in (AsyncClient, Client)
    )
    assert ours.pop("run")
    assert ours == theirs


def test_the_loop_goes_on_while_a_call_waits_for_its_answer() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def answer(_: httpx2.Request) -> httpx2.Response:
        asked.set()
        assert may_answer.wait(60)
        return httpx2.Response(200, json=MODEL)

    async def main() -> None:
        async with client(answer) as service:
            call = asyncio.create_task(service.model("mdl_1"))
            while not asked.is_set():
                await asyncio.sleep(0.001)
            may_answer.set()
            assert (await call).name == "m"

    asyncio.run(main())


def test_lists_come_one_by_one_from_all_their_pages() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        second = "cursor" in request.url.params
        return httpx2.Response(
            200, json={"items": [MODEL | {"name": "ab"[second]}], "next_cursor": None if second else "2"}
        )

    async def main() -> list[str]:
        async with client(answer) as service:
            return [model.name async for model in service.models()]

    assert asyncio.run(main()) == ["a", "b"]


def test_a_job_is_waited_for_and_errors_are_the_clients() -> None:
    states = iter(["queued", "tuning", "done"])

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("job_2"):
            return httpx2.Response(404)
        return httpx2.Response(200, json=job(next(states)))

    async def main() -> list[str]:
        seen: list[str] = []
        async with client(answer) as service:
            await service.wait("job_1", on_view=lambda view: seen.append(view.state.value), poll_secs=0.001)
            with pytest.raises(NotFound):
                await service.job("job_2")
        return seen

    assert asyncio.run(main()) == ["queued", "tuning", "done"]
