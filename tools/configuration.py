"""Fills the tables of docs/configuration.md from the contract: types, defaults, and the texts below its fields.

A table stands between `<!-- fields: PATH ... -->` and `<!-- fields end -->`, and has the fields below its paths, except
those that a longer path of another table names.
"""

import enum
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from ullage.contract import ContentRepositorySpec, Duration, Quantity
from ullage.wire.documents import field_texts

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
TABLE: Final = re.compile(r"(<!-- fields: (.*?) -->\n\n).*?(<!-- fields end -->)", re.DOTALL)
HEAD: Final = "| Field | Type | Default | Effect | NiFi or Ambry |\n|---|---|---|---|---|\n"
PEER: Final = re.compile(r" \(((?:NiFi|Ambry): .*)\)\.$")
"""What a field answers to stands in brackets at the end of its text."""

PROPERTY: Final = re.compile(r"\b(?:nifi|store)\.[\w.*]*[\w*]")
NAME: Final = re.compile(r"(?<![\w`./])(?:(?:spec|tls|auth)\.[\w.]*\w|[a-z]+[A-Z]\w*)(?![\w`/])")
"""The name of another field."""


class Field(NamedTuple):
    """One field of the spec: its path, its type as Python says it, its default as YAML says it, and its text."""

    path: str
    kind: Any
    default: str
    text: str


def texts() -> dict[Path, str]:
    """The page with its tables. ValueError: a field has no table, or a table no fields."""
    page = PAGE.read_text(encoding="utf-8")
    tables = [found[2].split() for found in TABLE.finditer(page)]
    rows: dict[str, list[str]] = {path: [] for paths in tables for path in paths}
    for field in fields(ContentRepositorySpec, "spec"):
        above = [path for path in rows if re.match(rf"{re.escape(path)}(\.|\[|$)", field.path)]
        if not above:
            raise ValueError(f"no table of {PAGE.name} has {field.path}")
        rows[max(above, key=len)].append(_row(field))
    if empty := [path for path, found in rows.items() if not found]:
        raise ValueError(f"{PAGE.name} has a table of {', '.join(empty)}, where the contract has no fields")

    def table(found: re.Match[str]) -> str:
        below = (row for path in found[2].split() for row in rows[path])
        return f"{found[1]}{HEAD}{''.join(below)}\n{found[3]}"

    return {PAGE: TABLE.sub(table, page)}


def fields(struct: type[msgspec.Struct], path: str) -> Iterator[Field]:
    """Every field below a path, in the order of the contract; a group of them only if it has a text of its own."""
    hints, below = get_type_hints(struct, include_extras=True), field_texts(struct)
    for field in msgspec.structs.fields(struct):
        kind, place = hints[field.name], f"{path}.{field.encode_name}"
        inner, is_list = _struct_in(kind)
        if inner is None or field.name in below:
            default = "" if inner and not is_list else _default(field)
            yield Field(place, kind, default, below[field.name])
        if inner is not None:
            yield from fields(inner, place + ("[]" if is_list else ""))


def _struct_in(kind: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """The Struct that a field holds, and whether it holds a list of them."""
    if get_origin(kind) is Annotated:
        return _struct_in(get_args(kind)[0])
    if get_origin(kind) is tuple:
        return _struct_in(get_args(kind)[0])[0], True
    for option in get_args(kind) if _is_union(kind) else (kind,):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option, False
    return None, False


def _default(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    plain = msgspec.json.decode(msgspec.json.encode(default, enc_hook=str))
    if isinstance(plain, list):
        return ", ".join(f"`{each}`" if isinstance(each, str) else f"`{_flow(each)}`" for each in plain) or "none"
    if isinstance(plain, dict):
        return "none"
    return f"`{plain}`" if isinstance(plain, str) and plain else f"`{msgspec.json.encode(plain).decode()}`"


def _flow(mapping: dict[str, Any]) -> str:
    """As YAML in one line; what is not set is left out."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in mapping.items() if value) + "}"


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, types.UnionType}


def _kind(kind: Any) -> str:  # noqa: PLR0911 - one for each form of a type
    """What may stand there, in words."""
    if get_origin(kind) is Annotated:
        inner, meta = get_args(kind)
        if inner in {int, float} and meta.le is not None:
            return f"{meta.ge} to {meta.le}"
        if inner is float:
            return f"between {meta.gt} and {meta.lt}"
        if inner is str and "%" in (meta.pattern or ""):
            return "a percentage"
        return f"{meta.ge} or more" if inner is int else _kind(inner)
    if _is_union(kind):
        return ", or ".join("null" if option is type(None) else _kind(option) for option in get_args(kind))
    if get_origin(kind) is tuple:
        return "list" if _struct_in(kind)[0] else f"list of {_kind(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "map"
    if issubclass(kind, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if issubclass(kind, msgspec.Struct):
        return "group"
    words: dict[type, str] = {Quantity: "size", Duration: "time", bool: "boolean", str: "text"}
    return words[kind]


def _row(field: Field) -> str:
    peer = PEER.search(field.text)
    effect = f"{field.text[: peer.start()]}." if peer else field.text
    cells = (
        f"`{field.path}`",
        _kind(field.kind),
        field.default,
        NAME.sub(r"`\g<0>`", effect),
        PROPERTY.sub(r"`\g<0>`", peer[1]) if peer else "",
    )
    return f"| {' | '.join(cells)} |\n"
