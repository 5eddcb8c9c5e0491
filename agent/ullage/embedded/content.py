"""Contents as a service hands them out, and takes them in piece by piece."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ullage.engine.engine import Engine
from ullage.engine.handles import HandlePut as HandlePut
from ullage.engine.ledger.placement import pin_many
from ullage.engine.model import BLOCK_BYTES as BLOCK_BYTES, ContentClaim, FlowFileRecord, Operation
from ullage.engine.session import ProcessSession
from ullage.streams import ContentStream


class ReadableContent(NamedTuple):
    """What is known of a content before its first byte is read; it never changes.

    `tag` is no other content's. `crc` is the CRC-32C of all of it, where that is known. `open` gives a range: start,
    size, and how many blocks of 256 KiB to read at a time.
    """

    size: int
    tag: str
    crc: int | None
    open: Callable[[int, int, int], ContentStream]


def known_crc(claim: ContentClaim | None, start: int, size: int) -> int | None:
    """The ledger knows one of a claim as a whole."""
    return None if claim is None or start != 0 or size != claim.length else claim.crc


def readable(record: FlowFileRecord, open: Callable[[int, int, int], ContentStream]) -> ReadableContent:
    """The content of a FlowFile, which `open` opens: another content of it has another tag."""
    crc = 0 if record.claim is None else record.claim.crc
    tag = f"{record.id}-{crc:08x}-{record.start}-{record.size}"
    return ReadableContent(record.size, tag, known_crc(record.claim, record.start, record.size), open)


@contextmanager
def pinned(engine: Engine, claims: Sequence[ContentClaim]) -> Iterator[None]:
    """Base claims stay readable meanwhile, dead ones too that are there still. ClaimGone if one of them is not."""
    ledger, forgotten = engine.ledger, engine.forgotten
    held: list[ContentClaim] = []
    try:
        pin_many(ledger, claims, held)
        yield
    except GeneratorExit:  # a generator that is closed here may just be collected: no lock may be taken
        forgotten.later(lambda: ledger.unpin(held))
        raise
    except BaseException:
        ledger.unpin(held)
        raise
    else:
        ledger.unpin(held)


class QueuePut:
    """One FlowFile on its way into a queue: `write` as often as it takes, then `commit` or `abandon`, as `HandlePut` is
    for handles. One thread at a time.
    """

    def __init__(self, session: ProcessSession, queue: str, attributes: dict[str, str], *, force: bool = False) -> None:
        """BackPressure if the queue is full, unless it is forced."""
        self._queue = queue
        self._session = session
        if not force:
            session.require_room(queue)
        self._flow_file = session.create(attributes=attributes)
        self._open = ExitStack()
        self._stream = self._open.enter_context(session.writing(self._flow_file))

    @property
    def id(self) -> str:
        """The FlowFile's uuid, known before the commit so that it can stand in the answer."""
        return self._flow_file.id

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._stream.length

    def write(self, data: bytes) -> None:
        """Append. After an error only `abandon` is left."""
        self._stream.write(data)

    def commit(self, also: Sequence[Operation] = ()) -> None:
        """Make it durable and show it in the queue. An error leaves nothing behind."""
        try:
            self._open.close()
        except BaseException:  # a small content finds its place only now, and there may be none
            self.abandon()
            raise
        self._session.transfer(self._flow_file, self._queue)
        self._session.commit(also)

    def abandon(self) -> None:
        """Give it up: nothing is left behind but dead bytes."""
        self._session.rollback()
