"""The OpenAPI document: what FastAPI finds in the endpoints, put right where it cannot know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from scheduler.campaign.compat import PlainCampaign
from scheduler.campaign.model import Campaign
from web.http.problems import MEDIA_TYPE

TAGS: Final = {
    "campaigns": "Submitted, listed, looked at, cancelled, run again.",
    "tasks": "One task: its attempts, samples, host state and signed file.",
    "results": "What came of them: rows a page at a time, or whole files.",
    "events": "What happened, or what happens: as JSON, or as server-sent events.",
    "compare": "Results beside one another.",
    "report": "Results for people: pages and charts.",
    "models": "Models that are sent here, to be named in campaigns by their sha256.",
    "fleet": "The devices of the swarm.",
    "worker": "This home's own worker.",
    "gate": "The gates that this home knows.",
    "first": "The first system's endpoints, with its paths and shapes: its clients work as they are.",
    "server": "This server: its health, its version, its metrics.",
}
ABOUT: Final = """Everything below `/api/v1` does what a command of `sark-node` does, and answers what that prints with `--json`.
Below `/api` alone are the first system's endpoints, for its clients.

Instants are UTC as ISO 8601, durations are in the unit of their name (`_s`, `_ms`), sizes are in bytes. Lists are
`{"count", …, "next"}`: give `next` as `after` for the page that follows. What goes wrong is `application/problem+json`, with a `hint` for
what to do. Beyond loopback each request bears the server's token."""
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}


def describe(app: FastAPI) -> None:
    """Have `app` answer with this document, made once."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = finished(plain())
        return app.openapi_schema

    setattr(app, "openapi", openapi)  # noqa: B010  (FastAPI's own way to extend it; no type allows it)


def finished(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with the schemas of a campaign, how the token is borne, and each operation's summary in words."""
    _, shared = models_json_schema(
        [(Campaign, "validation"), (PlainCampaign, "validation")], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    assert not shared["$defs"].keys() & components.get("schemas", {}).keys(), "two schemas of one name"
    components["schemas"] = dict(sorted({**shared["$defs"], **components.get("schemas", {})}.items()))
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "As `sark-node serve` prints it."}
    }
    document["security"] = [{}, {"token": []}]
    document["info"]["description"] = ABOUT
    used = {tag for operation in operations(document) for tag in operation.get("tags", ())}
    document["tags"] = [
        {"name": name, **({"description": TAGS[name]} if name in TAGS else {})}
        for name in (*(tag for tag in TAGS if tag in used), *sorted(used - TAGS.keys()))
    ]
    for operation in operations(document):
        words = operation.get("description", "")
        if words:
            operation["summary"] = re.split(r"(?<=[^.]\w)[.:;] ", " ".join(words.split()), maxsplit=1)[
                0
            ].rstrip(".")
        for answer in operation["responses"].values():
            if _PROBLEM in (content.get("schema") for content in answer.get("content", {}).values()):
                answer["content"] = {MEDIA_TYPE: {"schema": _PROBLEM}}
    return document


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each of them."""
    for methods in document["paths"].values():
        yield from methods.values()


def document_text(app: FastAPI) -> str:
    """As it stands in docs/openapi.json."""
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"
