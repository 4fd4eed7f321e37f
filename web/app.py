"""The whole ASGI application: all routers behind the access rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from scheduler.output.fleet import FleetWatcher
from web.compat import campaigns as compat_campaigns
from web.compat import system as compat_system
from web.compat import workers as compat_workers
from web.http import static
from web.http.context import ApiContext
from web.http.middleware import AccessMiddleware, AccessRules
from web.http.openapi import complete_openapi, operation_id
from web.http.problems import Problem, add_problem_handlers
from web.routes import (
    campaigns,
    compare,
    events,
    experiments,
    fleet,
    models,
    report,
    results,
    server,
    tasks,
)

ROUTERS = (
    *(campaigns.api, results.api, events.api, tasks.api, compare.api, models.api, campaigns.planning),
    *(report.api, experiments.api, fleet.api),
    *(compat_campaigns.api, compat_workers.api, compat_system.api, server.api),
)


def make_app(
    context: ApiContext,
    rules: AccessRules,
    routers: Sequence[APIRouter] = (),
    watcher: FleetWatcher | None = None,
) -> ASGIApp:
    """The application for one home. `routers`: endpoints of its other roles. `watcher`: a view of the swarm other than this home's own."""
    app = make_open_app(context, routers, watcher)
    return server.MetricsMiddleware(AccessMiddleware(app, rules), app.state.metrics)


def make_open_app(
    context: ApiContext, routers: Sequence[APIRouter] = (), watcher: FleetWatcher | None = None
) -> FastAPI:
    """`make_app` without access rules and metrics, for the OpenAPI document and for tests."""
    app = FastAPI(
        title="Sark",
        version=version("sark-node"),
        summary="Benchmark models on every device you can reach. Any node serves this API for its own home.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # behind a TLS proxy it would redirect to http, together with the client's token
        responses={"default": {"model": Problem, "description": "An error."}},
        generate_unique_id_function=operation_id,
    )
    app.state.context = context
    app.state.watcher = watcher or FleetWatcher(partial(fleet.observer, context))
    app.state.metrics = server.Metrics()
    add_problem_handlers(app)
    for router in (static.router(), *ROUTERS, *routers):
        app.include_router(router)
    complete_openapi(app)
    return app
