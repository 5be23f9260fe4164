"""Models: a streamed upload, and what is stored."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from typing import IO, Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from pitchpipe.errors import InvalidModel
from pitchpipe.wire.job import ModelFormat, ModelView
from pitchpipe.wire.page import ModelPage
from service.auth import User
from service.context import Context, Ctx, Cursor, Limit
from service.problems import BODY, documented
from service.store import models

router = APIRouter(prefix="/v1/models", tags=["models"])

_CHUNK_BYTES = 1 << 20
"""Bytes gathered before a write leaves the event loop: a thread hop per packet would cost more than the write."""
_CODE = (ModelFormat.TVMSCRIPT, ModelFormat.PT2)
"""Formats whose reading can run code: the SDK and the CLI convert them on the user's own machine."""
_BINARY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=201, responses=documented(*BODY), openapi_extra=_BINARY_BODY)
async def upload_model(
    request: Request,
    context: Ctx,
    principal: User,
    name: Annotated[str, Query(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")],
    format: ModelFormat,
) -> ModelView:
    """Stores the raw body as a model. The same bytes and format give the model that is there already."""
    if format in _CODE:
        raise InvalidModel(
            f"format {format.value!r} is code and is not accepted over HTTP; convert it to `relax` with the SDK or "
            "`pitchpipe` on your machine"
        )
    with tempfile.TemporaryFile(prefix="pitchpipe-upload-") as spool:
        async for block in _blocks(request):
            await run_in_threadpool(spool.write, block)
        return await run_in_threadpool(_store, context, principal.project, name, format, spool)


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


def _store(context: Context, project: str, name: str, format: ModelFormat, spool: IO[bytes]) -> ModelView:
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


@router.get("/{model_id}", responses=documented(404))
def show_model(context: Ctx, principal: User, model_id: str) -> ModelView:
    """One model."""
    with context.database.reading() as session:
        return models.get(session, principal.project, model_id)
