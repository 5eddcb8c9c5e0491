"""`ullage erase` shows what there is of a subject, asks, and erases it."""

import json
import stat
from pathlib import Path

import pytest

from tests.cli.test_commands import RUNNER, root as root, spec_of, ullage, ullage_json
from tests.support import spec_at
from ullage.engine.engine import Engine
from ullage.engine.erasure.eraser import Eraser, ErasureSteps
from ullage.engine.erasure.finder import cost_of, look_for
from ullage.wire.erasure import ErasurePlace
from ullage_agent.cli.app import app
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


ERASE = ("erase", "--where", "customer=4711")


def test_a_subject_is_erased(root: Path) -> None:
    """What there was is shown first, then what was done; what is somebody else's stays."""
    plant(root)

    shown = ullage(*ERASE, "--yes", root=root)

    assert "FlowFiles in queues" in shown.stdout
    assert "erased: 1 FlowFile" in shown.stdout
    assert "removing records" in shown.stderr
    assert "may hold further copies" not in shown.stdout.split("erased: ")[1]
    with Engine.open(spec_of(root)) as repository:
        assert [each.attribute_map()["customer"] for each in repository.ledger.flow_files()] == ["4712"]
    assert "nothing was found" in ullage(*LOOK, root=root).stdout
    assert "nothing was erased" in ullage(*ERASE, "--yes", root=root).stderr


def test_what_was_done_is_a_document(root: Path) -> None:
    """For scripts; the shape is that of `ErasureReport`."""
    plant(root)

    document = ullage_json(*ERASE, "--yes", root=root)

    assert (document["where"], document["uuids"], document["remains"]) == ({"customer": "4711"}, 1, [])
    assert document["is_finished"]
    assert document["not_promised"]


@pytest.mark.parametrize("is_json", [True, False])
def test_who_cannot_be_asked_says_yes(root: Path, is_json: bool) -> None:
    """Without a terminal nothing goes, and the repository is not even opened."""
    plant(root)
    with Engine.open(spec_of(root)):
        refused = ullage(*ERASE, *["--json"] * is_json, root=root, expect=2)

    assert "--yes" in refused.stderr
    assert "1" in ullage(*LOOK, root=root).stdout


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks(root: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has shown what there is."""
    plant(root)
    monkeypatch.setattr("ullage_agent.cli.erase._is_terminal", lambda: True)

    shown = ullage(*ERASE, root=root, stdin=answer.encode())

    assert "Erase all of this for good?" in shown.output
    assert ("erased: 1 FlowFile" in shown.stdout) == (answer == "y")
    assert ("nothing was found" in ullage(*LOOK, root=root).stdout) == (answer == "y")


def certify(root: Path) -> Path:
    """The certificate of an erasure."""
    plant(root)
    path = root.with_name("certificate.json")
    ullage(*ERASE, "--yes", "--certificate", path, root=root)
    return path


def test_a_certificate_says_what_was_done_and_not_to_whom(root: Path) -> None:
    """It is signed with the repository's key, which only its owner may read."""
    path = certify(root)

    certificate = json.loads(path.read_bytes())

    assert "4711" not in {value for value in certificate.values() if isinstance(value, str)}
    assert certificate["attributes"] == ["customer"]
    assert (certificate["uuids"], certificate["remains"], certificate["is_finished"]) == (1, [], True)
    assert 0 < certificate["first_transaction"] < certificate["last_transaction"]
    assert {"place": "queued", "count": 1, "bytes": 5} in certificate["found"]
    assert ullage("erase", "--public-key", root=root).stdout.strip() == certificate["public_key"]
    assert stat.S_IMODE((root / "erasure" / "key").stat().st_mode) == 0o600
    assert [each.name for each in path.parent.glob("certificate*")] == [path.name]


def test_a_certificate_is_verified_by_looking_again(root: Path) -> None:
    """Without anybody saying the value; what has come since then is found."""
    path = certify(root)

    assert "unchanged" in ullage("erase", "--verify", path, root=root).stdout
    plant(root)

    shown = ullage("erase", "--verify", path, root=root, expect=1)
    assert "FlowFiles in queues" in shown.stdout
    found = {
        each["place"]: each["count"] for each in ullage_json("erase", "--verify", path, root=root, expect=1)["findings"]
    }
    assert (found["queued"], found["eventsAfter"]) == (1, 1)


@pytest.mark.parametrize("change", [{"uuids": 0}, {"remains": ["x"]}, {"public_key": "00" * 32}, {"signature": "zz"}])
def test_a_certificate_that_was_changed_is_refused(root: Path, change: dict[str, object]) -> None:
    """Whatever was changed; also if it was signed anew with another key."""
    path = certify(root)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))

    assert "was changed" in ullage("erase", "--verify", path, root=root, expect=1).stderr


def test_a_certificate_replaces_nothing(root: Path) -> None:
    """Nothing is erased, either; and what is no certificate is no problem of the repository."""
    plant(root)
    path = root.with_name("certificate.json")
    path.write_text("mine")

    assert "is there already" in ullage(*ERASE, "--yes", "--certificate", path, root=root, expect=2).stderr
    assert "certified no erasure" in ullage("erase", "--public-key", root=root, expect=2).stderr
    assert "is no certificate" in ullage("erase", "--verify", path, root=root, expect=2).stderr
    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout


def test_a_certificate_that_cannot_be_written_is_written_by_the_next_call(root: Path) -> None:
    """The erasure stays begun until it is: afterwards nobody would know what there was."""
    plant(root)
    away = root.with_name("away") / "certificate.json"

    failed = RUNNER.invoke(
        app, [*ERASE, "--yes", "--certificate", str(away), "--config", str(root.with_suffix(".yaml"))]
    )
    assert failed.exit_code != 0
    away.parent.mkdir()
    ullage(*ERASE, "--yes", "--certificate", away, root=root)

    assert json.loads(away.read_bytes())["uuids"] == 1
    assert "nothing to give up" in ullage("erase", "--give-up", root=root).stdout


def begin(root: Path) -> None:
    """An erasure that was interrupted as soon as it was promised."""
    with Engine.open(spec_of(root)) as repository:
        eraser = Eraser(repository, ErasureSteps(lambda _words: None, lambda _count: None))
        eraser.begin(look_for(repository, {"customer": "4711"}, cost_of(repository), lambda _count: None))


def test_one_that_was_begun_is_finished(root: Path) -> None:
    """By the same command, whatever else was asked first; no question is asked twice."""
    plant(root)
    begin(root)

    assert "--where customer=4711" in ullage(*LOOK, root=root).stdout
    refused = ullage("erase", "--where", "customer=4712", "--yes", root=root, expect=2)
    assert "--where customer=4711" in refused.stderr

    assert "erased: 1 FlowFile" in ullage(*ERASE, "--yes", root=root).stdout


def test_one_that_was_begun_can_be_given_up(root: Path) -> None:
    """What is not gone stays. Where none was begun nothing happens."""
    plant(root)
    begin(root)

    assert "is forgotten" in ullage("erase", "--give-up", root=root).stdout
    assert "nothing to give up" in ullage("erase", "--give-up", root=root).stdout
    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout
    ullage("erase", "--give-up", "--yes", root=root, expect=2)
    ullage("erase", "--yes", root=root, expect=2)


def test_what_could_not_be_done_has_an_exit_code_of_its_own(root: Path) -> None:
    """The erasure is still begun: repaired, it goes on."""
    plant(root)
    with Engine.open(spec_of(root)) as repository:
        repository.leases.acquire("reader", 60_000, [])

    shown = ullage(*ERASE, "--yes", root=root, expect=11)

    assert "remains: 5 bytes in content file" in shown.stdout
    assert "is not finished" in shown.stdout
    assert "--give-up" in ullage(*LOOK, root=root).stdout


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


def test_what_was_erased_is_erased_from_what_is_restored(root: Path) -> None:
    """A register that is kept elsewhere names whom, without saying who; each restoration tells of it."""
    plant(root)
    backup, register, again = (root.with_name(name) for name in ("backup", "kept.register", "again"))
    ullage("backup", backup, root=root)
    shown = ullage(*ERASE, "--yes", "--register", register, root=root)
    assert f"register kept in {register}" in shown.stderr
    assert b"4711" not in register.read_bytes()

    restored = ullage("restore", backup, again, "--register", register)
    document = ullage_json("restore", backup, root.with_name("third"), "--register", register)

    assert "erased, as the register says: a subject by customer, 1 FlowFile" in restored.stderr
    assert [(each["attributes"], each["uuids"]) for each in document["erased"]] == [(["customer"], 1)]
    with Engine.open(spec_at(again)) as repository:
        assert [each.attribute_map()["customer"] for each in repository.ledger.flow_files()] == ["4712"]


def test_a_register_is_not_written_over_something_else(root: Path) -> None:
    """Nothing is erased, either."""
    plant(root)
    path = root.with_name("notes.txt")
    path.write_text("mine")

    assert "no register" in ullage(*ERASE, "--yes", "--register", path, root=root, expect=2).stderr

    assert path.read_text() == "mine"
    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout
