"""Wild values at the other entrances: the socket's frames, Flight's puts and gets, settings, clock, asyncio, Spark.

What is acknowledged is there after the process was killed; what is refused is refused as a request that is wrong.
"""

import asyncio
import json
import random
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import yaml
from pyarrow import flight

from tests.service.running import Running, document_at, process, until
from tests.service.socket.reader import Reader, Refusal
from tests.support import ManualClock
from tests.validity.test_validity import DOCUMENT, MINUTES, opened, prove, told, world_of
from tests.validity.test_wire import bodies, prove as prove_on_disk
from tests.validity.wild import SIMPLE, WILD
from ullage import aio
from ullage.contract import ContractError, dump, load_yaml, parse
from ullage.embedded.repository import open_embedded
from ullage.errors import UllageError
from ullage.testing.crashing import CrashFiles
from ullage.uuids import format_uuid
from ullage.wire import tickets
from ullage.wire.problems import PROBLEMS
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import USES

FORESEEN = {problem.slug for problem in PROBLEMS if problem.status < 500}
PUT, PUT_STREAM, DATA, END, STORED = 5, 6, 7, 8, 132


TABLE: dict[str, Any] = {"kind": "table", "name": "flowfiles"}


def raw_text(value: Any) -> bytes:
    """Its text, in UTF-8 as far as that goes."""
    return str(value).encode("utf-8", "surrogatepass")


def put_frame(chosen: random.Random, content: bytes) -> bytes:
    """The body of a put of one content with one field gone wild."""
    value = chosen.choice(SIMPLE)
    key, attributes, ttl, lifetime = b"", b"{}", 0, 0
    which = chosen.randrange(5)
    if which == 0:
        attributes = json.dumps(chosen.choice([value, [value], {"a": value}, {str(value): "a"}])).encode()
    elif which == 1:
        attributes = raw_text(value)
    elif which == 2:
        key = raw_text(value)[:65_535]
    elif which == 3:
        ttl = chosen.choice([1, 2**31, 2**62, 2**62 + 1, 2**63, 2**64 - 1])
    else:
        lifetime = chosen.randrange(256)
    head = struct.pack("<QIIHBB", ttl, 1, len(attributes), len(key), lifetime, chosen.choice([0, 255]))
    return head + attributes + key + struct.pack("<I", len(content))


def over_the_socket(path: str, chosen: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Puts that were acknowledged: their ids and contents."""
    reader = Reader(path)
    for number in range(count):
        content = b"content %d" % number
        try:
            if number % 3:
                stored = reader.ask(PUT, put_frame(chosen, content) + content)
            else:
                reader.tell(PUT_STREAM, 1, put_frame(chosen, content)[:-4].replace(struct.pack("<I", 1), b"\0" * 4, 1))
                reader.tell(DATA, 1, content)
                stored = reader.ask(END, b"")
            yield format_uuid(stored), content
        except Refusal as refusal:
            if str(refusal) not in FORESEEN:
                raise AssertionError(f"number {number}") from refusal
        except (EOFError, ConnectionError):
            reader.close()
            reader = Reader(path)
    reader.close()


def strings(values: list[bytes]) -> Any:
    """An array of texts that nobody has looked at: Arrow sends what is no UTF-8 as well."""
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def over_flight(client: Any, chosen: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """The same with attributes and commands of DoPut."""
    for number in range(count):
        content = b"content over flight %d" % number
        name, text = (raw_text(chosen.choice(SIMPLE))[:70_000] for _ in range(2))
        pairs = pa.MapArray.from_arrays([0, 1], strings([name]), strings([text]))
        columns = [pa.array([content], pa.binary()), pairs, pa.array([chosen.choice([False, None, True])])]
        batch = pa.RecordBatch.from_arrays(columns, names=["content", "attributes", "continues"])
        wild = [
            pairs,
            pa.array([None], pairs.type),
            pa.array([[("a", None)]], pairs.type),
            pa.array([{"a": "b"}]),
            pa.array([[("a", 5)]], pa.map_(pa.string(), pa.int64())),
        ]
        which = number % 8
        if which < len(wild):
            batch = batch.set_column(1, "attributes", wild[which])
        elif which == 5:
            batch = batch.select([0])
        elif which == 6:  # the first content ends far behind the bytes that there are
            buffers = [None, pa.py_buffer(struct.pack("<3i", 0, 2**30, 0)), pa.py_buffer(b"")]
            batch = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 2, buffers)], names=["content"])
        command = chosen.choice(list(bodies(tickets.PutCommand, [chosen.choice(SIMPLE)], {})))[1] if number % 3 else {}
        try:
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
            writer, told_back = client.do_put(descriptor, batch.schema)
            with suppress(pa.ArrowException):  # refused before all was sent: `read` or `close` says why
                writer.write_batch(batch)
                writer.done_writing()
            metadata = told_back.read()
            writer.close()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if "unexpected:" in str(error):
                raise AssertionError(f"{command}, {batch.schema}, {which}, {name!r:.60}, {text!r:.60}") from error
            continue
        if metadata is not None:
            yield from ((format_uuid(id), content) for id in tickets.parse_stored(metadata.to_pybytes()))


def test_what_the_socket_and_flight_acknowledged_is_there_after_a_kill(seed: int, tmp_path: Path) -> None:
    """Frames and batches with wild fields; then SIGKILL, a start, the drain, a checkpoint, a backup and its restore."""
    chosen = random.Random(seed)
    count = 2_000 if MINUTES else 120
    with tempfile.TemporaryDirectory(prefix="u-") as folder:
        path = f"{folder}/socket"
        with process(tmp_path, service={"flight_port": 0, "socket_path": path}) as served:
            served.start()
            stored: dict[str, bytes] = {}
            for id, content in over_the_socket(path, chosen, count):
                stored.setdefault(id, content)  # a repeated key is answered with what was first put under it
            until(lambda: any('"flight"' in line for line in served.log), "the address of Flight")
            where = json.loads(next(line for line in served.log if '"flight"' in line))["flight"]
            with flight.connect(where) as client:
                for id, content in over_flight(client, chosen, count):
                    stored.setdefault(id, content)
            served.kill()
            told = [line for line in served.log if "Traceback" in line]
            assert told == [], f"seed {seed}"
    assert len(stored) > count // 5
    found = open_embedded(None, served.document, create=False, maintain=False)
    with closing(found):
        for id, content in stored.items():
            assert found.handles.get(id, include_deleted=True) == content, f"seed {seed}: {id}"
    prove_on_disk(served.document)


def test_wild_tickets_of_flight_are_refused_or_answered(seed: int, tmp_path: Path) -> None:
    """Every field of what a DoGet asks for."""
    values = random.Random(seed).sample(SIMPLE, len(SIMPLE) if MINUTES else 12)
    failures = []
    with (
        Running(document_at(tmp_path / "r", service={"flight_port": 0})) as running,
        flight.connect(running.server.urls["flight"]) as client,
    ):
        handle = running.client.post("/v1/handles", content=b"content").json()["id"]
        for kind, base in ((tickets.ContentTicket, {"kind": "get", "handles": [handle]}), (tickets.TableTicket, TABLE)):
            for said, body in bodies(kind, values, base):
                try:
                    client.do_get(flight.Ticket(json.dumps(body).encode())).read_all()
                except (flight.FlightError, pa.ArrowException, OSError) as error:
                    if "unexpected:" in str(error):
                        failures.append(f"{kind.__name__} {said}: {error!s:.300}")
    assert failures == [], f"seed {seed}"


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the fields of a document are."""
    for name, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*path, name)
        if isinstance(value, dict | list):
            yield from paths(value, (*path, name))


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = json.loads(json.dumps(document))
    place = made
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return made


NOTATIONS = ("0", "-1", "1e3", "1Ki", "9Ei", "99999999999h", "1ns", "0.5Mi", "1m", " 1Gi", "1Gi ", "\uff11Gi")


def test_wild_settings_are_refused_or_can_be_worked_with(seed: int, tmp_path: Path) -> None:
    """Every field of the document, as YAML: a ContractError, or what it is written as again reads equal and opens."""
    chosen = random.Random(seed)
    base = dump(DOCUMENT)
    failures = []
    for path in paths(base["spec"], ("spec",)):
        for value in chosen.sample((*SIMPLE, *NOTATIONS), len(SIMPLE) if MINUTES else 2):
            document = with_value(base, path, value)
            wild = f"{'.'.join(map(str, path))}={value!r:.60}"
            try:
                found = load_yaml(yaml.dump(document, allow_unicode=True)) if is_text(value) else parse(document)
            except ContractError:
                continue  # refused, by the field's name
            assert parse(dump(found)) == found, wild
            if chosen.random() < (1 if MINUTES else 0.02):
                failures += used_with(found, wild)
    assert failures == [], f"seed {seed}"


def used_with(document: Any, wild: str) -> list[str]:
    """What goes wrong with such settings, though they were taken."""
    files, clock = CrashFiles(), ManualClock()
    try:
        for _ in range(2):
            found = open_embedded(None, document, create=True, maintain=False, files=files, clock=clock)
            found.queues.put("in", b"content")
            found.reclamation.reclaim(respects_guards=True)
            found.close()
    except UllageError:
        return []  # refused in our words: a place that is none, say
    except (OSError, TypeError, ValueError, OverflowError, KeyError) as error:
        return [f"{wild}: {error!r:.200}"] if not isinstance(error, OSError) else []
    return []


def is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


TIMES = (0, 1, 2**31, 2**41, 9_223_372_036_854)
"""To the last that a system has, in the year 2262."""


@pytest.mark.parametrize("millis", TIMES)
def test_any_time_that_a_clock_shows_is_readable_for_ever(millis: int) -> None:
    """A clock without a battery, or one that somebody has set: what is written under it is read by the next start."""
    files, clock = CrashFiles(), ManualClock(millis)
    repository = opened(files, clock)
    world = world_of(repository)
    repository.handles.put(b"for long", ttl_millis=2**62)
    repository.handles.delete(world.handle)
    prove(files, clock, repository, f"the clock at {millis}").close()


def test_wild_values_through_asyncio(seed: int) -> None:
    """Its methods are those of the library: a refusal is the same, and nothing stays in a thread of its own."""
    values = random.Random(seed).sample(WILD, len(WILD) if MINUTES else 25)
    files, clock = CrashFiles(), ManualClock()
    repository = opened(files, clock)

    async def ask() -> list[str]:
        found = []
        front = aio.AsyncRepository(repository)
        calls: list[Callable[[Any], Awaitable[object]]] = [
            lambda value: front.handles.put(b"a", value),
            lambda value: front.handles.put(b"a", {"a": value}),
            front.handles.put,
            lambda value: front.handles.put(b"a", ttl_millis=value),
            lambda value: front.queues.put(value, b"a"),
            front.leases.acquire,
        ]
        for call, value in product(calls, values):
            try:
                await call(value)
            except (UllageError, TypeError) as error:
                if not told(error):
                    found.append(f"{value!r:.60}: {error!r:.200}")
        return found

    assert asyncio.run(ask()) == [], f"seed {seed}"
    prove(files, clock, repository, f"seed {seed}").close()


def test_wild_options_of_spark_are_refused_in_its_words(seed: int) -> None:
    """Every option of source and sink, before any node is asked."""
    values = random.Random(seed).sample(WILD, len(WILD) if MINUTES else 15)
    failures = []
    for use, field in [(kind, field) for kind in USES for field in msgspec.structs.fields(kind)]:
        for value in values:
            try:
                use.of({"endpoint": "grpc://a:1", field.encode_name: value}).snapshots()
            except SparkSourceError:
                continue  # refused in its words
            except Exception as error:  # noqa: BLE001 - which it is, is what the test asks
                failures.append(f"{field.encode_name}={value!r:.60}: {error!r:.200}")
    assert failures == [], f"seed {seed}"
