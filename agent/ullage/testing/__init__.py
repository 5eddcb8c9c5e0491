"""For tests of programs that use Ullage: a repository without a disk (`open`), and disks that crash, tear and fail.

`ullage.testing.crashing.CrashFiles` is a disk in memory that knows what of it is durable.
"""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ullage.contract import ContentRepository
    from ullage.interface.repository import Repository


def open(*, config: "ContentRepository | None" = None, maintain: bool = False) -> "Repository":
    """An empty repository that keeps everything in memory: no file is made, and nothing is left when it is closed.

    It does what `ullage.open` gives does, but for backups, which copy files, and holes, which memory has none of: what
    a run would punch it rewrites. `config` sets what it obeys; where that lies on a disk does not matter. With
    `maintain` what is due happens in the background; without it, when the test asks for it.

    >>> import ullage.testing
    >>> with ullage.testing.open() as repository:
    ...     handle = repository.handles.put(b"content")
    ...     repository.handles.get(handle)
    b'content'
    """
    from ullage.contract import ContentRepository, ContentRepositorySpec, ContentSettings, Metadata  # noqa: PLC0415
    from ullage.embedded.repository import open_embedded  # noqa: PLC0415 - the engine is loaded when it is needed
    from ullage.testing.crashing import CrashFiles  # noqa: PLC0415

    document = config or ContentRepository(
        metadata=Metadata(name="testing"), spec=ContentRepositorySpec.embedded("/in-memory")
    )
    replaced, spec = msgspec.structs.replace, document.spec
    spec = replaced(
        spec,
        content=ContentSettings(repository="memory"),
        flow_file=replaced(spec.flow_file, repository="memory"),
        provenance=replaced(spec.provenance, repository="memory"),
    )
    # Identity, lock and swap files are no repository's, and go to a disk all the same: to this one.
    return open_embedded(None, replaced(document, spec=spec), create=True, maintain=maintain, files=CrashFiles())
