"""Charts as SVG responses."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import Response

from results.report.drawing import Drawing, Theme, svg

SVG_TYPE: Final = "image/svg+xml"
SVG: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The chart.", "content": {SVG_TYPE: {"schema": {"type": "string"}}}},
    204: {"description": "There is nothing to draw."},
}
"""`responses` of an endpoint that draws."""


def svg_response(drawing: Drawing | None, theme: Theme, name: str) -> Response:
    """The chart, or 204 without one. `page` is for embedding, with classes instead of colours; `name` prefixes its ids."""
    if drawing is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return Response(svg(drawing, theme, name=name), media_type=SVG_TYPE)
