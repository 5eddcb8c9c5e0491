"""One table of the operator's metrics."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ullage.contract import Condition, ConditionStatus

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
WORKING = Gauge("ullage_operator_working", "1 while this process works, 0 while it stands by.", registry=REGISTRY)
QUEUE = Gauge("ullage_operator_queue_length", "Repositories that are due.", registry=REGISTRY)
WRITES = Counter("ullage_operator_api_writes", "Requests that change something.", ["kind"], registry=REGISTRY)


def _gauge(name: str, text: str, *more: str) -> Gauge:
    """One series a repository."""
    return Gauge(f"ullage_operator_{name}", text, ["namespace", "repository", *more], registry=REGISTRY)


WINDOWS_OPEN = _gauge("window_open", "1 while tickets may be given.")
TICKETS = _gauge("tickets", "Nodes that hold one.")
DEFERRALS = _gauge("deferred_nodes", "Nodes that wait for pods to go.")
WANTING = _gauge("wanting_nodes", "Nodes with something to truncate, punch or rewrite.")
OVERDUE = _gauge("overdue_nodes", "Nodes that have waited for pods longer than maxDefer, and have no ticket yet.")
NODES = _gauge("nodes", "Nodes by state.", "state")
CONDITIONS = _gauge("condition", "1 for the status that a condition of a repository has.", "type", "status")
CERTIFICATE_EXPIRY = _gauge("certificate_expiry_timestamp_seconds", "When the first certificate of an agent ends.")

BACKUP_CURRENT = _gauge(
    "backup_current", "1 for a ContentBackup that is not older than it should be, else 0.", "backup"
)
BACKUP_DAMAGED = _gauge(
    "backup_damaged", "1 for a ContentBackup of which a verification found damage that stands, else 0.", "backup"
)
BACKUP_VERIFIED = _gauge(
    "backup_verified",
    "0 for a ContentBackup whose verification failed or is too long ago, else 1; 1 too where none is asked for.",
    "backup",
)


def tell_backups(namespace: str, repository: str, health: Mapping[str, tuple[bool, bool, bool]]) -> None:
    """Each ContentBackup that there is: whether it is current, damaged, verified; of others nothing stands there."""
    for place, gauge in enumerate((BACKUP_CURRENT, BACKUP_DAMAGED, BACKUP_VERIFIED)):
        gauge.remove_by_labels({"namespace": namespace, "repository": repository})
        for name, found in health.items():
            gauge.labels(namespace, repository, name).set(found[place])


def tell_conditions(namespace: str, repository: str, conditions: Iterable[Condition]) -> None:
    """What a repository's status says: each condition with its three statuses, so that a query needs no history."""
    for condition in conditions:
        for status in ConditionStatus:
            series = CONDITIONS.labels(namespace, repository, condition.type, status)
            series.set(condition.status == status)


def forget(namespace: str, repository: str) -> None:
    """A repository is gone: so are its series."""
    told = (WINDOWS_OPEN, TICKETS, DEFERRALS, WANTING, OVERDUE, NODES, CONDITIONS, CERTIFICATE_EXPIRY)
    for gauge in (*told, BACKUP_CURRENT, BACKUP_DAMAGED, BACKUP_VERIFIED):
        gauge.remove_by_labels({"namespace": namespace, "repository": repository})
