"""What settings of provenance change, for test_settings_matter.py."""

from collections.abc import Callable

from tests.support import Workshop, event_store, put_all
from ullage.engine.maintenance import MaintenanceRunner
from ullage.errors import BackPressure
from ullage.wire.provenance import EventQuery

KB = 1024
Observe = Callable[[Workshop], object]


def event_files(seconds: float) -> Observe:
    """Which event files there are after some work, and so much time under maintenance."""

    def observe(workshop: Workshop) -> object:
        repository = workshop.repository
        upkeep = MaintenanceRunner(repository)
        put_all(repository, "q", [b"x"] * 20)
        for _ in range(2):
            upkeep.run_due()
            workshop.clock.advance(seconds)
        upkeep.run_due()
        if not seconds:
            repository.provenance.drain()
        return sorted(str(path.relative_to(workshop.path)) for path in workshop.path.glob("p*/**/*.parquet"))

    return observe


def without_files(query: EventQuery) -> Observe:
    """Whether an answer needs the event files: one of nothing does not, where the index knows what was asked."""

    def observe(workshop: Workshop) -> object:
        shards(workshop)
        workshop.expects_problems = True
        event_store(workshop.repository).event_files.close()
        for path in workshop.path.glob("provenance/**/*.parquet"):
            path.unlink()
        page = workshop.repository.history.query(query)
        return page.events, len(page.unreadable)

    return observe


def shards(workshop: Workshop) -> object:
    for _ in range(4):
        put_all(workshop.repository, "q", [b"x"] * 3, n="1")
        workshop.repository.provenance.drain()
        workshop.repository.provenance.index_step()
    return len(list((workshop.path / "provenance" / "index").iterdir()))


def event_bytes(workshop: Workshop) -> object:
    put_all(workshop.repository, "q", [b"x"] * 2000)
    workshop.repository.provenance.drain()
    return sum(path.stat().st_size for path in workshop.path.glob("provenance/**/*.parquet")) > 100 * KB


def refused_for_events(workshop: Workshop) -> object:
    """Whether new content is refused when the directory of event files takes none."""
    events = workshop.path / "provenance" / "events"
    events.parent.mkdir(exist_ok=True)
    events.write_text("no directory")
    try:
        for _ in range(60):
            put_all(workshop.repository, "q", [b"x"] * 5)
    except (BackPressure, OSError):
        return True
    finally:
        events.unlink()
    return False
