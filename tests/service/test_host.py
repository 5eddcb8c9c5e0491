"""The host: one open repository from one document."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import ManualClock, put_all, spec_at
from ullage.contract import CompactionSettings, ContentRepository, Duration, Metadata, PunchSettings, Quantity
from ullage.errors import NotARepository, RepositoryLocked
from ullage_agent.service.errors import ReloadRefused
from ullage_agent.service.host import Host, changed_fields


def document(path: Path, **sections: Any) -> ContentRepository:
    return ContentRepository(metadata=Metadata(name="flows"), spec=spec_at(path, **sections))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Open, over an empty repository."""
    made = Host(document(tmp_path / "r"), clock=ManualClock())
    made.start(makes=True)
    yield made
    made.stop()


def test_a_host_makes_its_repository_only_when_told_to(tmp_path: Path) -> None:
    """Without `makes` a missing repository is an error: an unmounted volume must not look like an empty one."""
    host = Host(document(tmp_path / "r"))

    with pytest.raises(NotARepository):
        host.start()
    host.start(makes=True)

    assert host.is_ready
    host.stop()


def test_a_stopped_host_leaves_next_to_nothing_to_replay_and_no_lock(tmp_path: Path) -> None:
    """ServiceStopping publishes a checkpoint and gives the lock back; only the seals of the close follow it."""
    host = Host(document(tmp_path / "r"))
    host.start(makes=True)
    put_all(host.repository.engine, "q", [b"x"] * 10)
    with pytest.raises(RepositoryLocked):
        Host(host.document).start()
    host.stop()

    again = Host(host.document)
    again.start()

    assert again.repository.engine.restored.clean
    assert again.repository.engine.restored.transactions <= 1
    assert again.repository.engine.queue("q").figures().flow_files == 10
    again.stop()


def test_a_reload_changes_what_can_change(host: Host, tmp_path: Path) -> None:
    """Settings that an open repository can take over are obeyed at once, and named."""
    sections: dict[str, Any] = {"leases": {"max_duration": Duration(5)}, "claims": {"max_flow_files": 7}}

    changed = host.reload(document(tmp_path / "r", **sections))

    assert changed == ("claims.maxFlowFiles", "leases.maxDuration")
    assert host.repository.engine.spec.leases.max_duration == 5
    assert host.repository.engine.content.limits.max_flow_files == 7


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"storage": {"sections": 7}}, "storage.sections"),
        ({"flow_file": {"partitions": 2}}, "flowFile.partitions"),
        ({"flow_file": {"swap_threshold": 30_000}}, "flowFile.swapThreshold"),
        ({"compaction": {"output_size": Quantity(1 << 20)}}, "compaction.outputSize"),
        ({"provenance": {"enabled": False}}, "provenance.enabled"),
        ({"service": {"http_port": 9_000}}, "service.httpPort"),
    ],
)
def test_a_reload_refuses_what_cannot_change(host: Host, tmp_path: Path, sections: dict[str, Any], field: str) -> None:
    """The field is named, and the settings beside it are not applied either."""
    with pytest.raises(ReloadRefused, match=field.replace(".", r"\.")):
        host.reload(document(tmp_path / "r", **sections, archive={"backpressure_percentage": 100, "enabled": False}))

    assert host.repository.engine.spec.archive.enabled


def test_a_reload_refuses_a_policy_that_there_is_not(host: Host, tmp_path: Path) -> None:
    """Nothing changes, and the message says why."""
    with pytest.raises(ReloadRefused, match="Nonesuch"):
        host.reload(document(tmp_path / "r", compaction={"policy": "Nonesuch"}))

    assert host.spec.compaction.policy == "StatsBased"


def test_changed_fields_are_named_as_in_the_document(tmp_path: Path) -> None:
    """Nested fields have dots, lists count as one field."""
    one = document(tmp_path)
    spec = msgspec.structs.replace(one.spec, compaction=CompactionSettings(punch=PunchSettings(enabled=False)))

    assert list(changed_fields(one, one)) == []
    assert list(changed_fields(one, ContentRepository(metadata=Metadata(name="other"), spec=spec))) == [
        "metadata",
        "compaction.punch.enabled",
    ]
