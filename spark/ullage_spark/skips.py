"""What is told of a job that goes on without nodes, beside its table `completeness`: a line in the driver's log, and
where Kubernetes lists the fleet a Warning event of the repository, which outlives the driver.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from ullage.contract import API_VERSION
from ullage_spark.addresses import KUBERNETES, create, place_of

LOG: Final = logging.getLogger("ullage_spark")

AGAIN_SECONDS: Final = 3_600
"""A stream looks at its fleet with each batch: the same nodes are told of once in so long, by each process."""

TOLD_MAX: Final = 1_024
_told: set[tuple[str, str, int]] = set()

REASON: Final = "NodesSkipped"
KIND: Final = "ContentRepository"
MESSAGE_MAX: Final = 1_024
"""Characters of an event's message that Kubernetes takes."""


def tell(endpoint: str, who: str, text: str, now: Callable[[], float] = time.monotonic) -> bool:
    """Once in a while for each fleet and those that are missing, `who`: why they are is said differently each time.
    What cannot be told as an event stands in the log all the same. Whether it was told now.
    """
    key = (endpoint, who, int(now() // AGAIN_SECONDS))
    if key in _told:
        return False
    if len(_told) >= TOLD_MAX:
        _told.clear()
    _told.add(key)
    LOG.warning("%s", text)
    if endpoint.startswith(KUBERNETES):
        try:
            namespace, repository = place_of(endpoint.removeprefix(KUBERNETES))
            event = event_of(namespace, repository, who, text, datetime.now(UTC))
            create(f"api/v1/namespaces/{namespace}/events", event)
        except (OSError, ValueError) as error:  # a job that may make no event, or gets no answer, is a job all the same
            LOG.warning("no event of it: the account needs the verb create on events: %s", error)
    return True


def event_of(namespace: str, repository: str, who: str, text: str, now: datetime) -> dict[str, Any]:
    """The event. Its name follows from those that are missing and the hour: of many jobs that miss them one is kept."""
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.blake2b(f"{who}\0{moment[:13]}".encode(), digest_size=8).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{repository[:200]}.{digest}", "namespace": namespace},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, "namespace": namespace, "name": repository},
        "type": "Warning",
        "reason": REASON,
        "message": text[:MESSAGE_MAX],
        "source": {"component": "ullage-spark"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
