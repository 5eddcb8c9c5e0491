"""Ullage: content repositories on local disks that give their dead bytes back.

A repository stores content: in *queues*, as FlowFiles that sessions take, change and pass on, each session one durable
transaction; and as *handles*, which are fetched by id. It records what happens, and gives the space of dead content
back. Open one on this machine's disks, or connect to one that a service serves; both are a `Repository`:

>>> import ullage
>>> with ullage.open("data", create=True) as repository:
...     handle = repository.handles.put(b"content", {"filename": "a.txt"})
...     with repository.session() as session:
...         report = session.import_handle(handle)
...         session.transfer(report, "inbox")
...         session.commit()  # durable from here on
...     repository.handles.get(handle), repository.queues.find("inbox").flow_files
(b'content', 1)

`repository.handles`, `.queues`, `.provenance`, `.reclamation` and `.leases` say what each of them promises;
`ullage.errors` has one class for each thing that a program handles differently, all of them `UllageError`s.
`ullage.aio` is the same for programs of asyncio. `ullage.initialize`, `ullage.repair`, `ullage.restore`,
`ullage.restore_some`, `ullage.adopt`, `ullage.rejoin` and `ullage.salvage` are for a repository of this machine that
nobody has open.
Sizes are bytes, times are milliseconds since 1970.
"""

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage import aio, errors
    from ullage.client.node import Node, Resolver
    from ullage.client.retries import Retries
    from ullage.contract import ContentRepository
    from ullage.embedded.upkeep import (
        adopt,
        generation_at,
        generations,
        initialize,
        rejoin,
        repair,
        restore,
        restore_points,
        restore_some,
        salvage,
        verify_backup,
    )
    from ullage.enums import EventType, GivenBack, HolderKind, Lifetime, SpaceUse
    from ullage.errors import UllageError
    from ullage.interface.buckets import Bucket
    from ullage.interface.handles import Handles
    from ullage.interface.leases import Leases
    from ullage.interface.provenance import Provenance
    from ullage.interface.queues import Queues
    from ullage.interface.reclamation import Reclamation
    from ullage.interface.repository import Repository
    from ullage.interface.session import Session
    from ullage.streams import ContentStream
    from ullage.wire.provenance import EventQuery
    from ullage.wire.queues import FlowFile
    from ullage.wire.space import RunRequest
    from ullage.wire.upkeep import Keep, RecoveryReport

__version__ = "0.1.0"

__all__ = [
    "Bucket",
    "ContentStream",
    "EventQuery",
    "EventType",
    "FlowFile",
    "GivenBack",
    "Handles",
    "HolderKind",
    "Keep",
    "Leases",
    "Lifetime",
    "Node",
    "Provenance",
    "Queues",
    "Reclamation",
    "Repository",
    "Retries",
    "RunRequest",
    "Session",
    "SpaceUse",
    "UllageError",
    "adopt",
    "aio",
    "connect",
    "errors",
    "generation_at",
    "generations",
    "initialize",
    "open",
    "rejoin",
    "repair",
    "restore",
    "restore_points",
    "restore_some",
    "salvage",
    "verify_backup",
]

_HOMES = {
    "Bucket": "ullage.interface.buckets",
    "ContentStream": "ullage.streams",
    "EventQuery": "ullage.wire.provenance",
    "EventType": "ullage.enums",
    "FlowFile": "ullage.wire.queues",
    "GivenBack": "ullage.enums",
    "Handles": "ullage.interface.handles",
    "HolderKind": "ullage.enums",
    "Keep": "ullage.wire.upkeep",
    "Leases": "ullage.interface.leases",
    "Lifetime": "ullage.enums",
    "Node": "ullage.client.node",
    "Provenance": "ullage.interface.provenance",
    "Queues": "ullage.interface.queues",
    "Reclamation": "ullage.interface.reclamation",
    "Repository": "ullage.interface.repository",
    "Retries": "ullage.client.retries",
    "RunRequest": "ullage.wire.space",
    "Session": "ullage.interface.session",
    "SpaceUse": "ullage.enums",
    "UllageError": "ullage.errors",
    "adopt": "ullage.embedded.upkeep",
    "aio": "ullage",
    "errors": "ullage",
    "generation_at": "ullage.embedded.upkeep",
    "generations": "ullage.embedded.upkeep",
    "initialize": "ullage.embedded.upkeep",
    "rejoin": "ullage.embedded.upkeep",
    "repair": "ullage.embedded.upkeep",
    "restore": "ullage.embedded.upkeep",
    "restore_points": "ullage.embedded.upkeep",
    "restore_some": "ullage.embedded.upkeep",
    "salvage": "ullage.embedded.upkeep",
    "verify_backup": "ullage.embedded.upkeep",
}
"""Where names come from when they are first asked for: `import ullage` alone loads next to nothing."""


def open(
    root: "str | os.PathLike[str] | None" = None,
    *,
    config: "str | os.PathLike[str] | ContentRepository | None" = None,
    create: bool = False,
    maintain: bool = True,
    on_recovery: "Callable[[RecoveryReport], None] | None" = None,
) -> "Repository":
    """Open the repository in a directory of this machine, and recover it if need be; close it, or use it with `with`.

    Instead of `root`, whose settings are the defaults, `config` may be a ContentRepository: a YAML file's path, or a
    document that `ullage.contract` made. With `create` an empty repository is made where there is none, and an
    interrupted creation is finished. With `maintain` what is due happens in the background until it is closed:
    checkpoints, expiration, cleaning, and reclamation as `spec.maintenance` allows; without it, nothing. After an
    unclean end `on_recovery` is told what had to be done.

    NotARepository if there is none; RepositoryLocked while another process has it open; ForeignContainer if a volume is
    not mounted; RepositoryDamaged, with the way out, if what was acknowledged cannot be read; ContractError for a
    config that says what cannot be. Whatever it raises, it may be tried again.

    >>> with ullage.open("casks", create=True) as repository:
    ...     repository.state().queues
    0
    """
    from ullage.embedded.repository import open_embedded  # noqa: PLC0415 - the engine is loaded when it is needed

    return open_embedded(root, config, create=create, maintain=maintain, on_recovery=on_recovery)


def connect(
    url: str,
    *,
    token: str | None = None,
    ca_file: str | None = None,
    flight: str | None = None,
    socket: str | None = None,
    resolver: "Resolver | None" = None,
    retries: "Retries | None" = None,
) -> "Repository":
    """The repository that a service serves at an `http` or `https` URL; close it, or use it with `with`.

    `token` says who asks; `ca_file` has the authorities to trust, for certificates that the system does not know.
    `flight` is the service's address of Arrow Flight, and `socket` the path of its Unix socket: many contents at a time
    go faster that way, and everything on the same machine. `resolver` finds the nodes of handles that live elsewhere,
    by name: a mapping, or a function that raises KeyError. `retries` says how often, and after what waits, a request is
    sent again that got no answer, or met a service that is busy or stopping; each is carried out once.

    Nothing is sent until something is asked. Then NotReachable if nobody answers, Unauthenticated and Forbidden.
    InvalidArgument, at once, for a URL or a token that cannot be one, and for a token that would go to another machine
    without TLS. With an `https` URL the Unix socket must prove, too, that it is that node's before it is told a token.

    >>> with ullage.connect("http://127.0.0.1:1", retries=Retries(attempts=1)) as repository:
    ...     repository.state()
    Traceback (most recent call last):
    ullage.errors.NotReachable: http://127.0.0.1:1: [Errno 111] Connection refused
    """
    from ullage.client.node import Node  # noqa: PLC0415 - httpx is loaded when it is needed
    from ullage.client.repository import RemoteRepository  # noqa: PLC0415

    node = Node(url=url, flight=flight, socket=socket, token=token, ca_file=ca_file)
    return RemoteRepository(node, resolver=resolver, retries=retries)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ullage' has no attribute {name!r}")
    if _HOMES[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
