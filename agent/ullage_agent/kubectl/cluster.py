"""The API server, asked as the user of the kubeconfig: with their credentials, and with no rights but theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ullage.contract import API_VERSION, GROUP, REPOSITORY_LABEL, audience_of
from ullage_agent.cli.exits import ExitCode
from ullage_agent.kubectl.trouble import Trouble, trouble_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration, CoreV1Api, CustomObjectsApi

Object = dict[str, Any]

VERSION: Final = API_VERSION.rpartition("/")[2]
REPOSITORIES: Final = "contentrepositories"
NODES: Final = "contentrepositorynodes"
RUNS: Final = "reclamationruns"
BACKUPS: Final = "contentbackups"
RESTORES: Final = "contentrestores"
KINDS: Final = {RUNS: "ReclamationRun", BACKUPS: "ContentBackup", RESTORES: "ContentRestore"}
"""What a person asks the operator for."""


PAGE: Final = 500
"""Objects in one answer: kubectl's own number, which keeps answers below what an API server refuses."""

SECONDS_MAX: Final = (10.0, 60.0)
"""Until an API server takes a connection, and until it says something: a person waits. A busy one may take long to
answer; kubectl itself waits for ever."""

SILENCE_SECONDS_MAX: Final = 86_400.0
"""Of a log that is followed: the package wants a bound, and somebody who watches for a day without a line looks up."""

TOKEN_SECONDS: Final = 600
"""Of a token for agents: the least that an API server makes."""


@dataclass(frozen=True)
class Choice:
    """Which cluster, and where in it, as kubectl's own options say it; empty: as the kubeconfig has it."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    everywhere: bool = False


class Cluster:
    """Asks one API server. `namespace` is empty for all of them."""

    def __init__(self, choice: Choice) -> None:
        self.configuration, namespace = _configured(choice)
        self.namespace = "" if choice.everywhere else namespace

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self.configuration.host)

    def client(self) -> ApiClient:
        """One of its own: those of the package are not safe to share between threads."""
        from kubernetes.client import ApiClient

        return ApiClient(self.configuration)

    @property
    def core(self) -> CoreV1Api:
        from kubernetes.client import CoreV1Api

        return CoreV1Api(self.client())

    @property
    def custom(self) -> CustomObjectsApi:
        from kubernetes.client import CustomObjectsApi

        return CustomObjectsApi(self.client())

    def repositories(self) -> list[Object]:
        """All ContentRepositories that are looked at."""
        return self.listed(REPOSITORIES)

    def repository(self, name: str) -> Object:
        """One of them; Trouble names those that there are."""
        found = [each for each in self.repositories() if each["metadata"]["name"] == name]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(each["metadata"]["namespace"] for each in found)
            raise Trouble(f"{name!r} is in several namespaces ({places}): choose one with -n", ExitCode.USAGE)
        there = ", ".join(sorted(each["metadata"]["name"] for each in self.repositories())) or "none"
        place = f"namespace {self.namespace}" if self.namespace else "this cluster"
        raise Trouble(
            f"there is no ContentRepository {name!r} in {place}; there are: {there}. Another namespace is chosen "
            "with -n, all with -A",
            ExitCode.NOT_FOUND,
        )

    def nodes(self, namespace: str = "", repository: str = "") -> list[Object]:
        """The ContentRepositoryNodes, of one repository if it is named."""
        return self.listed(NODES, namespace, f"{REPOSITORY_LABEL}={repository}" if repository else "")

    def runs(self, namespace: str = "") -> list[Object]:
        """The ReclamationRuns."""
        return self.listed(RUNS, namespace)

    def backups(self, namespace: str = "") -> list[Object]:
        """The ContentBackups."""
        return self.listed(BACKUPS, namespace)

    def restores(self, namespace: str = "") -> list[Object]:
        """The ContentRestores."""
        return self.listed(RESTORES, namespace)

    def find(self, plural: str, namespace: str, name: str) -> Object:
        """One object of a kind of ours."""
        with self.asking("get", plural, namespace, name):
            found: Object = self.custom.get_namespaced_custom_object(
                GROUP, VERSION, namespace, plural, name, _request_timeout=SECONDS_MAX
            )
        return found

    def begin(self, plural: str, name: str, spec: Object) -> str:
        """Ask the operator for what such an object asks for; what it is called."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KINDS[plural],
            "metadata": {"generateName": f"{name[:200]}-", "namespace": self.namespace},
            "spec": spec,
        }
        with self.asking("create", plural, self.namespace):
            made = self.custom.create_namespaced_custom_object(
                GROUP, VERSION, self.namespace, plural, body, _request_timeout=SECONDS_MAX
            )
        return str(made["metadata"]["name"])

    def annotate(self, node: Object, name: str, value: str | None) -> None:
        """One annotation of a ContentRepositoryNode; None takes it away."""
        metadata = node["metadata"]
        body = {"metadata": {"annotations": {name: value}}}
        with self.asking("patch", NODES, metadata["namespace"], metadata["name"]):
            self.custom.patch_namespaced_custom_object(
                GROUP, VERSION, metadata["namespace"], NODES, metadata["name"], body, _request_timeout=SECONDS_MAX
            )

    def delete(self, plural: str, name: str) -> None:
        with self.asking("delete", plural, self.namespace, name):
            self.custom.delete_namespaced_custom_object(
                GROUP, VERSION, self.namespace, plural, name, _request_timeout=SECONDS_MAX
            )

    def pods(self, namespace: str, repository: str) -> list[Object]:
        """Of the agents."""
        selector = f"{REPOSITORY_LABEL}={repository}"
        with self.asking("list", "pods", namespace):
            return self._paged(
                lambda more: _decoded(
                    self.core.list_namespaced_pod(
                        namespace, label_selector=selector, limit=PAGE, _continue=more, **_RAW
                    )
                )
            )

    def events(self, namespace: str) -> list[Object]:
        with self.asking("list", "events", namespace):
            return self._paged(
                lambda more: _decoded(self.core.list_namespaced_event(namespace, limit=PAGE, _continue=more, **_RAW))
            )

    def log(self, namespace: str, pod: str, *, tail: int | None, since: int | None) -> str:
        """The last lines of an agent's log, or those of the last `since` seconds."""
        with self.asking("get", "pods/log", namespace, pod):
            answer = self.core.read_namespaced_pod_log(pod, namespace, **_lines_of(tail, since), **_RAW)
        return bytes(answer.data).decode("utf-8", "replace")

    def followed_log(self, namespace: str, pod: str, *, tail: int | None, since: int | None) -> Iterator[str]:
        """The same lines, and those that come, until the agent's container ends."""
        from kubernetes.watch.watch import iter_resp_lines

        with self.asking("get", "pods/log", namespace, pod):
            asked = _RAW | {"_request_timeout": (SECONDS_MAX[0], SILENCE_SECONDS_MAX)}
            answer = self.core.read_namespaced_pod_log(pod, namespace, follow=True, **_lines_of(tail, since), **asked)
            with closing(answer):
                yield from iter_resp_lines(answer)

    def authority(self, namespace: str, repository: str) -> str | None:
        """Whom to trust for the repository's agents, as PEM; None where the operator signs for none of them."""
        from kubernetes.client.exceptions import ApiException

        name = f"{repository}-ullage-ca"
        with self.asking("get", "configmaps", namespace, name):
            try:
                found = _decoded(self.core.read_namespaced_config_map(name, namespace, **_RAW))
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
        return (found.get("data") or {}).get("ca.crt")

    def token(self, namespace: str, account: str, repository: str) -> str:
        """A token of an account of the namespace, which this repository's agents take and nobody else does."""
        spec = {"audiences": [audience_of(namespace, repository)], "expirationSeconds": TOKEN_SECONDS}
        with self.asking("create", "serviceaccounts/token", namespace, account):
            made = _decoded(
                self.core.create_namespaced_service_account_token(account, namespace, {"spec": spec}, **_RAW)
            )
        return str(made["status"]["token"])

    def version(self) -> str:
        """The API server's."""
        from kubernetes.client import VersionApi

        with self.asking("get", "/version", ""):
            return str(_decoded(VersionApi(self.client()).get_code(**_RAW)).get("gitVersion", ""))

    @contextmanager
    def asking(self, verb: str, resource: str, namespace: str, name: str = "") -> Iterator[None]:
        """What goes wrong with a request is told as Trouble."""
        import urllib3
        from kubernetes.client.exceptions import ApiException

        try:
            yield
        except ApiException as error:
            shown = f"{resource}.{GROUP}" if resource in (REPOSITORIES, NODES, *KINDS) else resource
            raise trouble_of(error, verb, shown, namespace, name) from error
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise Trouble(
                f"the API server at {self.server} does not answer ({type(reason).__name__}): is the cluster up, and "
                "is it the one you mean? --context and --kubeconfig choose another",
                ExitCode.UNREACHABLE,
            ) from error

    def listed(self, plural: str, namespace: str = "", selector: str = "") -> list[Object]:
        """All objects of a kind of ours that are looked at."""
        place = namespace or self.namespace
        with self.asking("list", plural, place):
            return self._paged(lambda more: self._page(plural, place, selector, more))

    def _page(self, plural: str, namespace: str, selector: str, more: str) -> Object:
        asked = {"limit": PAGE, "_continue": more, "label_selector": selector, "_request_timeout": SECONDS_MAX}
        if namespace:
            found: Object = self.custom.list_namespaced_custom_object(GROUP, VERSION, namespace, plural, **asked)
        else:
            found = self.custom.list_cluster_custom_object(GROUP, VERSION, plural, **asked)
        return found

    @staticmethod
    def _paged(page: Callable[[str], Object]) -> list[Object]:
        found: list[Object] = []
        more = ""
        while True:
            answer = page(more)
            found += answer.get("items") or []
            more = (answer.get("metadata") or {}).get("continue") or ""
            if not more:
                return found


_RAW: Final[dict[str, Any]] = {"_preload_content": False, "_request_timeout": SECONDS_MAX}
"""The answer as it came: the package's models know only the kinds of their own release."""


def _lines_of(tail: int | None, since: int | None) -> dict[str, int]:
    """What a request for a log asks for."""
    asked = {"tail_lines": tail, "since_seconds": since}
    return {key: value for key, value in asked.items() if value is not None}


def _decoded(answer: Any) -> Object:
    found: Object = json.loads(answer.data)
    return found


def _configured(choice: Choice) -> tuple[Configuration, str]:
    """What the kubeconfig says, and the namespace that is looked at."""
    from kubernetes import config
    from kubernetes.client import Configuration
    from kubernetes.config.config_exception import ConfigException

    made = Configuration()
    file = choice.kubeconfig or None
    try:
        contexts, active = config.list_kube_config_contexts(file)
        names = [each["name"] for each in contexts]
        if choice.context and choice.context not in names:
            raise Trouble(
                f"the kubeconfig has no context {choice.context!r}; there are: {', '.join(names)}", ExitCode.USAGE
            )
        config.load_kube_config(file, context=choice.context or None, client_configuration=made)
    except (ConfigException, OSError) as error:
        raise Trouble(
            f"no cluster to ask: {error}. Name a kubeconfig with --kubeconfig or in KUBECONFIG, as for kubectl",
            ExitCode.USAGE,
        ) from error
    made.retries = False  # what does not answer is told of at once
    chosen = next((each for each in contexts if each["name"] == choice.context), active)
    return made, choice.namespace or chosen["context"].get("namespace") or "default"
