"""A Flight server over an engine, and a plain client of it."""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from tests.service.running import terms_of
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage_agent.service.access import Authenticator
from ullage_agent.service.flight.listener import FlightListener
from ullage_agent.service.limits import DEFAULTS, Limits

MB = 1 << 20


class Peer:
    """A server and a client of it."""

    def __init__(
        self, repository: Engine, authenticator: Authenticator | None = None, limits: Limits = DEFAULTS
    ) -> None:
        self.failures: list[tuple[str, Exception]] = []
        self.embedded = EmbeddedRepository(repository, node="here")
        self.terms = terms_of(self.embedded, self.failures, authenticator, limits)
        self.server = FlightListener(self.terms)
        self.flight = self.server.flight
        self.client = flight.connect(self.server.url)
        self.repository = repository

    @classmethod
    @contextmanager
    def serving(cls, repository: Engine, limits: Limits = DEFAULTS) -> Iterator[Self]:
        """One that is closed at the end, and had no failure that nobody foresaw."""
        made = cls(repository, limits=limits)
        yield made
        made.close()
        assert made.failures == []

    def close(self) -> None:
        self.client.close()
        self.server.stop()

    def put(self, *batches: dict[str, Any], **command: Any) -> list[list[bytes]]:
        """The uuids of each batch, one outstanding at a time."""
        schema = pa.schema(
            [
                field
                for field in (
                    pa.field("content", pa.binary()),
                    pa.field("attributes", pa.map_(pa.string(), pa.string())),
                    pa.field("continues", pa.bool_()),
                )
                if field.name in batches[0]
            ]
        )
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, told = self.client.do_put(descriptor, schema)
        found = []
        with writer:
            for number, batch in enumerate(batches):
                writer.write_batch(pa.record_batch([pa.array(batch[f.name], f.type) for f in schema], schema=schema))
                answer = told.read().to_pybytes()
                assert struct.unpack_from("<I", answer) == (number,)
                found.append([answer[at : at + 16] for at in range(4, len(answer), 16)])
            writer.done_writing()
        return found

    def get(self, handles: Sequence[str], **more: Any) -> dict[int, bytes | str]:
        """Contents, or slugs, by item."""
        ticket = json.dumps({"kind": "get", "handles": list(handles), **more}).encode()
        found: dict[int, bytes | str] = {}
        for chunk in self.client.do_get(flight.Ticket(ticket)):
            assert chunk.data.nbytes < 10 * MB
            for row in chunk.data.to_pylist():
                if row["problem"]:
                    found[row["item"]] = row["problem"]
                else:
                    before = found.get(row["item"], b"")
                    assert len(before) == row["offset"]
                    found[row["item"]] = before + row["content"]
        return found

    def table(self, name: str, **more: Any) -> pa.Table:
        ticket = json.dumps({"kind": "table", "name": name, **more}).encode()
        return self.client.do_get(flight.Ticket(ticket)).read_all()

    def act(self, action: str, **body: Any) -> list[Any]:
        results = self.client.do_action(flight.Action(action, json.dumps(body).encode()))
        return [json.loads(result.body.to_pybytes()) for result in results]
