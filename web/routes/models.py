"""Uploaded models: streamed to disk with their hash, listed, removed."""

from __future__ import annotations

from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter, Path, Query, Request, Response

from results.row.form import JsonModel
from scheduler.models.uploads import Incoming, ModelName, Upload, Uploads
from swarm.base.text import is_safe
from web.http.context import ApiContext
from web.http.parameters import PAGE, Limit, problems
from web.http.problems import HttpProblem

MAX_UPLOADS: Final = 4
"""Uploads at a time."""
CHUNK: Final = 1024**2
"""Bytes collected before they are written."""

Hash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="A model's sha256 in hexadecimal.")]
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "The file's bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class UploadPage(JsonModel):
    """Uploaded models by hash."""

    count: int
    models: tuple[Upload, ...]
    next: str | None


def router(context: ApiContext) -> APIRouter:
    """Uploaded models."""
    v1 = APIRouter(prefix="/api/v1", tags=["models"])
    uploads = Uploads(context.home)
    slots = trio.Semaphore(MAX_UPLOADS)

    @v1.get("/models", operation_id="listModels")
    async def models(
        limit: Limit = PAGE,
        after: Annotated[str, Query(max_length=64, description="`next` of the previous page.")] = "",
    ) -> UploadPage:
        """List the uploaded models."""
        rest = [upload for upload in await trio.to_thread.run_sync(uploads.all) if upload.sha256 > after]
        page = tuple(rest[:limit])
        return UploadPage(count=len(page), models=page, next=page[-1].sha256 if len(rest) > limit else None)

    @v1.post(
        "/models",
        operation_id="addModel",
        status_code=HTTPStatus.CREATED,
        responses=problems(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS),
        openapi_extra=_BODY,
    )
    async def add(
        request: Request,
        response: Response,
        name: Annotated[
            ModelName,
            Query(description="File name; its suffix selects the driver.", examples=["mobilenet.onnx"]),
        ],
    ) -> Upload:
        """Upload a model. Campaigns name it `sha256:…`. The same bytes again only change its name."""
        if not is_safe(name):
            raise HttpProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "name: it contains invisible characters",
                hint="rename the file",
            )
        try:
            slots.acquire_nowait()
        except trio.WouldBlock:
            raise HttpProblem(
                HTTPStatus.TOO_MANY_REQUESTS, f"{MAX_UPLOADS} uploads are in progress", hint="retry later"
            ) from None
        try:
            upload = await _receive(request, await trio.to_thread.run_sync(uploads.begin, name))
        finally:
            slots.release()
        response.headers["Location"] = f"/api/v1/models/{upload.sha256}"
        return upload

    @v1.get("/models/{sha256}", operation_id="getModel", responses=problems(HTTPStatus.NOT_FOUND))
    async def model(sha256: Hash) -> Upload:
        """Get an uploaded model's name and size."""
        upload = await trio.to_thread.run_sync(uploads.find, sha256)
        if upload is None:
            raise _not_found(sha256)
        return upload

    @v1.delete(
        "/models/{sha256}",
        operation_id="removeModel",
        status_code=HTTPStatus.NO_CONTENT,
        responses=problems(HTTPStatus.NOT_FOUND),
    )
    async def remove(sha256: Hash) -> None:
        """Remove an uploaded model. Open campaigns keep a copy of their own."""
        if not await trio.to_thread.run_sync(uploads.remove, sha256):
            raise _not_found(sha256)

    return v1


def _not_found(sha256: str) -> HttpProblem:
    return HttpProblem(
        HTTPStatus.NOT_FOUND,
        f"no model {sha256[:12]}… was uploaded",
        hint="list the uploaded models: GET /api/v1/models",
    )


async def _receive(request: Request, incoming: Incoming) -> Upload:
    """Write the request's bytes. Raises `HttpProblem` if there are none, or more than the disk has space for."""
    try:
        space = await trio.to_thread.run_sync(incoming.room)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > space:
            raise _too_large(space)
        buffer = bytearray()
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                buffer += chunk
                if incoming.size + len(buffer) > space:
                    raise _too_large(space)
                if len(buffer) >= CHUNK:
                    space = await _write(incoming, buffer)
        if buffer:
            await _write(incoming, buffer)
        if not incoming.size:
            raise HttpProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "the model is empty",
                hint="send the file's bytes as the body",
            )
        return await trio.to_thread.run_sync(incoming.keep)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(incoming.drop)


async def _write(incoming: Incoming, buffer: bytearray) -> int:
    """Write the buffer; gives the largest size that the model may have now: others use the disk too. Raises `HttpProblem`."""

    def write() -> int:
        space = incoming.room()
        if len(buffer) > space:
            raise _too_large(incoming.size + space)
        incoming.write(bytes(buffer))
        return incoming.size + space - len(buffer)

    space = await trio.to_thread.run_sync(write)
    buffer.clear()
    return space


def _too_large(space: int) -> HttpProblem:
    return HttpProblem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the server's disk has space for {space:,} bytes",
        hint="remove models that are not needed: DELETE /api/v1/models/SHA256",
    )
