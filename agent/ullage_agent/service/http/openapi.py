"""The OpenAPI document: what ullage.wire says of operations, documents and problems, and what Litestar says of queries.

Litestar knows the parameters of a resource and its tag; bodies, answers, refusals, names and what it is for come from
the table of operations, so that they are said once, for the service, its client and clients of other languages.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ullage.errors import UllageError
from ullage.wire import backupoperations, operations
from ullage.wire.documents import field_texts, module_texts
from ullage.wire.operation import ATTRIBUTES_HEADER, KEY_HEADER, REPEATED_HEADER, OctetStream, Operation, PlainText
from ullage.wire.operations import OPERATIONS
from ullage.wire.problems import PROBLEM_TYPE, PROBLEMS, UNEXPECTED, Problem, ProblemDetails

REF: Final = "#/components/schemas/{name}"
BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
PROBLEM: Final = {PROBLEM_TYPE: {"schema": {"$ref": REF.format(name="ProblemDetails")}}}


def openapi_document(made: dict[str, Any]) -> dict[str, Any]:
    """The document, from the one that Litestar made; KeyError if an operation of the table is no resource of it."""
    kinds = _document_kinds()
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in kinds:
        _describe(msgspec.inspect.type_info(kind), components)
    components = _plain(components)
    texts = module_texts(backupoperations.__name__) | module_texts(operations.__name__)
    for name, operation in vars(operations).items():
        if not isinstance(operation, Operation):
            continue
        resource = made["paths"][operation.path]
        resource[operation.method.lower()]["description"] = texts[name]
        _fill(resource[operation.method.lower()], operation)
        if operation.answer is OctetStream:
            _fill_head(resource["head"], resource["get"], operation)
    return made | {"components": made["components"] | {"schemas": made["components"]["schemas"] | components}}


def _fill(found: dict[str, Any], operation: Operation[Any]) -> None:
    found["operationId"] = operation.id
    found["summary"] = found["description"].partition(".")[0]
    found["parameters"] = [*found.get("parameters", []), *_headers(operation)]
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _content(operation.body)}
    found["responses"] = {**_answers(operation), **_refusals(operation.refused())}
    if operation.id == "getReadiness":
        found["responses"]["503"] = {"description": "Commits cannot succeed", "content": TEXT}
    if operation.rights is None:
        found["security"] = []


def _fill_head(found: dict[str, Any], got: dict[str, Any], operation: Operation[Any]) -> None:
    """The same as the GET, without content."""
    summary = f"{got['summary']}, without the bytes"
    found |= got | {"operationId": operation.id.replace("get", "head", 1), "summary": summary}
    found["responses"] = {
        status: {name: value for name, value in answer.items() if name != "content"}
        for status, answer in got["responses"].items()
    }


def _answers(operation: Operation[Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": _meaning(operation.answer), "content": _content(operation.answer)}
    if operation.is_keyed:
        answer["headers"] = {REPEATED_HEADER: _header("`true` on the first answer to this key, given again")}
    if operation.answer is not OctetStream:
        return {str(operation.status): answer}
    headers = {
        "ETag": _header("Names this content, which never changes"),
        "Repr-Digest": _header("The CRC-32C of the whole content, where it is known (RFC 9530)"),
        "Accept-Ranges": _header("`bytes`"),
    }
    part = {"Content-Range": _header("Which bytes of how many these are")}
    return {
        "200": answer | {"headers": headers},
        "206": answer | {"description": "A range of the content", "headers": headers | part},
        "304": {"description": "The content is the one that If-None-Match names", "headers": headers},
    }


def _refusals(errors: Iterable[type[UllageError]]) -> dict[str, Any]:
    """By status, with the slugs that may come with it."""
    by_status: dict[int, list[Problem]] = {}
    chosen = set(errors)
    if chosen:
        by_status[UNEXPECTED.status] = [UNEXPECTED]
    for problem in PROBLEMS:
        if problem.error in chosen:
            by_status.setdefault(problem.status, []).append(problem)
    answers = {}
    for status, problems in sorted(by_status.items()):
        text = "; ".join(f"`{problem.slug}`: {problem.title}" for problem in problems)
        answers[str(status)] = {"description": text, "content": PROBLEM}
        if any(problem.error.retry_after_seconds for problem in problems):
            retry = _header("When the same request may succeed: seconds, or a date")
            answers[str(status)]["headers"] = {"Retry-After": retry}
    return answers


def _headers(operation: Operation[Any]) -> Iterator[dict[str, Any]]:
    """Headers that the operation looks at, and the parameter beside one of them."""
    if operation.is_keyed:
        yield _parameter(KEY_HEADER, "Up to 255 printable characters: with them the request is carried out once")
    if operation.body is OctetStream and operation.method == "POST":
        yield _parameter(ATTRIBUTES_HEADER, "Attributes of the content: a JSON object of strings, in ASCII")
        texts = {"type": "array", "items": {"type": "string"}}
        yield {"name": "attribute", "in": "query", "description": "NAME=VALUE, as often as needed", "schema": texts}
    if operation.body is OctetStream:
        yield _parameter("Repr-Digest", "What the content must come to, such as `sha-256=:BASE64:` (RFC 9530)")
    if operation.answer is OctetStream:
        yield _parameter("Range", "One range of bytes, such as `bytes=0-99`")
        yield _parameter("If-None-Match", "The ETag of a content that is there already")


def _parameter(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


def _content(kind: Any) -> dict[str, Any]:
    if kind in {OctetStream, PlainText}:
        return BYTES if kind is OctetStream else TEXT
    ((schema,), _) = msgspec.json.schema_components([kind], ref_template=REF)
    return {"application/json": {"schema": schema}}


def _meaning(kind: Any) -> str:
    if kind in {OctetStream, PlainText}:
        return "The content" if kind is OctetStream else "One line"
    described = getattr(kind, "__args__", (kind,))[0]
    return str(described.__doc__).partition("\n")[0].rstrip(".")


def _document_kinds() -> list[Any]:
    named = [each for operation in OPERATIONS for each in (operation.answer, operation.body)]
    return [ProblemDetails, *(kind for kind in named if kind not in {OctetStream, PlainText, None})]


def _plain(schema: Any) -> Any:
    """Pairs of one type as arrays of two: generators of clients have no word for the items of a tuple."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    items = schema.get("prefixItems", [])
    if items and all(each == items[0] for each in items):
        schema = {name: value for name, value in schema.items() if name != "prefixItems"} | {"items": items[0]}
    return {name: _plain(value) for name, value in schema.items()}


def _describe(info: Any, components: dict[str, Any]) -> None:
    """Say of each field what stands below it, in this document and in those that it holds."""
    if not isinstance(info, msgspec.inspect.StructType):
        below = [getattr(info, name) for name in ("item_type", "value_type", "type") if hasattr(info, name)]
        for each in (*below, *getattr(info, "types", ())):
            _describe(each, components)
        return
    texts, found = field_texts(info.cls), components[info.cls.__name__]
    if "description" in found:  # examples in Python are for who reads that
        found["description"] = found["description"].partition(">>> ")[0].rstrip()
    for name, schema in found["properties"].items():
        if name in texts and "description" not in schema:
            schema["description"] = texts[name].replace("None", "null")
    for field in info.fields:
        _describe(field.type, components)
