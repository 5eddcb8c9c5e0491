"""What the service itself refuses, one class for each answer; what the engine refuses has its own errors.

`problems.problem_of` turns both into answers.
"""


class ServiceError(Exception):
    """Base of all errors that the service raises on purpose."""


class Unauthenticated(ServiceError):
    """No token, or one that nobody vouches for. The message never holds the token."""


class Forbidden(ServiceError):
    """Whoever asks is known and may not do this."""


class AccessUnknown(ServiceError):
    """Whoever vouches for tokens cannot be asked now: neither yes nor no."""


class BadRequest(ServiceError):
    """The request contradicts itself or what it is about."""


class TooMuch(ServiceError):
    """One request brings, or asks for, more than a named limit allows."""


class TooManyRequests(ServiceError):
    """A bound on what is under way is reached; a later try may succeed."""


class DigestMismatch(ServiceError):
    """The content is not the one whose digest came with it: nothing was stored."""


class SessionGone(ServiceError):
    """The session ended: committed, rolled back, or its time was over."""


class SessionBusy(ServiceError):
    """Another request works in this session."""


class WindowClosed(ServiceError):
    """Reclamation is not allowed now; `opens_millis` is when it will be, None: not in sight."""

    def __init__(self, message: str, opens_millis: int | None = None) -> None:
        super().__init__(message)
        self.opens_millis = opens_millis


class RunUnderWay(ServiceError):
    """A run of reclamation is under way: one at a time."""


class Stalled(ServiceError):
    """Nothing came in, or nothing was taken, for too long."""


class ClientGone(ServiceError):
    """The client went away before its request was complete: nothing was stored."""


class RangeRefused(ServiceError):
    """No byte of the content lies in the range that was asked for; `size` is what there is."""

    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size


class Elsewhere(ServiceError):
    """The handle names another node."""


class NotFound(ServiceError):
    """No such thing here."""


class Stopping(ServiceError):
    """The service is stopping, and takes nothing new."""


class ReloadRefused(ServiceError):
    """New settings that cannot take effect while the repository is open; the message names the fields."""


class CannotListen(ServiceError):
    """A port, a certificate or a token file that the service needs is not to be had."""
