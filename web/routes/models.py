"""Uploaded models: streamed to disk with their hash, listed, removed."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any, Final

import trio
from fastapi import APIRouter, Path, Query, Request, Response

from results.row.form import JsonModel
from scheduler.experiments.service import needing
from scheduler.models.uploads import Incoming, ModelName, Upload
from swarm.base.text import is_safe
from swarm.base.threads import DISK
from web.http.context import MAX_UPLOADS, Context, SharedStore
from web.http.parameters import PAGE, AfterName, Limit, page_of
from web.http.problems import HttpProblem, errors

CHUNK: Final = 1024**2
"""Bytes collected before each write."""

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


api = APIRouter(prefix="/api/v1", tags=["models"])


@api.get("/models")
def list_models(context: Context, limit: Limit = PAGE, after: AfterName = "") -> UploadPage:
    """List the uploaded models."""
    uploads = [upload for upload in context.uploads.all() if upload.sha256 > after]
    page, more = page_of(uploads, limit, lambda upload: upload.sha256)
    return UploadPage(count=len(page), models=tuple(page), next=more)


@api.post("/models", status_code=201, responses=errors(413, 429), openapi_extra=_BODY)
async def add_model(
    context: Context,
    request: Request,
    response: Response,
    name: Annotated[
        ModelName, Query(description="File name; its suffix selects the driver.", examples=["mobilenet.onnx"])
    ],
) -> Upload:
    """Upload a model. Campaigns name it `sha256:…`. Uploading the same bytes again only changes the name."""
    if not is_safe(name):
        raise HttpProblem(422, "name: it contains invisible characters", hint="rename the file")
    try:
        context.uploading.acquire_nowait()
    except trio.WouldBlock:
        raise HttpProblem(429, f"{MAX_UPLOADS} uploads are in progress", hint="retry later") from None
    try:
        upload = await _receive(request, await DISK.run(context.uploads.begin, name))
    finally:
        context.uploading.release()
    response.headers["Location"] = f"/api/v1/models/{upload.sha256}"
    return upload


@api.get("/models/{sha256}", responses=errors(404))
def get_model(context: Context, sha256: Hash) -> Upload:
    """Get an uploaded model's name and size."""
    upload = context.uploads.find(sha256)
    if upload is None:
        raise _not_found(sha256)
    return upload


@api.delete("/models/{sha256}", status_code=204, responses=errors(404, 409))
def remove_model(context: Context, store: SharedStore, sha256: Hash) -> None:
    """Remove an uploaded model. Open campaigns keep a copy of their own. An experiment that was sent here needs it for its next run."""
    experiment = needing(store, context.uploads.folder, sha256)
    if experiment is not None:
        raise HttpProblem(
            409,
            f"the experiment {experiment} measures this model",
            hint=f"delete it first, or save it with another model: /api/v1/experiments/{experiment}",
        )
    if not context.uploads.remove(sha256):
        raise _not_found(sha256)


def _not_found(sha256: str) -> HttpProblem:
    hint = "list the uploaded models: GET /api/v1/models"
    return HttpProblem(404, f"no model {sha256[:12]}… was uploaded", hint=hint)


async def _receive(request: Request, incoming: Incoming) -> Upload:
    """Write the request's bytes. Raises `HttpProblem` if the body is empty or does not fit on the disk."""
    try:
        space = await DISK.run(incoming.room)
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
            raise HttpProblem(422, "the model is empty", hint="send the file's bytes as the body")
        return await DISK.run(incoming.keep)
    finally:
        with trio.CancelScope(shield=True):
            await DISK.run(incoming.drop)


async def _write(incoming: Incoming, buffer: bytearray) -> int:
    """Write the buffer. Returns the largest size that the model may now have: other programs use the disk too. Raises `HttpProblem`."""

    def write() -> int:
        space = incoming.room()
        if len(buffer) > space:
            raise _too_large(incoming.size + space)
        incoming.write(bytes(buffer))
        return incoming.size + space - len(buffer)

    space = await DISK.run(write)
    buffer.clear()
    return space


def _too_large(space: int) -> HttpProblem:
    return HttpProblem(
        413,
        f"the server's disk has space for {space:,} bytes",
        hint="remove models that are not needed: DELETE /api/v1/models/SHA256",
    )
