"""The web crawler example tells its story as NiFi in Depth tells it."""

import gzip
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import ullage
from examples import webcrawler
from examples.webcrawler import SEED, Crawler, fetch_made_up
from tests.cli.test_commands import ullage as ullage_command
from tests.service.running import document_at
from ullage import EventQuery, Repository
from ullage.wire.provenance import Event


class Crawled(NamedTuple):
    """What is left when the flow has run."""

    repository: Repository
    crawler: Crawler
    events: list[Event]

    def by(self, component_type: str, type: str = "") -> list[Event]:
        """What one kind of component did."""
        return [event for event in self.events if event.component_type == component_type and type in ("", event.type)]


@pytest.fixture
def crawled(tmp_path: Path) -> Iterator[Crawled]:
    (tmp_path / "archive").mkdir()
    with ullage.open(config=document_at(tmp_path / "repository"), create=True, maintain=False) as repository:
        crawler = Crawler(repository, fetch_made_up, tmp_path / "archive")
        crawler.run(SEED)
        yield Crawled(repository, crawler, repository.provenance.search(EventQuery(limit=1_000)).events)


def test_only_successes_are_routed_on(crawled: Crawled) -> None:
    """200 to 202 go two ways; the rest is dropped by the router."""
    events = crawled.by("RouteOnAttribute")

    routed = {event.attributes["invokehttp.status.code"] for event in events if event.type == "ROUTE"}
    dropped = [event for event in events if event.type == "DROP"]

    assert routed == {"200", "201", "202"}
    assert [event.attributes["invokehttp.status.code"] for event in dropped] == ["404"]
    assert dropped[0].details == "auto-terminated relationship unmatched"
    assert Counter(event.type for event in events) == {"CLONE": 3, "ROUTE": 6, "DROP": 1}
    assert len(crawled.crawler.logged) == 3


def test_duplicates_are_detected(crawled: Crawled) -> None:
    """Each address is asked for once, however often it is found."""
    fetched = [event.transit_uri for event in crawled.by("InvokeHTTP")]

    assert [event.details for event in crawled.by("DetectDuplicate", "DROP")] == [
        "duplicate of https://site.example/docs",
        "duplicate of https://site.example/",
    ]
    assert len(fetched) == len(set(fetched)) == 4
    assert crawled.crawler.known == set(webcrawler.WEB)


def test_a_funnel_with_one_output_is_silent(crawled: Crawled) -> None:
    """The one with two outputs clones; the other is not in the history at all."""
    components = Counter((event.component, event.type) for event in crawled.by("Funnel"))

    assert components == {("funnel-1", "CLONE"): 3}


def test_the_rest_of_the_story_is_told(crawled: Crawled) -> None:
    """Received, split without a copy, copied lines, one mail a page, merged, compressed on a copy, sent, dropped."""
    repository, crawler, events = crawled

    (received,) = [event for event in events if event.type == "RECEIVE"]
    assert received.transit_uri == SEED
    (split, *_) = crawled.by("SplitText", "FORK")
    assert len(split.children) == 7
    assert crawler.mails[0] == b"nifi moves data\nmore about nifi\n"
    assert len(crawler.mails) == 2
    (joined,) = [event for event in events if event.type == "JOIN"]
    assert len(joined.parents) == 3
    (compressed,) = [event for event in events if event.type == "CONTENT_MODIFIED"]
    assert compressed.previous_content != compressed.content
    content = repository.provenance.content
    with content(compressed.id, previous=True) as before, content(compressed.id) as after:
        assert gzip.decompress(after.read()) == before.read()
    (sent,) = crawled.by("PutFile", "SEND")
    assert sent.attributes["filename"] == "pages.txt.gz"
    named = crawled.by("UpdateAttribute", "ATTRIBUTES_MODIFIED")
    assert {event.attributes["filename"] for event in named} == {"docs.html", "gone.html", "made.html", "later.html"}
    associated = [event.alternate_identifier for event in events if event.type == "ADDINFO"]
    assert "https://site.example/docs" in associated
    assert [queue.flow_files for queue in repository.queues.all() if queue.flow_files] == []


def test_the_seed_page_leads_to_the_archive(crawled: Crawled) -> None:
    """Its lineage holds what was sent at the end, and so does the archive's the other way."""
    repository, _, events = crawled
    (sent,) = crawled.by("PutFile", "SEND")

    down = repository.provenance.lineage(events[0].flow_file)
    up = repository.provenance.lineage(sent.flow_file)

    assert sent.sequence in {event.sequence for event in down.events}
    assert events[0].sequence in {event.sequence for event in up.events}


def test_the_program_says_what_draws_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As people run it; the command that it prints draws a picture."""
    webcrawler.main(tmp_path / "run")

    asked, _, command = capsys.readouterr().out.splitlines()
    assert asked == "asked for 5 pages, logged 3, sent 2 mails"
    assert ullage_command(*shlex.split(command)[1:-2]).stdout.startswith("<svg")
