"""What of a NiFi's files could not be read, as it is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ullage_agent.cli.output import say, visible

if TYPE_CHECKING:
    from ullage.nifi.trouble import NiFiDamage


def say_damages(damages: Iterable[NiFiDamage]) -> None:
    """Each in one line, whatever its file is called: a swap file of which a damaged checkpoint says the name could
    else write lines of its own.
    """
    for damage in damages:
        say(visible(f"{damage.file}: {damage.what}"))
