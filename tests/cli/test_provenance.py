"""`ullage provenance`: what people and scripts are told of the past."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.test_commands import configure, spec_of, ullage, ullage_json
from ullage.engine.engine import Engine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository in which a page was received, split, routed and dropped."""
    root = tmp_path / "repository"
    ullage("init", "--config", configure(root))
    with Engine.open(spec_of(root)) as repository:
        with repository.session("get", "GetHTTP") as session:
            page = session.write(session.create(attributes={"filename": 'a "page".html'}), b"one\ntwo\n")
            session.provenance.receive(page, "https://example.org/")
            session.transfer(page, "pages")
            session.commit()
        with repository.session("split", "SplitText") as session:
            held = session.get("pages")
            assert held is not None
            session.transfer_many(session.split(held, [4, 4]), "lines", "splits")
            session.remove(held)
            session.commit()
        repository.queues.drop(repository.queue("lines"))
    return root


def test_events_are_searched_and_paged(root: Path) -> None:
    """Each condition has its option; what follows is said."""
    everything = ullage_json("provenance", "query", root=root)
    assert [event["type"] for event in everything["events"]] == [
        *("RECEIVE", "FORK", "ROUTE", "ROUTE", "DROP", "DROP", "DROP")
    ]
    first = everything["events"][0]
    query = ("provenance", "query")
    assert len(ullage_json(*query, "--type", "ROUTE", "-t", "DROP", root=root)["events"]) == 5
    assert len(ullage_json(*query, "--uuid", first["flow_file"], root=root)["events"]) == 3
    assert len(ullage_json(*query, "--component", "split", root=root)["events"]) == 4
    assert len(ullage_json(*query, "--relationship", "splits", root=root)["events"]) == 2
    assert len(ullage_json(*query, "-a", "fragment.index=0", root=root)["events"]) == 2
    assert len(ullage_json(*query, "--since", "1h", "--min-size", "5", root=root)["events"]) == 3
    assert ullage_json(*query, "--until", "2020-01-01T00:00", root=root)["events"] == []
    page = ullage_json(*query, "-n", "2", "--newest", root=root)
    assert [event["sequence"] for event in page["events"]] == [7, 6]
    assert page["next"] == 6
    result = ullage(*query, "-n", "2", root=root)
    assert "RECEIVE" in result.stdout
    assert "more: --after 2" in result.output


def test_one_event_is_shown_with_its_content(root: Path) -> None:
    """By number or id; fields, attributes before and after, whether it can be replayed, and its bytes."""
    event = ullage_json("provenance", "show", "1", root=root)
    assert event["transit_uri"] == "https://example.org/"
    assert event["replay"] == "no queue"
    same = ullage_json("provenance", "show", event["id"], root=root)
    assert same == event
    text = ullage("provenance", "show", "2", root=root).stdout
    assert "FORK" in text
    assert "can be replayed" in text
    assert ullage("provenance", "show", "2", "--content", "--before", root=root).stdout_bytes == b"one\ntwo\n"


def test_a_lineage_is_shown_drawn_and_exported(root: Path) -> None:
    """As a table, JSON, Mermaid and SVG, with names that would break a careless writer."""
    uuid = ullage_json("provenance", "show", "1", root=root)["flow_file"]
    lineage = ullage_json("provenance", "lineage", uuid, root=root)
    assert len(lineage["events"]) == 7
    assert [1, 2] in lineage["links"]
    assert "SplitText" in ullage("provenance", "lineage", uuid, root=root).stdout
    mermaid = ullage("provenance", "lineage", uuid, "-f", "mermaid", root=root).stdout
    assert mermaid.startswith("flowchart TD")
    assert "e1 --> e2" in mermaid
    assert '"page"' not in mermaid
    target = root.parent / "lineage.svg"
    ullage("provenance", "lineage", uuid, "-f", "svg", "-o", target, root=root)
    drawing = ET.parse(target).getroot()
    boxes = list(drawing.iter("{http://www.w3.org/2000/svg}g"))
    assert len(boxes) == 7
