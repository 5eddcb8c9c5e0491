"""Room for what is decoded: in turn, a share each, and refused by name when there is none in time."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.service.flight import raw
from tests.service.flight.peer import MB, Peer
from tests.service.flight.test_stalls import waiting
from tests.service.running import Running, document_at, until
from tests.support import Workshop
from ullage.errors import QuotaReached, ServiceBusy
from ullage_agent.service.access import ANONYMOUS, Principal
from ullage_agent.service.budget import ByteBudget
from ullage_agent.service.limits import Limits

HOSTILE, GOOD = Principal("hostile"), Principal("good")
SHORT = Limits(decoded_bytes=100, decoded_bytes_each=60, decoded_seconds=0.05)
LONG = Limits(decoded_bytes=100, decoded_bytes_each=60, decoded_seconds=60.0)


def test_one_at_its_share_is_refused_by_name_and_leaves_room() -> None:
    """And has it again when something of theirs has ended."""
    budget = ByteBudget(SHORT)
    held = budget.take(HOSTILE, 50)

    with pytest.raises(QuotaReached, match="decoded_bytes_each"):
        budget.take(HOSTILE, 20)
    budget.take(GOOD, 40).release()
    held.release()
    budget.take(HOSTILE, 60)


def test_what_is_larger_than_a_share_waits_for_all_of_it() -> None:
    """It is not refused for ever."""
    budget = ByteBudget(SHORT)

    with budget.take(HOSTILE, 1_000), pytest.raises(QuotaReached):
        budget.take(HOSTILE, 1)
    budget.take(HOSTILE, 1)


def test_the_anonymous_are_bounded_together() -> None:
    """They may be anybody, so that only the room of all is a bound."""
    budget = ByteBudget(SHORT)
    budget.take(ANONYMOUS, 50)
    budget.take(ANONYMOUS, 50)

    with pytest.raises(ServiceBusy, match=r"\(decoded_bytes\)"):
        budget.take(ANONYMOUS, 1)


def test_small_ones_do_not_overtake_a_large_one_for_ever() -> None:
    """Whoever came first is next, unless it is their own share that is used up."""
    budget = ByteBudget(LONG)
    first, second = budget.take(HOSTILE, 50), budget.take(GOOD, 40)
    own, large, small = (
        budget._ask(*each) for each in ((HOSTILE, 20), (Principal("third"), 60), (GOOD, 10))
    )  # `take` without waiting

    second.release()
    assert not any(room.given.done() for room in (own, large, small))
    first.release()

    assert [room.given.done() for room in (own, large, small)] == [True, True, True]
    for room in (own, large, small):
        room.release()
    assert (budget._total, budget._bytes) == (0, {})


def test_an_event_loop_waits_without_a_thread() -> None:
    """Whoever goes away while it waits gives its place up."""
    budget = ByteBudget(LONG)

    async def story() -> None:
        held = budget.take(HOSTILE, 60)
        waits = asyncio.create_task(budget.take_soon(HOSTILE, 60))
        leaves = asyncio.create_task(budget.take_soon(HOSTILE, 60))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
        held.release()
        (await waits).release()

    asyncio.run(story())
    assert (budget._total, budget._waiting) == (0, {})


def test_an_event_loop_is_refused_in_time() -> None:
    """The same words as for threads."""
    budget = ByteBudget(SHORT)
    budget.take(HOSTILE, 60)

    with pytest.raises(QuotaReached, match="decoded_bytes_each"):
        asyncio.run(budget.take_soon(HOSTILE, 60))
    assert budget._waiting == {}


def test_room_is_taken_at_once_or_not_and_what_is_made_already_counts_beyond_all_bounds() -> None:
    """And room changes with what has been made of it."""
    budget = ByteBudget(SHORT)
    held = budget.take_now(HOSTILE, 50)

    assert held is not None
    assert budget.take_now(HOSTILE, 20) is None
    held.resize(30)
    assert budget.take_now(HOSTILE, 30) is not None
    held.resize(0)
    over = budget.count(HOSTILE, 1_000)
    assert budget.take_now(GOOD, 1) is None
    over.release()
    over.resize(1)
    assert (budget._total, budget._bytes, budget._waiting) == (30, {"hostile": 30}, {})


@pytest.fixture
def peer(workshop: Workshop) -> Iterator[Peer]:
    with Peer.serving(
        workshop.make(), limits=Limits(decoded_bytes=8 * MB, decoded_bytes_each=8 * MB, decoded_seconds=0.05)
    ) as made:
        yield made


def test_a_batch_waits_for_room_before_it_is_decoded(peer: Peer) -> None:
    """It is refused, and nothing of it stored; what is stored has given its room back."""
    batch = raw.contents_of([bytes(2 * MB)])
    messages = raw.schema_message(batch.schema), *[raw.batch_message(batch)] * 5
    budget = peer.terms.budget
    with raw.raw(peer.server.url) as sent:
        assert len(sent.put(*messages).messages) == 5

        with budget.take(ANONYMOUS, 6 * MB):
            refused = sent.put(*messages)
            small = sent.put(*messages[:1], raw.batch_message(raw.contents_of([b"x"])))

        assert (refused.slug, "decoded_bytes" in refused.details) == ("busy", True)
        assert small.messages
    assert sum(1 for _ in peer.repository.ledger.flow_files()) == 6
    assert budget._total == 0


def test_what_a_stream_has_made_counts_while_its_client_takes_nothing(peer: Peer) -> None:
    """A put finds no room beside it; nothing is held any more once the stream is over."""
    budget = peer.terms.budget
    ids = [peer.put({"content": [bytes(MB)]})[0][0].hex() for _ in range(16)]
    batch = raw.contents_of([bytes(3 * MB)])
    messages = raw.schema_message(batch.schema), raw.batch_message(batch)
    with raw.raw(peer.server.url) as sent:
        channel: Any = sent._channel
        ticket = raw.ticket(json.dumps({"kind": "get", "handles": ids}).encode())
        call = channel.stream_stream(raw.SERVICE + "DoGet")(iter([ticket]), timeout=60)
        until(lambda: waiting(peer, is_sending=True) and 3 * MB <= budget._total < 5 * MB, "the window to be full")

        assert sent.put(*messages).slug == "busy"
        assert len(list(call)) > 16
        until(lambda: budget._total == 0, "the room to be given back")
        assert sent.put(*messages).messages


def test_a_stream_waits_for_room_without_having_any(peer: Peer) -> None:
    """It is refused where there is none in time; what is small needs none."""
    ids = [peer.put({"content": [bytes(size)]})[0][0].hex() for size in (MB, 10)]
    with peer.terms.budget.take(ANONYMOUS, 6 * MB):
        with pytest.raises(pa.ArrowException, match="decoded_bytes"):
            peer.get(ids[:1])
        assert peer.get(ids[1:]) == {0: bytes(10)}
    assert peer.get(ids[:1]) == {0: bytes(MB)}


def test_a_body_over_http_waits_for_room_before_it_is_decoded(tmp_path: Path) -> None:
    """One that is on its way needs none yet, and content that streams none at all."""
    limits = Limits(decoded_bytes=1_000, decoded_bytes_each=1_000, decoded_seconds=0.05)
    batch = json.dumps({"items": [{"content": ""}]}).encode()
    with Running(document_at(tmp_path / "r"), limits) as running:
        going, gone = threading.Event(), threading.Event()

        def slow() -> Iterator[bytes]:
            yield batch[:1]
            going.set()
            gone.wait(60)
            yield batch[1:]

        headers = {"content-type": "application/json"}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(lambda: running.client.post("/v1/handles/batch", content=slow(), headers=headers))
            going.wait(60)
            beside = running.client.post("/v1/handles/batch", content=batch, headers=headers)
            until(lambda: running.server.budget._total == 0, "the room of what was stored to be given back")
            with running.server.budget.take(ANONYMOUS, 1_000):
                refused = running.client.post("/v1/handles/batch", content=batch, headers=headers)
                streamed = running.client.post("/v1/handles", content=b"x" * 100_000)
            gone.set()

            assert (refused.status_code, refused.json()["slug"]) == (503, "busy")
            assert "retry-after" in refused.headers
            assert [each.status_code for each in (beside, streamed, first.result())] == [201] * 3
        for _ in range(2):
            until(lambda: running.server.budget._total == 0, "the room of what was stored to be given back")
            assert running.client.post("/v1/handles/batch", content=batch, headers=headers).status_code == 201
