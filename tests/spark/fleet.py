"""Several agents on loopback, and what they hold: the truth that Spark's answers are held against."""

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from tests.service.running import Process, Running, document_at, rest
from tests.support import drain
from ullage.contract import Duration, EmergencySettings, MaintenanceOperation, MaintenanceSettings, Window
from ullage.engine.engine import Engine
from ullage.engine.model import STAGED_QUEUE, FlowFileRecord
from ullage_agent.service.limits import DEFAULTS, Limits
from ullage_spark.settings import SourceOptions


class Fleet:
    """Agents by name."""

    def __init__(self, agents: dict[str, Running]) -> None:
        self.agents = agents

    @property
    def endpoint(self) -> str:
        """The option of the same name."""
        return ",".join(agent.server.urls["flight"] for agent in self.agents.values())

    @property
    def nodes(self) -> str:
        """The option of the same name, with HTTP addresses: on loopback they are not at the usual port."""
        found = [
            {"name": name, "flight": agent.server.urls["flight"], "url": agent.url}
            for name, agent in self.agents.items()
        ]
        return json.dumps(found)

    def drained(self, queue: str) -> list[bytes]:
        """Contents of a queue of all nodes, sorted, which it has no more."""
        return sorted(content for agent in self.agents.values() for content in drain(agent.repository, queue))

    def repository(self, name: str) -> Engine:
        return self.agents[name].repository

    def fill(self, seed: int, count: int = 60) -> dict[tuple[str, str], bytes]:
        """Contents of many sizes in two queues and as handles on each node; by node and uuid."""
        random_bytes = random.Random(seed).randbytes
        found: dict[tuple[str, str], bytes] = {}
        for name, agent in self.agents.items():
            contents = [random_bytes(size) for size in (0, 1, 300_000, 1_100_000, *range(100, 100 + 7 * count, 7))]
            for queue in ("in", "out"):
                with agent.repository.session() as session:
                    records = session.ingest(queue, contents, {"from": name, "seed": str(seed)})
                    session.commit()
                found |= {(name, record.id): content for record, content in zip(records, contents, strict=True)}
            ids = agent.repository.handles.put_many(contents[:10], {"from": name})
            found |= {(name, id): content for id, content in zip(ids, contents, strict=False)}
        return found

    def records(self) -> dict[tuple[str, str], FlowFileRecord]:
        """Everything that anybody sees, resident ones, by node and uuid."""
        return {
            (name, record.id): record
            for name, agent in self.agents.items()
            for record in agent.repository.ledger.flow_files()
            if record.queue != STAGED_QUEUE
        }

    def close_windows(self, name: str) -> None:
        """From now on this node reclaims in a window that opens in an hour or two, whatever the disk holds."""
        agent = self.agents[name]
        host = agent.server.host
        hour = time.gmtime(host.clock.now_millis() / 1000 + 7_200).tm_hour
        operations = tuple(MaintenanceOperation)
        window = Window(name="night", schedule=f"0 {hour} * * *", duration=Duration(1_800_000), operations=operations)
        maintenance = MaintenanceSettings(windows=(window,), emergency=EmergencySettings(min_free_percentage=0))
        spec = msgspec.structs.replace(host.spec, maintenance=maintenance)
        agent.document = msgspec.structs.replace(host.document, spec=spec)
        host.reload(agent.document)

    def rest(self) -> None:
        """No maintenance from here on: a test that compares figures wants them to stay."""
        for agent in self.agents.values():
            rest(agent.server.host.repository)

    def seal(self) -> None:
        """Every file is closed, so that it may be reclaimed."""
        for agent in self.agents.values():
            agent.repository.content.retire_idle()
            agent.repository.reclamation._commit_seals()

    def hidden(self) -> int:
        """What is staged."""
        everything = (r for agent in self.agents.values() for r in agent.repository.ledger.flow_files())
        return sum(record.queue == STAGED_QUEUE for record in everything)


class Mixed:
    """Agent `a` in this process, agent `here` in one of its own, which can be stopped."""

    def __init__(self, fleet: Fleet, other: Process, port: int) -> None:
        self.fleet = fleet
        self.other = other
        self.silent = f"grpc://127.0.0.1:{port}"
        self.endpoint = f"{fleet.endpoint},{self.silent}"

    def stop(self) -> None:
        self.other.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.other.signal(signal.SIGCONT)

    def settings(self, **more: str) -> SourceOptions:
        return SourceOptions.of({"endpoint": self.endpoint, **more})


@contextmanager
def fleet_at(path: Path, *names: str, limits: Limits = DEFAULTS, **sections: Any) -> Iterator[Fleet]:
    """Agents in threads of this process, each with HTTP, Flight and a Unix socket.

    Without an archive, which keeps what is dropped readable as long as the machine's disk is less than half full.
    """
    sections = {"archive": {"enabled": False}} | sections
    with ExitStack() as stack:
        agents = {}
        for name in names:
            service = {"flight_port": 0, "socket_path": str(path / f"{name}.sock")}
            document = document_at(path / name, service=service, **sections)
            agents[name] = stack.enter_context(Running(document, limits, name))
        yield Fleet(agents)


def streamed(df: DataFrame, path: Path) -> DataFrame:
    """Everything that a query over the stream ever wrote, once it has read what is there."""
    query = (
        df.writeStream.format("parquet")
        .option("path", str(path / "rows"))
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return df.sparkSession.read.parquet(str(path / "rows"))
