"""`ullage demo`: the engine's main job on real files, with an oracle outside of it.

The SHA-256 of everything is taken from the files; a second process writes and is killed; what it had acknowledged on a
pipe must be there. Nothing that the repository says of itself is believed without it.
"""

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

import ullage
from ullage import FlowFile, Repository, Session
from ullage.wire.space import RunReport
from ullage.wire.upkeep import RecoveryReport
from ullage_agent.cli.choice import opened_here, recovery_summary
from ullage_agent.cli.demo_files import LARGE_BYTES, ingest, library_files, make_folder
from ullage_agent.cli.demo_serve import serve_demo, service_sections
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.options import FILE, command, json_output, option
from ullage_agent.cli.output import bar, console, many, print_json, say, size, table, visible
from ullage_agent.cli.space import run_to_the_end, survey_document, survey_table
from ullage_agent.cli.trees import Source, source_of, walk

INDENT = (0, 0, 0, 3)
CAPACITY_MIN_BYTES = 1 << 30
WRITER_COMMAND = "demo-writer"

SESSION_FILES = 100
ROUTED_AT_ONCE = 1_000
CLONED, SPLIT, MERGED = 20, 20, 40
"""FlowFiles that are cloned, split and merged."""

GOAL = 1.1
"""Of disk/live: what compaction by itself is to hold."""

WRITER_FILES_MAX = 40
"""Files in one transaction of the process that gets killed."""

WRITER_BYTES_MAX = 1 << 20
"""Of a content that it writes."""

CONTAINER = "c1"
INBOX, BULK, CRASH = "inbox", "bulk", "crash"
QUEUE_OF_SUFFIX = {".py": "source", ".pyc": "compiled"}
OTHER = "other"
DROPPED = (BULK, "compiled")


class Held(NamedTuple):
    """What the repository holds, or must hold, under a uuid."""

    queue: str
    sha256: str


@dataclass(slots=True)
class Outcome:
    """What was done and what was found."""

    files: int = 0
    bytes: int = 0
    dropped: int = 0
    freed_bytes: int = 0
    surveys: dict[str, Any] = field(default_factory=dict)
    goal: dict[str, Any] = field(default_factory=dict)
    kills: int = 0
    acknowledged: int = 0
    unacknowledged: int = 0
    verified: int = 0
    verified_bytes: int = 0
    problems: list[str] = field(default_factory=list)


@command()
@option("--dir", "directory", type=FILE, default=Path("demo"), help="Work in this folder, which must not exist yet.")
@option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Ingest the files of this tree. The default is the standard library of this Python.",
)
@option(
    "--large-mb",
    type=click.IntRange(min=0),
    metavar="N",
    default=300,
    help="The size in MB of one more file, which is made for the demo.",
)
@option(
    "--kills", type=click.IntRange(min=0), metavar="N", default=3, help="How often a process that writes is killed."
)
@option("--keep", is_flag=True, help="Leave the folder there, to look around in it.")
@option(
    "--serve", is_flag=True, help="Serve the repository afterwards: until Ctrl-C on a terminal, otherwise for a moment."
)
@json_output
def demo(directory: Path, tree: Path | None, large_mb: int, kills: int, keep: bool, serve: bool, as_json: bool) -> None:
    """Ingest real files, drop, reclaim, get killed, recover, and verify every byte."""
    started = time.monotonic()
    folder = make_folder(directory)
    run = _Demo(folder, console(stderr=as_json))
    is_kept = True
    try:
        outcome = run.play(tree, large_mb, kills)
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
        print_json(asdict(outcome) | {"seconds": round(seconds, 1)})
    if is_kept:
        say(f"look around: ullage ls --config {folder / 'repository.yaml'}")
    if outcome.problems:
        raise click.exceptions.Exit(ExitCode.PROBLEMS)
    run.screen.print()
    run.screen.print(_summary(outcome, seconds), style="bold green")


class _Demo:
    """The story, step by step; each step adds to `outcome`."""

    def __init__(self, folder: Path, screen: Console) -> None:
        self.screen = screen
        self._folder = folder
        self._outcome = Outcome()
        self._config = folder / "repository.yaml"
        self._expected: dict[str, Held] = {}
        """The oracle: what must be found in the repository, known from the files alone."""

    def play(self, tree: Path | None, large_mb: int, kills: int) -> Outcome:
        """All of it."""
        self._step(1, "Files")
        sources = self._gather(tree, large_mb)
        self._initialize(sum(source.size for source in sources))
        with opened_here(self._config) as repository:
            self._step(2, "Ingest, route, clone, split, merge")
            self._ingest(repository, sources)
            self._route(repository)
            self._reshape(repository)
            self._show_queues(repository)
            self._step(3, "Drop")
            self._drop(repository)
            self._show_space(repository, "dropped")
            self._step(4, "Give the space back")
            self._reclaim(repository)
            self._show_space(repository, "truncated")
            self._rewrite(repository)
            self._show_space(repository, "rewritten")
            self._step(5, f"Hold a goal: disk/live at most {GOAL:g}")
            self._hold(repository)
        self._step(6, f"Kill a writing process, {kills} times")
        for number in range(kills):
            self._kill(number)
        self._step(7, "Check, and read everything back")
        with opened_here(self._config) as repository:
            self._check(repository)
            self._read_back(repository)
        for problem in self._outcome.problems:
            self.screen.print(f"   MISMATCH: {problem}", style="bold red", soft_wrap=True)
        return self._outcome

    def _step(self, number: int, text: str) -> None:
        self.screen.print()
        self.screen.print(f"{number}  {text}", style="bold cyan")

    def _tell(self, text: str) -> None:
        self.screen.print(Padding(visible(text), INDENT, expand=False))

    def _show(self, made: Table) -> None:
        self.screen.print("", made, "", sep="\n")

    def _gather(self, tree: Path | None, large_mb: int) -> list[Source]:
        sources = list(walk(str(tree), os.devnull, [])) if tree else library_files()
        total = sum(source.size for source in sources)
        origin = str(tree) if tree else "the standard library of this Python"
        self._tell(f"{len(sources):,} files of {origin}, {size(total)}")
        if large_mb:
            path = self._folder / "large.bin"
            with path.open("wb") as file:
                for _ in range(large_mb):
                    file.write(os.urandom(1 << 20))
            sources.insert(len(sources) // 2, source_of(str(path), ""))
            self._tell(f"one more of {size(large_mb << 20)}, made here from random bytes")
        return sources

    def _initialize(self, total_bytes: int) -> None:
        """Make the repository: with a quota, so that percentages are its own, and without an archive, so that space
        comes back at once.
        """
        container = {"name": CONTAINER, "subPath": CONTAINER, "capacity": max(CAPACITY_MIN_BYTES, 2 * total_bytes)}
        storage = {"hostPath": {"path": str(self._folder / "repository")}, "containers": [container]}
        limits = {"minUsedPercentage": 0, "minReclaim": 0, "maxLiveFraction": 0.99, "goal": {"diskToLive": GOAL}}
        spec = {"storage": storage, "archive": {"enabled": False}, "compaction": limits, **service_sections()}
        kind = {"apiVersion": "ullage.dev/v1alpha1", "kind": "ContentRepository"}
        document = {**kind, "metadata": {"name": "demo"}, "spec": spec}
        self._config.write_text(json.dumps(document, indent=2), encoding="utf-8")  # JSON is YAML
        ullage.initialize(config=self._config)

    def _ingest(self, repository: Repository, sources: list[Source]) -> None:
        started = time.monotonic()
        total = sum(source.size for source in sources)
        with bar("   Ingesting", total) as progress:
            for first in range(0, len(sources), SESSION_FILES):
                with repository.session() as session:
                    found = ingest(session, sources[first : first + SESSION_FILES], INBOX, progress.advance)
                self._expected |= {uuid: Held(INBOX, sha256) for uuid, sha256 in found.items()}
                interrupts.check()
        self._outcome.files, self._outcome.bytes = len(self._expected), total
        seconds = time.monotonic() - started
        commits = -(-len(sources) // SESSION_FILES)
        self._tell(
            f"ingested {self._outcome.files:,} files in {commits:,} durable commits, {seconds:.1f} s, "
            f"{size(int(total / seconds))}/s"
        )

    def _route(self, repository: Repository) -> None:
        """By size and by the attribute `suffix`."""
        with repository.session() as session:
            while flow_files := session.get_many(INBOX, ROUTED_AT_ONCE):
                for flow_file in flow_files:
                    suffix = flow_file.attributes["suffix"]
                    queue = BULK if flow_file.size >= LARGE_BYTES else QUEUE_OF_SUFFIX.get(suffix, OTHER)
                    session.transfer(flow_file, queue)
                    self._expected[flow_file.id] = self._expected[flow_file.id]._replace(queue=queue)
                session.commit()
                interrupts.check()

    def _reshape(self, repository: Repository) -> None:
        """Clone some of what will be dropped, split and merge some of what stays."""
        with repository.session() as session:
            cloned = [each for each in _borrowed(session, BULK, CLONED) if each.size < 1 << 20]
            for original in cloned:
                self._send(session, session.clone(original), "clones", self._bytes_of(original))
            split = [each for each in _borrowed(session, "source", SPLIT) if each.size >= 3]
            for original in split:
                data = io.BytesIO(self._bytes_of(original))
                third = original.size // 3
                for piece in session.split(original, [third, third, original.size - 2 * third]):
                    self._send(session, piece, "pieces", data.read(piece.size))
            merged = _borrowed(session, OTHER, MERGED)
            if merged:
                joined = b"\n".join(map(self._bytes_of, merged))
                self._send(session, session.merge(merged, demarcator=b"\n"), "merged", joined)
            session.commit()
        self._tell(
            f"cloned {len(cloned):,}, split {len(split):,} into {3 * len(split):,} slices, "
            f"merged {len(merged):,} into one"
        )

    def _send(self, session: Session, flow_file: FlowFile, queue: str, data: bytes) -> None:
        session.transfer(flow_file, queue)
        self._expected[flow_file.id] = Held(queue, hashlib.sha256(data).hexdigest())

    def _bytes_of(self, flow_file: FlowFile) -> bytes:
        """A file's bytes from where it came from, not from the repository."""
        attributes = flow_file.attributes
        data = Path(attributes["absolute.path"], attributes["filename"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != self._expected[flow_file.id].sha256:
            raise click.BadParameter(f"{attributes['filename']} changed while the demo ran: choose another --tree")
        return data

    def _show_queues(self, repository: Repository) -> None:
        found = [queue for queue in repository.queues.all() if queue.flow_files]
        rows = [(queue.name, f"{queue.flow_files:,}", size(queue.size_bytes)) for queue in found]
        self._show(table(("queue", ">FlowFiles", ">content"), rows))

    def _drop(self, repository: Repository) -> None:
        for queue in repository.queues.all():
            if queue.name in DROPPED:
                dropped = repository.queues.drop(queue.name)
                self._outcome.dropped += dropped
                self._expected = {uuid: held for uuid, held in self._expected.items() if held.queue != queue.name}
                self._tell(f"dropped {dropped:,} FlowFiles of queue {queue.name}, {size(queue.size_bytes)}")
                interrupts.check()

    def _show_space(self, repository: Repository, moment: str) -> None:
        taken = survey_document(repository.reclamation.survey().containers)
        files = (self._folder / "repository" / CONTAINER).rglob("[0-9]*-[0-9]*")
        allocated = sum(path.stat().st_blocks * 512 for path in files)
        self._outcome.surveys[moment] = taken | {"allocated_bytes": allocated}
        self._show(survey_table(taken))
        self._tell(f"the filesystem says: {size(allocated)} allocated to content files")

    def _reclaim(self, repository: Repository) -> None:
        report = self._run(repository, operations=["Truncate"])
        cut = report.done["truncate"]
        self._tell(f"cut {cut:,} dead tails off resource claims that are still in use: {size(report.freed_bytes)}")
        cleaned = repository.reclamation.clean().report
        self._tell(f"deleted {cleaned.done['delete']:,} resource claims that nobody uses: {size(cleaned.freed_bytes)}")
        self._outcome.freed_bytes += cleaned.freed_bytes

    def _rewrite(self, repository: Repository) -> None:
        """What stays dead lies between live content. Nobody else uses the disk's bandwidth here."""
        report = self._run(repository, policy="CompactAll", bytes_per_second=0)
        self._tell(
            f"rewrote {report.done['rewrite']:,} resource claims, whose dead bytes lay between live ones: "
            f"{size(report.freed_bytes)} for {size(report.copied_bytes)} copied"
        )

    def _hold(self, repository: Repository) -> None:
        """More dies, here and there; then the runs that a goal begins by itself while somebody serves."""
        with repository.session() as session:
            for queue in (OTHER, "source"):
                found = session.get_many(queue, ROUTED_AT_ONCE)
                session.transfer(found[1::2], queue)
                session.remove(found[::2])
                for flow_file in found[::2]:
                    del self._expected[flow_file.id]
            session.commit()
        repository.reclamation.clean()
        before = survey_document(repository.reclamation.survey().containers)["totals"]["disk_to_live"]
        report = run_to_the_end(repository, respects_guards=True, bytes_per_second=0).report
        assert report is not None
        after = survey_document(repository.reclamation.survey().containers)["totals"]["disk_to_live"]
        repository.reclamation.plan(respects_guards=True)  # which looks once more
        goal = repository.reclamation.goal()
        self._outcome.goal = {"before": before, "after": after, "will_miss": goal.will_miss}
        self._tell(
            f"half of two queues was removed, disk/live {before or 0:.2f}; the goal had {report.done['rewrite']:,} "
            f"resource claims rewritten, {size(report.copied_bytes)} copied: {after or 0:.2f}"
        )
        if goal.will_miss is not None or (after or 0) > GOAL:
            self._outcome.problems.append(f"the goal is not held: {goal.reason or after}; what helps: {goal.helps}")
        else:
            self._tell("the goal is held, and no miss is foreseen")

    def _run(self, repository: Repository, **asked: Any) -> RunReport:
        report = run_to_the_end(repository, **asked).report
        assert report is not None
        self._outcome.freed_bytes += report.freed_bytes
        return report

    def _kill(self, number: int) -> None:
        """Let a process write until some moment, and open what it leaves."""
        acknowledged = self._written_until_killed(number)
        self._expected |= acknowledged
        found: list[RecoveryReport] = []
        started = time.monotonic()
        with opened_here(self._config, found.append):
            seconds = time.monotonic() - started
        self._outcome.kills += 1
        self._outcome.acknowledged += len(acknowledged)
        self._tell(
            f"SIGKILL after {len(acknowledged):,} acknowledged files; reopened in {seconds:.2f} s: "
            + "".join(map(recovery_summary, found))
        )

    def _written_until_killed(self, number: int) -> dict[str, Held]:
        """What a writer had acknowledged when it was killed."""
        command = [sys.executable, "-P", "-m", "ullage_agent", WRITER_COMMAND, str(self._config)]
        patience = random.randint(50, 600)  # noqa: S311 - any moment will do
        acknowledged: dict[str, Held] = {}
        # In a session of its own it gets no Ctrl-C of the terminal: whatever happens, it ends by being killed.
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as writer:
            assert writer.stdout is not None
            try:
                for line in writer.stdout:
                    if not line.endswith(b"\n"):
                        break  # cut off by the kill: not acknowledged
                    uuid, sha256 = line.decode().split()
                    acknowledged[uuid] = Held(CRASH, sha256)
                    if len(acknowledged) == patience:
                        time.sleep(random.random() / 50)  # noqa: S311 - somewhere inside a later commit
                        writer.kill()
            finally:
                writer.kill()
        if len(acknowledged) < patience:
            self._outcome.problems.append(f"writer {number} ended by itself ({writer.returncode})")
        return acknowledged

    def _check(self, repository: Repository) -> None:
        with bar("   Checking", None) as progress:
            report = repository.check(deep=True, on_progress=progress.reach)
        self._outcome.problems.extend(report.problems)
        self._tell(
            f"check --deep: {report.flow_files:,} FlowFiles, {report.resource_claims:,} resource claims, "
            f"{size(report.bytes_verified)} against their CRC-32C: {len(report.problems):,} problems"
        )
        if report.orphans:
            self._tell(f"{many(len(report.orphans), 'content file')} of unfinished transactions: kept, in nobody's way")

    def _read_back(self, repository: Repository) -> None:
        """Every FlowFile of every queue against its SHA-256: nothing missing, nothing that should be gone."""
        outcome, missing = self._outcome, dict(self._expected)
        queues = repository.queues.all()
        with bar("   Reading back", sum(queue.size_bytes for queue in queues)) as progress, interrupts.allowed():
            for queue in queues:
                for flow_file in repository.queues.all_flow_files(queue.name):
                    sha256 = hashlib.sha256()
                    with repository.content(flow_file.id) as content:
                        for piece in content:
                            sha256.update(piece)
                    found, wanted = Held(queue.name, sha256.hexdigest()), missing.pop(flow_file.id, None)
                    if found == wanted:
                        outcome.verified += 1
                        outcome.verified_bytes += flow_file.size
                    elif wanted is not None:
                        outcome.problems.append(f"{flow_file.id} should be {wanted}, and is {found}")
                    elif queue.name == CRASH:
                        outcome.unacknowledged += 1
                    else:
                        outcome.problems.append(f"{flow_file.id} in queue {queue.name} should be gone")
                    progress.advance(flow_file.size)
        outcome.problems.extend(f"{uuid} is missing from {wanted.queue}" for uuid, wanted in missing.items())
        self._tell(
            f"{outcome.verified:,} FlowFiles, {size(outcome.verified_bytes)}, read back equal to their SHA-256; "
            f"{len(missing):,} missing"
        )
        if outcome.unacknowledged:
            self._tell(f"{outcome.unacknowledged:,} more were committed, but killed before they could say so")


def _borrowed(session: Session, queue: str, count: int) -> list[FlowFile]:
    """Some FlowFiles of a queue, which stay in it."""
    held = session.get_many(queue, count)
    session.transfer(held, queue)
    return held


@command(hidden=True)
@click.argument("config", type=FILE)
def demo_writer(config: Path) -> None:
    """The process that the demo kills.

    It writes for ever, and says uuid and SHA-256 of each content once it is committed.
    """
    with opened_here(config) as repository:
        while True:
            count = random.randint(1, WRITER_FILES_MAX)  # noqa: S311 - commits of all sizes
            contents = [os.urandom(int(WRITER_BYTES_MAX ** random.random())) for _ in range(count)]  # noqa: S311
            with repository.session() as session:
                uuids = session.ingest(CRASH, contents)
                session.commit()
            digests = (hashlib.sha256(content).hexdigest() for content in contents)
            sys.stdout.write("".join(f"{uuid} {sha256}\n" for uuid, sha256 in zip(uuids, digests, strict=True)))
            sys.stdout.flush()
            interrupts.check()


def _summary(outcome: Outcome, seconds: float) -> str:
    before = outcome.surveys["dropped"]["totals"]["disk_to_live"]
    after = outcome.surveys["rewritten"]["totals"]["disk_to_live"]
    ratios = f", disk/live from {before:.2f} to {after:.2f}" if before and after else ""
    return (
        f"Proven in {seconds:.0f} s: of {outcome.files:,} files ({size(outcome.bytes)}) {outcome.dropped:,} were "
        f"dropped and {size(outcome.freed_bytes)} given back{ratios}; after {outcome.kills} SIGKILLs all "
        f"{outcome.acknowledged:,} acknowledged files were there, and all {outcome.verified:,} FlowFiles read back "
        "equal to their SHA-256."
    )
