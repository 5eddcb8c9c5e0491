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
