"""What can go wrong between a program and a node, one class for each thing it handles differently."""


class ClientError(Exception):
    """Base of all errors that the client raises on purpose."""


class Refused(ClientError):
    """The node said no. `slug` is what to branch on: docs/api.md lists them, and all transports have the same."""

    def __init__(self, status: int, slug: str, detail: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{slug}: {detail}" if detail else slug)
        self.status = status
        self.slug = slug
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.retry_after_seconds is not None


class NotReachable(ClientError):
    """The node does not answer, or went away amid the answer. Of a write without a key the outcome is not known."""


class LeaseLost(ClientError):
    """The node took the lease back, or the connection broke: what was read under it must be discarded."""


class ContentDamaged(ClientError):
    """Bytes came that do not match their checksum, although the lease stood while they were read."""


class Misuse(ClientError):
    """The call contradicts itself: nothing was sent."""
