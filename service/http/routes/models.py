"""Models: a streamed upload that waits to be judged, and what is stored."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from pitchpipe.errors import InvalidModel
from pitchpipe.frontends import FRONTENDS
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.job import ModelFormat, ModelView
from pitchpipe.wire.page import ModelPage
from service.http.auth import User
from service.http.context import Context, Ctx, Cursor, Limit
from service.http.problems import BODY, documented
from service.store import models

router = APIRouter(prefix="/v1/models", tags=["models"])

_CHUNK_BYTES = 1 << 20
"""Bytes gathered before a write leaves the event loop: a thread hop per packet would cost more than the write."""
_BINARY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


_UNCHECKED: dict[int | str, dict[str, Any]] = {
    202: {"model": ModelView, "description": "Stored and not judged yet; `checked` is false"}
}


@router.post("", status_code=201, responses=documented(*BODY) | _UNCHECKED, openapi_extra=_BINARY_BODY)
async def upload_model(
    request: Request,
    response: Response,
    context: Ctx,
    principal: User,
    name: Annotated[str, Query(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")],
    format: ModelFormat,
) -> ModelView:
    """Stores the raw body as a model, once it was read and can be tuned; what cannot be is refused and nothing is kept.

    The same bytes and format give the model that is there already. 202 when nobody got to reading it in time: `checked`
    is then false, and what would be an error here fails the jobs on it.
    """
    refuse_local(format)
    with tempfile.TemporaryFile(prefix="pitchpipe-upload-") as spool:
        async for block in _blocks(request):
            await run_in_threadpool(spool.write, block)
        view = await run_in_threadpool(store, context, principal.project, name, format, spool)
    if not view.checked:
        context.wake.notify()
        view = await verdict(request, context, principal.project, view)
    if not view.checked:
        response.status_code = 202
    return view


def refuse_local(format: ModelFormat) -> None:
    """Raises InvalidModel for a format that is only converted where the model is."""
    if (frontend := FRONTENDS[format]).is_local:
        why = "is code" if frontend.runs_code else "holds weights"
        raise InvalidModel(
            f"format {format.value!r} {why} and is not accepted over HTTP; convert it to `relax` with the SDK or "
            "`pitchpipe` on your machine"
        )


async def verdict(request: Request, context: Context, project: str, view: ModelView) -> ModelView:
    """The model once it was judged, or as it is when the time for that is over. Raises why it was refused."""
    deadline = time.monotonic() + context.settings.model_check_secs
    # From here on it holds no thread: it counts as one that waits, if there is room, and not as one at work.
    request.scope["pitchpipe.slot"].wait()
    while not view.checked and (left_secs := deadline - time.monotonic()) > 0 and not context.wake.closed:
        generation = context.wake.generation
        view = await run_in_threadpool(_look, context, project, view.id)
        if view.checked or await request.is_disconnected():
            break
        await context.wake.wait_async(min(left_secs, context.poll_secs), since=generation)
    return view


def _look(context: Context, project: str, model: str) -> ModelView:
    with context.database.reading() as session:
        return models.get(session, project, model)


async def _blocks(request: Request) -> AsyncIterator[bytes]:
    gathered: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        gathered.append(chunk)
        size_bytes += len(chunk)
        if size_bytes >= _CHUNK_BYTES:
            yield b"".join(gathered)
            gathered, size_bytes = [], 0
    yield b"".join(gathered)


def store(context: Context, project: str, name: str, format: ModelFormat, spool: IO[bytes]) -> ModelView:
    """Stores a file as a model that nobody has judged yet. Raises InvalidModel for an empty one."""
    spool.seek(0)
    data = spool.read()
    if not data:
        raise InvalidModel("the body is empty; send the model's bytes")
    # The blob comes first: a row without its bytes would be a lie, bytes without a row are only waste.
    digest = context.blobs.put(data)
    with context.database.transaction() as session:
        return models.create(session, project, name=name, format=format, digest=digest, size_bytes=len(data))


@router.get("", responses=documented(400))
def list_models(context: Ctx, principal: User, cursor: Cursor = None, limit: Limit = 50) -> ModelPage:
    """Models of the project, newest first."""
    with context.database.reading() as session:
        items, next_cursor = models.list_(session, principal.project, cursor, limit)
    return ModelPage(items=tuple(items), next_cursor=next_cursor)


@router.get("/{model_id}", responses=documented(400, 404, 413))
def show_model(context: Ctx, principal: User, model_id: str) -> ModelView:
    """One model. One that was stored and then refused answers with the reason, for some minutes."""
    with context.database.reading() as session:
        return models.get(session, principal.project, model_id)


@router.put("/{model_id}/comparison", responses=documented(*BODY, 404))
def tell_comparison(context: Ctx, principal: User, model_id: str, comparison: Comparison) -> ModelView:
    """Keeps what the client found when it compared the model with the framework that it came from, or why it could not.

    The service believes it, as it believes the model. One that was not compared changes nothing where another was.
    """
    with context.database.transaction() as session:
        return models.compare(session, principal.project, model_id, comparison)
