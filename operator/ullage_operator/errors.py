"""What can go wrong between the operator and the API server."""


class OperatorError(Exception):
    """The base of all of them."""


class ApiError(OperatorError):
    """The API server refused. `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (status {status})")
        self.status = status


class ApiUnreachable(OperatorError):
    """There was no answer."""


class NotHolding(OperatorError):
    """Another process of this operator may be at work: this one must not write."""


def is_changed(error: Exception) -> bool:
    """Whether a write was refused because another has written the object meanwhile, or taken it away."""
    return isinstance(error, ApiError) and error.status in (404, 409)


def is_invalid(error: Exception) -> bool:
    """Whether an object was refused for what would stand in it."""
    return isinstance(error, ApiError) and error.status == 422


def is_namespace_ending(error: Exception) -> bool:
    """Whether something was refused because its namespace is being deleted. The words are the API server's."""
    return isinstance(error, ApiError) and error.status == 403 and "because it is being terminated" in str(error)
