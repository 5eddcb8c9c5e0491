"""Generated requests over the OpenAPI document of a running server: whatever they hold, no answer is a 5xx."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import Running, document_at
from ullage.contract import AuthMode
from ullage.wire.operation import OctetStream
from ullage.wire.operations import OPERATIONS
from ullage_agent.service.tokens import line_of, new_token

EXAMPLES = 8
"""Requests for each operation and phase; more take longer and find no more in a usual run."""

SEED = 20261121

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance"),
)
"""What is answered is what the document says: its status, its type, its fields and its headers."""

RUN = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Running, str]]:
    """A service that asks for tokens, and one with every right."""
    token, digest = new_token()
    (tmp_path / "tokens").write_text(line_of("x", ("*",), None, digest))
    auth = {"mode": AuthMode.TOKEN_FILE, "token_file": str(tmp_path / "tokens")}
    with Running(document_at(tmp_path / "r", auth=auth)) as made:
        yield made, token


def fuzzed(url: str, token: str, phases: str, examples: int) -> str:
    """What schemathesis says of the whole document, with the checks of CHECKS."""
    command = [
        *(sys.executable, "-c", RUN, "run", f"{url}/openapi.json", "-H", f"Authorization: Bearer {token}"),
        *("--checks", ",".join(CHECKS), "--max-examples", str(examples), "--seed", str(SEED)),
        *("--phases", phases, "--no-color", "--suppress-health-check", "all"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout[-5_000:] + result.stderr[-2_000:]
    return result.stdout


def test_no_generated_request_breaks_the_server(guarded: tuple[Running, str]) -> None:
    """Each operation of the document, none left out, and sequences of them by the links between their answers."""
    running, token = guarded
    paths = running.client.get("/openapi.json").json()["paths"]

    said = fuzzed(running.url, token, "fuzzing,stateful", EXAMPLES)

    tested = re.search(r"Tested: (\d+)", said)
    assert tested is not None, said[-2_000:]
    assert int(tested[1]) == sum(len(item) for item in paths.values())


def test_every_refusal_of_a_wrong_token_is_documented(guarded: tuple[Running, str]) -> None:
    """Of each operation."""
    running, _ = guarded

    assert "Tested: " in fuzzed(running.url, "nobody-s", "fuzzing", 2)


def test_the_document_says_what_each_resource_is_for(running: Running) -> None:
    """Every operation has a description and an answer beside its refusals; they are those of the table."""
    paths = running.client.get("/openapi.json").json()["paths"]
    operations = [(path, method, each) for path, item in paths.items() for method, each in item.items()]
    known = {(each.path, each.method.lower()): each.id for each in OPERATIONS}
    heads = {each.path: each.id.replace("get", "head") for each in OPERATIONS if each.answer is OctetStream}

    assert {(path, method): each["operationId"] for path, method, each in operations} == known | {
        (path, "head"): id for path, id in heads.items()
    }
    assert all(each.get("description") for _, _, each in operations)
    assert all(any(status < "400" for status in each["responses"]) for _, _, each in operations)
    page = running.client.get("/docs")
    assert all(path in page.text for path in paths)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
