"""What settings of provenance change, for test_settings_matter.py."""

from collections.abc import Callable
from typing import Any

from tests.support import Workshop, put_all
from ullage_agent.engine.errors import BackPressure, ProvenanceDamaged
from ullage_agent.engine.maintenance import Maintenance
from ullage_agent.engine.provenance.query import Query

KB = 1024
Observe = Callable[[Workshop], object]


def opened(workshop: Workshop) -> Any:
    assert workshop.repository is not None
    return workshop.repository


def event_files(seconds: float) -> Observe:
    """Which event files there are after some work, and so much time under maintenance."""

    def observe(workshop: Workshop) -> object:
        repository = opened(workshop)
        upkeep = Maintenance(repository)
        put_all(repository, "q", [b"x"] * 20)
        for _ in range(2):
            upkeep.run_due()
            workshop.clock.advance(seconds)
        upkeep.run_due()
        if not seconds:
            repository.provenance.drain()
        return sorted(str(path.relative_to(workshop.path)) for path in workshop.path.glob("p*/**/*.parquet"))

    return observe


def without_files(query: Query) -> Observe:
    """Whether an answer needs the event files: one of nothing does not, where the index knows what was asked."""

    def observe(workshop: Workshop) -> object:
        shards(workshop)
        workshop.expects_problems = True
        opened(workshop).provenance.event_files.close()
        for path in workshop.path.glob("provenance/**/*.parquet"):
            path.unlink()
        try:
            return opened(workshop).history.query(query).events
        except ProvenanceDamaged as error:
            return type(error)

    return observe


def shards(workshop: Workshop) -> object:
    for _ in range(4):
        put_all(opened(workshop), "q", [b"x"] * 3, n="1")
        opened(workshop).provenance.drain()
        opened(workshop).history.index_step()
    return len(list((workshop.path / "provenance" / "index").iterdir()))


def event_bytes(workshop: Workshop) -> object:
    put_all(opened(workshop), "q", [b"x"] * 2000)
    opened(workshop).provenance.drain()
    return sum(path.stat().st_size for path in workshop.path.glob("provenance/**/*.parquet")) > 100 * KB


def refused_for_events(workshop: Workshop) -> object:
    """Whether new content is refused when the directory of event files takes none."""
    events = workshop.path / "provenance" / "events"
    events.parent.mkdir(exist_ok=True)
    events.write_text("no directory")
    try:
        for _ in range(60):
            put_all(opened(workshop), "q", [b"x"] * 5)
    except (BackPressure, OSError):
        return True
    finally:
        events.unlink()
    return False
