"""Kill -9 under load from 32 clients: what was acknowledged is there, and retries with their keys double nothing."""

import itertools
import random
import socket
import threading
import uuid
from collections import Counter
from pathlib import Path

import httpx

from tests.service.running import LOCAL, Process, document_at
from tests.support import claim_of
from ullage.engine.engine import Engine
from ullage.engine.model import HANDLE_QUEUE

CLIENTS = 32
WRITES = 12
KILLS = 2
SEED = 20261121


class Load:
    """Clients that repeat each write with its key until they get an answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: dict[str, str] = {}
        self.refused: list[str] = []
        self.progress = threading.Condition()

    def client(self, number: int) -> None:
        choose = random.Random(SEED + number)
        for count in range(WRITES):
            name = f"{number}.{count}"
            content = name.encode() + b"." * choose.choice((0, 500, 5_000, 1_500_000))
            path = choose.choice(("/v1/handles", "/v1/queues/q/flowfiles"))
            answer = self._insist(f"{path}?attribute=name={name}", content)
            with self.progress:
                if answer.status_code == 201:
                    self.acknowledged[name] = answer.json()["id"]
                else:
                    self.refused.append(f"{name}: {answer.text}")
                self.progress.notify_all()

    def _insist(self, path: str, content: bytes) -> httpx.Response:
        key = {"idempotency-key": uuid.uuid4().hex}
        for _ in itertools.count():
            try:
                answer = httpx.post(self.url + path, content=content, headers=key, timeout=60)
            except httpx.TransportError:
                threading.Event().wait(0.05)  # it is being killed or started: there is nothing else to wait for
                continue
            if answer.status_code not in (409, 503):
                return answer
        raise AssertionError

    def wait_for(self, count: int) -> None:
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.acknowledged) + len(self.refused) >= count, timeout=120)


def free_port() -> int:
    """For a server that is killed and started again: below those that the system gives to anybody's connections, one of
    which took such a port while nobody listened.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:  # somebody has it
            continue


def test_kills_under_load_double_nothing_and_lose_nothing(tmp_path: Path) -> None:
    """Each write of each client is there exactly once, under the id that was acknowledged."""
    print("seed", SEED)
    port = free_port()
    document = document_at(tmp_path / "repository", service={"http_port": port}, **LOCAL)
    server = Process(tmp_path, document)
    load = Load(server.start())
    threads = [threading.Thread(target=load.client, args=(number,)) for number in range(CLIENTS)]
    try:
        for thread in threads:
            thread.start()
        for kill in range(1, KILLS + 1):
            load.wait_for(CLIENTS * WRITES * kill // (KILLS + 1))
            server.kill()
            server.start()
        for thread in threads:
            thread.join()
    finally:
        server.kill()

    assert load.refused == []
    with Engine.open(document.spec) as repository:
        assert repository.check(deep=True).problems == ()
        found = Counter(record.attribute_map()["name"] for record in repository.ledger.flow_files())
        assert found == Counter(load.acknowledged.keys())
        for record in repository.ledger.flow_files():
            name = record.attribute_map()["name"]
            assert load.acknowledged[name] == record.id
            assert repository.reader.read(claim_of(record), record.start, len(name)) == name.encode()
        assert {record.queue == HANDLE_QUEUE for record in repository.ledger.flow_files()} == {True, False}
