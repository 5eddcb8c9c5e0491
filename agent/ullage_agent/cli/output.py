"""What people and scripts get to see: tables and bars for the former, one JSON document for the latter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ullage.clock import moment_of
from ullage_agent.cli.writing import STDOUT, writing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task
    from rich.table import Table

PIPED_COLUMNS = 500
"""Width when nobody watches: wide enough that no line is cut for a program that reads it."""

WIDTH_MAX = 1_000_000
"""Of a line that nothing has to fit."""

UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is: names of files are no markup, and each text is one line."""
    from rich.console import Console

    class PlainConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            with writing("stderr" if stderr else STDOUT):
                super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **options)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_COLUMNS
    return PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def say(*lines: str) -> None:
    """A remark on stderr: what went wrong, or what should not mix with content or JSON on stdout.

    What ends a line within one is shown as any other control character: a name could tell of a success that was none.
    """
    click.echo("\n".join(map(visible, lines)), err=True)


def tell(text: str) -> None:
    """A result for people, on stdout."""
    with writing(STDOUT):
        click.echo(visible(text))


def visible(text: str) -> str:
    """Text from outside without what a terminal would obey, on one line."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def size(count: int) -> str:
    """Bytes for people: `831 B`, `1.5 KiB`, `300 MiB`."""
    value, unit = float(count), ""
    for unit in UNITS:  # noqa: B007 - the last one is used
        value /= 1024
        if value < 1023.95:
            break
    if count < 1024:
        return f"{count} B"
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"


def many(count: int, noun: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def moment(millis: int) -> str:
    """In UTC, as every table shows time, wherever it is looked at from."""
    return moment_of(millis).strftime("%Y-%m-%d %H:%M:%S")


def print_json(document: object) -> None:
    """One JSON document on stdout, in ASCII: a file's name that is no UTF-8 survives as Python reads it back."""
    with writing(STDOUT):
        sys.stdout.write(json.dumps(document, indent=2) + "\n")


def tell_or_print(document: object, text: str, as_json: bool) -> None:
    """A result: one JSON document, or a sentence."""
    if as_json:
        print_json(document)
    else:
        tell(text)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], totals: Iterable[object] = ()) -> None:
    """A table on stdout; see `table`."""
    console().print(table(columns, rows, totals))


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout where it fits, else a block of lines a row: words broken over narrow columns read badly."""
    screen = console()
    if fits(columns, rows):
        screen.print(table(columns, rows))
        return
    titles = [title.removeprefix(">") for title in columns]
    width = max(map(len, titles))
    for row in rows:
        for title, cell in zip(titles, row, strict=True):
            screen.print(f"{title:<{width}}  {cell}", soft_wrap=True)
        screen.print()


def fits(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> bool:
    """Whether a table is no wider than the screen."""
    screen = console()
    unbounded = screen.options.update(width=WIDTH_MAX)
    return screen.measure(table(columns, rows), options=unbounded).maximum <= screen.width


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], totals: Iterable[object] = ()) -> Table:
    """Columns whose title starts with `>` are for numbers; a column may end with totals."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold", footer_style="bold")
    footers = [str(total) for total in totals]
    made.show_footer = bool(footers)
    for number, title in enumerate(columns):
        made.add_column(
            title.removeprefix(">"),
            footers[number] if footers else "",
            justify="right" if title.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(visible(str(cell)) for cell in row))
    return made


class Bar:
    """One progress bar, or none where nobody watches."""

    def __init__(self, progress: Progress | None, *, is_bytes: bool) -> None:
        self._progress = progress
        self._is_bytes = is_bytes
        self.done = 0

    def advance(self, count: int) -> None:
        self.reach(self.done + count)

    def reach(self, done: int, total: int | None = None) -> None:
        """Set what is done, and the total where it is only known now."""
        self.done = done
        if self._progress is not None:
            [task] = self._progress.tasks
            self._progress.update(task.id, completed=done, total=total)
            self._progress.update(task.id, amount=self._amount(task))

    def _amount(self, task: Task) -> str:
        """What is done, of how much, and how fast, as far as each is known."""
        words = size if self._is_bytes else "{:,}".format
        whole = "" if task.total is None else f" of {words(int(task.total))}"
        speed = f", {words(int(task.speed))}/s" if self._is_bytes and task.speed else ""
        return f"{words(self.done)}{whole}{speed}"


@contextmanager
def bar(text: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Bar]:
    """A bar on stderr while the block runs; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield Bar(None, is_bytes=is_bytes)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        progress.add_task(text, total=total, amount="")
        yield Bar(progress, is_bytes=is_bytes)
