"""`ullage spark`: questions to a whole fleet, answered by Spark. Its package is imported when one is asked.

Each command is a function of DataFrames in `ullage_spark`, with a session and a place for its answer around it: under
spark-submit it takes the session that there is, alone it makes a local one.
"""

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ullage_agent.cli.choice import Json, Override
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.output import print_json, print_rows, say, size, tell
from ullage_agent.units import Quantity

app = typer.Typer(help="Ask and plan over a whole fleet, with Spark.", no_args_is_help=True)

ROWS_SHOWN = 40
"""Rows that people see; --json has all, --output keeps them."""

Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint",
        "-e",
        envvar="ULLAGE_ENDPOINT",
        help="The nodes: grpc://HOST:PORT,..., or kubernetes:NAMESPACE/NAME.",
    ),
]
Nodes = Annotated[str, typer.Option(help="Instead: a JSON list of nodes with name, flight, url.")]
TokenFile = Annotated[str, typer.Option("--token-file", help="The bearer token; read again when it is renewed.")]
CaFile = Annotated[str, typer.Option("--ca-file", help="Whom to trust.")]
Output = Annotated[str, typer.Option("--output", "-o", help="Write Parquet there, on any filesystem of Hadoop.")]


class _Asked:
    """A snapshot of the fleet, and what reads and writes of it need."""

    def __init__(self, spark: Any, held: Any, options: dict[str, str]) -> None:
        self.spark = spark
        self.held = held
        self.options = options


@app.command()
def report(
    endpoint: Endpoint = "",
    nodes: Nodes = "",
    token_file: TokenFile = "",
    ca_file: CaFile = "",
    output: Output = "",
    as_json: Json = False,
) -> None:
    """Who pins which disk: dead bytes that cannot be given back yet, by node, disk, queue, age and size."""
    with _asked(endpoint, nodes, token_file, ca_file) as asked:
        job = importlib.import_module("ullage_spark.report").fragmentation
        found = job(asked.held.table("resource_claims"), asked.held.table("flowfiles"), int(time.time() * 1000))
        _answer(found, output, as_json=as_json)


@app.command()
def plan(
    endpoint: Endpoint = "",
    nodes: Nodes = "",
    token_file: TokenFile = "",
    ca_file: CaFile = "",
    budget: Annotated[str, typer.Option(help="What may be copied on each disk.")] = "10Gi",
    policy: Annotated[str, typer.Option(help="Which files: CompactAll, or StatsBased.")] = "CompactAll",
    run: Annotated[bool, typer.Option("--run", help="Hand the plan to the agents, and follow it to the end.")] = False,
    override: Override = False,
    summary: Annotated[str, typer.Option(help="Write there, in one line, what the plan comes to.")] = "",
    output: Output = "",
    as_json: Json = False,
) -> None:
    """What to give back on each disk for a budget of copied bytes, and when it may be; with --run, give it back."""
    with _asked(endpoint, nodes, token_file, ca_file, holds=False) as asked:
        job = importlib.import_module("ullage_spark.plan")
        if policy not in job.POLICIES:
            raise typer.BadParameter(f"--policy: one of {', '.join(job.POLICIES)}")
        made = job.reclamation_plan(
            asked.held.table("resource_claims"),
            job.Budget(_bytes(budget)),
            windows=asked.held.table("windows"),
            policy=policy,
        ).cache()
        if summary:
            Path(summary).write_text(_in_a_line(job.total(made)), encoding="utf-8")
        if not run:
            _answer(made, output, as_json=as_json)
            return
        runs = job.carry_out(made, override=override, **asked.options)
    if as_json:
        names = ("node", "planned", "run", "refusal")
        print_json([{name: getattr(each, name) for name in names} for each in runs])
    for each in () if as_json else runs:
        problem = each.refusal or each.run.problem
        say(f"{each.node}: {problem}") if problem else tell(
            f"{each.node}: {each.planned} resource claims planned, {size(each.run.freed_bytes)} given back"
        )
    if any(each.refusal or each.run.problem for each in runs):
        raise typer.Exit(ExitCode.PROBLEMS)


@app.command()
def lineage(
    flow_file: Annotated[str, typer.Argument(metavar="UUID")],
    endpoint: Endpoint = "",
    nodes: Nodes = "",
    token_file: TokenFile = "",
    ca_file: CaFile = "",
    depth: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    output: Output = "",
    as_json: Json = False,
) -> None:
    """What a FlowFile was made from and what became of it, on all nodes."""
    with _asked(endpoint, nodes, token_file, ca_file, holds=False) as asked:
        job = importlib.import_module("ullage_spark.lineage").lineage
        found = job(asked.held.table("provenance"), flow_file, depth=depth)
        columns = ["millis", "node", "type", "uuid", "parents", "children", "component", "queue", "size", "details"]
        _answer(found.events.select(*columns), output, as_json=as_json)
    if not found.is_whole:
        say("there is more of it: ask with a larger --depth, or from another of its FlowFiles")


@app.command()
def rollup(
    output: Annotated[str, typer.Argument(metavar="PATH", help="Parquet, a folder a day.")],
    endpoint: Endpoint = "",
    nodes: Nodes = "",
    token_file: TokenFile = "",
    ca_file: CaFile = "",
    seconds: Annotated[int, typer.Option(min=1, help="Length of a stretch of time.")] = 3_600,
) -> None:
    """Keep the history in figures: events and bytes by time, node, type, component and queue."""
    with _asked(endpoint, nodes, token_file, ca_file, holds=False) as asked:
        job = importlib.import_module("ullage_spark.rollup").rollup
        job(asked.held.table("provenance"), seconds).write.mode("append").partitionBy("day").parquet(output)
    tell(f"rolled up into {output}")


@app.command()
def export(
    output: Annotated[str, typer.Argument(metavar="PATH", help="Parquet, with contents.")],
    endpoint: Endpoint = "",
    nodes: Nodes = "",
    token_file: TokenFile = "",
    ca_file: CaFile = "",
    where: Annotated[str, typer.Option(help="Only these, such as: queue = 'in' AND size < 1000")] = "",
) -> None:
    """Write FlowFiles with their contents to any filesystem of Hadoop, all of one moment."""
    with _asked(endpoint, nodes, token_file, ca_file) as asked:
        job = importlib.import_module("ullage_spark.archive").exported
        job(asked.held.table("flowfiles", where=where), **asked.options).write.parquet(output)
    tell(f"exported to {output}")


@app.command(name="import")
def restore(
    source: Annotated[str, typer.Argument(metavar="PATH", help="What `export` wrote.")],
    endpoint: Endpoint = "",
    nodes: Nodes = "",
    token_file: TokenFile = "",
    ca_file: CaFile = "",
    queue: Annotated[str, typer.Option(help="Where they are to stand; else they become handles.")] = "",
    name: Annotated[str, typer.Option(help="Name of the import: repeated with it, it is carried out once.")] = "",
) -> None:
    """Write exported contents to a fleet again, under new uuids: each once, or none."""
    options = {"endpoint": endpoint, "nodes": nodes, "tokenFile": token_file, "caFile": ca_file}
    with _session() as spark:
        job = importlib.import_module("ullage_spark.archive").restorable
        writer = job(spark.read.parquet(source)).write.format("ullage").mode("append")
        writer.options(**options, queue=queue, write=name).save()
    tell(f"imported from {source}")


@contextmanager
def _asked(endpoint: str, nodes: str, token_file: str, ca_file: str, *, holds: bool = True) -> Iterator[_Asked]:
    options = {"endpoint": endpoint, "nodes": nodes, "tokenFile": token_file, "caFile": ca_file}
    if not endpoint and not nodes:
        raise typer.BadParameter("--endpoint, or ULLAGE_ENDPOINT, names the nodes")
    with _session() as spark:
        snapshot = importlib.import_module("ullage_spark").snapshot
        with snapshot(spark, holds=holds, **options) as held:
            yield _Asked(spark, held, options)


@contextmanager
def _session() -> Iterator[Any]:
    """Spark's session: that of spark-submit if there is one, which is left as it is, else a local one."""
    try:
        sql = importlib.import_module("pyspark.sql")
        importlib.import_module("ullage_spark")
    except ModuleNotFoundError as error:
        say(f"no module {error.name}: pip install 'ullage[spark]'")
        raise typer.Exit(ExitCode.PROBLEMS) from error
    before = sql.SparkSession.getActiveSession()
    spark = before or sql.SparkSession.builder.appName("ullage").getOrCreate()
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


def _answer(found: Any, output: str, *, as_json: bool) -> None:
    """To a filesystem, to a program, or to people."""
    if output:
        found.write.parquet(output)
        tell(f"written to {output}")
        return
    if as_json:
        print_json([row.asDict(recursive=True) for row in found.toLocalIterator()])
        return
    rows = found.take(ROWS_SHOWN + 1)
    kinds = dict(found.dtypes)
    columns = [f">{name}" if kinds[name] in ("bigint", "int") else name for name in found.columns]
    shown = [[_cell(name, row[name]) for name in found.columns] for row in rows[:ROWS_SHOWN]]
    print_rows(columns, shown)
    if len(rows) > ROWS_SHOWN:
        tell("and more: --output or --json has all of it")


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return "-"
    return size(value) if name.endswith("_bytes") else value if isinstance(value, int) else str(value)


def _in_a_line(total: Any) -> str:
    frees, copies = size(total.frees_bytes), size(total.copies_bytes)
    return f"{total.resource_claims} resource claims on {total.nodes} nodes give {frees} back for {copies} copied\n"


def _bytes(text: str) -> int:
    try:
        return int(Quantity.parse(text))
    except ValueError as error:
        raise typer.BadParameter(f"--budget: {error}") from error
