"""What is accepted is readable for ever: wild values in every field of every call, then everything a repository does.

A value is refused in words of ours, and has left nothing behind; or it was accepted, and is the same after a kill, a
checkpoint, a close, the drain into event files, and in a restored backup. `make validity-full MINUTES=40` goes on
longer; a failing seed replays with ULLAGE_SEED.
"""

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.proof.figures import note
from tests.support import ManualClock, collect_now_and_then, spec_at
from tests.validity.calls import Field, World, arguments, documents, fields
from tests.validity.wild import WILD
from ullage import Repository
from ullage.contract import ContentRepository, Metadata
from ullage.embedded.repository import EmbeddedRepository, open_embedded
from ullage.engine.engine import Engine
from ullage.errors import InvalidArgument, UllageError
from ullage.interface.session import Session
from ullage.streams import ContentStream
from ullage.testing.crashing import CrashFiles
from ullage.wire.provenance import EventQuery

MINUTES = float(os.environ.get("ULLAGE_VALIDITY_MINUTES", "0"))
SAMPLE = 6
"""Wild values for each field, of a bounded sample."""

OURS = ("ullage/interface/", "ullage/streams.py", "ullage/client/http.py")
"""Where what no type checker has seen may be told by a TypeError; anywhere else it came from inside."""

SPEC = spec_at("/r", flow_file={"swap_threshold": 50, "swap_batch": 20})
DOCUMENT = ContentRepository(metadata=Metadata(name="wild"), spec=SPEC)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may be accepted that is one of a directory."""
    monkeypatch.chdir(tmp_path)


def opened(files: CrashFiles, clock: ManualClock) -> EmbeddedRepository:
    collect_now_and_then()
    return open_embedded(None, DOCUMENT, create=True, maintain=False, files=files, clock=clock)


def world_of(repository: Repository) -> World:
    """Something of each kind."""
    repository.queues.put("in", b"content")
    return World(
        repository,
        repository.handles.put(b"content"),
        repository.leases.acquire(60_000).id,
        repository.reclamation.reclaim(respects_guards=True).id,
    )


def seen(repository: Repository) -> dict[str, Any]:
    """All that anybody can look at, and must stay as it is."""
    handles = list(repository.handles.all())
    queues = repository.queues.all()
    with_content = [head.id for head in handles if not head.deleted_millis and not 0 < head.expires_millis < 2 * 10**12]
    return {
        "handles": handles,
        "contents": {id: repository.handles.get(id) for id in with_content},
        "queues": [(each.name, each.priority, each.count_max, each.bytes_max, each.flow_files) for each in queues],
        "flow files": {each.name: standing(repository, each.name) for each in queues},
        "leases": repository.leases.all(),
        "events": list(every_event(repository)),
    }


def standing(repository: Repository, queue: str) -> list[Any]:
    """Without their order, which a penalty changes, and a restart forgets."""
    return sorted(repository.queues.all_flow_files(queue), key=lambda each: each.id)


def every_event(repository: Repository) -> Iterator[Any]:
    after: int | None = 0
    while after is not None:
        page = repository.provenance.search(EventQuery(after=after, limit=1_000))
        yield from page.events
        after = page.next


def told(error: Exception) -> bool:
    """Whether it is a refusal in our words, by the entrance: the log, which has the last word, should never need it."""
    if isinstance(error, InvalidArgument) and ("never be read again" in str(error) or "cannot be stored" in str(error)):
        return False
    if isinstance(error, UllageError | OSError):  # a directory that there is not stays what the system calls it
        return True
    return isinstance(error, TypeError) and any(
        part in traceback.extract_tb(error.__traceback__)[-1].filename for part in OURS
    )


def attempt(world: World, field: Field, value: Any) -> bool:
    """Make the call; whether it was accepted. What is refused has written nothing."""
    repository: Any = world.repository
    world.renew()
    given = arguments(world, field, value)
    last = repository.engine.log.last_id
    wild = f"{field.part}.{field.call}({field.name}={value!r:.80})"
    call = getattr(world.target(field.part), field.call)
    error = error_of(lambda: used(call(**given)))
    if error is not None:
        if not told(error):
            raise AssertionError(f"{wild}: {error!r:.300}") from error
        assert repository.engine.log.last_id == last, f"{wild} was refused, and wrote something"
    settle(world, wild)
    return error is None


def error_of(call: Callable[..., object], *given: object) -> Exception | None:
    try:
        call(*given)
    except Exception as error:  # noqa: BLE001 - which it is, is what the test asks
        return error
    return None


def used(found: Any) -> None:
    """Read what is lazy; work in what is a session."""
    if isinstance(found, ContentStream):
        with found:
            found.read()
    elif isinstance(found, Iterator):
        list(found)
    elif isinstance(found, Session):
        with found as session:
            session.transfer(session.create(), "in")
            session.commit()


def settle(world: World, wild: str) -> None:
    """Commit what the session holds: nothing that a verb has accepted is refused by it, but for its size."""
    try:
        with suppress(UllageError):  # the call itself may have removed it
            world.session.transfer(world.flow_file, "in")
        world.session.transfer(world.session.unsettled(), "in")
        world.session.commit()
    except Exception as error:
        if not told(error) or isinstance(error, InvalidArgument):
            raise AssertionError(f"the commit after {wild}: {type(error).__name__}: {error!s:.300}") from error


def prove(files: CrashFiles, clock: ManualClock, repository: EmbeddedRepository, note_of: str) -> EmbeddedRepository:
    """Everything that a repository goes through, and what is seen afterwards."""
    before = seen(repository)

    def same(found: Repository, how: str) -> None:
        after = seen(found)
        for what, value in before.items():
            assert after[what] == value, f"{what} after {how}; {note_of}"

    same(killed := opened(CrashFiles(files.image()), clock), "a kill")
    assert killed.check(deep=True).problems == ()
    killed.close()
    repository.engine.provenance.drain()
    same(repository, "the drain")
    repository.checkpoint()
    same(killed := opened(CrashFiles(files.image()), clock), "a checkpoint and a kill")
    killed.close()
    repository.backup("/backup")
    target = spec_at("/again", flow_file={"swap_threshold": 50, "swap_batch": 20})
    Engine.restore_backup("/backup", target, files)
    document = ContentRepository(metadata=Metadata(name="again"), spec=target)
    restored = open_embedded(None, document, create=False, maintain=False, files=files, clock=clock)
    assert restored.check(deep=True).problems == ()
    after = seen(restored)
    for what in ("handles", "contents", "queues", "flow files"):
        assert after[what] == before[what], f"{what} in a restored backup; {note_of}"
    restored.close()
    repository.close()
    again = opened(files, clock)
    same(again, "a close")
    return again


def test_wild_values_in_every_field_of_every_call(seed: int) -> None:
    """Of the library, over a disk in memory whose image is what a killed process leaves."""
    random_ = random.Random(seed)
    end = time.monotonic() + 60 * MINUTES
    tried = accepted = rounds = 0
    failures: list[str] = []
    while rounds == 0 or time.monotonic() < end:
        rounds += 1
        for part in dict.fromkeys(field.part for field in fields()):
            files, clock = CrashFiles(), ManualClock()
            repository = opened(files, clock)
            done: list[str] = []
            world = world_of(repository)
            for field in fields():
                if field.part != part:
                    continue
                values = random_.sample(WILD, len(WILD) if MINUTES else SAMPLE)
                for value in values:
                    tried += 1
                    try:
                        is_accepted = attempt(world, field, value)
                    except AssertionError as error:
                        failures.append(str(error))
                        continue
                    if is_accepted:
                        accepted += 1
                        done.append(f"{field.call}({field.name}={value!r:.40})")
            prove(files, clock, repository, f"seed {seed}, {part}: {'; '.join(done)}").close()
    assert failures == [], f"seed {seed}"
    note(wild_calls=tried, wild_calls_accepted=accepted)


def test_documents_that_a_program_fills_in_itself(seed: int) -> None:
    """What a type checker would refuse no decoder has seen either."""
    repository = opened(CrashFiles(), ManualClock())
    repository.queues.put("in", b"content")
    for value in random.Random(seed).sample(WILD, len(WILD) if MINUTES else 12):
        for document in documents(value):
            search = isinstance(document, EventQuery)
            ask: Any = repository.provenance.search if search else repository.reclamation.begin
            error = error_of(ask, document)
            assert error is None or told(error), f"seed {seed}: {document!r:.200}: {error!r:.200}"
    repository.close()
