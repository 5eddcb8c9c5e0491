"""`ullage nifi`: an Apache NiFi's own repositories, read where they lie, and dead bytes given back once it stopped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
import msgspec

from ullage_agent.cli.nifi_damages import end
from ullage_agent.cli.options import DURATION, FILE, PAIR, SIZE, Group, json_output, option
from ullage_agent.cli.output import bar, many, moment, print_json, print_rows, print_table, size, tell

if TYPE_CHECKING:
    from ullage.nifi.home import NiFiHome
    from ullage.nifi.survey import Band, NiFiSurvey

USES = {
    "live": "some FlowFile's content",
    "dead_middles": "dead, with live bytes behind it in the same file: NiFi never frees this",
    "dead_tails": "dead, at the end of a file that is still held",
    "dead_files": "whole files that no FlowFile refers to: NiFi removes them, at its next start at the latest",
    "unsettled": "written to in the last 10 minutes: a processor may be at work on it",
    "archive": "kept for replays, as nifi.content.repository.archive.* says",
    "foreign": "files that NiFi did not name",
}

FLOWFILES = option(
    "--flowfile-repository", metavar="DIR", help="Instead of CONF, the directory of the FlowFile repository."
)
CONTAINERS = option(
    "--content-repository",
    "containers",
    type=PAIR,
    multiple=True,
    metavar="NAME=DIR",
    help="With --flowfile-repository, a container of the content repository, named as in nifi.properties.",
)
FLOW = option("--flow", metavar="FILE", default="", help="With --flowfile-repository, flow.json.gz, for queues' names.")

HISTORY = option(
    "--provenance-repository",
    "history",
    multiple=True,
    metavar="DIR",
    help="With --flowfile-repository, a directory of the provenance repository.",
)
NO_HISTORY = option(
    "--no-provenance",
    "no_history",
    is_flag=True,
    help="With --flowfile-repository, say that NiFi keeps no provenance, or only in memory.",
)
REPLAY = option(
    "--replay",
    type=click.Choice(["keep", "refuse"]),
    default="keep",
    help="Keep content that provenance events name, or set the events aside, so that NiFi offers no replay.",
)
REWRITE = option("--rewrite", is_flag=True, help="Then bring together what lives in files of which little is left.")
NOT_RUNNING = option(
    "--not-running",
    is_flag=True,
    help="Say that no NiFi has these repositories open, although their journal was not closed.",
)


@click.group(cls=Group)
def nifi() -> None:
    """Read the repositories of an Apache NiFi, 1.16 to 2.11, where they lie, and give back what is dead in them.

    Only `reclaim` and `undo` change anything, and only while NiFi is stopped.

    CONF is NiFi's nifi.properties, the folder that it is in, or the one in which NiFi was unpacked.
    """


@nifi.command()
@click.argument("conf", required=False)
@option("--files", "listed", type=click.IntRange(0, 100_000), default=10, help="How many of the worst files are shown.")
@json_output
@FLOWFILES
@CONTAINERS
@FLOW
def survey(
    conf: str | None,
    listed: int,
    as_json: bool,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    flow: str,
) -> None:
    """Show what holds the disk of a NiFi, running or stopped: live and dead content, by queue, age, size and file.

    NiFi keeps many contents in one file, and the file until the last FlowFile is gone that refers to any of them. In a
    queue's row `dead` is what else lies in the files of its FlowFiles, and `alone` what comes back when this queue is
    emptied. The FlowFiles are those of one moment of NiFi's, named by its transaction.
    """
    from ullage.clock import Clock
    from ullage.nifi.surveying import survey_nifi

    found = survey_nifi(_home(conf, flowfile_repository, dict(containers), flow), Clock(), listed)
    if as_json:
        print_json(msgspec.to_builtins(found) | {"ratio": found.space.ratio})
    else:
        _print(found)
    end(found.damages, "what is dead here may be theirs")


@nifi.command()
@click.argument("conf", required=False)
@option(
    "--listen",
    required=True,
    metavar="HOST:PORT",
    help="The address at which Prometheus finds the metrics, such as 127.0.0.1:9464.",
)
@option("--every", type=DURATION, default="60s", help="The time between two looks at the repositories.")
@option(
    "--queues",
    type=click.IntRange(0, 1_000),
    default=20,
    help="The number of queues that have series of their own; the others share one.",
)
@FLOWFILES
@CONTAINERS
@FLOW
def watch(
    conf: str | None,
    listen: str,
    every: int,
    queues: int,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    flow: str,
) -> None:
    """Survey a NiFi every minute, running or stopped, and serve what holds its disk as metrics for Prometheus.

    Nothing is changed or locked. A survey that fails, or is slow, is told by a metric, and the next one is made all the
    same. Whoever reaches the address sees the names of queues, and nothing of what is in FlowFiles.
    """
    from ullage_agent.cli import nifi_watch

    home = None if flowfile_repository is None else _home(conf, flowfile_repository, dict(containers), flow)
    if home is None and conf is None:
        _home(conf, flowfile_repository, dict(containers), flow)  # says what is missing
    address = nifi_watch.AddressOption().convert(listen, None, None)
    find = (lambda: home) if home is not None else (lambda: _home(conf, None, dict(containers), flow))
    nifi_watch.watch(find, address, queues, every / 1_000)


@nifi.command()
@click.argument("conf", required=False)
@option(
    "--free",
    "goal",
    type=SIZE,
    metavar="SIZE",
    help="Show the fewest FlowFiles whose leaving frees this much, such as 10Gi.",
)
@option(
    "--tails",
    is_flag=True,
    help="With --free: count dead ends of files too, which NiFi 2.10 and later may cut off (see docs/nifi.md).",
)
@option("--files", type=click.IntRange(0, 100_000), default=10, help="The number of files that are shown.")
@option(
    "--flowfiles",
    type=click.IntRange(0, 1_000_000),
    default=5,
    help="The number of FlowFiles of each file that are shown.",
)
@option(
    "--parquet", type=FILE, metavar="FILE", help="Write all FlowFiles that pin a file to this new file, a row each."
)
@option(
    "--html", type=FILE, metavar="FILE", help="Write what is told to this new file, a page that needs nothing else."
)
@json_output
@FLOWFILES
@CONTAINERS
@FLOW
def pins(
    conf: str | None,
    goal: int | None,
    tails: bool,
    files: int,
    flowfiles: int,
    parquet: Path | None,
    html: Path | None,
    as_json: bool,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    flow: str,
) -> None:
    """Show which FlowFiles pin the disk of a NiFi, and which have to leave for room. Nothing is changed or locked.

    For the files with the most dead bytes, the FlowFiles that hold them: uuid, file name, queue, how long they have
    waited there, and where they lie in the file. For each queue, what comes back once it is empty.
    """
    from ullage.clock import Clock
    from ullage.nifi.surveying import pins_of_nifi
    from ullage_agent.cli import nifi_page, nifi_pins

    if tails and goal is None:
        raise click.UsageError("--tails goes with --free")
    if goal is not None and goal < 1:
        raise click.UsageError("--free is for a byte at least")
    found = pins_of_nifi(_home(conf, flowfile_repository, dict(containers), flow), Clock())
    freeing = None if goal is None else found.plan.free(goal, tails=tails)
    if parquet is not None:
        with _new(parquet) as file:
            nifi_pins.write_parquet(found, freeing, file)
    if html is not None:
        with _new(html) as file:
            for piece in nifi_page.page(found, freeing, files=files, flowfiles=flowfiles, tails=tails):
                file.write(piece.encode())
    if as_json:
        sys.stdout.writelines(nifi_pins.json_pieces(found, freeing, files=files, flowfiles=flowfiles, tails=tails))
    elif parquet is None and html is None:
        nifi_pins.print_pins(found, freeing, files=files, flowfiles=flowfiles, tails=tails)
    else:
        tell(f"Written to {' and '.join(str(path) for path in (parquet, html) if path is not None)}")
    end(found.damages, "these files may have more of them")


@nifi.command()
@click.argument("conf", required=False)
@REPLAY
@REWRITE
@option("--files", type=click.IntRange(0, 100_000), default=10, help="The number of files that are shown.")
@json_output
@FLOWFILES
@CONTAINERS
@HISTORY
@NO_HISTORY
def plan(
    conf: str | None,
    replay: str,
    rewrite: bool,
    files: int,
    as_json: bool,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    history: tuple[str, ...],
    no_history: bool,
) -> None:
    """Show what `reclaim` would give back, how, and what it would leave alone. Nothing is changed or locked.

    No FlowFile has to leave for it. Beside a NiFi that runs, it tells what would come back if that stopped now.
    """
    from ullage.clock import Clock
    from ullage.nifi.reclaimplan import Replays, plan_reclaim
    from ullage.nifi.rewriteplan import figures_of, plan_rewrite
    from ullage.nifi.rooms import MARGIN, is_taken, repository_size
    from ullage.nifi.seeing import see_nifi
    from ullage_agent.cli import nifi_reclaim

    home = _home_with_history(conf, flowfile_repository, dict(containers), history, is_without=no_history)
    seen, damages = see_nifi(home, Clock(), Replays(replay), is_rewriting=rewrite)
    found = plan_reclaim(seen)
    more = None
    if rewrite:
        moves = plan_rewrite(seen, found.steps, home.appendable, None, is_taken(home))
        more = figures_of(seen, found.steps, moves, repository_size(home.flowfiles) + MARGIN)
    if as_json:
        print_json(nifi_reclaim.plan_document(found) | {"rewrite": msgspec.to_builtins(more)})
    else:
        nifi_reclaim.print_plan(found, files, more)
    nifi_reclaim.end(damages, found.doubts)


@nifi.command()
@click.argument("conf", required=False)
@REPLAY
@REWRITE
@option("--save", "copies", type=FILE, metavar="DIR", help="Copy what is given back to this folder, on another disk.")
@option("--for-good", is_flag=True, help="Keep no copies: what is given back can't be taken back.")
@NOT_RUNNING
@json_output
@FLOWFILES
@CONTAINERS
@HISTORY
@NO_HISTORY
def reclaim(
    conf: str | None,
    replay: str,
    rewrite: bool,
    copies: Path | None,
    for_good: bool,
    not_running: bool,
    as_json: bool,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    history: tuple[str, ...],
    no_history: bool,
) -> None:
    """Give back what is dead in the files of a stopped NiFi, as `plan` shows it. No FlowFile changes.

    With --rewrite, what lives then moves out of files of which it is a small part: to new files, which NiFi's FlowFile
    repository names afterwards. That needs some free room for a while, and does as much at once as there is room for.

    What is changed is written down first, beside the FlowFile repository: whatever interrupts this, saying it again
    finishes it. With --save, `ullage nifi undo` takes it back, until NiFi is started again.
    """
    from ullage.clock import Clock
    from ullage.nifi.reclaiming import NiFiReclaimer
    from ullage.nifi.reclaimplan import Replays
    from ullage_agent.cli import nifi_reclaim

    if (copies is None) is not for_good:
        raise click.UsageError("say --save DIR, or --for-good if nothing has to be taken back")
    home = _home_with_history(conf, flowfile_repository, dict(containers), history, is_without=no_history)
    if copies is not None:
        nifi_reclaim.refuse_same_disk(copies, home)
    reclaimer = NiFiReclaimer(home, Clock(), is_assured=not_running)
    report = reclaimer.reclaim(Replays(replay), str(copies) if copies is not None else "", is_rewriting=rewrite)
    nifi_reclaim.print_report(report, as_json=as_json)


@nifi.command()
@click.argument("conf", required=False)
@NOT_RUNNING
@json_output
@FLOWFILES
@CONTAINERS
@HISTORY
@NO_HISTORY
def undo(
    conf: str | None,
    not_running: bool,
    as_json: bool,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    history: tuple[str, ...],
    no_history: bool,
) -> None:
    """Take the last `reclaim --save` back, every byte, as long as NiFi was not started since.

    With --rewrite, it and what was reclaimed before it since NiFi stopped.
    """
    from ullage.clock import Clock
    from ullage.nifi.reclaiming import NiFiReclaimer
    from ullage_agent.cli import nifi_reclaim

    home = _home_with_history(conf, flowfile_repository, dict(containers), history, is_without=no_history)
    nifi_reclaim.print_report(NiFiReclaimer(home, Clock(), is_assured=not_running).undo(), as_json=as_json)


@nifi.command("import")
@click.argument("places", nargs=-1, metavar="[CONF] TARGET", required=True)
@option("--dry-run", is_flag=True, help="Change nothing, and show what would come and what would be left out.")
@NOT_RUNNING
@json_output
@FLOWFILES
@CONTAINERS
@FLOW
def import_(
    places: tuple[str, ...],
    dry_run: bool,
    not_running: bool,
    as_json: bool,
    flowfile_repository: str | None,
    containers: tuple[tuple[str, str], ...],
    flow: str,
) -> None:
    """Bring the FlowFiles of a stopped NiFi into the repository of the directory TARGET, which is made if need be.

    With their uuids, attributes, dates and contents, and in their order, into queues named as NiFi's are. A content
    that FlowFiles share is stored once. NiFi's files are only read. Whatever interrupts this, saying it again
    goes on where it was; said once more, it brings nothing twice.
    """
    from ullage.embedded.nifiimport import NiFiSource
    from ullage_agent.cli import nifi_import

    if len(places) > 2:
        raise click.UsageError("one CONF and one TARGET, please")
    conf = places[0] if len(places) == 2 else None
    target = Path(places[-1])
    home = _home(conf, flowfile_repository, dict(containers), flow)
    with bar("Reading NiFi", None, is_bytes=False):
        source = NiFiSource(home, is_assured=not_running)
    if dry_run:
        nifi_import.print_preview(source, as_json=as_json)
    else:
        nifi_import.print_report(nifi_import.bring(source, target), target, as_json=as_json)


@contextmanager
def _new(path: Path) -> Iterator[IO[bytes]]:
    """A file that was not there; what could not be written whole is removed: disks are full where this is called."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise click.UsageError(f"{path} is there already") from None
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _home(conf: str | None, flowfiles: str | None, containers: dict[str, str], flow: str) -> NiFiHome:
    from ullage.nifi.home import NiFiHome, find_home

    if conf is not None and flowfiles is None and not containers:
        return find_home(conf)
    if conf is not None or flowfiles is None or not containers:
        raise click.UsageError("name CONF, or --flowfile-repository and a --content-repository for each container")
    for path in containers.values():
        if not os.path.isdir(path):
            raise click.UsageError(f"{path} is no directory")
    return NiFiHome(flowfiles, containers, flow)


def _home_with_history(
    conf: str | None, flowfiles: str | None, containers: dict[str, str], history: tuple[str, ...], *, is_without: bool
) -> NiFiHome:
    """The same, and where provenance events are: what is dead may be named there."""
    home = _home(conf, flowfiles, containers, "")
    if conf is not None:
        if history or is_without:
            raise click.UsageError("CONF says where provenance events are")
        return home
    if bool(history) is is_without:
        raise click.UsageError("name each --provenance-repository, or say --no-provenance")
    for path in history:
        if not os.path.isdir(path):
            raise click.UsageError(f"{path} is no directory")
    return msgspec.structs.replace(home, provenance=history)


def _print(found: NiFiSurvey) -> None:
    space = found.space
    use = "in use" if found.is_in_use else "at rest"
    tell(
        f"{many(found.flowfiles, 'FlowFile')} in {many(len(found.queues), 'queue')} at transaction "
        f"{found.transaction}, {moment(found.millis)}, {use}"
    )
    ratio = f", {space.ratio:.1f} times as much" if space.ratio is not None else ""
    tell(f"{size(space.allocated)} on disk for {size(space.live)} of live content{ratio}")
    tell("")
    uses = [(use.replace("_", " "), size(getattr(space, use)), meaning) for use, meaning in USES.items()]
    print_table(("use", ">bytes", "what it is"), uses, ("", size(space.size), many(space.files, "file")))
    if found.missing:
        tell(f"Not on disk: {size(found.missing_bytes)} of the content of {many(found.missing, 'FlowFile')}")
    tell("")
    print_rows(
        ("queue", ">FlowFiles", ">bytes", ">files", ">dead", ">alone", "oldest"),
        [
            (
                *(each.name, f"{each.flowfiles:,}", size(each.size), f"{each.files:,}"),
                *(size(each.dead), size(each.alone), moment(each.oldest_millis)),
            )
            for each in found.queues
        ],
    )
    tell("")
    print_table(("held by FlowFiles", ">FlowFiles", ">bytes", ">files", ">dead"), _bands(found))
    if found.files:
        tell("")
        print_rows(
            ("file", ">bytes", ">live", ">dead", ">FlowFiles", ">largest", "oldest", "queues"),
            [
                (
                    *(each.file, size(each.size), size(each.live), size(each.dead_middles + each.dead_tails)),
                    *(f"{each.flowfiles:,}", size(each.largest), moment(each.oldest_millis), ", ".join(each.queues)),
                )
                for each in found.files
            ],
        )


def _bands(found: NiFiSurvey) -> Iterator[tuple[str, ...]]:
    """Files by the FlowFile that waits longest, then by the largest one."""

    def row(title: str, band: Band) -> tuple[str, ...]:
        counts = (f"{band.flowfiles:,}", size(band.size), f"{band.files:,}", size(band.dead))
        return f"{title}: {band.name}", *counts

    yield from (row("waiting", band) for band in found.ages)
    yield from (row("size", band) for band in found.sizes)
