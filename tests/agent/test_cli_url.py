"""`ullage --url`: commands on a running service, in a process of its own. The same results as on files."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.service.certificates import Authority
from tests.service.running import LOCAL, Running, document_at
from ullage_agent.cli.app import app
from ullage_agent.cli.exits import ExitCode
from ullage_agent.contract import AuthMode, TlsMode
from ullage_agent.service.access import Verb
from ullage_agent.service.tokens import line_of, new_token

MB = 1 << 20
VARIABLES = ("ULLAGE_ROOT", "ULLAGE_CONFIG", "ULLAGE_URL", "ULLAGE_TOKEN_FILE", "ULLAGE_CA")
RUNNER = CliRunner(env={"COLUMNS": "400", **dict.fromkeys(VARIABLES)})


class Service:
    """A running service, and the command line on it."""

    def __init__(self, running: Running) -> None:
        self.running = running

    def __call__(self, *arguments: object, expect: int = 0, stdin: bytes | None = None) -> Result:
        result = RUNNER.invoke(app, [*map(str, arguments), "--url", self.running.url], input=stdin)
        assert result.exit_code == expect, result.output
        return result

    def json(self, *arguments: object, stdin: bytes | None = None) -> Any:
        out = self(*arguments, "--json", stdin=stdin).stdout
        return json.loads(out[out.index("{") :])  # the service runs in this process, and logs before that


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    archive = {"enabled": False}
    with Running(document_at(tmp_path / "r", archive=archive, **LOCAL)) as running:
        yield Service(running)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "a.txt").write_bytes(b"a" * 100)
    (top / "sub" / "empty").touch()
    (top / "sub" / "large.bin").write_bytes(os.urandom(3 * MB))
    return top


def test_a_tree_goes_through_a_queue_of_a_service_unchanged(service: Service, tree: Path, tmp_path: Path) -> None:
    """As on files: the same paths and bytes come out, and the queue is empty then."""
    stored = service.json("put", tree, "--queue", "files")
    listed = service.json("ls", "--queue", "files")
    taken = service.json("get", "--queue", "files", "--count", 0, "--output", tmp_path / "out")

    assert (stored["queue"], stored["count"], stored["skipped"]) == ("files", 3, [])
    assert stored["bytes"] == 100 + 3 * MB
    assert {row["uuid"] for row in listed["flowfiles"]} == {item["uuid"] for item in stored["items"]}
    assert taken["left"] == 0
    assert {item["uuid"] for item in taken["flow_files"]} == {item["uuid"] for item in stored["items"]}
    found = {p.relative_to(tmp_path / "out"): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {p.relative_to(tree): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    assert [(row["name"], row["flow_files"]) for row in service.json("ls")["queues"]] == [("files", 0)]


def test_a_handle_is_put_read_deleted_and_brought_back(service: Service, tmp_path: Path) -> None:
    """Its name carries the node; ranges and files work, and what was deleted has the exit code that it has on files."""
    handle = service("put", "-", "--handle", "--ttl", "1h", "-a", "n=1", stdin=b"0123456789").stdout.split()[0]

    assert handle.endswith("@here")
    assert service("get", handle).stdout_bytes == b"0123456789"
    assert service("get", handle, "--range", "2:3").stdout_bytes == b"234"
    service("get", handle, "-o", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"0123456789"
    (row,) = service.json("ls", "handles")["handles"]
    assert (row["uuid"], row["attributes"]["n"], row["state"]) == (handle, "1", "live")
    service("drop", "--handle", handle)
    assert "handle-deleted" in service("get", handle, expect=ExitCode.NOT_FOUND).stderr
    service("undelete", handle)
    assert service("get", handle).stdout_bytes == b"0123456789"


def test_space_is_surveyed_planned_and_given_back(service: Service) -> None:
    """The figures are those of the repository; a dry run changes nothing, a run frees what the plan said."""
    for number in range(3):
        service("put", "-", "--queue", f"q{number}", stdin=bytes([number]) * MB)
    assert service.json("drop", "q1", "--yes") == {"queue": "q1", "dropped": 1}

    survey = service.json("survey")
    assert survey["node"] == "here"
    assert survey["totals"]["live_bytes"] == 2 * MB
    assert survey["repository"] == service.running.repository.identity.repository
    assert "c1" in service("survey").stdout
    assert {row["resource_claim"] for row in service.json("ls", "resource-claims")["resource_claims"]} != set()
    plan = service.json("plan", "--policy", "CompactAll")
    assert plan == service.json("reclaim", "--policy", "CompactAll", "--dry-run")
    assert service.json("survey")["totals"]["dead_bytes"] == survey["totals"]["dead_bytes"] > 0

    report = service.json("reclaim", "--policy", "CompactAll", "--bytes-per-second", 0)
    assert report["freed_bytes"] >= plan["frees_bytes"] > 0
    assert service.json("survey")["totals"]["dead_bytes"] < survey["totals"]["dead_bytes"]
    assert "given back" in service("reclaim").stdout
    assert {each["operation"] for each in service.json("windows")["operations"]} >= {"Delete", "Truncate"}


def test_the_past_is_searched_shown_drawn_and_replayed(service: Service) -> None:
    """The documents are those of files; what cannot be has the same exit codes."""
    stored = service.json("put", "-", "--queue", "inbox", "-a", "filename=a.csv", stdin=b"id,total\n")
    service("drop", "inbox", "--yes")
    events = service.json("provenance", "query", "--uuid", stored["items"][0]["uuid"])["events"]
    assert [event["type"] for event in events] == ["CREATE", "DROP"]
    first, last = events
    query = ("provenance", "query")
    assert service.json(*query, "-t", "DROP", "-a", "filename=a.csv", "--since", "1h")["events"] == [last]
    assert service.json(*query, "--until", "2020-01-01T00:00")["events"] == []
    page = service.json(*query, "-n", 1, "--newest")
    assert (page["events"], page["next"]) == ([last], last["sequence"])

    shown = service.json("provenance", "show", first["id"])
    assert shown == {**first, "replay": "no queue"}
    assert shown["content"]["size"] == 9
    assert "can be replayed" in service("provenance", "show", last["sequence"]).stdout
    assert service("provenance", "show", first["id"], "--content").stdout_bytes.endswith(b"id,total\n")
    lineage = ("provenance", "lineage", first["flow_file"])
    assert [first["sequence"], last["sequence"]] in service.json(*lineage)["links"]
    assert "flowchart TD" in service(*lineage, "-f", "mermaid").stdout
    assert "a.csv" in service(*lineage).stdout
    done = service.json("provenance", "replay", last["id"], "--queue", "inbox")
    assert (done["event"], done["queue"], done["size"]) == (last["id"], "inbox", 9)
    assert service.json("ls", "--queue", "inbox")["flowfiles"][0]["uuid"] == done["flow_file"]

    service("provenance", "show", 99, expect=ExitCode.NOT_FOUND)
    service("provenance", "show", "x", expect=ExitCode.USAGE)
    service(*query, "--uuid", "x", expect=ExitCode.USAGE)
    service("provenance", "lineage", "x", expect=ExitCode.USAGE)
    service("provenance", "query", "-n", 100_000, expect=ExitCode.USAGE)


def test_a_full_queue_and_a_queue_that_is_not_have_their_codes(service: Service) -> None:
    """As on files; the message names the service."""
    service.running.client.put("/v1/queues/small", json={"count_max": 1})
    service("put", "-", "--queue", "small", stdin=b"1")

    refused = service("put", "-", "--queue", "small", stdin=b"2", expect=ExitCode.NO_ROOM)
    assert "back-pressure" in refused.stderr
    assert service.running.url in refused.stderr
    service("put", "-", "--queue", "small", "--force", stdin=b"2")
    service("get", "--queue", "nowhere", expect=ExitCode.NOT_FOUND)
    service("drop", "nowhere", "--yes", expect=ExitCode.NOT_FOUND)


def test_commands_on_files_alone_say_so(service: Service) -> None:
    """Instead of guessing what was meant; so do options that go with one choice only."""
    for command in (("check",), ("checkpoint",), ("backup", "x"), ("truncate",), ("init",), ("clean",)):
        assert "works on a repository's files" in service(*command, expect=ExitCode.USAGE).stderr
    assert "exclude" in service("ls", "--root", "x", expect=ExitCode.USAGE).stderr
    assert "go with --url" in RUNNER.invoke(app, ["ls", "--root", "x", "--ca", "y"]).stderr
    assert "is no URL" in RUNNER.invoke(app, ["ls", "--url", "localhost:1"]).stderr


def test_the_environment_names_the_service_and_the_command_line_wins(service: Service, tmp_path: Path) -> None:
    """ULLAGE_URL is enough; --root on the command line beats it."""
    environment = {"ULLAGE_URL": service.running.url}
    assert json.loads(RUNNER.invoke(app, ["survey", "--json"], env=environment).stdout)["node"] == "here"
    RUNNER.invoke(app, ["init", "--root", str(tmp_path / "own")], env=environment)
    own = RUNNER.invoke(app, ["survey", "--json", "--root", str(tmp_path / "own")], env=environment)
    assert json.loads(own.stdout)["root"] == str(tmp_path / "own")


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
    """No token, one for other verbs, a foreign authority: each is told with its code; the right ones work."""
    authority = Authority("ours")
    authority.issue(tmp_path / "tls", "node")
    ca, theirs = authority.write(tmp_path / "ca.crt"), Authority("theirs").write(tmp_path / "theirs.crt")
    lines = []
    for name, verbs in (("all", tuple(Verb)), ("reader", (Verb.GET,))):
        secret, digest = new_token()
        (tmp_path / name).write_text(f"{secret}\n")
        lines.append(line_of(name, verbs, 0, digest))
    (tmp_path / "tokens").write_text("".join(lines))
    document = document_at(
        tmp_path / "r",
        tls={"mode": TlsMode.SECRET, "directory": str(tmp_path / "tls")},
        auth={"mode": AuthMode.TOKEN_FILE, "token_file": str(tmp_path / "tokens")},
    )
    with Running(document) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1")

        def run(*arguments: object, data: bytes = b"x") -> int:
            return RUNNER.invoke(app, [*map(str, arguments), "--url", url], input=data).exit_code

        assert run("put", "-", "--ca", ca, "--token-file", tmp_path / "all") == 0
        assert run("ls", "--ca", ca, "--token-file", tmp_path / "reader") == 0
        assert run("ls", "--ca", ca) == ExitCode.DENIED
        assert run("put", "-", "--ca", ca, "--token-file", tmp_path / "reader") == ExitCode.DENIED
        assert run("ls", "--ca", theirs, "--token-file", tmp_path / "all") == ExitCode.UNREACHABLE
        assert run("ls", "--ca", ca, "--token-file", tmp_path / "nowhere") == ExitCode.USAGE
