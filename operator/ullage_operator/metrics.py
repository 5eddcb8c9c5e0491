"""One table of the operator's metrics."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

RECONCILES = Counter("ullage_operator_reconciles", "Reconciliations, by outcome.", ["outcome"], registry=REGISTRY)
for _outcome in ("done", "error", "bug"):
    RECONCILES.labels(_outcome)  # there before the first of them, which would else look like none
RECONCILE_SECONDS = Histogram(
    "ullage_operator_reconcile_seconds",
    "How long one took, writes included.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120),
    registry=REGISTRY,
)
QUEUE = Gauge("ullage_operator_queue_length", "Repositories that are due.", registry=REGISTRY)
WRITES = Counter("ullage_operator_api_writes", "Requests that change something.", ["kind"], registry=REGISTRY)
WINDOWS_OPEN = Gauge(
    "ullage_operator_window_open", "1 while tickets may be given.", ["namespace", "repository"], registry=REGISTRY
)
TICKETS = Gauge("ullage_operator_tickets", "Nodes that hold one.", ["namespace", "repository"], registry=REGISTRY)
DEFERRALS = Gauge(
    "ullage_operator_deferred_nodes", "Nodes that wait for pods to go.", ["namespace", "repository"], registry=REGISTRY
)
WANTING = Gauge(
    "ullage_operator_wanting_nodes",
    "Nodes with something to truncate, punch or rewrite.",
    ["namespace", "repository"],
    registry=REGISTRY,
)
OVERDUE = Gauge(
    "ullage_operator_overdue_nodes",
    "Nodes that have waited for pods longer than maxDefer, and have no ticket yet.",
    ["namespace", "repository"],
    registry=REGISTRY,
)
NODES = Gauge("ullage_operator_nodes", "Nodes by state.", ["namespace", "repository", "state"], registry=REGISTRY)
CERTIFICATE_EXPIRY = Gauge(
    "ullage_operator_certificate_expiry_timestamp_seconds",
    "When the agents' certificate ends.",
    ["namespace", "repository"],
    registry=REGISTRY,
)


def forget(namespace: str, repository: str) -> None:
    """A repository is gone: so are its series."""
    for gauge in (WINDOWS_OPEN, TICKETS, DEFERRALS, WANTING, OVERDUE, CERTIFICATE_EXPIRY):
        if (namespace, repository) in gauge._metrics:  # noqa: SLF001 - remove() of a series that is not there fails
            gauge.remove(namespace, repository)
    NODES.remove_by_labels({"namespace": namespace, "repository": repository})
