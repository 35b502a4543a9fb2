"""The whole HTTP application around one door. Starts nothing: a lifespan is the composition root's."""

from typing import Final

from fastapi import FastAPI
from starlette.types import Lifespan

from orchestrator.api import job_routes, problems, story_routes, system_routes
from orchestrator.api.door import Door
from orchestrator.api.guard import GuardMiddleware

BODY_LIMIT_BYTES: Final = 1 << 16  # unless a route says otherwise


def build_api(
    door: Door, *, allowed_names: frozenset[str], lifespan: Lifespan[FastAPI] | None = None
) -> FastAPI:
    """Return the application. `allowed_names` are the host names that requests may be addressed to."""
    app = FastAPI(
        title="shardyard",
        version=door.version,
        openapi_url=None,  # served behind the token by a route of ours
        docs_url=None,  # its pages load scripts from elsewhere, which the content security policy refuses
        redoc_url=None,
        redirect_slashes=False,
        max_body_size=BODY_LIMIT_BYTES,
        telemetry={"auto_configure": False},  # nothing leaves because of a variable in the environment
        lifespan=lifespan,
    )
    app.state.door = door
    app.add_middleware(GuardMiddleware, allowed=allowed_names)
    problems.install(app)
    app.include_router(system_routes.open_router)
    app.include_router(system_routes.report_router)
    app.include_router(system_routes.router)
    app.include_router(job_routes.router)
    app.include_router(story_routes.router)
    return app
