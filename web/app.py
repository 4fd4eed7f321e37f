"""The whole application: what the roles offer, mounted behind one guard."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from scheduler.output.watcher import FleetWatcher
from web import compat
from web.http import static
from web.http.context import ApiContext
from web.http.middleware import AccessMiddleware, AccessRules
from web.http.openapi import describe
from web.http.problems import Problem, tell_problems
from web.routes import experiments, fleet, meta, report, v1
from web.routes.metrics import MetricFamilies, Metrics


def make_app(
    desk: ApiContext,
    rules: AccessRules,
    routers: Sequence[APIRouter] = (),
    lookout: FleetWatcher | None = None,
) -> ASGIApp:
    """An ASGI application for `desk`'s home. `routers`: what other roles of this home offer, with their whole paths. `lookout`: another
    view of the swarm than this home's own.
    """
    metrics = Metrics()
    return MetricFamilies(AccessMiddleware(open_app(desk, routers, metrics, lookout), rules), metrics)


def open_app(
    desk: ApiContext,
    routers: Sequence[APIRouter] = (),
    metrics: Metrics | None = None,
    lookout: FleetWatcher | None = None,
) -> FastAPI:
    """The same without the guard: for the OpenAPI document and for tests of the endpoints by themselves. `lookout`: another view of the
    swarm than this home's own."""
    lookout = lookout or fleet.lookout_of(desk)
    app = FastAPI(
        title="Sark",
        version=version("sark-node"),
        summary="Benchmarks of models on every device that can be reached, served by any node for its own home.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # behind a proxy with TLS it would lead to http, and a client's token with it
        responses={"default": {"model": Problem, "description": "What went wrong."}},
    )
    tell_problems(app)
    own = (
        static.router(),
        v1.router(desk),
        fleet.router(desk, lookout),
        compat.router(desk, lookout),
        report.router(desk),
        experiments.router(desk),
        meta.router(desk, metrics or Metrics()),
    )
    for router in (*own, *routers):
        app.include_router(router)
    describe(app)
    return app
