"""`ullage erase` only looks, and says so."""

from pathlib import Path

from tests.cli.test_commands import root as root, spec_of, ullage, ullage_json
from ullage.engine.engine import Engine
from ullage.wire.erasure import ErasurePlace
from ullage_agent.cli.erase import WORDS

LOOK = ("erase", "--where", "customer=4711", "--dry-run")


def plant(root: Path) -> None:
    with Engine.open(spec_of(root)) as repository, repository.session() as session:
        session.ingest("in", [b"12345"], {"customer": "4711", "kind": "order"})
        session.ingest("in", [b"123"], {"customer": "4712", "kind": "order"})
        session.commit()


def test_what_there_is_of_a_subject_is_shown(root: Path) -> None:
    """With what it cost said before, on stderr, and at the end that nothing was erased."""
    plant(root)

    shown = ullage(*LOOK, "--and", "kind=order", root=root)
    document = ullage_json(*LOOK, root=root)

    assert "this reads 2 records (FlowFiles and handles) twice" in shown.stderr
    assert "FlowFiles in queues" in shown.stdout
    assert "Nothing was erased" in shown.stdout
    found = {each["place"]: (each["count"], each["bytes"]) for each in document["findings"]}
    assert (found["queued"], found["ownContent"], found["sharedContent"]) == ((1, 5), (1, 5), (0, 0))
    assert document["where"] == {"customer": "4711"}
    assert document["unread"] == []
    assert document["not_promised"]


def test_without_a_dry_run_nothing_is_pretended(root: Path) -> None:
    """The command says that it only looks so far, and does not even open the repository."""
    plant(root)
    with Engine.open(spec_of(root)):
        refused = ullage("erase", "--where", "customer=4711", root=root, expect=2)

        assert "only looks so far" in refused.stderr
        ullage(*LOOK, root=root, expect=3)


def test_two_values_of_one_attribute_are_refused(root: Path) -> None:
    """Nothing has both, and "nothing was found" would be believed. A subject that nothing has is no error."""
    plant(root)

    refused = ullage(*LOOK, "--and", "customer=4712", root=root, expect=2)

    assert "two values" in refused.stderr
    assert "nothing was found" in ullage(*LOOK, "--and", "kind=offer", root=root).stdout


def test_what_cannot_be_read_has_an_exit_code_of_its_own(root: Path) -> None:
    """Who counts on the answer must not take half of one for all."""
    plant(root)
    with Engine.open(spec_of(root)) as repository:
        repository.provenance.drain()
    (path,) = root.glob("provenance/events/*.parquet")
    path.write_bytes(b"\0" * path.stat().st_size)

    shown = ullage(*LOOK, root=root, expect=11)

    assert f"could not be read: {path}" in shown.stdout


def test_every_place_has_words() -> None:
    """A place without would end the command once something is found there."""
    assert set(WORDS) == set(ErasurePlace)
