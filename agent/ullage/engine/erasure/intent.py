"""The intent of an erasure: durable before anything goes, and away once nothing is left to do.

    look | intent written, synced | records, events, contents, copies go | looked again | intent removed, synced
                                  ^ from here on it is known whose bytes are whose

Once the records of a subject are gone and its events are redacted, nothing else tells which dead bytes were its, or
which answers name it. So a crash would leave them for ever, were it not for the intent: whoever erases next goes on.
It has the subject's values in it, as long as it is there; in the end it becomes `intent.over`, which is nobody's any
more.
"""

import os
import shlex
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ullage.clock import moment_of
from ullage.engine.files import Files, discard_partial, make_directories, read_file, replace_file
from ullage.engine.model import UUID_BYTES, ContentClaim, Whole
from ullage.engine.registers import ERASURE
from ullage.engine.wal.format import FORMAT_VERSION, decode_header, pack_file_header, unpack_file
from ullage.errors import FormatTooNew, RepositoryDamaged
from ullage.wire.erasure import ErasureFinding

INTENT = "intent"
OVER = ".over"
MAGIC = b"ULLAGEER"

_WAY_OUT = (
    "`ullage erase --give-up --yes` forgets it. Then erase the subject anew, which takes what records and events still "
    "tell of it, and call `ullage reclaim --policy CompactAll --archive`: content whose records had gone is dead, and "
    "goes with all that is. Where less than a fiftieth of a file would come back, it stays for now"
)


class ErasureIntent(msgspec.Struct, frozen=True, kw_only=True):
    """What is to go: what the subject is, the FlowFiles and handles that it has or had (16 bytes each), and the content
    that these have, or that events tell of. `found` is how much that was, `transaction` the last one before.
    `overwrites`: what goes is overwritten.
    """

    format: int
    repository: str
    where: dict[str, str]
    began_millis: Whole
    uuids: bytes
    claims: tuple[ContentClaim, ...]
    transaction: Whole = 0
    found: tuple[ErasureFinding, ...] = ()
    overwrites: bool = False


class IntentFile(NamedTuple):
    """Where the intent of a repository lies: `<root>/erasure/intent`."""

    files: Files
    root: str
    repository: str

    @property
    def path(self) -> str:
        return os.path.join(self.root, ERASURE, INTENT)

    def read(self) -> ErasureIntent | None:
        """The erasure that was begun and is not finished, if there is one; RepositoryDamaged or FormatTooNew."""
        if not self.files.exists(os.path.dirname(self.path)):
            return None
        discard_partial(self.files, self.path)  # an older one counts, or nothing went yet; and it names the subject
        self._forget()
        intent = self.peek()
        if intent is not None and intent.repository != self.repository:
            raise RepositoryDamaged(f"{self.path} says what was being erased in another repository; {_WAY_OUT}")
        return intent

    def peek(self) -> ErasureIntent | None:
        """The same, and nothing is changed; whoever has the repository open, and whichever it is."""
        if not self.files.exists(self.path):
            return None
        found = unpack_file(MAGIC, read_file(self.files, self.path))
        if found is not None:
            intent = decode_header(found, ErasureIntent, self.path)
            if not len(intent.uuids) % UUID_BYTES:
                return intent
        raise RepositoryDamaged(f"{self.path}, which says what was being erased, is damaged; {_WAY_OUT}")

    def write(self, intent: ErasureIntent) -> None:
        """Durable when this returns: only then may anything go."""
        make_directories(self.files, os.path.dirname(self.path))
        replace_file(self.files, self.path, pack_file_header(MAGIC, msgspec.msgpack.encode(intent)))

    def new(self, **said: object) -> ErasureIntent:
        """One of this repository."""
        return ErasureIntent(format=FORMAT_VERSION, repository=self.repository, **said)  # type: ignore[arg-type]

    def remove(self) -> bool:
        """Forget it, durably; whether there was one."""
        is_there = self.files.exists(self.path)
        if is_there:
            # Under this name it counts no more. An erasure that overwrites fills it with zeros, and a crash amid that
            # would leave an intent of which nobody could say what it was about.
            self.files.rename(self.path, self.path + OVER)
            self.files.sync_directory(os.path.dirname(self.path))
            self._forget()
        return is_there

    def _forget(self) -> None:
        if self.files.exists(self.path + OVER):
            self.files.unlink(self.path + OVER)
            # It names the subject: after this it does not come back with a crash.
            self.files.sync_directory(os.path.dirname(self.path))


def erase_command(where: Mapping[str, str]) -> str:
    """What a person types to erase a subject."""
    words = " --and ".join(shlex.quote(f"{name}={value}") for name, value in where.items())
    return f"ullage erase --where {words}"


def told_unfinished(files: Files, root: str) -> str:
    """What a repository that is open says of an erasure that was begun in it and is not finished, which only somebody
    can go on with once it is closed; empty if there is none. It goes where many read it: so it has no values.
    """
    try:
        intent = IntentFile(files, root, "").peek()
    except (RepositoryDamaged, FormatTooNew) as error:
        return str(error)
    if intent is None:
        return told_left_over(files, root)
    command = erase_command(dict.fromkeys(intent.where, "VALUE"))
    return (
        f"An erasure was begun at {moment_of(intent.began_millis)} and is not finished: what is left of the subject is "
        f"there still. Stop the service and say `{command}` (`ullage status --root "
        f"{shlex.quote(root)}` shows the values), or give it up (`ullage erase --give-up`)"
    )


def told_left_over(files: Files, root: str) -> str:
    """What to say of the file that an erasure renames in its end and removes, where a crash came in between: it is
    full of the subject's values, or of zeros in part, and nothing but an erasure removes it. Empty if there is none.
    """
    path = IntentFile(files, root, "").path + OVER
    if not files.exists(path):
        return ""
    return (
        f"An erasure has ended, and a crash came before its last file went: {path} may still name the subject. Stop "
        "the service and say `ullage erase --give-up`, which removes the file and forgets nothing else"
    )
