"""Lets a NiFi's FlowFile repository name the survivors where a rewrite has put them, or where they were.

Both places have them as long as this goes on. So whichever of these files are the new ones at a crash, each FlowFile
has its content.
"""

import os

from ullage.nifi.changes import Changes, Likeness
from ullage.nifi.contents import BLOCK_BYTES
from ullage.nifi.copies import KeptCopies
from ullage.nifi.intent import ReclaimIntent


class Switch:
    """Of one rewrite."""

    def __init__(self, flowfiles: str, intent: ReclaimIntent, changes: Changes) -> None:
        self._flowfiles = flowfiles
        self._intent = intent
        self._changes = changes
        self._folder = os.path.join(flowfiles, intent.aside)

    def forward(self) -> None:
        """The new files take their places. Durable when this returns; what an earlier call did is done."""
        for name, _, _ in self._intent.built:
            source = os.path.join(self._folder, os.path.basename(name))
            if os.path.lexists(source):
                self._changes.rename(source, os.path.join(self._flowfiles, name))
        self._sync()
        self._changes.remove_folder(self._folder)

    def back(self, copies: KeptCopies) -> None:
        """The same of those that were there."""
        self._changes.make_folder(self._folder)
        before = {name: modified for name, _, modified in self._intent.replaced}
        for name, _, _ in self._intent.built:
            target = os.path.join(self._flowfiles, name)
            if name not in before:  # NiFi had written no checkpoint yet
                if os.path.lexists(target):
                    self._changes.unlink(target)
                continue
            found = os.lstat(target)
            if found.st_mtime_ns == before[name]:
                continue
            source = os.path.join(self._folder, os.path.basename(name))
            if os.path.lexists(source):
                self._changes.unlink(source)
            like = Likeness.of(found)._replace(modified_ns=before[name])
            self._changes.write_new(source, copies.replaced(name), like)
            self._changes.rename(source, target)
        self._sync()
        self.discard()

    def discard(self) -> None:
        """What was built and is in no place."""
        if os.path.isdir(self._folder) and not os.path.islink(self._folder):
            for name in self._changes.names(self._folder):
                self._changes.unlink(os.path.join(self._folder, name))
            self._changes.remove_folder(self._folder)

    def drop_contents(self) -> int:
        """The files that got survivors, to which nobody refers; the bytes that come back."""
        freed = 0
        for new in self._intent.new:
            path = self._intent.path(new.file)
            if os.path.lexists(path):
                freed += os.stat(path).st_blocks * BLOCK_BYTES
                self._changes.unlink(path)
        return freed

    def taken(self) -> int:
        """Bytes that these take."""
        return sum(os.stat(self._intent.path(new.file)).st_blocks * BLOCK_BYTES for new in self._intent.new)

    def _sync(self) -> None:
        folders = {os.path.dirname(os.path.join(self._flowfiles, name)) for name, _, _ in self._intent.built}
        for folder in sorted({*folders, self._flowfiles, self._folder}):
            if os.path.isdir(folder):
                self._changes.sync_folder(folder)
