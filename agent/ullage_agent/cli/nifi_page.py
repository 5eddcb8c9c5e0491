"""Who pins what in a NiFi, as one page that needs nothing else: to be mailed, or opened where there is no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from ullage_agent.cli.nifi_pins import (
    FLOWFILE_COLUMNS,
    QUEUE_COLUMNS,
    file_title,
    flowfile_rows,
    freeing_lines,
    headlines,
    leaving_title,
    queue_rows,
    remarks,
)
from ullage_agent.cli.output import visible

if TYPE_CHECKING:
    from ullage.nifi.pins import FreeingSet
    from ullage.nifi.surveying import NiFiPins

TITLE = "What pins the disk of this NiFi"

HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{TITLE}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em; }}
table {{ border-collapse: collapse; margin: .4em 0 1.6em; }}
th, td {{ padding: .2em .7em; text-align: left; border-bottom: 1px solid #ddd; overflow-wrap: anywhere; }}
.number {{ text-align: right; white-space: nowrap; }}
h3 {{ font-size: 1em; margin: 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
"""


def page(found: NiFiPins, freeing: FreeingSet | None, *, files: int, flowfiles: int, tails: bool) -> Iterator[str]:
    """The page, piece after piece. What NiFi names is text in it, whatever it looks like."""
    yield HEAD
    yield f"<h1>{TITLE}</h1>\n"
    yield from map(_paragraph, headlines(found))
    yield from (_paragraph(f"{damage.file}: {damage.what}") for damage in found.damages)
    if any(damage.loses_flowfiles for damage in found.damages):
        yield _paragraph("Not all FlowFiles could be read: these files may have more of them.")
    yield "<h2>What comes back if one queue is emptied</h2>\n"
    yield from _table(QUEUE_COLUMNS, queue_rows(found))
    if freeing is not None:
        yield "<h2>What has to leave</h2>\n"
        yield from map(_paragraph, freeing_lines(freeing, tails=tails))
    yield from map(_paragraph, remarks(found, freeing))
    for leaving in freeing.files[:files] if freeing is not None else ():
        yield f"<h3>{_text(leaving_title(leaving))}</h3>\n"
        rows = flowfile_rows(found, found.plan.leaving(leaving), leaving.flowfiles, flowfiles)
        yield from _table(FLOWFILE_COLUMNS, rows)
    if freeing is not None and len(freeing.files) > files:
        yield _paragraph(f"and {len(freeing.files) - files:,} more files")
    yield "<h2>The files with the most dead bytes</h2>\n"
    for pin in found.plan.worst(files):
        yield f"<h3>{_text(file_title(pin))}</h3>\n"
        rows = flowfile_rows(found, found.plan.holders(pin), pin.flowfiles, flowfiles)
        yield from _table(FLOWFILE_COLUMNS, rows)
    yield "</body>\n</html>\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns whose title starts with `>` are for numbers."""
    kinds = [' class="number"' if title.startswith(">") else "" for title in columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        inner = "".join(f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{inner}</tr>\n"

    yield "<table>\n" + row("th", [title.removeprefix(">") for title in columns])
    yield from (row("td", each) for each in rows)
    yield "</table>\n"


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>\n"


def _text(text: str) -> str:
    """Without what turns the direction of writing or is no character, and without markup."""
    return escape(visible(text).encode("utf-8", "replace").decode())
