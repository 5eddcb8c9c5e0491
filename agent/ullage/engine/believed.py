"""The time that a repository believes: its machine's, unless that is implausible.

A node that boots with its clock in 2037 must not expire, within one turn of maintenance, all that it keeps by time.
What a repository itself knows is when its last transaction was committed, which its log says, and how long the process
has run since, which no wall clock changes. A machine's clock that is further than `PLAUSIBLE_MILLIS` from there is
implausible, and time goes on from what was known:

    closed on 1 March | opened, the machine says 2037: 1 March is believed | worked for an hour: 1 March, 01:00

What goes on so is never ahead of the truth, as far as what was known was not: what is due by it is due. It is the only
clock that the parts of an engine are given: nothing that dies by time can be decided by another, and what is written
meanwhile carries no time that a later start would go by. A plausible time is followed by itself; `accept` believes the
machine as it is, which is what a person says of a repository that was closed for longer.
"""

import threading
from typing import Final, NamedTuple

from ullage.clock import LATEST_MILLIS, Clock, moment_of
from ullage.errors import InvalidArgument

PLAUSIBLE_MILLIS: Final = 30 * 86_400_000
"""How far a machine's clock may be from what is believed: more than a node is usually away, or a machine asleep, which
no monotonic clock counts; less than what a dead battery or a wrong year makes of it.
"""

BEGINNING_MILLIS: Final = 1_672_531_200_000
"""2023: no repository is older. A machine that makes one in 1970 is followed once it has learned the time."""


class ClockReading(NamedTuple):
    """What the machine says, and what is believed; the same where it is plausible."""

    machine_millis: int
    believed_millis: int

    @property
    def reason(self) -> str:
        """Why the machine is not believed, in words; empty where it is."""
        if self.machine_millis == self.believed_millis:
            return ""
        machine, believed = (f"{moment_of(each):%Y-%m-%d %H:%M:%S} UTC" for each in self)
        return (
            f"the machine's clock says {machine}, and going by the last commit it is {believed}, by which things live "
            "and die meanwhile: set the clock right, or, where it is right, accept it (`ullage clock accept`)"
        )


class BelievedClock(Clock):
    """See the module's text. Thread-safe. Until `believe` is called the machine is taken at its word."""

    def __init__(self, machine: Clock) -> None:
        self.machine = machine
        self._lock = threading.Lock()
        self._known = 0  # at `_since`; 0: nothing is known
        self._since = 0.0
        # Within these a time needs no second look, so that a commit asks for no other clock.
        self._low, self._high = 0, -1

    def now_millis(self) -> int:
        """The time that is believed, from 1970 on and before the year 9999."""
        millis = self.machine.now_millis()
        return millis if self._low <= millis <= self._high else self._judged(millis)

    def monotonic(self) -> float:
        return self.machine.monotonic()

    def boottime(self) -> float:
        return self.machine.boottime()

    def sleep(self, seconds: float) -> None:
        self.machine.sleep(seconds)

    def believe(self, millis: int) -> None:
        """Begin with a time that is known: of the last transaction. 0: none is."""
        if millis > 0:
            with self._lock:
                self._know(min(millis, LATEST_MILLIS))

    def look(self) -> ClockReading:
        """The clock now; called now and then as well, so that slow steps of the machine's clock are followed."""
        millis = self.machine.now_millis()
        return ClockReading(millis, self._judged(millis))

    def accept(self) -> None:
        """Believe the machine as it is. InvalidArgument for what no calendar has."""
        millis = self.machine.now_millis()
        if not 0 <= millis <= LATEST_MILLIS:
            raise InvalidArgument(f"the machine's clock says {millis} ms since 1970, which is no time: set it first")
        with self._lock:
            self._know(millis)

    def _judged(self, millis: int) -> int:
        with self._lock:
            known = min(self._known + round((self.machine.monotonic() - self._since) * 1000), LATEST_MILLIS)
            is_first = not self._known or self._known < BEGINNING_MILLIS <= millis
            if 0 <= millis <= LATEST_MILLIS and (is_first or abs(millis - known) <= PLAUSIBLE_MILLIS):
                self._know(millis)
                return millis
            # What is known stays: moving it with each look would add up what rounding loses.
            self._watch(known)
            return known

    def _know(self, millis: int) -> None:
        self._known, self._since = millis, self.machine.monotonic()
        self._watch(millis)

    def _watch(self, known: int) -> None:
        self._low, self._high = max(0, known - PLAUSIBLE_MILLIS), min(known + PLAUSIBLE_MILLIS, LATEST_MILLIS)
