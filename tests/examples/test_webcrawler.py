"""The web crawler example tells its story as seed 002 tells it."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from examples import webcrawler
from examples.webcrawler import SEED, Crawler, fetch_made_up
from tests.engine.provenance.history import history
from tests.support import Workshop
from ullage_agent.engine.model import EventType
from ullage_agent.engine.provenance.events import ProvenanceEvent
from ullage_agent.engine.repository import Repository


@pytest.fixture
def crawled(workshop: Workshop, tmp_path: Path) -> tuple[Repository, Crawler]:
    repository = workshop.make()
    (tmp_path / "archive").mkdir()
    crawler = Crawler(repository, fetch_made_up, tmp_path / "archive")
    crawler.run(SEED)
    return repository, crawler


def by(events: list[ProvenanceEvent], component_type: str) -> list[ProvenanceEvent]:
    return [event for event in events if event.component_type == component_type]


def test_only_successes_are_routed_on(crawled: tuple[Repository, Crawler]) -> None:
    """200 to 202 go two ways; the rest is dropped by the router."""
    repository, crawler = crawled
    events = by(history(repository), "RouteOnAttribute")

    routed = {event.attribute_map()["invokehttp.status.code"] for event in events if event.type == EventType.ROUTE}
    dropped = [event for event in events if event.type == EventType.DROP]

    assert routed == {"200", "201", "202"}
    assert [event.attribute_map()["invokehttp.status.code"] for event in dropped] == ["404"]
    assert dropped[0].details == "auto-terminated relationship unmatched"
    assert Counter(event.type.name for event in events) == {"CLONE": 3, "ROUTE": 6, "DROP": 1}
    assert len(crawler.logged) == 3


def test_duplicates_are_detected(crawled: tuple[Repository, Crawler]) -> None:
    """Each address is asked for once, however often it is found."""
    repository, crawler = crawled

    dropped = [event for event in by(history(repository), "DetectDuplicate") if event.type == EventType.DROP]
    fetched = [event.transit_uri for event in by(history(repository), "InvokeHTTP")]

    assert [event.details for event in dropped] == [
        "duplicate of https://site.example/docs",
        "duplicate of https://site.example/",
    ]
    assert len(fetched) == len(set(fetched)) == 4
    assert crawler.known == set(webcrawler.WEB)


def test_a_funnel_with_one_output_is_silent(crawled: tuple[Repository, Crawler]) -> None:
    """The one with two outputs clones; the other is not in the history at all."""
    repository, _ = crawled

    components = Counter((event.component, event.type.name) for event in by(history(repository), "Funnel"))

    assert components == {("funnel-1", "CLONE"): 3}


def test_the_rest_of_the_story_is_told(crawled: tuple[Repository, Crawler]) -> None:
    """Received, split without a copy, copied lines, one mail a page, merged, compressed on a copy, sent, dropped."""
    repository, crawler = crawled
    events = history(repository)

    (received,) = [event for event in events if event.type == EventType.RECEIVE]
    assert received.transit_uri == SEED
    (split, *_) = [event for event in by(events, "SplitText") if event.type == EventType.FORK]
    assert len(split.child_ids) == 7
    assert crawler.mails[0] == b"nifi moves data\nmore about nifi\n"
    assert len(crawler.mails) == 2
    (joined,) = [event for event in events if event.type == EventType.JOIN]
    assert len(joined.parent_ids) == 3
    (compressed,) = [event for event in events if event.type == EventType.CONTENT_MODIFIED]
    assert compressed.content_before != compressed.content
    with repository.history.content(compressed, before=True) as before, repository.history.content(compressed) as after:
        assert gzip.decompress(after.read()) == before.read()
    (sent,) = [event for event in by(events, "PutFile") if event.type == EventType.SEND]
    assert sent.filename == "pages.txt.gz"
    named = [event for event in by(events, "UpdateAttribute") if event.type == EventType.ATTRIBUTES_MODIFIED]
    assert {event.filename for event in named} == {"docs.html", "gone.html", "made.html", "later.html"}
    associated = [event.alternate_identifier for event in events if event.type == EventType.ADDINFO]
    assert "https://site.example/docs" in associated
    assert list(repository.ledger.flow_files()) == []


def test_the_seed_page_leads_to_the_archive(crawled: tuple[Repository, Crawler]) -> None:
    """Its lineage holds what was sent at the end, and so does the archive's the other way."""
    repository, _ = crawled
    events = history(repository)
    (sent,) = [event for event in by(events, "PutFile") if event.type == EventType.SEND]

    down = repository.history.lineage(events[0].flow_file)
    up = repository.history.lineage(sent.flow_file)

    assert sent.sequence in {event.sequence for event in down.events}
    assert events[0].sequence in {event.sequence for event in up.events}


def test_the_program_draws_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As people run it."""
    webcrawler.main(tmp_path / "run")

    assert "asked for 5 pages, logged 3, sent 2 mails" in capsys.readouterr().out
    assert (tmp_path / "run" / "lineage.svg").read_text(encoding="utf-8").startswith("<svg")
