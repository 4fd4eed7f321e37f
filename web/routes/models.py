"""Models that clients send: streamed to disk with their hash, listed, removed."""

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
from web.http.parts import PAGE, Limit, problems
from web.http.problems import InvalidField

AT_ONCE: Final = 4
"""Models that are being sent at a time."""
PIECE: Final = 1024**2
"""Bytes gathered before they are written."""

Hash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="A model's sha256, in hexadecimal.")]


class UploadPage(JsonModel):
    """Models that were sent here, by their hash."""

    count: int
    models: tuple[Upload, ...]
    next: str | None


_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "The file's bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def router(desk: ApiContext) -> APIRouter:
    """Endpoints over `desk`."""
    v1 = APIRouter(prefix="/api/v1", tags=["models"])
    uploads = Uploads(desk.home)
    places = trio.Semaphore(AT_ONCE)

    @v1.get("/models", operation_id="listModels")
    async def models(
        limit: Limit = PAGE,
        after: Annotated[str, Query(max_length=64, description="`next` of the page before.")] = "",
    ) -> UploadPage:
        """Models that were sent here and not removed since."""
        every = await trio.to_thread.run_sync(uploads.all)
        left = [upload for upload in every if upload.sha256 > after]
        shown = tuple(left[:limit])
        return UploadPage(
            count=len(shown), models=shown, next=shown[-1].sha256 if len(left) > limit else None
        )

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
            Query(description="The file's name: drivers go by its ending.", examples=["mobilenet.onnx"]),
        ],
    ) -> Upload:
        """Send a model. A campaign then names it `sha256:…`. The same bytes once more change its name alone."""
        if not is_safe(name):
            raise InvalidField(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "name: it holds characters that cannot be seen",
                hint="rename it",
            )
        try:
            places.acquire_nowait()
        except trio.WouldBlock:
            raise InvalidField(
                HTTPStatus.TOO_MANY_REQUESTS, f"{AT_ONCE} models are being sent already", hint="ask again"
            ) from None
        try:
            upload = await _take(request, await trio.to_thread.run_sync(uploads.begin, name))
        finally:
            places.release()
        response.headers["Location"] = f"/api/v1/models/{upload.sha256}"
        return upload

    @v1.get("/models/{sha256}", operation_id="getModel", responses=problems(HTTPStatus.NOT_FOUND))
    async def model(sha256: Hash) -> Upload:
        """One that was sent here."""
        upload = await trio.to_thread.run_sync(uploads.find, sha256)
        if upload is None:
            raise _unknown(sha256)
        return upload

    @v1.delete(
        "/models/{sha256}",
        operation_id="removeModel",
        status_code=HTTPStatus.NO_CONTENT,
        responses=problems(HTTPStatus.NOT_FOUND),
    )
    async def remove(sha256: Hash) -> None:
        """Remove it. Campaigns that were submitted with it have a copy of their own until they end."""
        if not await trio.to_thread.run_sync(uploads.remove, sha256):
            raise _unknown(sha256)

    return v1


def _unknown(sha256: str) -> InvalidField:
    return InvalidField(
        HTTPStatus.NOT_FOUND,
        f"no model {sha256[:12]}… was sent here",
        hint="what is here: GET /api/v1/models",
    )


async def _take(request: Request, incoming: Incoming) -> Upload:
    """All bytes of the request. Raises `InvalidField` when they are none, or more than there is room for."""
    try:
        room = await trio.to_thread.run_sync(incoming.room)
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told) > room:
            raise _too_large(room)
        held = bytearray()
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                held += piece
                if incoming.size + len(held) > room:
                    raise _too_large(room)
                if len(held) >= PIECE:
                    room = await _write(incoming, held)
        if held:
            await _write(incoming, held)
        if not incoming.size:
            raise InvalidField(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "the model is empty",
                hint="send the file's bytes as the body",
            )
        return await trio.to_thread.run_sync(incoming.keep)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(incoming.drop)


async def _write(incoming: Incoming, held: bytearray) -> int:
    """What is held to the disk; how large the model may be as of now: others write there, too. Raises `InvalidField`."""

    def write() -> int:
        left = incoming.room()
        if len(held) > left:
            raise _too_large(incoming.size + left)
        incoming.write(bytes(held))
        return incoming.size + left - len(held)

    room = await trio.to_thread.run_sync(write)
    held.clear()
    return room


def _too_large(room: int) -> InvalidField:
    return InvalidField(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"there is room for {room:,} bytes on the server's disk",
        hint="remove models that are not needed: DELETE /api/v1/models/SHA256",
    )
