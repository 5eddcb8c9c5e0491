"""`ullage spark`: questions to a whole fleet, answered by Spark. Its package is imported when one is asked.

Each command is a function of DataFrames in `ullage_spark`, with a session and a place for its answer around it: under
spark-submit it takes the session that there is, alone it makes a local one.
"""

import functools
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from ullage.clock import moment_of
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.failures import CODES
from ullage_agent.cli.options import (
    SIZE,
    Function,
    Group,
    from_environment,
    json_output,
    option,
    override,
    with_options,
)
from ullage_agent.cli.output import print_json, print_rows, say, size, tell

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit runs the program."""

SAID = re.compile(r"^ullage(?:_spark)?\.errors\.(\w+): (.+)$", re.MULTILINE)
"""An error of ours, or a node's refusal, at the end of a worker's stack."""

ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
LINEAGE = ("time", "node", "type", "uuid", "parents", "children", "component", "queue", "size", "details")
"""Columns that a lineage shows."""

ROWS_SHOWN = 40
"""Rows that people see; --json has all, --output keeps them."""

NODES_NAMED = 20
"""Missing nodes that the summary of a plan lists."""

OUTPUT = option(
    "--output", "-o", metavar="PATH", default="", help="Write the result there as Parquet, on any filesystem of Hadoop."
)

OF_FLEET = (
    from_environment(
        "NODES",
        "--endpoint",
        "-e",
        default="",
        help="The nodes to ask: grpc://HOST:PORT,..., or kubernetes:NAMESPACE/NAME.",
    ),
    option(
        "--nodes",
        metavar="JSON",
        default="",
        help="Ask these nodes instead: a list in JSON of objects with name, flight and url.",
    ),
    option(
        "--token-file",
        metavar="FILE",
        default="",
        help="The file of the bearer token, which is read again when it is renewed.",
    ),
    option(
        "--ca-file", metavar="FILE", default="", help="The file of the authority that signed the nodes' certificates."
    ),
    option(
        "--missing-nodes",
        metavar="POLICY",
        default="fail",
        help="What to do about nodes that do not answer: fail, skip (go on without them, and say which) or wait.",
    ),
)


def on_fleet(function: Function) -> Function:
    """A command on all nodes of a repository; it gets `fleet`, the options of Spark's sources."""

    @functools.wraps(function)
    def wrapped(*, endpoint: str, nodes: str, token_file: str, ca_file: str, missing_nodes: str, **rest: Any) -> Any:
        if not endpoint and not nodes:
            raise click.UsageError("which nodes? Say --endpoint, or set ULLAGE_ENDPOINT")
        named = [os.path.dirname(os.path.abspath(file)) for file in (token_file, ca_file) if file]
        if named and "ULLAGE_CREDENTIALS" not in os.environ:
            # Sources read only where this says, and whoever runs the command says where by naming the files.
            os.environ["ULLAGE_CREDENTIALS"] = os.pathsep.join(named)
        fleet = {
            "endpoint": endpoint,
            "nodes": nodes,
            "tokenFile": token_file,
            "caFile": ca_file,
            "missingNodes": missing_nodes,
        }
        return function(fleet=fleet, **rest)

    return with_options(wrapped, OF_FLEET)


@click.group(cls=Group)
def spark() -> None:
    """Ask and plan over a whole fleet, with Spark."""


@spark.command()
@OUTPUT
@json_output
@on_fleet
def report(fleet: dict[str, str], output: str, as_json: bool) -> None:
    """Who pins which disk: dead bytes that cannot be given back yet, by node, disk, queue, age and size."""
    with _snapshot(fleet) as held:
        job = importlib.import_module("ullage_spark.report")
        files = held.table("resource_claims", columns=job.RESOURCE_CLAIMS)
        flow_files = held.table("flowfiles", columns=job.FLOWFILES, where="resource_claim IS NOT NULL")
        found = job.fragmentation(files, flow_files, int(time.time() * 1000))
        _answer(found, output, as_json=as_json)


@spark.command()
@option("--budget", type=SIZE, default="10Gi", help="The most that may be copied on each disk.")
@option("--policy", default="CompactAll", help="How the files are chosen: CompactAll or StatsBased.")
@option("--run", is_flag=True, help="Hand the plan to the agents, and follow it to the end.")
@override
@option("--summary", metavar="FILE", default="", help="Write to this file, in one line, what the plan comes to.")
@OUTPUT
@json_output
@on_fleet
def plan(
    fleet: dict[str, str], budget: str, policy: str, run: bool, override: bool, summary: str, output: str, as_json: bool
) -> None:
    """What to give back on each disk for a budget of copied bytes, and when it may be; with --run, give it back."""
    with _snapshot(fleet, holds=False) as held:
        job = importlib.import_module("ullage_spark.plan")
        if policy not in job.POLICIES:
            raise click.UsageError(f"--policy: one of {', '.join(job.POLICIES)}")
        files = held.table("resource_claims", columns=job.RESOURCE_CLAIMS)
        made = job.reclamation_plan(files, job.Budget(budget), windows=held.table("windows"), policy=policy).cache()
        if summary:
            Path(summary).write_text(_in_a_line(job.total(made), held.missing), encoding="utf-8")
        if not run:
            _answer(made, output, as_json=as_json)
            return
        runs = job.carry_out(made, override=override, **fleet)
    if as_json:
        print_json(msgspec.to_builtins([each._asdict() for each in runs]))
    for each in () if as_json else runs:
        problem = each.refusal or each.run.problem
        say(f"{each.node}: {problem}") if problem else tell(
            f"{each.node}: {each.planned} resource claims planned, {size(each.run.freed_bytes)} given back"
        )
    if any(each.refusal or each.run.problem for each in runs):
        raise click.exceptions.Exit(ExitCode.PROBLEMS)


@spark.command()
@click.argument("flow_file", metavar="UUID", help="The uuid of the FlowFile, also of one that is gone.")
@option("--depth", type=click.IntRange(1, 10_000), default=100, help="Follow at most this many generations.")
@OUTPUT
@json_output
@on_fleet
def lineage(fleet: dict[str, str], flow_file: str, depth: int, output: str, as_json: bool) -> None:
    """Trace what a FlowFile was made from and what became of it, on all nodes."""
    with _in_a_paragraph():
        job = importlib.import_module("ullage_spark.lineage")
    if output:
        with _snapshot(fleet, holds=False) as held:
            kept = job.lineage(held, flow_file, depth=depth, columns=(*LINEAGE, "sequence"))
            _answer(kept.events.select(*LINEAGE), output, as_json=as_json)
        is_whole = kept.is_whole
    else:
        is_whole = _traced(job, fleet, flow_file, depth, as_json=as_json)
    if not is_whole:
        say("there is more of it: ask with a larger --depth, or from another of its FlowFiles")


def _traced(job: Any, fleet: dict[str, str], flow_file: str, depth: int, *, as_json: bool) -> bool:
    """Show it without a session: that takes longer to start than nodes take to find it."""
    with _in_a_paragraph():
        nodes = importlib.import_module("ullage_spark.fleetrows").FleetRows.of(fleet)
        _tell_missing(nodes.missing)
        found = job.traced(nodes, flow_file, depth=depth, columns=LINEAGE)
    times = found.events.column("time").cast("int64").to_pylist()
    others = found.events.drop_columns(["time"]).to_pylist()
    events = [{"time": _iso(micros), **row} for micros, row in zip(times, others, strict=True)]
    if as_json:
        print_json(events)
        return bool(found.is_whole)
    columns = [f">{name}" if name == "size" else name for name in LINEAGE]
    print_rows(columns, [[_cell(name, row[name]) for name in LINEAGE] for row in events[:ROWS_SHOWN]])
    if len(events) > ROWS_SHOWN:
        tell("and more: --output or --json has all of it")
    return bool(found.is_whole)


@spark.command()
@option("--repository", metavar="NAME", default="", help="The repository's name, if --endpoint does not say it.")
@on_fleet
def tables(fleet: dict[str, str], repository: str) -> None:
    """Print the SQL that makes the tables of the fleet known to a catalog, as ullage_NAME.TABLE."""
    with _in_a_paragraph():
        made = importlib.import_module("ullage_spark.catalog").statements(repository, **fleet)
    for statement in made:
        click.echo(f"{statement};")


@spark.command()
@click.argument("where", metavar="PATH", help="A folder, or iceberg:CATALOG/NAMESPACE.")
@option("--skip-lost", is_flag=True, help="Go on where events were gone before they could be read, and say which.")
@json_output
@on_fleet
def history(fleet: dict[str, str], where: str, skip_lost: bool, as_json: bool) -> None:
    """Bring a history up to date: events, figures of space and runs of all nodes, each once."""
    with _history(where) as (job, tables, clock):
        run = job.fed(tables, {**fleet, "failOnDataLoss": str(not skip_lost)}, clock)
    if as_json:
        print_json(msgspec.to_builtins(run))
        return
    for each in run.missing:
        say(f"without node {each.name}, which is read when it is there again: {each.reason}")
    for text in run.lost:
        say(text)
    tell(f"{where}: {', '.join(f'{count} rows of {name}' for name, count in run.rows.items())} more")


@spark.command()
@click.argument("where", metavar="PATH", help="The history: a folder, or iceberg:CATALOG/NAMESPACE.")
@option("--seconds", type=click.IntRange(min=1), default=3_600, help="The length of a stretch of time, in seconds.")
def rollup(where: str, seconds: int) -> None:
    """Bring the table rollup of a history up to date: events and bytes by time, node, type, component and queue."""
    with _history(where) as (_, tables, _clock):
        days = importlib.import_module("ullage_spark.rollup").rolled_up(tables, seconds)
    tell(f"{where}: {len(days)} days rolled up")


@contextmanager
def _history(where: str) -> Iterator[tuple[Any, Any, Any]]:
    """The module with the work, the tables, and the time."""
    clock = importlib.import_module("ullage.clock").Clock()
    with _in_a_paragraph():
        job = importlib.import_module("ullage_spark.history")
        with job.written(where, clock) as tables:
            yield job, tables, clock


@spark.command()
@click.argument("output", metavar="PATH", help="Parquet, with contents.")
@option(
    "--where",
    metavar="SQL",
    default="",
    help="Export only FlowFiles for which this holds: for instance queue = 'in' AND size < 1000.",
)
@on_fleet
def export(fleet: dict[str, str], output: str, where: str) -> None:
    """Write FlowFiles with their contents to any filesystem of Hadoop, all of one moment."""
    archive = importlib.import_module("ullage_spark.archive")
    with _snapshot(fleet) as held:
        found = archive.exported(held.table("flowfiles", where=where), **fleet)
        found.write.parquet(output)
        failed = archive.failures(found.sparkSession.read.parquet(output))
        count, named = failed.count(), failed.take(ROWS_SHOWN)
    tell(f"exported to {output}")
    for each in named:
        place = f"{each.uuid}@{each.node}, queue {each.queue or '-'}"
        say(f"not exported: {place}, {each.size} bytes: {each.problem}")
    if count > len(named):
        say(f"and {count - len(named)} more: in {output} they are the rows that have a problem")
    if count:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


@spark.command(name="import")
@click.argument("source", metavar="PATH", help="What `export` wrote.")
@option(
    "--queue", metavar="NAME", default="", help="Write the contents into this queue. Without it they become handles."
)
@option("--name", default="", help="The name of the import: repeated under the same name, it is carried out once.")
@on_fleet
def restore(fleet: dict[str, str], source: str, queue: str, name: str) -> None:
    """Write exported contents to a fleet again, under new uuids: each once, or none."""
    with _session() as session:
        job = importlib.import_module("ullage_spark.archive").restorable
        writer = job(session.read.parquet(source)).write.format("ullage").mode("append")
        writer.options(**fleet, queue=queue, write=name).save()
    tell(f"imported from {source}")


@contextmanager
def _snapshot(fleet: dict[str, str], *, holds: bool = True) -> Iterator[Any]:
    """The tables of the fleet, all of one moment."""
    with _session() as session:
        snapshot = importlib.import_module("ullage_spark").snapshot
        with snapshot(session, holds=holds, **fleet) as held:
            _tell_missing(held.missing)
            yield held


def _tell_missing(nodes: Sequence[Any]) -> None:
    for each in nodes:
        left_out = "nobody knows how much" if each.live_bytes is None else size(each.live_bytes)
        say(f"without node {each.name}, which holds {left_out}: {each.reason}")


@contextmanager
def _session() -> Iterator[Any]:
    """Spark's session: that of spark-submit if there is one, which is left as it is, else a local one."""
    sql = importlib.import_module("pyspark.sql")
    importlib.import_module("ullage_spark")  # what of the extra is missing is told before a session is made
    if SUBMITTED not in os.environ:  # else Spark knows which Python its executors have
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the `python3` of PATH may be one without this package
    with _in_a_paragraph():
        before = sql.SparkSession.getActiveSession()
        builder = sql.SparkSession.builder.appName("ullage")
        if SUBMITTED not in os.environ and "SPARK_REMOTE" not in os.environ:
            builder = builder.config("spark.log.level", "OFF")  # what fails is told by the command, and once
            builder = builder.config("spark.python.unix.domain.socket.enabled", "true")  # over TCP tasks wait 40 ms
        session = before or builder.getOrCreate()
        try:
            yield session
        finally:
            if before is None:
                session.stop()


@contextmanager
def _in_a_paragraph() -> Iterator[None]:
    """What Ullage's source says of options and nodes, without the stacks of the Python workers and of the JVM in which
    it travels; any other error keeps them.
    """
    ours = importlib.import_module("ullage_spark.errors")
    sparks = importlib.import_module("pyspark.errors").PySparkException
    try:
        yield
    except ours.SparkSourceError as error:
        kind, text = type(error).__name__, str(error)
        cause: Exception = error
    except sparks as error:
        said = SAID.findall(str(error))
        if not said:
            raise
        (kind, text), cause = said[-1], error
    else:
        return
    say(f"ullage: {text}")
    codes = {each.__name__: code for each, code in CODES.items()} | {ours.NodesMissing.__name__: ExitCode.UNREACHABLE}
    raise click.exceptions.Exit(codes.get(kind, ExitCode.USAGE)) from cause


def _answer(found: Any, output: str, *, as_json: bool) -> None:
    """To a filesystem, to a program, or to people."""
    functions = importlib.import_module("pyspark.sql.functions")
    if output:
        found.write.parquet(output)
        tell(f"written to {output}")
        return
    if as_json:
        # As strings, in UTC: what Spark gives Python of a time is in the session's zone, and does not say so.
        times = {
            name: functions.date_format(functions.to_utc_timestamp(name, functions.current_timezone()), ISO)
            for name, kind in found.dtypes
            if kind == "timestamp"
        }
        print_json([row.asDict(recursive=True) for row in found.withColumns(times).toLocalIterator()])
        return
    rows = found.take(ROWS_SHOWN + 1)
    kinds = dict(found.dtypes)
    columns = [f">{name}" if kinds[name] in ("bigint", "int") else name for name in found.columns]
    shown = [[_cell(name, row[name]) for name in found.columns] for row in rows[:ROWS_SHOWN]]
    print_rows(columns, shown)
    if len(rows) > ROWS_SHOWN:
        tell("and more: --output or --json has all of it")


def _iso(micros: int) -> str:
    return moment_of(micros // 1000).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return "-"
    return size(value) if name.endswith("_bytes") else value if isinstance(value, int) else str(value)


def _in_a_line(total: Any, missing: Sequence[Any]) -> str:
    frees, copies = size(total.frees_bytes), size(total.copies_bytes)
    found = f"{total.resource_claims} resource claims on {total.nodes} nodes give {frees} back for {copies} copied"
    if not missing:
        return f"{found}\n"
    named = ", ".join(each.name for each in missing[:NODES_NAMED])
    return f"{found}; {len(missing)} nodes do not answer and are not in it: {named}\n"
