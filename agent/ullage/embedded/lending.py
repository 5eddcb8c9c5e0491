"""What one client holds of content files: a lease on resource claims, and descriptors of their files in its hands.

    resolve   lease the births | look the handles up again | locate | open, pass, close our copy
              ^ from here on nothing of them is cut, punched or removed
    end       the socket is closed, so that the client's next look finds it so | the lease is released

The order at the end is what makes it safe: bytes change only after the client can see that it has lost them. An
address is leased by its *birth*, the resource claim that it was written to; the descriptor is of the *file* that holds
the bytes now, another one if a rewrite has moved them. A rewrite may move them again, and what is dead may go: the file
of which the client has a descriptor stays as it is until it is closed.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from ullage.contract import QueueUse
from ullage.embedded.acting import LOCAL
from ullage.embedded.deleted import Deleted
from ullage.engine.engine import Engine
from ullage.engine.ledger import placement
from ullage.engine.model import ContentClaim, FlowFileRecord, ResourceClaim
from ullage.errors import (
    ClaimGone,
    ContentMissing,
    ContentReclaimed,
    DescriptorRefused,
    HandleDeleted,
    HandleNotFound,
    LeaseLost,
    LeaseRefused,
    UllageError,
)
from ullage.wire.frames import FRAME_BYTES_MAX, ClaimKey, Place
from ullage.wire.problems import problem_of

HOLDER: Final = "socket"
"""How the holder of such a lease begins."""

TRIES: Final = 3
"""How often a request is looked up anew because what it names died meanwhile. Each time, less of it lives."""

BLOCKS_BYTES_MAX: Final = FRAME_BYTES_MAX - 4_096
"""Block checksums of one claim, in one frame: of a claim of a quarter of a terabyte."""

Wanted = tuple[ContentClaim | None, int, int]
"""A base claim, and start and size of the content in it."""

Lookup = Callable[[], list[Wanted | Place]]
"""What is asked for, as it is now: where found a claim, else the problem."""


class LentFiles:
    """One client's lease and files; used by its thread. `files` are those that the client was passed."""

    def __init__(self, engine: Engine, holder: str, files_max: int) -> None:
        self._engine = engine
        self._holder = f"{HOLDER}: {holder}"
        self._files_max = files_max
        self._lease: bytes | None = None
        self._births: dict[int, int] = {}
        self.files: set[int] = set()
        self._reserved: set[int] = set()
        """Files that are about to be passed, and stay as they are from here on."""

        self.acting = LOCAL
        """For whom, as soon as that is known."""

    def require(self) -> None:
        """LeaseLost if what is held was revoked, or its time is over; any thread may ask."""
        lease = self._lease
        if lease is not None:
            try:
                self._engine.leases.require(lease)
            except LeaseLost:
                if self._lease == lease:  # else it gave everything back just now
                    raise

    def handles(self, uuids: list[bytes]) -> list[Place]:
        """Where the contents of handles are. Forbidden to whom the rules keep from handles."""
        self.acting.require(QueueUse.READ)

        has_all = self.acting.queues.allows_everywhere(QueueUse.READ)

        def wanted(record: FlowFileRecord | UllageError) -> Wanted | Place:
            if isinstance(record, HandleDeleted | HandleNotFound):
                return _refusal(record)
            if isinstance(record, UllageError):
                raise record
            if not has_all and record.claim is not None and not self._may_have(record.claim.resource):
                return _refusal(DescriptorRefused("the file holds more than you may read: ask for the bytes"))
            return record.claim, record.start, record.size

        return self._resolve(lambda: list(map(wanted, self._engine.handles.records(uuids))))

    def claims(self, keys: list[ClaimKey]) -> list[Place]:
        """Where base claims are. What is not in use is found as long as its bytes are there."""
        self.acting.right.require()
        ledger, deleted = self._engine.ledger, Deleted(self._engine, self.acting)

        def look(key: ClaimKey) -> Wanted | Place:
            entry = ledger.entry(key.resource)
            with ledger.lock:
                is_held = key.resource in self._births or (entry is not None and not entry.is_free)
            if not is_held or deleted.hides(ContentClaim(*key)):
                return _refusal(ClaimGone(f"resource claim {key.resource} holds nothing that lives"))
            if not self._may_have(key.resource):
                return _refusal(DescriptorRefused("the file holds more than you may read"))
            return ContentClaim(*key), 0, key.length

        return self._resolve(lambda: [look(key) for key in keys])

    def new_files(self, places: Iterable[Place]) -> list[ResourceClaim]:
        """Files that the client has no descriptor of. LeaseRefused if it would have too many."""
        missing = {place.file for place in places if place.length and not place.slug} - self.files
        self._unreserve(self._reserved - missing)
        if len(self.files) + len(missing) > self._files_max:
            self._unreserve(missing)
            raise LeaseRefused(
                f"{len(self.files)} files are held and {len(missing)} more asked for, at most {self._files_max} are "
                "allowed on a connection: give some back"
            )
        entries = [self._engine.ledger.entry(index) for index in sorted(missing)]
        return [entry.claim for entry in entries if entry is not None]

    @contextmanager
    def opened(self, files: Sequence[ResourceClaim]) -> Iterator[list[int]]:
        """Descriptors to pass; they count as the client's from now on. Our copies are closed at the end: the kernel has
        its own on the way to the client.
        """
        with ExitStack() as stack:
            descriptors = []
            for file in files:  # one by one: those before a failure are closed
                self._reserved.remove(file.index)
                self.files.add(file.index)
                try:
                    descriptors.append(self._engine.content.open_descriptor(file))
                except BaseException:
                    self._closed({file.index})
                    raise
                stack.callback(os.close, descriptors[-1])
            yield descriptors

    def _located(self, claim: ContentClaim) -> placement.ClaimLocation:
        """Where a claim lies, in a file that is not changed in place as long as this client has it, or is about to."""
        while True:
            found = placement.locate(self._engine.ledger, claim)
            file = found.file.index
            if file in self.files or file in self._reserved:
                return found
            if not self._engine.reclamation.passed.passed(file, self._holder):
                raise DescriptorRefused("the file is just being cut or punched: ask for the bytes")
            # Located once more:
            #
            #     located | its content dies, and is punched | reserved: what was located is zeros
            self._reserved.add(file)

    def _unreserve(self, files: set[int]) -> None:
        self._reserved -= files
        self._engine.reclamation.passed.given_back(files, self._holder)

    def _closed(self, files: set[int]) -> None:
        self.files -= files
        self._engine.reclamation.passed.given_back(files, self._holder)

    def give_back(self, files: Iterable[int]) -> None:
        """The client has closed these. What lies in no file that it still has is leased no longer."""
        gone = self.files.intersection(files)
        if not gone:
            return
        self._closed(gone)
        self._births = {birth: file for birth, file in self._births.items() if file in self.files}
        if self._lease is None:
            return
        if self._births:
            self._engine.leases.hold(self._lease, self._births)
        else:
            self.release()

    def release(self) -> None:
        """Everything is given back. The connection is closed by now, or the client said so."""
        lease, self._lease = self._lease, None
        self._births = {}
        self._closed(set(self.files))
        self._unreserve(set(self._reserved))
        if lease is not None:
            self._engine.leases.release(lease)

    def _may_have(self, birth: int) -> bool:
        """Whether the client may see every byte of the file in which a claim lies that was written to this one.

        A file holds contents of everybody who wrote at its time, deleted ones too, whatever queue they stood in: only
        who may read every queue may see it. With spec.isolation PerTenant it is one principal's own.
        """
        if self.acting.queues.allows_everywhere(QueueUse.READ):
            return True
        entry = self._engine.ledger.entry(birth)
        if entry is not None and entry.relocation is not None:
            entry = self._engine.ledger.entry(entry.relocation.output)
        return entry is not None and bool(entry.claim.tenant) and entry.claim.tenant == self.acting.by

    def _resolve(self, look: Lookup) -> list[Place]:
        self._unreserve(set(self._reserved))  # of an answer that came to nothing
        for _ in range(TRIES):
            wanted = look()
            births = {found[0].resource for found in wanted if not isinstance(found, Place) and found[0] is not None}
            fresh = births - self._births.keys()
            if fresh:
                try:
                    self._lease_births(fresh)
                except ClaimGone:
                    continue  # something died between the look and the lease: look again
                wanted = look()  # again, under the lease: what is found now stays
            return [found if isinstance(found, Place) else self._place(*found) for found in wanted]
        raise LeaseRefused("what was asked for is being deleted all the while: ask again")

    def _lease_births(self, fresh: set[int]) -> None:
        leases = self._engine.leases
        if self._lease is None:
            longest = int(self._engine.spec.leases.max_duration)
            self._lease = leases.acquire(
                self._holder, longest, fresh, holds_files=True, owner=self.acting.owner, each_max=self.acting.leases_max
            ).id
        else:
            leases.hold(self._lease, fresh | self._births.keys())
        self._births.update(dict.fromkeys(fresh, 0))

    def _place(self, claim: ContentClaim | None, start: int, size: int) -> Place:
        if claim is None or size == 0:
            return Place()
        try:
            found = self._located(claim)
        except (ContentReclaimed, ContentMissing, DescriptorRefused) as error:
            return _refusal(error)
        self._births[claim.resource] = found.file.index
        blocks = self._engine.reader.known_blocks(claim) or b""
        if len(blocks) > BLOCKS_BYTES_MAX:
            blocks = b""  # too many for a frame: the client is left with the claim's own checksum
        # By position: names cost as much as all the rest of this function.
        return Place(0, "", found.file.index, found.offset, claim.length, claim.crc, start, size, blocks)


def release_leftovers(engine: Engine) -> None:
    """End the leases of connections that an earlier process had: their clients saw them break."""
    for lease in list(engine.ledger.leases.values()):
        if lease.holder.startswith(HOLDER + ":"):
            engine.leases.release(lease.id)


def _refusal(error: Exception) -> Place:
    problem = problem_of(error)
    return Place(status=problem.status, slug=problem.slug)
