"""What of a NiFi's files could not be read, as it is told."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.output import say, visible

if TYPE_CHECKING:
    from ullage.nifi.trouble import NiFiDamage


def say_damages(damages: Iterable[NiFiDamage]) -> None:
    """Each in one line, whatever its file is called: a swap file of which a damaged checkpoint says the name could
    else write lines of its own.
    """
    for damage in damages:
        say(visible(f"{damage.file}: {damage.what}"))


def end(damages: Collection[NiFiDamage], so: str) -> None:
    """The same; INCOMPLETE if what was found is not all that there is. `so`: what follows from missing FlowFiles."""
    say_damages(damages)
    if any(damage.loses_flowfiles for damage in damages):
        say(f"Not all FlowFiles could be read: {so}.")
    say_hidden(damages)
    if any(damage.is_serious for damage in damages):
        sys.exit(ExitCode.INCOMPLETE)


def say_hidden(damages: Iterable[NiFiDamage]) -> None:
    """That contents were not looked at, if so."""
    if any(damage.hides_contents for damage in damages):
        say("Not all contents could be looked at: what lies there counts as not on the disk.")
