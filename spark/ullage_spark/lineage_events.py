"""OpenLineage: what a job reads of a fleet and writes to it, told as openlineage-python's own settings say where.

Nothing is told, and the package is not even imported, unless one of its settings stands in the environment. Whatever
goes wrong with the telling is logged, and is no matter of the job's.

A dataset's namespace is the fleet (`ullage://data/flows`, or its first address), and its name a table, `queues/NAME`,
or `handles`. OPENLINEAGE_NAMESPACE is that of jobs, and OPENLINEAGE_PARENT_ID the run that a job is a part of.
"""

import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ullage_spark.addresses import KUBERNETES, addresses
from ullage_spark.settings import SourceOptions

LOG: Final = logging.getLogger("ullage.spark")
PRODUCER: Final = "https://ullage.dev"
NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
PARENT: Final = "OPENLINEAGE_PARENT_ID"
SETTINGS: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE", "OPENLINEAGE__TRANSPORT")


class ToldRun(msgspec.Struct, kw_only=True):
    """A run of a job: whoever has it tells how it goes on. It goes along with what Spark pickles."""

    job: str
    fleet: str
    id: str
    inputs: list[str]
    outputs: list[tuple[str, str]]
    """Namespace and name."""

    @classmethod
    def of(
        cls,
        job: str,
        settings: SourceOptions,
        *,
        inputs: Iterable[str] = (),
        output: str = "",
        files: Iterable[str] = (),
    ) -> "ToldRun":
        """One that reads these datasets of the fleet, or writes one of it or `files` elsewhere, by their addresses."""
        fleet = namespace_of(settings) if is_on() else ""
        outputs = [(fleet, output)] if output else list(map(_dataset_at, files))
        return cls(job=job, fleet=fleet, id=str(uuid.uuid4()), inputs=list(inputs), outputs=outputs)

    def reads(self, name: str) -> None:
        """This too is read: what is told from now on says so."""
        if name not in self.inputs:
            self.inputs.append(name)

    def tell(self, state: str, problem: str = "") -> None:
        """START, RUNNING, COMPLETE, FAIL or OTHER."""
        if not is_on():
            return
        try:
            _emit(self, state, problem)
        except Exception as error:  # noqa: BLE001 - of a transport, of which there are many: none of it is the job's
            LOG.warning("OpenLineage was not told that %s is at %s: %s", self.job, state, error)

    @contextmanager
    def told(self) -> Iterator[None]:
        """From its start to its end, or its failure."""
        self.tell("START")
        try:
            yield
        except BaseException as error:
            self.tell("FAIL", f"{type(error).__name__}: {error}")
            raise
        self.tell("COMPLETE")


def is_on() -> bool:
    """Whether anybody said where events go to."""
    return any(os.environ.get(name) for name in SETTINGS)


def namespace_of(settings: SourceOptions) -> str:
    """The fleet, as datasets are named by."""
    if settings.endpoint.startswith(KUBERNETES) and not settings.nodes:
        return f"ullage://{settings.endpoint.removeprefix(KUBERNETES)}"
    first = min((each.flight for each in addresses(settings) if each.flight), default="")
    return f"ullage://{first.partition('://')[2]}"


def queue_dataset(queue: str) -> str:
    """The name of what is written to or taken of a queue; without one, of handles."""
    return f"queues/{queue}" if queue else "handles"


def _dataset_at(address: str) -> tuple[str, str]:
    """Of files, as OpenLineage names them by their filesystem."""
    found = urlsplit(address)
    if found.scheme in ("", "file"):
        return "file", found.path
    return f"{found.scheme}://{found.netloc}", found.path.lstrip("/")


@lru_cache(1)
def _client() -> Any:
    from openlineage.client import OpenLineageClient  # noqa: PLC0415 - an extra of its own

    return OpenLineageClient()


def _emit(told: ToldRun, state: str, problem: str) -> None:
    from openlineage.client import event_v2 as events  # noqa: PLC0415
    from openlineage.client.facet_v2 import error_message_run, parent_run  # noqa: PLC0415

    facets: dict[str, Any] = {}
    if problem:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=problem, programmingLanguage="python")
    if parent := os.environ.get(PARENT):
        namespace, job, run = parent.split("/", 2)
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=run), job=parent_run.Job(namespace=namespace, name=job)
        )
    _client().emit(
        events.RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            eventType=events.RunState[state],
            run=events.Run(runId=told.id, facets=facets),
            job=events.Job(namespace=os.environ.get(NAMESPACE, "default"), name=told.job),
            inputs=[events.InputDataset(namespace=told.fleet, name=name) for name in told.inputs],
            outputs=[events.OutputDataset(namespace=space, name=name) for space, name in told.outputs],
            producer=PRODUCER,
        )
    )
