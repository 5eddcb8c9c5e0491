"""Which implementation keeps content, FlowFiles and provenance is chosen by name, when the repository is made."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.support import Workshop, content_sizes, drain, put_all
from ullage.engine import plugins
from ullage.errors import InvalidArgument, UnknownPlugin
from ullage.memory.content import MemoryContentStore
from ullage.wire.provenance import EventQuery

SETTINGS = ["content", "flow_file", "provenance"]


@pytest.mark.parametrize("section", SETTINGS)
def test_a_name_that_there_is_not_is_told_with_those_that_there_are(workshop: Workshop, section: str) -> None:
    """Before anything is made, so that the right name finds an empty place."""
    misspelt: Any = {section: {"repository": "memroy"}}
    with pytest.raises(UnknownPlugin, match=r"repository 'memroy': choose one of '', 'memory'"):
        workshop.make(**misspelt)

    put_all(workshop.make(), "q", [b"x"])


@pytest.mark.parametrize("section", SETTINGS)
def test_a_repository_keeps_what_it_was_made_with(workshop: Workshop, section: str) -> None:
    """Another implementation would find nothing of what the first one kept."""
    put_all(workshop.make(), "q", [b"x"])
    workshop.close()

    other: Any = {section: {"repository": "memory"}}
    with pytest.raises(InvalidArgument, match=r"\.repository is 'memory', .* was made with '': it cannot change"):
        workshop.open(**other)


@pytest.mark.parametrize("in_memory", [["content"], ["flow_file"], ["content", "provenance"], ["content", "flow_file"]])
def test_nothing_outlives_what_it_speaks_of(workshop: Workshop, in_memory: list[str]) -> None:
    """FlowFiles without content, events of FlowFiles that never were: such a choice is refused before anything is."""
    sections: Any = {section: {"repository": "memory"} for section in in_memory}
    with pytest.raises(InvalidArgument, match="content and FlowFiles go together"):
        workshop.make(**sections)

    put_all(workshop.make(), "q", [b"x"])


def test_another_package_s_are_found_by_their_entry_points(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names that it gave them, in the groups that the settings name."""
    places = {"content": "content:MemoryContentStore", "flowfile": "flowfile:MemoryFlowFileRepository"}
    places["provenance"] = "provenance:MemoryProvenanceRepository"
    entries = [
        EntryPoint("theirs", f"ullage.memory.{place}", f"ullage.{kind}_repositories") for kind, place in places.items()
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [each for each in entries if each.group == group])

    sections: Any = {section: {"repository": "theirs"} for section in SETTINGS}
    repository = workshop.make(**sections)
    put_all(repository, "q", [b"x"])

    assert isinstance(repository.content, MemoryContentStore)
    assert repository.identity.implementations == {
        f"{section}.repository": "theirs" for section in ("content", "flowFile", "provenance")
    }
    assert content_sizes(workshop.path) == {}


def test_all_of_it_in_memory_begins_anew_with_each_process(workshop: Workshop, tmp_path: Path) -> None:
    """Queues, sessions, checkpoints and reclamation work; a backup, which copies files, is refused."""
    sections: Any = {section: {"repository": "memory"} for section in SETTINGS}
    repository = workshop.make(**sections)
    put_all(repository, "q", [b"small", b"L" * 2_000_000])
    repository.checkpoint()
    assert drain(repository, "q", 1) == [b"small"]
    repository.reclamation.clean()
    events = repository.provenance.query(EventQuery()).events
    assert [event.type.name for event in events] == ["CREATE", "CREATE", "DROP"]
    with pytest.raises(InvalidArgument, match=r"spec\.content\.repository is 'memory', spec\.flowFile"):
        repository.backup(str(tmp_path / "backup"))
    assert content_sizes(workshop.path) == {}

    again = workshop.reopen()

    assert list(again.ledger.entries()) == []
    assert drain(again, "q") == []
    put_all(again, "q", [b"x"])
