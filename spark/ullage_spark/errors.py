"""What goes wrong on Spark's side; what a node refuses stands in ullage.errors."""


class SparkSourceError(Exception):
    """The options or the data are not what the source takes: the message says what is."""


class NodesMissing(SparkSourceError):
    """Nodes of the fleet do not answer, and the option `missingNodes` does not say to go on without them."""


class EventsLost(SparkSourceError):
    """Retention has removed events that a stream had not read, or the repository is another one than before."""


class WriteNotFinished(SparkSourceError):
    """A write is decided, and some node could not be told: repeat it under the same name, and it is finished."""


class ContentUnreadable(SparkSourceError):
    """One content is gone, damaged or forbidden; `problem` is the slug that its node gave as the reason."""

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem
