"""Generated requests over the OpenAPI document of a running server: whatever they hold, no answer is a 5xx."""

import subprocess
import sys

from tests.service.running import Running
from ullage.wire.operation import OctetStream
from ullage.wire.operations import OPERATIONS

EXAMPLES = 8
"""Requests for each operation and phase; more take longer and find no more in a usual run."""

SEED = 20261121

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance"),
)
"""What is answered is what the document says: its status, its type, its fields and its headers."""

RUN = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


def test_no_generated_request_breaks_the_server(running: Running) -> None:
    """Each operation of the document is fuzzed, and sequences of them; the checks are those of CHECKS."""
    command = [
        *(sys.executable, "-c", RUN, "run", f"{running.url}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--seed", str(SEED)),
        *("--phases", "fuzzing,stateful", "--no-color", "--suppress-health-check", "all"),
    ]

    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert result.returncode == 0, result.stdout[-5_000:] + result.stderr[-2_000:]
    assert "Tested: " in result.stdout


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
