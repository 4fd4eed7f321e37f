"""Charts as SVG responses."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import Response

from results.report.drawing import Drawing, Theme, svg
from web.http.problems import HttpProblem

SVG_TYPE: Final = "image/svg+xml"
SVG: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The chart.", "content": {SVG_TYPE: {"schema": {"type": "string"}}}}
}
"""`responses` of an endpoint that draws."""


def svg_response(drawing: Drawing | None, theme: Theme, name: str) -> Response:
    """The chart; `page` is for embedding, with classes instead of colours, and `name` prefixes its ids. Raises `HttpProblem` 404."""
    if drawing is None:
        raise HttpProblem(HTTPStatus.NOT_FOUND, f"there is nothing to draw for the chart {name}")
    return Response(svg(drawing, theme, name=name), media_type=SVG_TYPE)
