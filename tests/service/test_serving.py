"""`ullage serve` as a process: where it says it serves, signals, reload, and the end."""

import json
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.service.running import LOCAL, Process, Running, document_at, process, until
from ullage.contract import Duration
from ullage.engine.engine import Engine


def test_a_process_serves_and_ends_gracefully(tmp_path: Path) -> None:
    """SIGTERM: what was accepted is finished, a checkpoint is published, the lock is released, the exit code is 0."""
    with process(tmp_path) as made:
        url = made.start()
        id = httpx.post(f"{url}/v1/handles", content=b"x" * 1_000).json()["id"]

        made.signal(signal.SIGTERM)

        assert made.wait() == 0
        with Engine.open(made.document.spec) as repository:
            assert repository.restored.clean
            assert repository.restored.transactions <= 1
            assert repository.handles.head(id).size == 1_000


def test_an_upload_that_was_accepted_is_finished_before_the_end(tmp_path: Path) -> None:
    """The body goes on coming while the server stops; what is new meanwhile gets 503 or no connection."""
    with process(tmp_path) as made:
        url = made.start()
        sent_half, go_on = threading.Event(), threading.Event()
        answers: list[httpx.Response] = []

        def body() -> object:
            yield b"a" * (2 << 20)
            sent_half.set()
            assert go_on.wait(60)
            yield b"b" * (2 << 20)

        def upload() -> None:
            answers.append(httpx.post(f"{url}/v1/handles", content=body(), timeout=60))  # type: ignore[arg-type]

        thread = threading.Thread(target=upload)
        thread.start()
        assert sent_half.wait(60)
        made.signal(signal.SIGTERM)
        until(lambda: _is_refused(url), "the server to refuse what is new")
        go_on.set()
        thread.join()

        assert made.wait() == 0
        assert answers[0].status_code == 201
        with Engine.open(made.document.spec) as repository:
            assert repository.handles.head(answers[0].json()["id"]).size == 4 << 20


def _is_refused(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/state").status_code == 503
    except httpx.TransportError:
        return True


def test_what_can_change_is_reloaded_and_the_rest_refused(tmp_path: Path) -> None:
    """On SIGHUP, or by itself soon after the file has changed; a refused change changes nothing."""
    with process(tmp_path) as made:
        url = made.start()
        where = tmp_path / "repository"
        lease = {"duration_millis": 10_000}
        assert httpx.post(f"{url}/v1/leases", json=lease).status_code == 201

        made.write(document_at(where, **LOCAL, leases={"max_duration": Duration(5_000)}))
        made.signal(signal.SIGHUP)
        until(lambda: httpx.post(f"{url}/v1/leases", json=lease).status_code == 429, "the new limit")
        made.write(document_at(where, **LOCAL, storage={"sections": 7}, leases={"max_duration": Duration(60_000)}))
        until(lambda: any("storage.sections" in line for line in made.log), "the refusal")

        assert httpx.post(f"{url}/v1/leases", json=lease).status_code == 429
        made.config.write_text("kind: Nonsense")
        until(lambda: any("apiVersion" in line for line in made.log), "the complaint")
        assert httpx.get(f"{url}/readyz").status_code == 200


def test_logs_off_a_terminal_are_json(tmp_path: Path) -> None:
    """Each line one document, with what happened and when."""
    with process(tmp_path) as made:
        made.start()
        made.signal(signal.SIGTERM)
        made.wait()

        events = [json.loads(line) for line in made.log]

    assert [each["event"] for each in events] == ["serving", "stopping", "stopped"]
    assert all(each["timestamp"] and each["level"] for each in events)


def test_a_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    """Two lines at most, the exit code of wrong usage, and nothing was made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process(tmp_path, service={"http_port": port}) as made:
            with pytest.raises(RuntimeError, match="cannot listen on"):
                made.start()

            assert made.wait() == 2
    assert not (tmp_path / "repository").exists()


def test_a_second_server_is_told_that_the_repository_is_open(tmp_path: Path) -> None:
    """The lock is the engine's; the exit code says so."""
    (tmp_path / "other").mkdir()
    with process(tmp_path) as made:
        made.start()
        other = Process(tmp_path / "other", made.document)
        with pytest.raises(RuntimeError, match="open"):
            other.start()

        assert other.wait() == 3


def test_connections_that_idle_are_let_go(tmp_path: Path) -> None:
    """A stop does not wait for keep-alive connections that ask nothing."""
    with process(tmp_path) as made:
        split = urlsplit(made.start())
        idle = [socket.create_connection((split.hostname, split.port)) for _ in range(50)]
        idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in idle[0].recv(4096)

        made.signal(signal.SIGTERM)

        assert made.wait() == 0
        for each in idle:
            each.close()


def test_settings_that_cannot_be_obeyed_stay_known(tmp_path: Path) -> None:
    """Until there are others that can: whoever reports on the agent says so meanwhile."""
    with Running(document_at(tmp_path / "r", **LOCAL)) as made:
        before, host = made.document, made.server.host
        made.document = document_at(tmp_path / "r", **LOCAL, compaction={"policy": "Nonesuch"})
        until(lambda: "Nonesuch" in host.settings_problem, "the refusal")
        made.document = before
        until(lambda: host.settings_problem == "", "the end of it")
