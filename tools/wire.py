"""Fills the tables of pages in docs/ from ullage.wire: api.md, flight.md, protocol.md, security.md and spark.md.

A table stands between `<!-- wire: NAME -->` and `<!-- wire end -->`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from ullage.contract import ROLES, Right
from ullage.errors import Refused
from ullage.wire.documents import field_texts
from ullage.wire.frames import FrameKind
from ullage.wire.needs import needs
from ullage.wire.problems import PROBLEMS
from ullage.wire.schemas import ATTRIBUTES, DESCRIPTIONS, MEANING, SCHEMAS, is_time, name_for_sql

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final = ("api.md", "flight.md", "protocol.md", "security.md", "spark.md")
SPARK: Final = {
    pa.int64(): " bigint",
    pa.int32(): " int",
    pa.string(): " string",
    pa.bool_(): " boolean",
    pa.binary(): " binary",
    pa.list_(pa.int64()): " array<bigint>",
    pa.list_(pa.string()): " array<string>",
    ATTRIBUTES: " map<string, string>",
}
"""As Spark calls them; tests/spark asks Spark."""

TABLE: Final = re.compile(r"(<!-- wire: (\w+) -->\n\n).*?(<!-- wire end -->)", re.DOTALL)


def texts() -> dict[Path, str]:
    """The pages with their tables. KeyError: there is no such table."""
    tables = {
        "problems": _problems(),
        "kinds": _kinds(),
        "rights": _rights(),
        "roles": _roles(),
        "needs": _needs(),
        "columns": _columns(_meaning, DESCRIPTIONS),
        "spark": _columns(lambda field: " timestamp" if is_time(field) else SPARK[field.type], {}, name_for_sql),
    }
    pages = {DOCS / name: (DOCS / name).read_text(encoding="utf-8") for name in PAGES}

    def filled(found: re.Match[str]) -> str:
        return f"{found[1]}{tables[found[2]]}\n{found[3]}"

    return {path: TABLE.sub(filled, page) for path, page in pages.items()}


def _problems() -> str:
    """Every slug, by status."""
    head = "| status | slug | `ullage.errors` | what it says | `Retry-After` |\n|---:|---|---|---|---:|\n"
    rows = []
    for each in PROBLEMS:
        name = "" if each.error is Refused else f"`{each.error.__name__}`"
        patience = "" if each.error.retry_after_seconds is None else f"{each.error.retry_after_seconds:g} s"
        rows.append(f"| {each.status} | `{each.slug}` | {name} | {each.title} | {patience} |\n")
    return head + "".join(rows)


def _rights() -> str:
    """Every right."""
    texts = field_texts(Right)
    rows = [
        f"| `{right}` | `{right.verb}` on `contentrepositories/{right.subresource}` | {texts[right.name]} |\n"
        for right in Right
    ]
    return "| right | in Kubernetes | what it allows |\n|---|---|---|\n" + "".join(rows)


def _roles() -> str:
    """Every role."""
    rows = [f"| `{name}` | `ullage-{name}` | {_listed(rights)} |\n" for name, rights in ROLES.items()]
    return "| role | ClusterRole | rights |\n|---|---|---|\n" + "".join(rows)


def _needs() -> str:
    """Every operation of every transport."""
    rows = []
    for need in needs():
        rights = "none, and no token" if need.rights is None else _listed(need.rights) or "a known token"
        more = "".join(f"; {case}, also `{right}`" for right, case in need.sometimes)
        rows.append(f"| {need.transport} | `{need.operation}` | {rights}{more} |\n")
    return "| transport | operation | needs |\n|---|---|---|\n" + "".join(rows)


def _listed(rights: Iterable[Right]) -> str:
    return ", ".join(f"`{right}`" for right in rights)


def _kinds() -> str:
    """Every kind of frame."""
    texts = field_texts(FrameKind)
    rows = [
        f"| {kind:d} | {kind.name} | {'agent' if kind >= FrameKind.WELCOME else 'client'} | {texts[kind.name]} |\n"
        for kind in FrameKind
    ]
    return "| kind | name | from | body |\n|---|---|---|---|\n" + "".join(rows)


def _columns(
    say: Callable[[pa.Field], str],
    descriptions: Mapping[str, str],
    name_of: Callable[[pa.Field], str] = lambda field: field.name,
) -> str:
    """Every table, with something about each column."""
    rows = []
    for table, schema in SCHEMAS.items():
        about = f"{descriptions[table]}: " if table in descriptions else ""
        rows.append(f"| `{table}` | {about}{', '.join(f'`{name_of(field)}`{say(field)}' for field in schema)} |\n")
    return "| table | columns |\n|---|---|\n" + "".join(rows)


def _meaning(field: pa.Field) -> str:
    found = (field.metadata or {}).get(MEANING)
    return "" if found is None else f" ({found.decode()})"
