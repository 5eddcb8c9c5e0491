"""`ullage demo`: the engine's main job on real files, with an oracle outside of it.

The SHA-256 of everything is taken from the files; a second process writes and is killed; what it had acknowledged on a
pipe must be there. Nothing that the repository says of itself is believed without it.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ullage_agent.cli import demo_files
from ullage_agent.cli.choice import Json, opened_spec
from ullage_agent.cli.demo_files import LARGE_BYTES, Oracle, ingest
from ullage_agent.cli.demo_serve import serve_demo
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.figures import survey_document, survey_table
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar, console, many, print_json, say, size, table, visible
from ullage_agent.cli.sources import Source
from ullage_agent.contract import (
    Archive,
    Container,
    ContentRepository,
    ContentRepositorySpec,
    HostPath,
    Metadata,
    Quantity,
    Storage,
    dump,
    load_yaml,
)
from ullage_agent.engine.check import CheckReport
from ullage_agent.engine.model import Action, FlowFile
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.session import ProcessSession

UNPACED = 1 << 40
"""Bytes a second: nobody else uses the repository of a demo."""

INDENT = (0, 0, 0, 3)
CAPACITY_MIN_BYTES = 1 << 30
MARKER = ".made-by-ullage-demo"
WRITER_COMMAND = "demo-writer"

SESSION_FILES = 100
ROUTED_AT_ONCE = 1_000
CLONED, SPLIT, MERGED = 20, 20, 40
"""FlowFiles that are cloned, split and merged."""

WRITER_FILES_MAX = 40
"""Files in one transaction of the process that gets killed."""

INBOX, BULK, CRASH = "inbox", "bulk", "crash"
QUEUE_OF_SUFFIX = {".py": "source", ".pyc": "compiled"}
OTHER = "other"
DROPPED = (BULK, "compiled")


@dataclass(slots=True)
class Outcome:
    """What was done and what was found."""

    files: int = 0
    bytes: int = 0
    dropped: int = 0
    freed_bytes: int = 0
    surveys: dict[str, Any] = field(default_factory=dict)
    kills: int = 0
    acknowledged: int = 0
    replayed: int = 0
    unacknowledged: int = 0
    orphans: int = 0
    verified: int = 0
    verified_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def demo(
    directory: Annotated[Path, typer.Option("--dir", help="A folder that does not exist yet.")] = Path("demo"),
    tree: Annotated[
        Path | None,
        typer.Option(help="Files to ingest; default: the standard library of this Python.", show_default=False),
    ] = None,
    large_mb: Annotated[int, typer.Option(min=0, help="Size of one more file, made for the demo.")] = 300,
    kills: Annotated[int, typer.Option(min=0, help="How often a writing process is killed.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder, to look around in it.")] = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Then serve it: until Ctrl-C on a terminal, else for a moment."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Ingest real files, route, clone, split, merge, drop, truncate, get killed, recover, and verify every byte."""
    if tree is not None and not tree.is_dir():
        raise typer.BadParameter(f"{tree} is not a directory", param_hint="--tree")
    started = time.monotonic()
    folder = make_folder(directory)
    run = _Demo(folder, console(stderr=as_json))
    is_kept = True
    try:
        outcome = run.play(tree, large_mb << 20, kills)
        if serve and not outcome.problems:
            serve_demo(folder / "repository.yaml")
        is_kept = keep or bool(outcome.problems)
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder)
    seconds = time.monotonic() - started
    if as_json:
        print_json({name: getattr(outcome, name) for name in Outcome.__slots__} | {"seconds": round(seconds, 1)})
    if is_kept:
        say(f"look around: ullage ls --config {folder / 'repository.yaml'}")
    if outcome.problems:
        raise typer.Exit(ExitCode.PROBLEMS)
    run.screen.print(_summary(outcome, seconds), style="bold green")


def make_folder(directory: Path) -> Path:
    """A fresh folder. One that an earlier demo left is replaced, any other one is left alone."""
    folder = directory.absolute()
    if os.path.lexists(folder):
        if not (folder / MARKER).is_file():
            raise typer.BadParameter(
                f"{directory} exists and was not made by the demo: name another with --dir", param_hint="--dir"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return folder


class _Demo:
    """The story, step by step; each step adds to `outcome`."""

    def __init__(self, folder: Path, screen: Console) -> None:
        self.screen = screen
        self._folder = folder
        self._oracle = Oracle()
        self._outcome = Outcome()
        self._spec = ContentRepositorySpec()
        self._config = folder / "repository.yaml"

    def play(self, tree: Path | None, large_bytes: int, kills: int) -> Outcome:
        """All of it."""
        self._step(1, "Files")
        sources = self._gather(tree, large_bytes)
        self._initialize(sum(source.size for source in sources))
        with opened_spec(self._spec) as repository:
            self._step(2, "Ingest, route, clone, split, merge")
            self._ingest(repository, sources)
            self._route(repository)
            self._reshape(repository, {source.attributes["filename"]: source for source in sources})
            self._show_queues(repository)
            self._step(3, "Drop")
            self._drop(repository)
            self._show_space(repository, "dropped")
            self._step(4, "Give the space back")
            self._reclaim(repository)
            self._show_space(repository, "truncated")
            self._rewrite(repository)
            self._show_space(repository, "rewritten")
        self._step(5, f"Kill a writing process, {kills} times")
        self._write_list(sources)
        for number in range(kills):
            self._kill(number)
        self._step(6, "Check, and read everything back")
        with opened_spec(self._spec) as repository:
            self._check(repository)
            self._read_back(repository)
        for problem in self._outcome.problems:
            self.screen.print(f"   MISMATCH: {problem}", style="bold red", soft_wrap=True)
        return self._outcome

    def _step(self, number: int, text: str) -> None:
        self.screen.print(f"\n{number}  {text}", style="bold cyan")

    def _tell(self, text: str) -> None:
        self.screen.print(Padding(visible(text), INDENT, expand=False))

    def _show(self, made: Table) -> None:
        self.screen.print("", made, "", sep="\n")

    def _gather(self, tree: Path | None, large_bytes: int) -> list[Source]:
        sources = demo_files.tree_files(str(tree)) if tree else demo_files.library_files()
        total = sum(source.size for source in sources)
        large = sum(source.size >= LARGE_BYTES for source in sources)
        origin = str(tree) if tree else "the standard library of this Python"
        self._tell(
            f"{len(sources):,} files of {origin}, {size(total)}; {large:,} of them are {size(LARGE_BYTES)} or more"
        )
        if large_bytes:
            with bar("   Making a large file", large_bytes) as progress:
                path = str(self._folder / "large.bin")
                sources.insert(len(sources) // 2, demo_files.make_large_file(path, large_bytes, progress.advance))
            self._tell(f"one more of {size(large_bytes)}, made here from random bytes")
        return sources

    def _initialize(self, total_bytes: int) -> None:
        """Make the repository: with a quota, so that percentages are its own, and without an archive, so that space
        comes back at once.
        """
        capacity = max(CAPACITY_MIN_BYTES, 2 * total_bytes)
        self._spec = ContentRepositorySpec(
            storage=Storage(
                host_path=HostPath(path=str(self._folder / "repository")),
                containers=(Container(name="c1", sub_path="c1", capacity=Quantity(capacity)),),
            ),
            archive=Archive(enabled=False),
        )
        document = dump(ContentRepository(metadata=Metadata(name="demo"), spec=self._spec))
        self._config.write_text(json.dumps(document, indent=2), encoding="utf-8")  # JSON is YAML
        Repository.initialize(self._spec)

    def _ingest(self, repository: Repository, sources: list[Source]) -> None:
        started = time.monotonic()
        total = sum(source.size for source in sources)
        with bar("   Ingesting", total) as progress:
            for first in range(0, len(sources), SESSION_FILES):
                with repository.session() as session:
                    found = ingest(session, sources[first : first + SESSION_FILES], INBOX, progress.advance)
                for uuid, sha256 in found.items():
                    self._oracle.expect(uuid, sha256, INBOX)
                interrupts.check()
        self._outcome.files, self._outcome.bytes = len(self._oracle.sha256), total
        seconds = time.monotonic() - started
        commits = -(-len(sources) // SESSION_FILES)
        self._tell(
            f"ingested {self._outcome.files:,} files in {commits:,} durable commits, {seconds:.1f} s, "
            f"{size(int(total / seconds))}/s"
        )

    def _route(self, repository: Repository) -> None:
        """By size and by the attribute `suffix`."""
        while True:
            with repository.session() as session:
                flow_files = session.get_many(INBOX, ROUTED_AT_ONCE)
                if not flow_files:
                    return
                for flow_file in flow_files:
                    suffix = flow_file.attribute_map()["suffix"]
                    queue = BULK if flow_file.size >= LARGE_BYTES else QUEUE_OF_SUFFIX.get(suffix, OTHER)
                    session.transfer(flow_file, queue)
                    self._oracle.queue[flow_file.id] = queue
                session.commit()
            interrupts.check()

    def _reshape(self, repository: Repository, sources: dict[str, Source]) -> None:
        """Clone some of what will be dropped, split and merge some of what stays."""
        with repository.session() as session:
            clones = self._clone(session)
            pieces = self._split(session)
            merged = self._merge(session)
            session.commit()
        self._tell(f"cloned {clones:,}, split {pieces[0]:,} into {pieces[1]:,} slices, merged {merged:,} into one")

    def _clone(self, session: ProcessSession) -> int:
        originals = session.get_by(BULK, lambda record: record.size < 1 << 20, CLONED)
        for original in originals:
            clone = session.clone(original)
            session.transfer(clone, "clones")
            session.transfer(original, BULK)
            self._oracle.expect(clone.id, self._oracle.sha256[original.id], "clones")
        return len(originals)

    def _split(self, session: ProcessSession) -> tuple[int, int]:
        originals = session.get_by("source", lambda record: record.size >= 3, SPLIT)
        slices = 0
        for original in originals:
            data = self._original_bytes(original)
            third = original.size // 3
            sizes = [third, third, original.size - 2 * third]
            start = 0
            for piece, length in zip(session.split(original, sizes), sizes, strict=True):
                session.transfer(piece, "pieces")
                self._oracle.expect(piece.id, hashlib.sha256(data[start : start + length]).hexdigest(), "pieces")
                start += length
                slices += 1
            session.remove(original)
            self._oracle.forget([original.id])
        return len(originals), slices

    def _merge(self, session: ProcessSession) -> int:
        originals = session.get_many(OTHER, MERGED)
        if not originals:
            return 0
        merged = session.merge(originals, demarcator=b"\n")
        data = b"\n".join(self._original_bytes(original) for original in originals)
        session.transfer(merged, "merged")
        session.remove_many(originals)
        self._oracle.forget(original.id for original in originals)
        self._oracle.expect(merged.id, hashlib.sha256(data).hexdigest(), "merged")
        return len(originals)

    def _original_bytes(self, flow_file: FlowFile) -> bytes:
        """A file's bytes from where it came from, not from the repository."""
        attributes = flow_file.attribute_map()
        data = Path(attributes["absolute.path"], attributes["filename"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != self._oracle.sha256[flow_file.id]:
            raise typer.BadParameter(f"{attributes['filename']} changed while the demo ran: choose another --tree")
        return data

    def _show_queues(self, repository: Repository) -> None:
        figures = [(queue.name, queue.figures()) for queue in repository.queues.all()]
        rows = [(name, f"{found.flow_files:,}", size(found.size_bytes)) for name, found in figures if found.flow_files]
        self._show(table(("queue", ">FlowFiles", ">content"), rows))

    def _drop(self, repository: Repository) -> None:
        for name in DROPPED:
            queue = repository.queue(name)
            figures = queue.figures()
            with bar(f"   Dropping {name}", figures.flow_files, is_bytes=False) as progress:
                dropped = repository.queues.drop(queue, progress.reach)
            self._outcome.dropped += dropped
            self._oracle.forget_queue(name)
            self._tell(f"dropped {dropped:,} FlowFiles of queue {name}, {size(figures.size_bytes)}")
            interrupts.check()

    def _show_space(self, repository: Repository, moment: str) -> None:
        taken = repository.reclamation.survey()
        allocated = sum(
            os.stat(path).st_blocks * 512
            for container in repository.content.containers.values()
            for path in container.content_files()
        )
        self._outcome.surveys[moment] = survey_document(taken) | {"allocated_bytes": allocated}
        self._show(survey_table(survey_document(taken)))
        self._tell(f"the filesystem says: {size(allocated)} allocated to content files")

    def _reclaim(self, repository: Repository) -> None:
        plan = repository.reclamation.plan_truncation(eager=True)
        with bar("   Truncating", len(plan.steps) or None, is_bytes=False) as progress:
            report = repository.reclamation.execute(plan, on_progress=lambda steps, _: progress.reach(steps))
        cut = report.done.get(Action.TRUNCATE, 0)
        self._tell(f"cut {cut:,} dead tails off resource claims that are still in use: {size(report.freed_bytes)}")
        cleaned = repository.reclamation.clean()
        deleted = cleaned.done.get(Action.DELETE, 0)
        self._tell(f"deleted {deleted:,} resource claims that nobody uses: {size(cleaned.freed_bytes)}")
        self._outcome.freed_bytes = report.freed_bytes + cleaned.freed_bytes

    def _rewrite(self, repository: Repository) -> None:
        """What stays dead lies between live content."""
        compactor = repository.reclamation.compactor
        plan = compactor.plan(policy="CompactAll")
        with bar("   Rewriting", len(plan.steps) or None, is_bytes=False) as progress:
            ticket = repository.reclamation.ticket(None, lambda: interrupts.is_pending)
            report = compactor.execute(plan, ticket, UNPACED, lambda steps, _: progress.reach(steps))
        self._tell(
            f"rewrote {report.done.get(Action.REWRITE, 0):,} resource claims, whose dead bytes lay between live ones: "
            f"{size(report.freed_bytes)} for {size(report.copied_bytes)} copied"
        )
        self._outcome.freed_bytes += report.freed_bytes

    def _write_list(self, sources: list[Source]) -> None:
        """What the writer shall ingest: not the one huge file, so that it commits often."""
        listed = [source for source in sources if source.size < 8 << 20]
        (self._folder / "files.json").write_text(json.dumps(listed), encoding="utf-8")

    def _kill(self, number: int) -> None:
        acknowledged = self._run_writer(number)
        if not acknowledged:
            return
        for uuid, sha256 in acknowledged.items():
            self._oracle.expect(uuid, sha256, CRASH)
        started = time.monotonic()
        with opened_spec(self._spec) as repository:
            seconds = time.monotonic() - started
            report = repository.restored
        torn = sum(tail.length for tail in report.torn)
        self._outcome.kills += 1
        self._outcome.acknowledged += len(acknowledged)
        self._outcome.replayed += report.transactions
        self._tell(
            f"SIGKILL after {len(acknowledged):,} acknowledged files; reopened in {seconds:.2f} s: "
            f"{report.transactions:,} transactions replayed, {size(torn)} of torn log cut off, "
            f"{len(report.discarded):,} discarded"
        )

    def _run_writer(self, number: int) -> dict[str, str]:
        """Start a writer and kill it at some moment; what it had acknowledged by then."""
        arguments = ["-P", "-m", "ullage_agent", WRITER_COMMAND, str(self._config), str(self._folder / "files.json")]
        log = self._folder / f"writer-{number}.log"
        patience = random.randint(50, 600)  # noqa: S311 - any moment will do
        acknowledged: dict[str, str] = {}
        with (
            log.open("wb") as errors,
            subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=errors) as writer,
            bar("   Writing", patience, is_bytes=False) as progress,
        ):
            assert writer.stdout is not None
            try:
                for line in writer.stdout:
                    if not line.endswith(b"\n"):
                        break  # cut off by the kill: not acknowledged
                    uuid, sha256 = line.decode().split()
                    acknowledged[uuid] = sha256
                    progress.advance(1)
                    if len(acknowledged) == patience:
                        time.sleep(random.random() / 50)  # noqa: S311 - somewhere inside a later commit
                        writer.kill()
            finally:
                writer.kill()
        if len(acknowledged) < patience:
            text = log.read_text(encoding="utf-8", errors="replace").strip()
            self._outcome.problems.append(f"writer {number} ended by itself ({writer.returncode}): {text}")
        return acknowledged

    def _check(self, repository: Repository) -> None:
        with bar("   Checking", None) as progress:
            report: CheckReport = repository.check(deep=True, on_progress=progress.reach)
        self._outcome.problems.extend(report.problems)
        self._outcome.orphans = len(report.orphans)
        self._tell(
            f"check --deep: {report.flow_files:,} FlowFiles, {report.resource_claims:,} resource claims, "
            f"{size(report.bytes_verified)} against their CRC-32C: {len(report.problems):,} problems"
        )
        if report.orphans:
            self._tell(f"{many(len(report.orphans), 'content file')} of unfinished transactions: kept, in nobody's way")

    def _read_back(self, repository: Repository) -> None:
        """Every FlowFile of every queue against its SHA-256: nothing missing, nothing that should be gone."""
        missing = dict(self._oracle.sha256)
        figures = [queue.figures() for queue in repository.queues.all()]
        total = sum(found.size_bytes for found in figures)
        with bar("   Reading back", total) as progress, ExitStack() as sessions, interrupts.allowed():
            for queue in repository.queues.all():
                session = sessions.enter_context(repository.session())
                while flow_files := session.get_many(queue.name, ROUTED_AT_ONCE):
                    for flow_file in flow_files:
                        self._compare(session, flow_file, queue.name, missing.pop(flow_file.id, None))
                        progress.advance(flow_file.size)
        self._outcome.problems.extend(f"{uuid} is missing from {self._oracle.queue[uuid]}" for uuid in missing)
        unacknowledged = self._outcome.unacknowledged
        self._tell(
            f"{self._outcome.verified:,} FlowFiles, {size(self._outcome.verified_bytes)}, read back equal to their "
            f"SHA-256; {len(missing):,} missing"
        )
        if unacknowledged:
            self._tell(f"{unacknowledged:,} more were committed, but killed before they could say so")

    def _compare(self, session: ProcessSession, flow_file: FlowFile, queue: str, sha256: str | None) -> None:
        outcome = self._outcome
        found = hashlib.sha256()
        with session.read(flow_file) as content:
            for piece in content:
                found.update(piece)
        if sha256 is None and queue == CRASH:
            outcome.unacknowledged += 1
        elif sha256 is None:
            outcome.problems.append(f"{flow_file.id} in queue {queue} should be gone")
        elif queue != self._oracle.queue[flow_file.id]:
            outcome.problems.append(f"{flow_file.id} is in {queue}, not in {self._oracle.queue[flow_file.id]}")
        elif found.hexdigest() != sha256:
            outcome.problems.append(f"{flow_file.id} in queue {queue} has another SHA-256")
        else:
            outcome.verified += 1
            outcome.verified_bytes += flow_file.size


def writer(config: Path, files: Path) -> None:
    """Ingest files for ever, and say uuid and SHA-256 of each once it is committed."""
    sources = [Source(*fields) for fields in json.loads(files.read_text(encoding="utf-8"))]
    at = random.randrange(len(sources))  # noqa: S311 - another place each time
    with opened_spec(load_yaml(config.read_text(encoding="utf-8")).spec) as repository:
        while True:
            count = random.randint(1, WRITER_FILES_MAX)  # noqa: S311 - commits of all sizes
            with repository.session() as session:
                found = ingest(session, sources[at : at + count], CRASH, lambda _: None)
            at = at + count if at + count < len(sources) else 0
            sys.stdout.write("".join(f"{uuid} {sha256}\n" for uuid, sha256 in found.items()))
            sys.stdout.flush()
            interrupts.check()


def _summary(outcome: Outcome, seconds: float) -> str:
    before = outcome.surveys["dropped"]["totals"]["disk_to_live"]
    after = outcome.surveys["rewritten"]["totals"]["disk_to_live"]
    ratios = f", disk/live from {before:.2f} to {after:.2f}" if before and after else ""
    return (
        f"\nProven in {seconds:.0f} s: of {outcome.files:,} files ({size(outcome.bytes)}) {outcome.dropped:,} were "
        f"dropped and {size(outcome.freed_bytes)} given back{ratios}; after {outcome.kills} SIGKILLs all "
        f"{outcome.acknowledged:,} acknowledged files were there, and all {outcome.verified:,} FlowFiles read back "
        "equal to their SHA-256."
    )
