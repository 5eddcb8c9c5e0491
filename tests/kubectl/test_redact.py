"""What may leave a cluster in a support bundle."""

import json

import pytest

from ullage_agent.kubectl.redact import redacted_holders, redacted_log, redacted_object, redacted_pod, scrubbed

CANARY = "canary0d2c1"
TRACE = f'  File "a.py", line 1, in f\n    call("{CANARY}")\nOSError: {CANARY}'


@pytest.mark.parametrize(
    "text",
    [
        f"refused: Bearer {CANARY}",
        f"authorization=Basic {CANARY}",
        f"pulled https://me:{CANARY}@registry.example/image",
        f"eyJhbGciOiJSUzI1NiJ9.{CANARY}.c2lnbmF0dXJl",
        f"ullage_{CANARY}{CANARY}",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
        f"password: {CANARY}",
        f"API_KEY={CANARY}",
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_messages(text: str) -> None:
    """A token, a key, or what stands behind a word for one; the rest of the message stays."""
    assert CANARY not in scrubbed(f"before {text} after")
    assert scrubbed(f"before {text}").startswith("before ")


@pytest.mark.parametrize(
    "line",
    [
        f"plain {CANARY}",
        json.dumps([CANARY]),
        json.dumps({"event": "x", "problem": CANARY}),
        json.dumps({"event": "x", CANARY: 1}),
        json.dumps({"event": "x", "exception": TRACE}),
        json.dumps({"event": "x", "exception": CANARY}),
        json.dumps({"event": f"token={CANARY}"}),
    ],
)
def test_of_a_log_only_what_is_known_is_kept(line: str) -> None:
    """No field that is not listed, no text of an exception, no line that is nobody's."""
    assert CANARY not in redacted_log(line)


def test_of_an_exception_its_kind_and_place_are_kept() -> None:
    """What somebody needs who helps."""
    trace = 'Traceback (most recent call last):\n  File "/app/a.py", line 7, in tell\n    call()\nOSError: secret words'
    kept = json.loads(redacted_log(json.dumps({"event": "step failed", "exception": trace})))
    assert kept == {"event": "step failed", "exception": ['File "/app/a.py", line 7, in tell', "OSError"]}


def test_of_objects_only_what_is_known_is_kept() -> None:
    """Neither annotations nor foreign labels, nor what a container was given or said."""
    metadata = {
        "name": "flows",
        "labels": {"ullage.dev/repository": "flows", "team": CANARY},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": CANARY},
        "managedFields": [{"manager": CANARY}],
    }
    spec = {"storage": {"hostPath": {"path": "/var/lib/ullage"}}, "affinity": {"nodeAffinity": CANARY}}
    kept = redacted_object({"metadata": metadata, "spec": spec, "status": {"certificateRequest": CANARY, "nodes": 3}})
    assert CANARY not in json.dumps(kept)
    assert (kept["status"]["nodes"], kept["spec"]["storage"]) == (3, spec["storage"])

    ended = {"terminated": {"reason": "Error", "exitCode": 1, "message": CANARY}}
    container = {"name": "agent", "image": "agent:1", "restartCount": 2, "lastState": ended}
    given = {"nodeName": "n1", "containers": [{"env": [{"name": "A", "value": CANARY}], "args": [CANARY]}]}
    pod = redacted_pod({"metadata": metadata, "spec": given, "status": {"containerStatuses": [container]}})
    assert CANARY not in json.dumps(pod)
    assert pod["containers"][0]["lastState"] == {"terminated": {"reason": "Error", "exitCode": 1}}


def test_of_who_holds_what_no_name_is_kept() -> None:
    """Principals are numbered: that one holds all of it can be told, and not who that is."""
    lease = {"kind": "Lease", "bytes": 7, "flow_files": None, "since_millis": 1, "until_millis": 2}
    found = [
        lease | {"principal": name, "id": CANARY, "about": CANARY, "more": CANARY} for name in (CANARY, "other", CANARY)
    ]
    kept = redacted_holders(found)
    assert CANARY not in json.dumps(kept)
    assert [each["principal"] for each in kept] == [1, 2, 1]
    assert kept[0] == lease | {"principal": 1}
