"""What goes on failing is told once, and not at each try."""

from collections.abc import Callable


class ToldOnce:
    """The latest words of one task that goes on failing. `problem` is empty while nothing fails."""

    def __init__(self, task: str, on_failure: Callable[[str, Exception], None]) -> None:
        self._task = task
        self._on_failure = on_failure
        self.problem = ""

    def tell(self, error: Exception) -> None:
        """It failed: somebody hears of it unless it is what was told last."""
        if str(error) != self.problem:
            self.problem = str(error)
            self._on_failure(self._task, error)

    def amend(self, error: Exception) -> None:
        """Of what was told less is left: nobody needs to hear of it."""
        self.problem = str(error)

    def forget(self) -> None:
        """It went well: the next failure is told, whatever it says."""
        self.problem = ""
