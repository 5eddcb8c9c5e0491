"""What keeps a command from its answer: what is missing and what to do, and an exit code that scripts know."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.output import say
from ullage_agent.kubectl.program import PROGRAM

if TYPE_CHECKING:
    from kubernetes.client.exceptions import ApiException


class Trouble(click.ClickException):
    """One line, or a few: what, which, what to do."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # Click reads it of the error that it caught

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"{PROGRAM}: {self.message}")


def trouble_of(error: ApiException, verb: str, resource: str, namespace: str, name: str = "") -> Trouble:
    """An answer of the API server that is none, to a request such as `list` `pods` in a namespace."""
    place = f"namespace {namespace}" if namespace else "all namespaces"
    thing = f"{resource} {name!r}" if name else resource
    if error.status == 401:
        return Trouble(
            "the API server does not accept your credentials: log in again, or choose others with --context or "
            "--kubeconfig; `kubectl auth whoami` shows who you are",
            ExitCode.DENIED,
        )
    if error.status == 403:
        flag = f"-n {namespace}" if namespace else "-A"
        return Trouble(
            f"you may not {verb} {thing} in {place}: ask your administrator for that right "
            f"(`kubectl auth can-i {verb} {resource} {flag}` tells when you have it)",
            ExitCode.DENIED,
        )
    if error.status == 404 and not name:
        return Trouble(
            f"this cluster has no {resource}: install Ullage (docs/install.md), or choose another cluster with "
            "--context or --kubeconfig",
            ExitCode.NOT_FOUND,
        )
    if error.status == 404:
        return Trouble(f"there is no {thing} in {place}", ExitCode.NOT_FOUND)
    return Trouble(f"the API server refuses to {verb} {thing} in {place}: {_said(error)}", ExitCode.USAGE)


def _said(error: ApiException) -> str:
    """The API server's own words."""
    import json

    try:
        return str(json.loads(error.body or "").get("message") or error.reason)
    except (ValueError, AttributeError):
        return f"{error.status} {error.reason}"
