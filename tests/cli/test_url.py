"""`ullage --url`: each command tells the same on a repository's files and on a service of them."""

import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from tests.certificates import Authority
from tests.cli.test_commands import tree as tree  # the fixture
from tests.service.running import LOCAL, Running, document_at, rest
from tests.service.secured import Secured
from tests.support import containers
from ullage.contract import QueueDefaults, dump
from ullage_agent.cli.app import app
from ullage_agent.cli.exits import ExitCode

MB = 1 << 20
VARIABLES = ("ULLAGE_ROOT", "ULLAGE_CONFIG", "ULLAGE_URL", "ULLAGE_TOKEN_FILE", "ULLAGE_CA")
RUNNER = CliRunner(env={"COLUMNS": "400", **dict.fromkeys(VARIABLES)})
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NEVER_TWICE = re.compile(
    r"1[0-9]{12}|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}|[0-9.]+ s$|(?<=\"seconds\": )[0-9.]+", re.MULTILINE
)
"""What two runs of the same cannot have in common: moments and durations."""


class Teller:
    """The command line on one repository, and all that it told: exit codes, stdout and stderr."""

    def __init__(self, *where: str) -> None:
        self._where = where
        self.told: list[tuple[object, ...]] = []

    def __call__(self, *arguments: object, expect: int = 0, stdin: bytes | None = None) -> Result:
        result = RUNNER.invoke(app, [*map(str, arguments), *self._where], input=stdin)
        assert result.exit_code == expect, result.output
        self.told.append((*map(str, arguments), result.exit_code, result.stdout, result.stderr))
        return result

    def json(self, *arguments: object, expect: int = 0, stdin: bytes | None = None) -> Any:
        return json.loads(self(*arguments, "--json", expect=expect, stdin=stdin).stdout)

    def regular(self) -> list[tuple[object, ...]]:
        """What was told, with uuids by the order in which they were, and without what never comes twice."""
        numbers: dict[str, str] = {}

        def numbered(match: re.Match[str]) -> str:
            return numbers.setdefault(match[0], f"uuid {len(numbers)}")

        def plain(text: object) -> object:
            if not isinstance(text, str):
                return text
            return NEVER_TWICE.sub("#", UUID.sub(numbered, text.replace("@here", "")))

        return [tuple(map(plain, each)) for each in self.told]


Tell = Callable[[Callable[[Teller], None]], None]


@pytest.fixture
def both_ways(tmp_path: Path) -> Tell:
    """Tells a story twice, beginning with the same repository at the same place: on its files, and on a service."""
    sections = LOCAL | {"archive": {"enabled": False}, "flow_file": {"queue_defaults": QueueDefaults(max_count=7)}}
    service = {"backup_directory": str(tmp_path / "out")}
    document = document_at(tmp_path / "r", storage=containers(c1=1 << 30), service=service, **sections)
    config = tmp_path / "r.yaml"
    config.write_text(yaml.safe_dump(dump(document)))
    on_files = Teller("--config", str(config))
    on_files("init")
    for number in range(3):
        on_files("put", "-", "--queue", f"q{number}", "-a", f"filename={number}.bin", stdin=bytes([number]) * MB)
    on_files("put", "-", "--handle", "--ttl", "1h", "-a", "n=1", stdin=b"0123456789")
    on_files("drop", "q1", "--yes")
    on_files.told.clear()

    def tell(story: Callable[[Teller], None]) -> None:
        shutil.copytree(tmp_path / "r", tmp_path / "before")
        story(on_files)
        shutil.rmtree(tmp_path / "r")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        (tmp_path / "before").rename(tmp_path / "r")
        with Running(document) as running, capture_logs():  # the service logs to this process' stdout
            rest(running.server.host.repository)  # the command line on files has no maintenance either
            on_service = Teller("--url", running.url)
            story(on_service)
        assert on_service.regular() == on_files.regular()

    return tell


def test_looking_tells_the_same_to_the_character(both_ways: Tell, tmp_path: Path) -> None:
    """Tables, documents and remarks, with what it says when there is no such thing."""

    def story(ullage: Teller) -> None:
        for kind in ("queues", "flowfiles", "handles", "resource-claims"):
            ullage("ls", kind)
            ullage("ls", kind, "--limit", 1, "--json")
            ullage("ls", kind, "--limit", 1)
        handle = ullage.json("ls", "handles")["handles"][0]["id"]
        ullage("get", handle)
        ullage("get", handle, "--range", "2:3")
        ullage("get", handle, "--range", "10:")
        ullage("get", handle, "--range", "9:5", expect=ExitCode.USAGE)
        flow_file = ullage.json("ls", "--queue", "q0")["flowfiles"][0]["id"]
        ullage("get", flow_file, "--range", "0:5")
        ullage("get", flow_file, "--range", f"{MB}:1", expect=ExitCode.USAGE)
        unknown = "00000000-0000-4000-8000-000000000000"
        for command in (["get", unknown], ["undelete", unknown], ["drop", "--handle", unknown]):
            ullage(*command, expect=ExitCode.NOT_FOUND)
        ullage("get", "x", expect=ExitCode.NOT_FOUND)
        for look in (["survey"], ["plan"], ["plan", "--policy", "CompactAll"], ["reclaim", "--dry-run"]):
            ullage(*look)
            ullage(*look, "--json")
        ullage("plan", "--policy", "x", expect=ExitCode.USAGE)
        ullage("reclaim", "--policy", "x", expect=ExitCode.USAGE)
        ullage("truncate", "--dry-run", "--respect-threshold")
        for look in (["windows", "--at", "2026-03-29T01:30"], ["check", "--deep"]):
            ullage(*look)
            ullage(*look, "--json")
        ullage("ls", "--queue", "nowhere", expect=ExitCode.NOT_FOUND)
        ullage("get", "--queue", "nowhere", expect=ExitCode.NOT_FOUND)
        ullage("drop", "nowhere", "--yes", expect=ExitCode.NOT_FOUND)
        assert "nowhere" not in ullage("ls").stdout
        ullage("undelete", handle, expect=ExitCode.USAGE)

    both_ways(story)


def test_a_tree_goes_through_a_queue_unchanged(both_ways: Tell, tree: Path, tmp_path: Path) -> None:
    """Every regular file comes out below its old path with its old bytes, and the queue is empty then. What is no file
    is refused by name; a queue without room for all gets nothing, unless forced.
    """
    wanted = {
        os.fsencode(path.relative_to(tree)).decode("utf-8", "replace"): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink()
    }

    def story(ullage: Teller) -> None:
        stored = ullage.json("put", tree, "--queue", "files", expect=ExitCode.USAGE)
        listed = ullage.json("ls", "--queue", "files")
        taken = ullage.json("get", "--queue", "files", "--count", 0, "--output", tmp_path / "out")

        assert (stored["queue"], stored["count"]) == ("files", len(wanted))
        assert [each.partition(": ")[0] for each in stored["skipped"]] == [str(tree / "link"), str(tree / "pipe")]
        assert stored["bytes"] == sum(map(len, wanted.values()))
        assert {row["id"] for row in listed["flowfiles"]} == {item["uuid"] for item in stored["items"]}
        assert taken["left"] == 0
        files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in files} == wanted
        ullage("put", tree, "--handle", expect=ExitCode.USAGE)
        ullage("put", tree / "a.txt", tree / "gone", expect=ExitCode.USAGE)
        refused = ullage("put", *[tree / "b.txt"] * 10, expect=ExitCode.NO_ROOM).stderr
        assert ("room for 6 FlowFiles more" in refused, "nothing was put" in refused) == (True, True)
        ullage("put", *[tree / "b.txt"] * 10, "--force")
        ullage("ls")

    both_ways(story)


def test_a_handle_is_deleted_and_brought_back(both_ways: Tell, tmp_path: Path) -> None:
    """What was deleted has the same exit code and remark, and is listed as what it is."""

    def live(ullage: Teller) -> int:
        listed = ullage("ls", "handles").stdout
        ullage.told.pop()  # new ids are random, and so is their order
        return listed.count(" live ")

    def story(ullage: Teller) -> None:
        handle = ullage("put", "-", "--handle", "--ttl", "1h", stdin=b"0123456789").stdout.split()[0]
        ullage("get", handle, "-o", tmp_path / "one")
        assert (tmp_path / "one").read_bytes() == b"0123456789"
        ullage("drop", "--handle", handle)
        ullage("get", handle, expect=ExitCode.NOT_FOUND)
        assert live(ullage) == 1
        ullage("undelete", handle, "--json")
        ullage("get", handle)

    both_ways(story)


def test_space_is_given_back(both_ways: Tell, tmp_path: Path) -> None:
    """A run frees what the plan said, cleaning takes the rest, and a backup is one of the place where it is."""

    def story(ullage: Teller) -> None:
        ullage("checkpoint")
        ullage("checkpoint", "--json")
        ullage("backup", tmp_path / "out" / "backup")
        ullage("backup", tmp_path / "out" / "backup", "--json")
        before = ullage.json("survey")["totals"]
        plan = ullage.json("plan", "--policy", "CompactAll")
        report = ullage.json("reclaim", "--policy", "CompactAll", "--bytes-per-second", 0)
        assert report["freed_bytes"] >= plan["frees_bytes"] > 0
        assert ullage.json("survey")["totals"]["dead_bytes"] < before["dead_bytes"]
        ullage("put", "-", "--queue", "q1", stdin=bytes(MB))
        ullage("drop", "q1", "--yes")
        for command in ("reclaim", "truncate", "clean"):
            ullage(command)
            ullage(command, "--override", "--json")

    (tmp_path / "out").mkdir()
    both_ways(story)


def test_the_past_is_searched_shown_drawn_and_replayed(both_ways: Tell) -> None:
    """Events, lineages, contents and refusals."""

    def story(ullage: Teller) -> None:
        query = ("provenance", "query")
        first, last = ullage.json(*query, "-a", "filename=1.bin")["events"]
        assert [first["type"], last["type"]] == ["CREATE", "DROP"]
        assert ullage.json(*query, "-t", "DROP", "--uuid", first["flow_file"], "--since", "1h")["events"] == [last]
        ullage(*query)
        ullage(*query, "-n", 1, "--newest")
        ullage(*query, "--until", "2020-01-01T00:00", "--min-size", "1Mi", "--related", first["flow_file"])
        assert ullage.json("provenance", "show", first["id"]) == {**first, "replay": "no queue"}
        ullage("provenance", "show", last["sequence"])
        lineage = ("provenance", "lineage", first["flow_file"])
        assert [first["sequence"], last["sequence"]] in ullage.json(*lineage)["links"]
        ullage(*lineage)
        ullage(*lineage, "-f", "mermaid")
        ullage("provenance", "show", last["id"], "--content", "--before")
        ullage("provenance", "replay", last["id"])
        assert ullage.json("provenance", "replay", last["id"])["queue"] == "q1"
        refused = ullage("provenance", "replay", first["id"], expect=ExitCode.NOT_FOUND)
        assert "name one" in refused.stderr
        ullage("ls", "--queue", "q1")

        ullage("provenance", "show", 99, expect=ExitCode.NOT_FOUND)
        ullage("provenance", "show", "x", expect=ExitCode.USAGE)
        ullage(*query, "--uuid", "x", expect=ExitCode.USAGE)
        for wrong in (["--type", "MOVED"], ["--since", "soon"], ["-a", "novalue"], ["--min-size", "much"]):
            ullage(*query, *wrong, expect=ExitCode.USAGE)
        ullage("provenance", "lineage", "x", expect=ExitCode.USAGE)
        ullage(*query, "-n", 100_000, expect=ExitCode.USAGE)

    both_ways(story)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with Running(document_at(tmp_path / "r", **LOCAL)) as running:
        yield running


def test_what_needs_files_says_so(service: Running) -> None:
    """Instead of guessing what was meant; so do options that go with one choice only."""
    ullage = Teller("--url", service.url)
    for command in (("init",), ("check", "--repair")):
        assert "works on a repository's files" in ullage(*command, expect=ExitCode.USAGE).stderr
    assert "from its root on" in ullage("backup", "x", expect=ExitCode.USAGE).stderr
    assert "exclude" in ullage("ls", "--root", "x", expect=ExitCode.USAGE).stderr
    assert "go with --url" in RUNNER.invoke(app, ["ls", "--root", "x", "--ca", "y"]).stderr
    assert "is no URL" in RUNNER.invoke(app, ["ls", "--url", "localhost:1"]).stderr


def test_the_environment_names_the_service_and_the_command_line_wins(service: Running, tmp_path: Path) -> None:
    """ULLAGE_URL is enough; --root on the command line beats it."""
    environment = {"ULLAGE_URL": service.url}

    def surveyed(*where: str) -> str:
        return str(json.loads(RUNNER.invoke(app, ["survey", "--json", *where], env=environment).stdout)["repository"])

    assert surveyed() == service.repository.identity.repository
    RUNNER.invoke(app, ["init", "--root", str(tmp_path / "own")], env=environment)
    assert surveyed("--root", str(tmp_path / "own")) != surveyed()


def test_nobody_there_is_told_with_a_code() -> None:
    """After a few tries."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = RUNNER.invoke(app, ["ls", "--url", url])
    assert result.exit_code == ExitCode.UNREACHABLE
    assert result.stderr.count(url) == 1
    assert "Traceback" not in result.output


def test_tokens_and_authorities_are_files(tmp_path: Path) -> None:
    """No token, one for other rights, a foreign authority: each is told with its code; the right ones work."""
    secured = Secured(tmp_path)
    ca, theirs = secured.ca_file, Authority(tmp_path / "theirs").certificate
    for name, token in secured.tokens.items():
        (tmp_path / name).write_text(f"{token}\n")
    with secured.running:
        url = secured.url()

        def run(*arguments: object, data: bytes = b"x") -> int:
            return RUNNER.invoke(app, [*map(str, arguments), "--url", url], input=data).exit_code

        assert run("put", "-", "--ca", ca, "--token-file", tmp_path / "all") == 0
        assert run("ls", "--ca", ca, "--token-file", tmp_path / "records:get") == 0
        assert run("ls", "--ca", ca) == ExitCode.DENIED
        assert run("put", "-", "--ca", ca, "--token-file", tmp_path / "records:get") == ExitCode.DENIED
        assert run("ls", "--ca", theirs, "--token-file", tmp_path / "all") == ExitCode.UNREACHABLE
        assert run("ls", "--ca", ca, "--token-file", tmp_path / "nowhere") == ExitCode.USAGE


def test_a_pod_s_token_is_found_and_goes_over_tls_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kubelet puts it, unless another is named; whoever listens without a certificate does not get it."""
    secured = Secured(tmp_path)
    (tmp_path / "mounted").write_text(secured.tokens["all"])
    monkeypatch.setattr("ullage.contract.TOKEN_FILE", str(tmp_path / "mounted"))
    with secured.running:
        told = ["--url", secured.url(), "--ca", secured.ca_file]
        assert RUNNER.invoke(app, ["ls", *told]).exit_code == 0
        (tmp_path / "other").write_text("other")
        assert RUNNER.invoke(app, ["ls", *told, "--token-file", str(tmp_path / "other")]).exit_code == ExitCode.DENIED

    asked: list[bytes] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(bytes(self.headers))
            self.send_error(HTTPStatus.FORBIDDEN)

        def log_message(self, *arguments: object) -> None:
            """Nothing: tests are quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        RUNNER.invoke(app, ["ls", "--url", f"http://127.0.0.1:{listening.server_port}"])
        listening.shutdown()
        thread.join()
    assert asked != []
    assert all(b"host:" in each.lower() and b"authorization" not in each.lower() for each in asked)
