"""Who holds what: everything that keeps bytes, records or events from going, with whose it is."""

import msgspec

from ullage.enums import HolderKind


class HolderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody holds."""

    kind: HolderKind

    principal: str
    """Whose it is; empty for what is nobody's."""

    id: str
    """What it is called: the uuid of a lease, session, staged write or snapshot, the name of a stream or of a reader of
    events; empty for an upload."""

    about: str
    """In words: a purpose, a component, an operation, a queue. A queue that whoever asks may not read is not named."""

    flow_files: int | None
    """How many FlowFiles or contents it has; None: it is not about FlowFiles."""

    bytes: int | None
    """Bytes that it keeps; None: everything that lived when it began, or it is not known."""

    since_millis: int | None
    """When it began; None: it is not known."""

    until_millis: int | None
    """When it ends by itself, unless it is renewed; None: with its request."""
