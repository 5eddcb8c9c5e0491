"""The HTTP application: resources, who may use them, the OpenAPI document, and a page that shows it."""

from typing import Any, Final

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from ullage import __version__
from ullage_agent.service.http import backups, handles, provenance, queues, reclamation, sessions, upkeep
from ullage_agent.service.http.answers import refuse
from ullage_agent.service.http.decoding import JsonRequest
from ullage_agent.service.http.guard import Guard
from ullage_agent.service.http.openapi import openapi_document
from ullage_agent.service.http.page import PAGE
from ullage_agent.service.http.reference import reference_page
from ullage_agent.service.http.served import OPEN, AnyRequest, Served, admit, served_by

REFERENCE_CSP = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
"""One page with its style in it, and nothing else."""


@get("/openapi.json", opt=OPEN, include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The OpenAPI document."""
    document, _ = await served_by(request).call(documents_of, request)
    return Response(document, media_type=MediaType.JSON)


@get("/docs", opt=OPEN, include_in_schema=False)
async def reference(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The same for people: one page without scripts."""
    _, page = await served_by(request).call(documents_of, request)
    return Response(page, media_type=MediaType.HTML, headers={"Content-Security-Policy": REFERENCE_CSP})


def documents_of(request: AnyRequest) -> tuple[bytes, bytes]:
    """The OpenAPI document and the page, made when one of them is first asked for: nobody needs a token for them, and
    making them takes the time of ten requests.
    """
    state = request.app.state
    if "documents" not in state:
        document = openapi_document(request.app.openapi_schema.to_schema())
        state["documents"] = msgspec.json.encode(document), reference_page(document).encode()
    found: tuple[bytes, bytes] = state["documents"]
    return found


RESOURCES: Final = [
    each
    for module in (handles, queues, sessions, provenance, reclamation, backups, upkeep)
    for each in vars(module).values()
    if isinstance(each, HTTPRouteHandler)
]
"""Whatever answers an operation."""


def make_app(served: Served) -> Guard:
    """The application of one service."""
    app = Litestar(
        route_handlers=[*RESOURCES, openapi, reference, *PAGE],
        guards=[admit],
        request_class=JsonRequest,
        exception_handlers={HTTPException: refuse, Exception: refuse},
        openapi_config=OpenAPIConfig(
            title="Ullage",
            version=__version__,
            description="Content of data flows: durable handles, queues, their past, and their space given back.",
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            path="/schema",
        ),
        request_max_body_size=served.limits.small_body_bytes,
        logging_config=None,
        debug=False,
    )
    app.state["served"] = served
    return Guard(app, served)
