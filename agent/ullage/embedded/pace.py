"""How whoever makes a table gets on with others: what it tells, amid its work, whoever sends the table."""


class Pace:
    """Told by one thread. This one has nobody to tell it to: there is all the room, and nobody else who wants to work.

    What it is told of raises here, where that ends the work: no room for it, or nobody there any more to take it.
    """

    def step(self) -> None:
        """Between two pieces of work of some milliseconds each: others who wait go first."""

    def make(self, size: int) -> None:
        """Before a batch is made that may take so many bytes as Arrow has it; of the one before it nothing is kept but
        what waits to be sent.
        """


ALONE = Pace()
"""Of who sends nothing."""
