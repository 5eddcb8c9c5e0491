"""What an operation over HTTP is: its path, what it takes, what it answers, and what it may refuse."""

from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from ullage import errors
from ullage.contract import Right
from ullage.errors import UllageError

KEY_HEADER: Final = "Idempotency-Key"
REPEATED_HEADER: Final = "Ullage-Repeated"
"""On the first answer to a request with a key, given again: `true`."""

ATTRIBUTES_HEADER: Final = "Ullage-Attributes"
"""Attributes that go with a content: a JSON object of strings, in ASCII."""


class OctetStream:
    """Stands for bytes as they are: `application/octet-stream`, of any size."""


class PlainText:
    """Stands for a line of text."""


A = TypeVar("A")

Refusals = tuple[type[UllageError], ...]
Sometimes = tuple[tuple[Right, str], ...]

ADMINISTERING: Final = (Right.ADMIN,)

OF_DELETED: Final = ((Right.UNDELETE, "of a handle that was deleted or has expired"),)
OF_OTHERS: Final = ((Right.REVOKE, "of somebody else's"),)

ANY: Final[Refusals] = (
    errors.InvalidArgument,
    errors.Unauthenticated,
    errors.TooManyTokens,
    errors.Forbidden,
    errors.AccessUnknown,
    errors.QuotaReached,
    errors.ServiceBusy,
    errors.ServiceStopping,
    errors.NotRestored,
    errors.LeaseLapsed,
)
"""What any request under `/v1` may be refused with."""

KEYED: Final[Refusals] = (errors.KeyInUse, errors.KeyReused, errors.AnswerUnknown)
BODY: Final[Refusals] = (errors.RequestTooLarge, errors.TransferStalled, errors.RequestIncomplete)
COMMIT: Final[Refusals] = (errors.NodeFenced, errors.RepositoryStopped, errors.CommitOutcomeUnknown)
STORE: Final[Refusals] = (
    *COMMIT,
    errors.TransactionTooLarge,
    errors.BackPressure,
    errors.NodeDraining,
    errors.ContentWriteFailed,
    errors.DiskFull,
)
"""What may come of a commit that takes room on the disk."""

READ: Final[Refusals] = (
    errors.ContentReclaimed,
    errors.ClaimGone,
    errors.ContentMissing,
    errors.ContentCorrupt,
    errors.RangeNotSatisfiable,
)
HANDLE_NAME: Final[Refusals] = (errors.HandleNotFound, errors.Elsewhere)
HANDLE: Final[Refusals] = (*HANDLE_NAME, errors.HandleDeleted)
EVENT: Final[Refusals] = (errors.EventNotFound, errors.HandleDeleted, errors.NotFound, errors.ProvenanceDamaged)
SESSION: Final[Refusals] = (errors.SessionGone, errors.SessionBusy, errors.SessionMisuse, errors.FlowFileNotFound)

NAMED: Final[dict[str, Refusals]] = {
    "/handles/{id}": HANDLE,
    "{session}": SESSION,
    "{event}": EVENT,
    "{lease}": (errors.LeaseLost,),
    "{resource}": (errors.NotFound,),
    "{run}": (errors.NotFound,),
}
"""What may come of a name in a path."""

ABSENT: Final = (errors.NotFound, errors.LeaseLost, errors.SessionGone)
"""What says that there is nothing by a name."""

UPKEEP: Final = frozenset({"backup", "check", "checkpoint", "contents"})


class Operation(NamedTuple, Generic[A]):
    """One operation. `answer` and `body` are types of documents, OctetStream or PlainText; a body of None is none."""

    id: str
    route: str
    """The method, the path, in which what stands in braces is filled in, and the status of the answer if not 200."""

    answer: type[A]
    rights: tuple[Right, ...] | None = None
    """What whoever asks must have, all of it; with none of them a token is enough. None: nobody is asked for one."""

    refusals: Refusals = ()
    """Beside those that all operations of its kind have."""

    body: Any = None
    is_repeatable: bool = False
    """Whether a repeat does no harm, although it is no reading."""

    sometimes: Sometimes = ()
    """What more must be had in some cases, each with the case in words."""

    is_long: bool = False
    """Whether it may take as long as it likes: it reads, or moves, what stands in the whole repository. A repeat does
    what is left of it.
    """

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.split(" ")[1]

    @property
    def status(self) -> int:
        """That of the answer."""
        return int(self.route.partition(" -> ")[2] or 200)

    @property
    def is_keyed(self) -> bool:
        """Whether it takes an idempotency key, and with it is carried out once."""
        return self.method != "GET" and not (self.is_repeatable or self.is_long)

    @property
    def tag(self) -> str:
        """What it is about."""
        subject = self.path.split("/")[2] if self.rights is not None else "state"
        return "upkeep" if subject in UPKEEP else subject

    def path_of(self, **names: str | int) -> str:
        """The path with these names in it. An empty one, whose path would be another resource's, names nothing."""
        texts = {name: str(value) for name, value in names.items()}
        if "" in texts.values():
            missing = next((each for each in self.refused() if issubclass(each, ABSENT)), errors.InvalidArgument)
            raise missing(f"{self.id}: nothing has an empty name")
        return self.path.format_map({name: _escaped(text) for name, text in texts.items()})

    def refused(self) -> Refusals:
        """All that it may be refused with."""
        if self.rights is None:
            return self.refusals
        return (
            *ANY,
            *(KEYED if self.is_keyed else ()),
            *(() if self.body is None else BODY),
            *((errors.DigestMismatch,) if self.body is OctetStream else ()),
            *(each for name, refusals in NAMED.items() if name in self.path for each in refusals),
            *self.refusals,
        )


def reading(
    id: str,
    path: str,
    answer: type[A],
    rights: tuple[Right, ...],
    *refusals: type[UllageError],
    sometimes: Sometimes = (),
) -> Operation[A]:
    """One that changes nothing."""
    return Operation(id, f"GET {path}", answer, rights, refusals, sometimes=sometimes)


def storing(id: str, route: str, answer: type[A], body: Any, *refusals: type[UllageError]) -> Operation[A]:
    """One whose commit takes room on the disk."""
    return Operation(id, route, answer, (Right.WRITE,), (*refusals, *STORE), body)


def _escaped(text: str) -> str:
    """A name as one segment of a path; `.` and `..` too, which whoever sends a path would resolve."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
