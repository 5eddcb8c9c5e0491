"""What the OpenAPI document must be told that signatures do not say: bodies that are streams, and problem details."""

from dataclasses import dataclass
from typing import Final

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIType

from ullage_agent.service.http.answers import PROBLEM_TYPE, ProblemDetails


@dataclass
class TakesContent(Operation):
    """An operation whose body is content."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(
            content={"application/octet-stream": OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))},
            description="The content, of any size.",
            required=False,
        )


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The refusals of a resource, beside those that any request may meet."""
    return {
        status: ResponseSpec(ProblemDetails, description=MEANINGS[status], media_type=PROBLEM_TYPE)
        for status in sorted({400, 401, 403, 503, *statuses})
    }


MEANINGS: Final[dict[int, str]] = {
    400: "The request is wrong",
    401: "Authentication is needed",
    403: "Not allowed",
    404: "There is no such thing",
    409: "Not possible now",
    410: "It was there, and is gone",
    413: "More than a limit allows",
    416: "No such range",
    421: "Another node has it",
    422: "The idempotency key belongs to another request",
    429: "Writers are asked to wait",
    503: "Too much is under way, or the service is stopping",
    507: "No room",
}

WRITES: Final = (409, 413, 422, 429, 507)
"""What any write may be answered."""
