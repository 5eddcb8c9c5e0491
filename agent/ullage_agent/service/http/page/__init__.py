"""The page at `/`: how full everything is, what a run would free, and the past. Files as they lie here, no build step.

The files hold nothing secret, so they need no token; what they show comes from the resources under `/v1`, which do.
Scripts, styles and connections come from this server alone, and no script may turn text into markup.
"""

from importlib.resources import files
from typing import Final

from litestar import MediaType, Response, get
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from ullage.enums import EventType
from ullage.errors import NotFound
from ullage_agent.service.http.served import OPEN

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {"Content-Security-Policy": CSP, "Cross-Origin-Opener-Policy": "same-origin"}

KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
TYPES: Final = {
    each.name: kind
    for each in files(__name__).iterdir()
    for ending, kind in KINDS.items()
    if each.name.endswith(ending)
}
"""The files there are: a name that is asked for is looked up here and never becomes a path."""


@get("/", opt=OPEN, include_in_schema=False)
async def index() -> Response[bytes]:
    """The page, with every type of event that a search can be for."""
    options = "".join(f"<option>{name}</option>" for name in EventType.__members__)
    page = _content("index.html").replace(b"<!-- event types -->", options.encode())
    return Response(page, media_type=MediaType.HTML, headers=HEADERS)


@get("/page/{name:str}", opt=OPEN, include_in_schema=False)
async def file(name: FromPath[str]) -> Response[bytes]:
    """What the page is made of."""
    if name not in TYPES:
        raise NotFound(f"the page has no file {name!r}")
    return Response(_content(name), media_type=TYPES[name], headers=HEADERS)


def _content(name: str) -> bytes:
    return (files(__name__) / name).read_bytes()


PAGE: Final[tuple[ControllerRouterHandler, ...]] = (index, file)
