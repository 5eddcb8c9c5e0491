"""What may stand where a name is asked for, as far as the cluster tells at once; silence is no error here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ullage.contract import REPOSITORY_LABEL
from ullage_agent.kubectl.cluster import Choice, Cluster
from ullage_agent.kubectl.trouble import Trouble

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _offering(find: Callable[[click.Context, Cluster], list[tuple[str, str]]]) -> Completer:
    """Names with a word on each, of those that begin as what is typed."""

    def complete(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            found = find(ctx, Cluster(_choice(ctx)))
        except Trouble:  # the command itself will say so; a TAB stays quiet
            return []
        return [CompletionItem(name, help=about) for name, about in found if name.startswith(typed)]

    return complete


def _choice(ctx: click.Context) -> Choice:
    said = ctx.params
    return Choice(
        said.get("kubeconfig") or "",
        said.get("context") or "",
        said.get("namespace") or "",
        bool(said.get("all_namespaces")),
    )


def _repositories(ctx: click.Context, cluster: Cluster) -> list[tuple[str, str]]:
    return [(each["metadata"]["name"], each["metadata"]["namespace"]) for each in cluster.repositories()]


def _nodes(ctx: click.Context, cluster: Cluster) -> list[tuple[str, str]]:
    found = cluster.nodes(repository=ctx.params.get("name") or "")
    return sorted({(each["spec"]["nodeName"], each["metadata"]["labels"][REPOSITORY_LABEL]) for each in found})


def _namespaces(ctx: click.Context, cluster: Cluster) -> list[tuple[str, str]]:
    with cluster.asking("list", "namespaces", ""):
        return [(each.metadata.name, "") for each in cluster.core.list_namespace(_request_timeout=2.0).items]


def _accounts(ctx: click.Context, cluster: Cluster) -> list[tuple[str, str]]:
    with cluster.asking("list", "serviceaccounts", cluster.namespace):
        found = cluster.core.list_namespaced_service_account(cluster.namespace, _request_timeout=2.0)
    return [(each.metadata.name, "") for each in found.items]


def _contexts(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem
    from kubernetes import config
    from kubernetes.config.config_exception import ConfigException

    try:
        found: Any = config.list_kube_config_contexts(_choice(ctx).kubeconfig or None)[0]
    except (ConfigException, OSError):
        return []
    return [CompletionItem(each["name"]) for each in found if each["name"].startswith(typed)]


repository_names = _offering(_repositories)
node_names = _offering(_nodes)
namespaces = _offering(_namespaces)
accounts = _offering(_accounts)
contexts = _contexts
