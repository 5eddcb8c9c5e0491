"""`ullage erase` shows what there is of a subject, asks, and erases it."""

import json
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_commands import configure, root as root, spec_of, ullage, ullage_json
from tests.support import spec_at
from ullage.engine.engine import Engine
from ullage.engine.erasure.eraser import Eraser, ErasureSteps
from ullage.engine.erasure.finder import cost_of, look_for
from ullage.engine.erasure.overwriting import OverwritingFiles
from ullage.engine.files import OsFiles
from ullage.wire.erasure import ErasurePlace
from ullage_agent.cli.erase import NOTHING, WORDS

LOOK = ("erase", "--where", "customer=4711", "--dry-run")


LARGE = b"12345" * 20_000


def plant(root: Path, content: bytes = b"12345") -> None:
    with Engine.open(spec_of(root)) as repository, repository.session() as session:
        session.ingest("in", [content], {"customer": "4711", "kind": "order"})
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
    assert NOTHING in ullage(*ERASE, "--yes", root=root).stdout


def test_a_subject_of_which_nothing_is_found_is_registered(root: Path) -> None:
    """All of it is gone already, and a backup of before has it still: its restoration erases it."""
    backup, register, again = (root.with_name(name) for name in ("backup", "kept.register", "again"))
    plant(root)
    ullage("backup", "write", backup, root=root)
    ullage(*ERASE, "--yes", root=root)
    (root / "erasure" / "register").unlink()

    shown = ullage(*ERASE, "--yes", "--register", register, root=root)
    restored = ullage("restore", backup, again, "--register", register)

    assert "nothing was found" in shown.stdout
    assert "erased, as the register says: a subject by customer, 1 FlowFile" in restored.stderr


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
    path = root.with_name("certificate.json")
    (root / "erasure").mkdir()
    (root / "erasure" / "key").write_bytes(b"no key")

    assert "is no key" in ullage(*ERASE, "--yes", "--certificate", path, root=root, expect=2).stderr
    (root / "erasure" / "key").unlink()
    ullage(*ERASE, "--yes", "--certificate", path, root=root)

    assert json.loads(path.read_bytes())["uuids"] == 1
    assert "nothing to give up" in ullage("erase", "--give-up", root=root).stdout


@pytest.mark.parametrize("kept", ["certificate", "register"])
def test_where_what_tells_of_it_cannot_be_nothing_is_erased(root: Path, kept: str) -> None:
    """A directory that is missing is noticed before; and of what others have beside it nothing is removed."""
    plant(root)
    path = root.with_name(f"{kept}.json")
    beside = root.with_name(f"{kept}.json.partial")
    beside.write_text("mine")

    refused = ullage(*ERASE, "--yes", f"--{kept}", root.with_name("away") / "c", root=root, expect=2)
    assert "is no directory" in refused.stderr
    assert "--dry-run" in ullage(*LOOK, f"--{kept}", path, root=root, expect=2).stderr
    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout
    ullage(*ERASE, "--yes", f"--{kept}", path, root=root)

    assert beside.read_text() == "mine"
    assert sorted(each.name for each in root.parent.glob(f"*{kept}*")) == [path.name, beside.name]
    assert not list(root.parent.glob(".ullage*"))


def hold(root: Path) -> None:
    """A lease keeps all that there is for an hour."""
    with Engine.open(spec_of(root)) as repository:
        repository.leases.acquire("reader", 3_600_000, [])


def let_go(root: Path) -> None:
    """No lease is left."""
    with Engine.open(spec_of(root)) as repository:
        for each in list(repository.ledger.leases.values()):
            repository.leases.release(each.id)


def test_the_certificate_of_one_that_did_not_come_to_its_end_is_replaced(root: Path) -> None:
    """By the same erasure only, whose command is the same; until then it says what remains."""
    plant(root)
    hold(root)
    path = root.with_name("certificate.json")
    call = (*ERASE, "--yes", "--certificate", path)

    ullage(*call, root=root, expect=11)
    verified = ullage("erase", "--verify", path, root=root, expect=11)
    assert "remains: 5 bytes in content file" in verified.stdout
    assert "--where customer=4711" in verified.stdout
    assert ullage_json("erase", "--verify", path, root=root, expect=11)["remains"]
    ullage(*call, root=root, expect=11)
    let_go(root)
    ullage(*call, root=root)

    assert json.loads(path.read_bytes())["is_finished"]
    assert "unchanged" in ullage("erase", "--verify", path, root=root).stdout
    plant(root)
    assert "is there already" in ullage(*call, root=root, expect=2).stderr


def test_a_certificate_of_an_erasure_that_was_killed_at_its_end_is_replaced(root: Path) -> None:
    """Between the certificate and the removal of the intent: the same command goes on."""
    plant(root)
    path = root.with_name("certificate.json")
    hold(root)
    ullage(*ERASE, "--yes", "--certificate", path, root=root, expect=11)
    intent = (root / "erasure" / "intent").read_bytes()
    let_go(root)
    ullage(*ERASE, "--yes", "--certificate", path, root=root)
    (root / "erasure" / "intent").write_bytes(intent)

    assert "is not finished" in ullage("erase", "--verify", path, root=root, expect=11).stdout
    ullage(*ERASE, "--yes", "--certificate", path, root=root)

    ullage("erase", "--verify", path, root=root)


def test_a_certificate_in_which_a_name_is_said_twice_is_refused(root: Path) -> None:
    """One reader believes the first value, another one the last: only what was written is what was signed."""
    path = certify(root)
    text = path.read_text()
    path.write_text(text.replace("{", '{"remains": ["nothing of this is true"],', 1))

    assert "was changed" in ullage("erase", "--verify", path, root=root, expect=1).stderr


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


def test_one_that_overwrites_goes_on_so(root: Path) -> None:
    """Whoever says the command again need not say that again; the certificate says what that can't promise."""
    plant(root)
    with closing(OverwritingFiles(OsFiles())) as files, Engine.open(spec_of(root), files) as repository:
        eraser = Eraser(repository, ErasureSteps(lambda _words: None, lambda _count: None), files)
        eraser.begin(look_for(repository, {"customer": "4711"}, cost_of(repository), lambda _count: None))

    resumed = ullage_json(*ERASE, "--yes", root=root)
    plant(root)
    plain = ullage_json(*ERASE, "--yes", root=root)
    plant(root)
    certificate = root.with_name("certificate")
    ullage(*ERASE, "--yes", "--overwrite", "--certificate", certificate, root=root)

    assert (resumed["overwritten_bytes"] is None, plain["overwritten_bytes"]) == (False, None)
    certified = json.loads(certificate.read_bytes())
    assert certified["overwritten_bytes"] is not None
    for each, is_resumed in ((resumed, True), (certified, False)):
        told = " ".join(each["not_promised"])
        assert "bytes were overwritten with zeros" in told
        assert ("was interrupted and went on" in told) == is_resumed


def test_one_that_was_begun_can_be_given_up(root: Path) -> None:
    """What is not gone stays. Where none was begun nothing happens."""
    plant(root)
    begin(root)

    assert "is forgotten" in ullage("erase", "--give-up", root=root).stdout
    assert "nothing to give up" in ullage("erase", "--give-up", root=root).stdout
    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout
    ullage("erase", "--give-up", "--dry-run", root=root, expect=2)
    ullage("erase", "--yes", root=root, expect=2)


def test_one_that_has_removed_something_is_given_up_only_on_purpose(root: Path) -> None:
    """Its content is there, and once the intent is away no other erasure finds it."""
    plant(root)
    hold(root)
    ullage(*ERASE, "--yes", root=root, expect=11)

    refused = ullage("erase", "--give-up", root=root, expect=2)
    assert "5 bytes in content file" in refused.stderr
    assert "ullage erase --where customer=4711" in refused.stderr
    given_up = ullage("erase", "--give-up", "--yes", root=root, expect=11)

    assert "remains, and is found by no erasure any more: 5 bytes in content file" in given_up.stdout
    assert "nothing to give up" in ullage("erase", "--give-up", root=root).stdout


def test_a_damaged_intent_is_given_up_only_on_purpose(root: Path) -> None:
    """Nobody knows what it was about; the way that is told works, and takes with it what nobody needs."""
    plant(root, LARGE)
    hold(root)
    ullage(*ERASE, "--yes", root=root, expect=11)
    let_go(root)
    (root / "erasure" / "intent").write_bytes(b"\0" * 40)

    for arguments in (("erase", "--give-up"), (*ERASE, "--yes")):
        assert "--give-up --yes" in ullage(*arguments, root=root, expect=4).stderr
    ullage("erase", "--give-up", "--yes", root=root, expect=11)

    assert NOTHING in ullage(*ERASE, "--yes", root=root).stdout
    ullage("reclaim", "--policy", "CompactAll", "--archive", root=root)
    assert not [each for each in root.rglob("*") if each.is_file() and LARGE in each.read_bytes()]


def test_one_that_is_not_finished_is_told_by_those_who_look(root: Path) -> None:
    """A check and the status of files say with which command it goes on; it is no contradiction."""
    plant(root)
    for call in (("check",), ("check", "--deep"), ("status",)):
        assert "erasure" not in ullage(*call, root=root).stdout
        assert "unfinishedErasure" not in ullage_json(*call, root=root)
    begin(root)

    for call in (("check",), ("check", "--deep"), ("status",)):
        assert "ullage erase --where customer=4711" in ullage(*call, root=root).stdout
        assert "ullage erase --where customer=4711" in ullage_json(*call, root=root)["unfinishedErasure"]
    (root / "erasure" / "intent").write_bytes(b"\0" * 40)
    assert "is damaged" in ullage("check", root=root).stdout


def test_what_could_not_be_done_has_an_exit_code_of_its_own(root: Path) -> None:
    """The erasure is still begun: repaired, it goes on."""
    plant(root)
    with Engine.open(spec_of(root)) as repository:
        repository.leases.acquire("reader", 60_000, [])

    shown = ullage(*ERASE, "--yes", root=root, expect=11)

    assert "remains: 5 bytes in content file" in shown.stdout
    assert "is not finished" in shown.stdout
    assert "--give-up" in ullage(*LOOK, root=root).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "customer=4711", "--where", "kind=order"], "--and"),
        (["--where", "customer=4711", "--and", "customer=4712"], "said twice"),
        (["--where", "customer=4711", "--and", "customer=4711"], "said twice"),
        (["--where", "customer="], "empty value"),
        (["--where", "customer=4711", "--and", "kind="], "empty value"),
        (["--where", os.fsdecode(b"customer=\xff")], "no Unicode text"),
        (["--and", "customer=4711"], "say whom"),
    ],
)
def test_a_subject_that_is_not_plain_is_refused(root: Path, arguments: list[str], said: str) -> None:
    """Else more would go than was meant, or "nothing was found" would be believed."""
    plant(root)

    assert said in ullage("erase", *arguments, "--yes", root=root, expect=2).stderr

    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout


def test_a_subject_that_nothing_has_is_no_error(root: Path) -> None:
    """Nothing is found, and nothing erased."""
    plant(root)

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
    assert b"\xa44711" not in register.read_bytes()  # as MessagePack has the text: alone it may be part of a uuid

    restored = ullage("restore", backup, again, "--register", register)
    document = ullage_json("restore", backup, root.with_name("third"), "--register", register)

    assert "erased, as the register says: a subject by customer, 1 FlowFile" in restored.stderr
    assert [(each["attributes"], each["uuids"]) for each in document["erased"]] == [(["customer"], 1)]
    with Engine.open(spec_at(again)) as repository:
        assert [each.attribute_map()["customer"] for each in repository.ledger.flow_files()] == ["4712"]


def test_a_restoration_says_what_it_left_out(root: Path) -> None:
    """A backup may have it: a restoration erases it, or leaves it out and says how much. The certificate says so."""
    plant(root)
    other, backup, register, certificate = map(root.with_name, ("other", "backup", "kept.register", "certificate"))
    ullage("backup", backup, root=root)
    ullage("init", "--config", configure(other))

    shown = ullage(*ERASE, "--yes", "--register", register, "--certificate", certificate, root=other)
    restored = ullage_json("restore", backup, root.with_name("again"), "--register", register)
    some = ullage("restore", backup, root.with_name("some"), "--queue", "in", "--register", register)
    document = ullage_json("restore", backup, root.with_name("third"), "--queue", "in", "--register", register)

    assert NOTHING in shown.stdout
    assert not any(each["count"] for each in json.loads(certificate.read_bytes())["found"])
    assert "nothing was found of the subject then" in ullage("erase", "--verify", certificate, root=other).stdout
    assert [each["uuids"] for each in restored["erased"]] == [1]
    assert "left out, as a register says that they were erased: 1 FlowFile" in some.stderr
    assert (document["erased"], document["queues"]) == (1, {"in": 1})


def test_before_a_subject_is_registered_of_which_nothing_is_found_it_asks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A register never shrinks, and a value is soon mistyped."""
    monkeypatch.setattr("ullage_agent.cli.erase._is_terminal", lambda: True)

    shown = ullage(*ERASE, root=root, stdin=b"n")

    assert "Register the subject" in shown.output
    assert not (root / "erasure").exists()


def test_a_register_is_not_written_over_something_else(root: Path) -> None:
    """Nothing is erased, either."""
    plant(root)
    path = root.with_name("notes.txt")
    path.write_text("mine")

    assert "no register" in ullage(*ERASE, "--yes", "--register", path, root=root, expect=2).stderr

    assert path.read_text() == "mine"
    assert "FlowFiles in queues" in ullage(*LOOK, root=root).stdout
