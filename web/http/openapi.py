"""FastAPI's OpenAPI document, completed with information that FastAPI does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from scheduler.campaign.compat import PlainCampaign
from scheduler.campaign.model import Campaign
from web.http.problems import MEDIA_TYPE

TAGS: Final = {
    "campaigns": "Submit, list, cancel and retry campaigns.",
    "planning": "Validate a campaign, plan it on the current devices, and explain its state.",
    "tasks": "One task: attempts, samples, charts, host state and the signed result.",
    "results": "Rows a page at a time, or whole files.",
    "events": "Campaign events as JSON pages or server-sent events.",
    "compare": "Comparisons of results.",
    "report": "Reports and charts of a campaign.",
    "models": "Uploaded models, which campaigns name by sha256.",
    "experiments": "Saved campaigns with versions, schedules and results over time.",
    "fleet": "The devices of the swarm.",
    "worker": "This home's own worker.",
    "gate": "The gates that this home knows.",
    "compat": "The predecessor's HTTP API with its paths and JSON shapes. Its clients work unchanged.",
    "server": "Health, version and metrics of this server.",
}
ABOUT: Final = """Each endpoint below `/api/v1` does what a `sark-node` command does, and answers what the command prints with `--json`.
Endpoints directly below `/api` are the predecessor's.

Timestamps are ISO 8601 in UTC. Durations are in the unit of their name (`_s`, `_ms`), sizes in bytes. Lists are `{"count", …, "next"}`:
pass `next` as `after` to get the next page. Errors are `application/problem+json` with a `hint`. A server that listens beyond loopback
requires its bearer token."""
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}


def operation_id(route: APIRoute) -> str:
    """An operation's id, from its function's name: `list_tasks` is `listTasks`."""
    prefix = "compat_" if "compat" in route.tags else ""
    first, *words = (prefix + route.name).strip("_").split("_")
    return first + "".join(word.capitalize() for word in words)


def complete_openapi(app: FastAPI) -> None:
    """Make `app` serve the completed document, which is built once."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(generate())
        return app.openapi_schema

    setattr(app, "openapi", openapi)  # noqa: B010  (FastAPI's documented way to extend it; no type allows it)


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with the schemas of a campaign, the token, tags, and a summary of each operation."""
    _, shared = models_json_schema(
        [(Campaign, "validation"), (PlainCampaign, "validation")], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    assert not shared["$defs"].keys() & components.get("schemas", {}).keys(), "two schemas of one name"
    components["schemas"] = dict(sorted({**shared["$defs"], **components.get("schemas", {})}.items()))
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The token that `sark-node serve` prints.",
        }
    }
    document["security"] = [{}, {"token": []}]
    document["info"]["description"] = ABOUT
    used = {tag for operation in operations(document) for tag in operation.get("tags", ())}
    assert used <= TAGS.keys(), f"tags without a description: {used - TAGS.keys()}"
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    for operation in operations(document):
        sentences = re.split(
            r"(?<=[^.]\w)[.:;] ", " ".join(operation.get("description", "").split()), maxsplit=1
        )
        if sentences[0]:
            operation["summary"] = sentences[0].rstrip(".")
        for response in operation["responses"].values():
            if _PROBLEM in (content.get("schema") for content in response.get("content", {}).values()):
                response["content"] = {MEDIA_TYPE: {"schema": _PROBLEM}}
    return document


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All operations of an OpenAPI document."""
    for methods in document["paths"].values():
        yield from methods.values()


def document_text(app: FastAPI) -> str:
    """The text of docs/openapi.json."""
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"
