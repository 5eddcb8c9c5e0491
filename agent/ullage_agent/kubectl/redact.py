"""What may leave a cluster in a support bundle: only what is named here. Pure.

Whatever is not known to be harmless stays behind, because a secret has no form that one could look for: so there are
lists of what is kept, and none of what is taken out. Texts that people and controllers wrote for people (messages of
conditions and events) are kept, less what looks like a token or a key.
"""

import builtins
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ullage import errors

Object = dict[str, Any]

GONE: Final = "[not in the bundle]"

METADATA: Final = ("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp", "finalizers")
LABELS: Final = ("ullage.dev/repository", "ullage.dev/node", "app.kubernetes.io/managed-by")

LOG_FIELDS: Final = (
    *("timestamp", "level", "logger", "event", "node", "object", "slug", "task", "step", "ticket", "run", "state"),
    *("method", "freed_bytes", "lines", "changed"),
)
"""Of a line of an agent's log. What is said in a library's words, or a client's (path, problem, detail, reason), stays
behind."""

SPEC_LEFT_OUT: Final = ("affinity", "resources")
"""Of a ContentRepository: where keys and values are free."""

HOLDER_FIELDS: Final = ("kind", "flow_files", "bytes", "since_millis", "until_millis")
"""Of what somebody holds. Purposes, components and names of streams are a client's words."""

FRAME: Final = re.compile(r'^  File "[^"]+", line \d+, in \S+$')
KINDS: Final = frozenset(
    name
    for module in (builtins, errors)
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, BaseException)
)
"""Of exceptions. The last line of a traceback may be any line of a message, so a word that is none of these is not
believed to be a kind.
"""

SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)", re.DOTALL),
    re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),  # a JSON Web Token
    re.compile(r"\bullage_[A-Za-z0-9_-]{20,}"),  # a token of `ullage token`
    re.compile(r"(?i)\b(bearer|basic)\s+\S+"),
    re.compile(r"(?<=://)[^/\s@]+@"),  # user and password in a URL
    re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}"),  # the names of Amazon's access keys
    re.compile(r"(?i)\bx-amz-(security-token|signature|credential)\s*[=:]\s*[^\s&]+"),
    re.compile(r"(?i)\b(password|passwd|secret|token|api[-_]?key)\s*[=:]\s*\S+"),
)


def scrubbed(text: str) -> str:
    """A message without what looks like a token or a key."""
    for pattern in SECRETS:
        text = pattern.sub(GONE, text)
    return text


def redacted_object(found: Object) -> Object:
    """One of our own kinds: its settings and its status, without annotations, foreign labels and managed fields."""
    spec = {key: value for key, value in (found.get("spec") or {}).items() if key not in SPEC_LEFT_OUT}
    return {
        "apiVersion": found.get("apiVersion"),
        "kind": found.get("kind"),
        "metadata": _metadata(found),
        "spec": _texts_scrubbed(_without(spec, ("certificate", "sparkConf", "podSelectors", "clients", "scrapers"))),
        "status": _texts_scrubbed(_without(found.get("status") or {}, ("certificateRequest",))),
    }


def redacted_pod(found: Object) -> Object:
    """Where a pod is and how it goes: no environment, no arguments, no volumes."""
    status = found.get("status") or {}
    containers = [
        {key: each.get(key) for key in ("name", "image", "imageID", "ready", "restartCount")}
        | {key: _state(each.get(key)) for key in ("state", "lastState")}
        for each in status.get("containerStatuses") or ()
    ]
    return {
        "metadata": _metadata(found),
        "node": (found.get("spec") or {}).get("nodeName"),
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "conditions": [
            {key: each.get(key) for key in ("type", "status", "reason")} for each in status.get("conditions") or ()
        ],
        "containers": containers,
    }


def _state(found: Object | None) -> Object:
    """Of a container: its end's message is what the program itself wrote, and stays behind."""
    kept = ("reason", "exitCode", "signal", "startedAt", "finishedAt")
    return {name: {key: each[key] for key in kept if key in each} for name, each in (found or {}).items()}


def redacted_event(found: Object) -> Object:
    """What happened, to which object, how often."""
    about = found.get("involvedObject") or {}
    kept = ("type", "reason", "count", "firstTimestamp", "lastTimestamp", "eventTime")
    return {
        **{key: found.get(key) for key in kept},
        "object": f"{about.get('kind')}/{about.get('name')}",
        "message": scrubbed(found.get("message") or ""),
    }


def redacted_holders(found: list[Object]) -> list[Object]:
    """Who holds what, without names: principals are numbered, so that one who holds much can be told from many."""
    numbers: dict[str, int] = {}
    return [
        {key: each.get(key) for key in HOLDER_FIELDS}
        | {"principal": numbers.setdefault(str(each.get("principal")), len(numbers) + 1)}
        for each in found
    ]


def redacted_log(text: str) -> str:
    """An agent's lines with the fields that are known, and of an exception its kind and where it came from."""
    return "".join(f"{_redacted_line(line)}\n" for line in text.splitlines())


def _redacted_line(line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return GONE
    if not isinstance(found, dict):
        return GONE
    kept = {key: found[key] for key in LOG_FIELDS if key in found}
    if isinstance(trace := found.get("exception"), str):
        kept["exception"] = _frames(trace)
    return scrubbed(json.dumps(kept))


def _frames(trace: str) -> list[str]:
    """Of a traceback: files, lines and kinds, without code and without words."""
    lines = trace.splitlines()
    kept = [line.strip() for line in lines if FRAME.match(line)]
    kinds = [line.partition(":")[0].rpartition(".")[2] for line in lines[-1:]]
    return kept + [kind for kind in kinds if kind in KINDS]


def _metadata(found: Object) -> Object:
    metadata = found.get("metadata") or {}
    labels = metadata.get("labels") or {}
    return {key: metadata[key] for key in METADATA if key in metadata} | {
        "labels": {key: labels[key] for key in LABELS if key in labels}
    }


def _without(value: Any, names: Iterable[str]) -> Any:
    """The same without fields of these names, at any depth."""
    left = frozenset(names)
    if isinstance(value, dict):
        return {key: GONE if key in left else _without(each, left) for key, each in value.items()}
    return [_without(each, left) for each in value] if isinstance(value, list) else value


def _texts_scrubbed(value: Any, scrub: Callable[[str], str] = scrubbed) -> Any:
    if isinstance(value, dict):
        return {key: _texts_scrubbed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_texts_scrubbed(each) for each in value]
    return scrub(value) if isinstance(value, str) else value
